//! The running tasks, in the order they started, and their lines.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use stead_model::duration::Short;
use stead_model::{HostName, TaskName};

const SPINNER: [char; 10] = ['⠋', '⠙', '⠹', '⠸', '⠼', '⠴', '⠦', '⠧', '⠇', '⠏'];

/// All running tasks.
#[derive(Debug, Default)]
pub(super) struct Rows {
    by_start: BTreeMap<u64, Row>,
    // Invariant: has exactly the tasks of `by_start`.
    by_name: HashMap<TaskName, u64>,
    next: u64,
}

#[derive(Debug)]
struct Row {
    task: TaskName,
    undoing: bool,
    hosts: usize,
    done: usize,
    batches: usize,
    batch: u32,
    started: Duration,
    /// Until when which host waits for its next attempt; no host is a functional task.
    retries: HashMap<Option<HostName>, Duration>,
}

impl Rows {
    pub(super) fn is_empty(&self) -> bool {
        self.by_start.is_empty()
    }

    pub(super) fn add(&mut self, task: &TaskName, hosts: usize, batches: usize, now: Duration) {
        let row = Row {
            task: task.clone(),
            undoing: false,
            hosts,
            done: 0,
            batches,
            batch: 0,
            started: now,
            retries: HashMap::new(),
        };
        self.insert(row);
    }

    pub(super) fn add_undo(&mut self, task: &TaskName, hosts: usize, now: Duration) {
        self.add(task, hosts, 0, now);
        if let Some(row) = self.row(task) {
            row.undoing = true;
        }
    }

    fn insert(&mut self, row: Row) {
        self.remove(&row.task.clone());
        self.by_name.insert(row.task.clone(), self.next);
        self.by_start.insert(self.next, row);
        self.next += 1;
    }

    pub(super) fn remove(&mut self, task: &TaskName) {
        if let Some(number) = self.by_name.remove(task) {
            self.by_start.remove(&number);
        }
    }

    fn row(&mut self, task: &TaskName) -> Option<&mut Row> {
        self.by_start.get_mut(self.by_name.get(task)?)
    }

    pub(super) fn hosts_of(&self, task: &TaskName) -> usize {
        self.by_name.get(task).and_then(|number| self.by_start.get(number)).map_or(0, |row| row.hosts)
    }

    pub(super) fn attempt(&mut self, task: &TaskName, host: Option<&HostName>, batch: u32) {
        if let Some(row) = self.row(task) {
            row.retries.remove(&host.cloned());
            row.batch = row.batch.max(batch);
        }
    }

    pub(super) fn retry(&mut self, task: &TaskName, host: Option<&HostName>, until: Duration) {
        if let Some(row) = self.row(task) {
            row.retries.insert(host.cloned(), until);
        }
    }

    pub(super) fn host_done(&mut self, task: &TaskName, host: &HostName) {
        if let Some(row) = self.row(task) {
            row.retries.remove(&Some(host.clone()));
            row.done += 1;
        }
    }

    /// Returns at most `most` lines, oldest task first; the last one counts those left out.
    pub(super) fn lines(&self, now: Duration, frame: usize, most: usize) -> Vec<String> {
        let all = self.by_start.len();
        let shown = if all > most { most.saturating_sub(1) } else { all };
        let mut lines: Vec<String> =
            self.by_start.values().take(shown).map(|row| row.line(now, frame)).collect();
        if shown < all && most > 0 {
            lines.push(format!("… and {} more", all - shown));
        }
        lines
    }
}

impl Row {
    fn line(&self, now: Duration, frame: usize) -> String {
        let spinner = SPINNER[frame % SPINNER.len()];
        let hosts = match self.hosts {
            0 => String::new(),
            1 => ", 1 host".to_owned(),
            hosts => format!(", {}/{hosts} hosts", self.done),
        };
        let elapsed = Short(now.saturating_sub(self.started));
        format!("{spinner} {}: {}{hosts}, {elapsed}", self.task, self.state(now))
    }

    fn state(&self, now: Duration) -> String {
        let active = self.hosts.max(1).saturating_sub(self.done);
        let batch = if self.batches > 1 {
            format!("batch {}/{}", self.batch.max(1), self.batches)
        } else {
            String::new()
        };
        // Only when every host that is left waits: otherwise something is running.
        let state = match self.retries.values().min() {
            Some(until) if self.retries.len() >= active => {
                let seconds = until.saturating_sub(now).as_millis().div_ceil(1000);
                format!("retry in {seconds}s")
            }
            _ if self.undoing => "undoing".to_owned(),
            _ if !batch.is_empty() => return batch,
            _ => "running".to_owned(),
        };
        if batch.is_empty() { state } else { format!("{batch}, {state}") }
    }
}
