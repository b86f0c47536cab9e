//! What the order of tasks forbids: broken graphs, rules without dependencies, rules that never fire.

use stead_model::plan::{OnError, OnlyIfChanged, TaskIndex, TriggerRule};
use stead_model::{Diagnostic, Task, TaskName};

use super::Checker;
use crate::graph::GraphProblem;

impl<'a> Checker<'a> {
    pub(super) fn graph_problems(&mut self, problems: &[GraphProblem]) {
        let tasks = &self.plan.tasks;
        // Where in its `depends_on` a task names another, or the `for_each` task that is an instance of.
        let path = |task: TaskIndex, name: &TaskName| {
            let names = &tasks[task.get()].depends_on;
            let exactly = names.iter().position(|written| written == name);
            let at = exactly.or_else(|| names.iter().position(|written| written.as_str() == name.base()));
            at.map_or_else(|| "depends_on".to_owned(), |at| format!("depends_on.{at}"))
        };
        for problem in problems {
            let message = problem.message(tasks);
            match problem {
                GraphProblem::DuplicateName { first, again } => {
                    let place = (self.locate)(*again, "name");
                    let related = (self.locate)(*first, "name");
                    let diagnostic = Diagnostic::error("plan/duplicate-task", place, message)
                        .help("names are unique over `tasks` and `finally`: rename one")
                        .related(related, "the first one");
                    self.push(*again, "name", diagnostic);
                }
                GraphProblem::UnknownDependency { task, name } => {
                    let help = self.suggest_task(*task, name.as_str());
                    self.error(*task, &path(*task, name), "plan/unknown-dependency", message, help);
                }
                GraphProblem::SelfEdge { task } => {
                    let path = path(*task, &tasks[task.get()].name);
                    self.error(*task, &path, "plan/cycle", message, "take it out of its own `depends_on`");
                }
                GraphProblem::Cycle { path: cycle } => {
                    let help = "`a -> b` means that b depends on a: take one of these dependencies away";
                    // Each member depends on the one before it, the first on the last.
                    let before = cycle.iter().cycle().skip(cycle.len() - 1);
                    let mut places = cycle.iter().zip(before).map(|(member, before)| {
                        let path = path(*member, &tasks[before.get()].name);
                        let label = format!(
                            "`{}` depends on `{}`",
                            tasks[member.get()].name,
                            tasks[before.get()].name
                        );
                        ((self.locate)(*member, &path), label)
                    });
                    let Some((place, _)) = places.next() else { continue };
                    let mut diagnostic = Diagnostic::error("plan/cycle", place, message).help(help);
                    for (place, label) in places.take(20) {
                        diagnostic = diagnostic.related(place, label);
                    }
                    self.push(problem.task(), "depends_on", diagnostic);
                }
                GraphProblem::AcrossSections { task, dependency } => {
                    let help = "`finally` tasks run after all others and depend only on each other";
                    let path = path(*task, &tasks[dependency.get()].name);
                    self.error(*task, &path, "plan/bad-value", message, help);
                }
            }
        }
    }

    /// Refuses what only means something with dependencies.
    pub(super) fn dependencies(&mut self, index: TaskIndex, task: &'a Task) {
        if !task.depends_on.is_empty() {
            return;
        }
        let help = "add `depends_on`, or take it away";
        if task.settings.only_if_changed != OnlyIfChanged::No {
            let message = format!("task `{}` has `only_if_changed` but depends on nothing", task.name.base());
            self.error(index, "only_if_changed", "plan/needs-dependency", message, help);
        }
        if task.settings.trigger_rule.needs_dependencies() {
            let rule = task.settings.trigger_rule;
            let message =
                format!("task `{}` has `trigger_rule: {rule}` but depends on nothing", task.name.base());
            self.error(index, "trigger_rule", "plan/needs-dependency", message, help);
        }
    }

    /// Warns of tasks that wait for a failure which stops the run before they can start.
    pub(super) fn rules_that_never_fire(&mut self) {
        let Some(graph) = self.graph else { return };
        let waits_for_failure = |task: &Task| match task.settings.trigger_rule {
            TriggerRule::AnyFailed | TriggerRule::AllFailed => true,
            TriggerRule::AllOk | TriggerRule::AllRan | TriggerRule::AnyOk | TriggerRule::AllDone => false,
        };
        if !self.plan.tasks.iter().any(waits_for_failure) {
            return;
        }
        // Whether a task can be broken while the run goes on: it continues on error, or something before it does.
        let mut can_break = vec![false; graph.len()];
        let mut order: Vec<TaskIndex> = self.plan.indexed().map(|(index, _)| index).collect();
        order.sort_by_key(|index| graph.levels()[index.get()]);
        for index in order {
            let continues = self.plan.task(index).settings.on_error == OnError::Continue;
            can_break[index.get()] =
                continues || graph.dependencies(index).iter().any(|before| can_break[before.get()]);
        }
        for (index, task) in self.plan.indexed().filter(|(_, task)| waits_for_failure(task)) {
            let before = graph.dependencies(index);
            let fires = match task.settings.trigger_rule {
                TriggerRule::AllFailed => before.iter().all(|before| can_break[before.get()]),
                TriggerRule::AnyFailed
                | TriggerRule::AllOk
                | TriggerRule::AllRan
                | TriggerRule::AnyOk
                | TriggerRule::AllDone => before.iter().any(|before| can_break[before.get()]),
            };
            if !fires && !before.is_empty() {
                let rule = task.settings.trigger_rule;
                let message = format!(
                    "task `{}` never runs: a failure it waits for (`{rule}`) stops the run first",
                    task.name.base()
                );
                let help = "set `on_error: continue` on what it depends on, or move it to `finally`";
                self.warning(index, "trigger_rule", "plan/never-runs", message, help);
            }
        }
    }
}
