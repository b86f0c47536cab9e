//! The functions over tasks: `changed('a')`, `any_host_failed()` and their like.
//!
//! An argument names a task, or all instances of a `for_each`; without one the direct dependencies are meant. In a dry
//! run an end that is not known leaves the answer open unless another end settles it.

use std::sync::Arc;

use minijinja::value::{Object, ObjectRepr, Value as Inner};
use minijinja::{Error, ErrorKind, State};
use stead_model::Status;
use stead_model::plan::TaskIndex;
use stead_model::status::Class;

use super::results::{Finished, Row};
use super::scope::View;

/// What is asked.
#[derive(Clone, Copy, Debug)]
pub(super) enum Question {
    /// Is one of the tasks so?
    Task(fn(&Row) -> bool),
    /// Is one of their hosts so? Tasks without host rows do not count.
    AnyHost(fn(&Row) -> bool),
    /// Are all of their hosts so? A task without host rows is not.
    AllHosts(fn(&Row) -> bool),
}

/// Every function with what it asks.
pub(super) const TASK_FUNCTIONS: &[(&str, Question)] = &[
    ("changed", Question::Task(is_changed)),
    ("failed", Question::Task(is_failed)),
    ("skipped", Question::Task(is_skipped)),
    ("broken", Question::Task(|row| row.ending() == Class::Broken)),
    ("any_host_failed", Question::AnyHost(is_failed)),
    ("all_hosts_failed", Question::AllHosts(is_failed)),
    ("any_host_skipped", Question::AnyHost(is_skipped)),
    ("any_host_changed", Question::AnyHost(is_changed)),
    ("all_hosts_changed", Question::AllHosts(is_changed)),
];

fn is_changed(row: &Row) -> bool {
    row.changed
}

fn is_failed(row: &Row) -> bool {
    row.status == Status::Failed
}

fn is_skipped(row: &Row) -> bool {
    row.status == Status::Skipped
}

/// One of the functions, ready to be called.
#[derive(Debug)]
pub(super) struct TaskFunction {
    pub(super) function: Question,
    pub(super) view: View,
}

impl Object for TaskFunction {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn call(self: &Arc<Self>, _state: &mut State<'_, '_>, arguments: &[Inner]) -> Result<Inner, Error> {
        let tasks = match arguments {
            [] => self.view.direct().to_vec(),
            [name] => self.named(name)?,
            _ => {
                return Err(Error::new(
                    ErrorKind::TooManyArguments,
                    "one task name, or nothing, is expected",
                ));
            }
        };
        let ends: Vec<(TaskIndex, Arc<Finished>)> =
            tasks.iter().filter_map(|task| Some((*task, self.view.results.get(*task)?))).collect();
        match answer(self.function, ends.iter().map(|(_, finished)| &**finished)) {
            Some(answer) => Ok(answer.into()),
            None => {
                let unknown = ends.iter().find(|(_, finished)| has_unknown(finished)).or(ends.first());
                if let Some((task, _)) = unknown {
                    self.view.touch(*task);
                }
                Ok(false.into())
            }
        }
    }
}

impl TaskFunction {
    fn named(&self, name: &Inner) -> Result<Vec<TaskIndex>, Error> {
        let Some(name) = name.as_str() else {
            return Err(Error::new(ErrorKind::InvalidOperation, "a task name is expected, as text"));
        };
        let tasks = self.view.results.graph().matching(name);
        if tasks.is_empty() {
            return Err(Error::new(ErrorKind::InvalidOperation, format!("there is no task `{name}`")));
        }
        match tasks.iter().find(|task| !self.view.may_read(**task)) {
            Some(_) => Err(self.view.not_upstream(name)),
            None => Ok(tasks),
        }
    }
}

fn has_unknown(finished: &Finished) -> bool {
    finished.row.status == Status::Unknown
        || finished.hosts.iter().any(|(_, row)| row.status == Status::Unknown)
}

/// Returns the answer over `ends`, or nothing if it hangs on an end that is not known.
fn answer<'a>(question: Question, ends: impl Iterator<Item = &'a Finished>) -> Option<bool> {
    let mut open = false;
    match question {
        Question::Task(is) => {
            for finished in ends {
                match known(is, &finished.row) {
                    Some(true) => return Some(true),
                    Some(false) => {}
                    None => open = true,
                }
            }
            if open { None } else { Some(false) }
        }
        Question::AnyHost(is) => {
            for finished in ends {
                open |= finished.row.status == Status::Unknown && finished.hosts.is_empty();
                for (_, row) in &finished.hosts {
                    match known(is, row) {
                        Some(true) => return Some(true),
                        Some(false) => {}
                        None => open = true,
                    }
                }
            }
            if open { None } else { Some(false) }
        }
        Question::AllHosts(is) => {
            let mut some = false;
            for finished in ends {
                some = true;
                if finished.hosts.is_empty() {
                    if finished.row.status != Status::Unknown {
                        return Some(false);
                    }
                    open = true;
                }
                for (_, row) in &finished.hosts {
                    match known(is, row) {
                        Some(true) => {}
                        Some(false) => return Some(false),
                        None => open = true,
                    }
                }
            }
            if open { None } else { Some(some) }
        }
    }
}

fn known(is: fn(&Row) -> bool, row: &Row) -> Option<bool> {
    (row.status != Status::Unknown).then(|| is(row))
}
