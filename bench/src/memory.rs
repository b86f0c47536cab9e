//! What a task costs in memory: how far the process grows from before the plan is built to the highest point, less how
//! far it grows for a plan of one task. What threads, code and the runtime need is no task's cost.

use crate::Effort;
use crate::sample::{Case, Walker};
use crate::shape::Shape;
use crate::table::{Table, bytes};

/// The most a task may cost.
const LIMIT: f64 = 1024.0;

/// The lines about memory.
pub(crate) fn measure(effort: Effort, table: &mut Table) {
    for (walker, how) in [(Walker::Runner, "no journal"), (Walker::Recorded, "journal")] {
        let fixed = Case { walker, shape: Shape::Chain, tasks: 1 }.median(effort.samples()).growth;
        for shape in [Shape::Wide, Shape::Chain] {
            for (tasks, many) in [(10_000, "10,000"), (100_000, "100,000")] {
                let sample = Case { walker, shape, tasks }.median(effort.samples());
                let growth = sample.growth.saturating_sub(fixed) as f64 / (tasks - 1) as f64;
                let what = format!("memory per task, {many} {}, {how}", shape.name());
                table.at_most(&what, bytes(growth), growth, bytes(LIMIT), LIMIT);
            }
        }
    }
}
