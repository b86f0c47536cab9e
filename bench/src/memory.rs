//! What a task costs in memory: how far the process grows from before the plan is built to the highest point.

use crate::Effort;
use crate::sample::{Case, Walker};
use crate::shape::Shape;
use crate::table::{Table, bytes};

/// The most a task may cost.
const LIMIT: f64 = 1024.0;

/// The lines about memory.
pub(crate) fn measure(effort: Effort, table: &mut Table) {
    for (walker, how) in [(Walker::Runner, "no journal"), (Walker::Recorded, "journal")] {
        for shape in [Shape::Wide, Shape::Chain] {
            for (tasks, many) in [(10_000, "10,000"), (100_000, "100,000")] {
                let sample = Case { walker, shape, tasks }.median(effort.samples());
                let growth = sample.growth as f64 / tasks as f64;
                let what = format!("memory per task, {many} {}, {how}", shape.name());
                table.at_most(&what, bytes(growth), growth, bytes(LIMIT), LIMIT);
            }
        }
    }
}
