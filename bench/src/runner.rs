//! The runner with closures that do nothing: what a task costs beyond its own work.

use std::time::Duration;

use stead_model::RunStatus;
use stead_runner::author::Plan;
use stead_runner::operation::Registry;
use stead_runner::{Done, Runner};

use crate::Effort;
use crate::sample::{Case, Walker, time_both};
use crate::shape::{Shape, task_name};
use crate::table::{Table, micros};

/// The lines about the runner.
pub(crate) fn measure(effort: Effort, table: &mut Table) {
    let tasks = 100_000;
    for (walker, how, limit) in [(Walker::Runner, "no journal", 5e-6), (Walker::Recorded, "journal", 20e-6)] {
        for shape in Shape::ALL {
            let sample = Case { walker, shape, tasks }.median(effort.samples());
            let (cost, cpu) = (sample.per_task(tasks), sample.cpu_per_task(tasks));
            let what = format!("runner, no-op closures, {how}, {}", shape.name());
            let shown = format!("{} (processor {})", micros(cost), micros(cpu));
            table.at_most(&what, shown, cost, micros(limit), limit);
        }
    }
    for shape in Shape::ALL {
        let ours = Case { walker: Walker::Runner, shape, tasks }.median(effort.samples()).per_task(tasks);
        let theirs = Case { walker: Walker::Baseline, shape, tasks }.median(effort.samples()).per_task(tasks);
        let what = format!("runner against a bare tokio walker, {}", shape.name());
        table.peer(&what, micros(ours), ours, micros(theirs), theirs);
    }
}

/// Runs a plan of closures that do nothing and returns how long the run took, report and recording included.
pub(crate) fn walk(shape: Shape, tasks: usize, recorded: bool) -> (Duration, Duration) {
    let mut plan = Plan::builder("bench");
    let mut handles = Vec::with_capacity(tasks);
    for (task, before) in shape.edges(tasks).into_iter().enumerate() {
        let before: Vec<_> = before.into_iter().map(|task| handles[task]).collect();
        let closure = |_| async { Ok(Done::unchanged(())) };
        handles.push(plan.func(&task_name(task), closure).after(before).handle());
    }
    drop(handles);
    let plan = plan.build().expect("the plan is right");
    let directory = tempfile::tempdir().expect("a temporary directory");
    let mut runner = Runner::new(Registry::new());
    if recorded {
        runner = runner.record_in(directory.path());
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    time_both(|| {
        let report = runtime.block_on(runner.run(plan));
        assert_eq!(report.status, RunStatus::Success, "{:?}", report.errors);
        assert_eq!(report.tasks.len(), tasks);
    })
}
