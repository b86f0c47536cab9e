//! Whether a task costs more in a larger plan.

use crate::Effort;
use crate::sample::{Case, Walker};
use crate::shape::Shape;
use crate::table::{Table, micros};

/// The most the last size may cost, of the first.
const LIMIT: f64 = 2.0;

/// The lines about growth.
pub(crate) fn measure(effort: Effort, table: &mut Table) {
    let sizes: &[(usize, &str)] = match effort {
        Effort::Quick => &[(1_000, "1k"), (10_000, "10k"), (100_000, "100k")],
        Effort::Full => &[(1_000, "1k"), (10_000, "10k"), (100_000, "100k"), (1_000_000, "1M")],
    };
    for (walker, how) in [
        (Walker::Engine, "engine"),
        (Walker::Runner, "runner, no journal"),
        (Walker::Recorded, "runner, journal"),
    ] {
        let costs: Vec<f64> = sizes
            .iter()
            .map(|(tasks, _)| {
                let samples = if *tasks < 1_000_000 { effort.samples() } else { 3 };
                Case { walker, shape: Shape::Layered, tasks: *tasks }.median(samples).per_task(*tasks)
            })
            .collect();
        for (cost, (_, many)) in costs.iter().zip(sizes) {
            table.note(&format!("per task, {how}, {many} layered"), micros(*cost));
        }
        let (first, last) = (costs[0], costs[costs.len() - 1]);
        let names = (sizes[0].1, sizes[sizes.len() - 1].1);
        let what = format!("growth, {how}, {} over {}", names.1, names.0);
        table.at_most(&what, format!("{:.2} ×", last / first), last / first, format!("{LIMIT} ×"), LIMIT);
    }
}
