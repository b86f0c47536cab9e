//! What the settings of a task may say by themselves: ranges, targets, mutexes, `finally`.

use std::collections::BTreeSet;
use std::time::Duration;

use stead_model::plan::{HostFailure, OnError, Section, Size, TaskIndex};
use stead_model::{Task, TaskName};

use super::Checker;

/// Said of a time limit that leaves no time.
pub(super) const NO_TIMEOUT: &str = "give it some time, or leave it out for no limit";
/// Most retries of one attempt.
const MAX_RETRIES: u32 = 1_000;

impl<'a> Checker<'a> {
    pub(super) fn settings(&mut self, index: TaskIndex, task: &'a Task) {
        let settings = &*task.settings;
        let name = task.name.base();
        let bad = "plan/bad-value";
        if task.section == Section::Finally && settings.on_error == OnError::StopAll {
            let message = format!("`finally` task `{name}` has `on_error: stop_all`");
            self.error(index, "on_error", bad, message, "everything else is over by then: leave it out");
        }
        for (i, text) in settings.target.iter().enumerate() {
            self.target(index, i, text);
        }
        if task.action.function().is_some() {
            if !settings.target.is_empty() {
                let message = format!("task `{name}` is a function and has no target");
                self.error(index, "target", bad, message, "functions reach hosts through their context");
            }
            if !settings.when_host.is_empty() {
                let message =
                    format!("task `{name}` is a function: it has no hosts to judge `when_host` for");
                self.error(index, "when_host", bad, message, "use `when`");
            }
        }
        let batches = settings.batch.iter().enumerate().map(|(i, size)| (format!("batch.{i}"), size));
        for (path, size) in batches.chain(settings.canary.iter().map(|size| ("canary".to_owned(), size))) {
            let message = match size {
                Size::Count(0) => "a number of hosts is at least 1".to_owned(),
                Size::Percent(percent) if !(1..=100).contains(percent) => {
                    format!("a share of hosts is from 1% to 100%, found {percent}%")
                }
                Size::Count(_) | Size::Percent(_) => continue,
            };
            self.error(index, &path, bad, message, "");
        }
        if let HostFailure::Percent(percent) = settings.host_failure
            && percent > 99
        {
            let message = format!("`host_failure`: a percentage is from 0 to 99, found {percent}");
            self.error(index, "host_failure", bad, message, "`all` means that every host may fail but one");
        }
        if settings.retry.times > MAX_RETRIES {
            let message = format!("`retry`: from 0 to {MAX_RETRIES} times, found {}", settings.retry.times);
            self.error(index, "retry", bad, message, "");
        }
        let factor = settings.retry.backoff.factor;
        if !factor.is_finite() || factor < 1.0 {
            self.error(
                index,
                "retry",
                bad,
                format!("`retry`: a factor is a number from 1, found {factor}"),
                "",
            );
        }
        for class in settings.retry.on.iter().filter(|class| !class.may_be_retried()) {
            let message = format!("`retry`: an error of class `{class}` is never tried again");
            self.error(
                index,
                "retry",
                bad,
                message,
                "possible: exit, operation, unreachable, timeout, panic",
            );
        }
        if settings.timeout == Some(Duration::ZERO) {
            let message =
                format!("`timeout` of task `{name}` is 0: every attempt would be over before it began");
            self.error(index, "timeout", bad, message, NO_TIMEOUT);
        }
        let mut held = BTreeSet::new();
        for (i, mutex) in settings.mutex.iter().enumerate() {
            let path = format!("mutex.{i}");
            // A mutex is named like a task, without a key.
            if mutex.name.contains('[') || TaskName::parse(&mutex.name).is_err() {
                let message =
                    format!("`{}` is not a mutex name: {}", mutex.name.escape_debug(), TaskName::RULE);
                self.error(index, &path, bad, message, "");
            } else if !held.insert(&mutex.name) {
                let message = format!("mutex `{}` is taken twice by one task", mutex.name);
                self.error(index, &path, bad, message, "name it once");
            }
        }
    }
}
