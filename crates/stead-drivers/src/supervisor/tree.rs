//! The processes of a role, found through `/proc`: all that descend from its supervisor, however they hide.
//!
//! A supervisor is a child subreaper, so whoever lost its parent becomes its child. When the supervisor itself is
//! killed, its holder finds what is left by session and by the marks of the role's environment.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use rustix::process::Signal;
use stead_runner::process_table::{Environment, Process};

/// Returns how many live processes there are below the process `root`, itself left out.
pub(crate) fn count_below(root: u32) -> usize {
    below(root).len()
}

/// Whether there are live processes below `root` that are not in the tree of `except`.
pub(crate) fn has_others_below(root: u32, except: u32) -> bool {
    let entries = Process::all();
    let spared = descendants(&entries, BTreeSet::from([except]));
    let others: Vec<Process> = entries.into_iter().filter(|entry| !spared.contains(&entry.pid)).collect();
    !live_below(&others, root).is_empty()
}

fn below(root: u32) -> Vec<Process> {
    live_below(&Process::all(), root)
}

fn live_below(entries: &[Process], root: u32) -> Vec<Process> {
    let found = descendants(entries, BTreeSet::from([root]));
    let members = entries.iter().filter(|entry| entry.pid != root && found.contains(&entry.pid));
    members.filter(|entry| !entry.is_zombie).copied().collect()
}

/// Sends `signal` to every process below `root`; returns how many there were.
///
/// A process that was started before and missed because its parent forked meanwhile gets it too. One that begins
/// afterwards does not: it may be what a handler of the signal starts to tidy up.
pub(crate) fn signal_below(root: u32, signal: Signal) -> usize {
    let now = ticks_now();
    let mut told = BTreeSet::new();
    for pass in 0..3 {
        let before = told.len();
        for entry in below(root) {
            let is_meant = pass == 0 || now.is_some_and(|now| entry.started < now);
            let key = (entry.pid, entry.started);
            if is_meant && !told.contains(&key) && entry.signal(signal) {
                told.insert(key);
            }
        }
        if told.len() == before {
            break;
        }
    }
    told.len()
}

/// Which processes a supervisor that was killed has left.
#[derive(Clone, Debug)]
pub(crate) struct Orphans<'a> {
    /// The session it made, which has its number; none: any.
    pub(crate) session: Option<u32>,
    /// Variables the role's processes carry, all of them.
    pub(crate) marks: &'a [(&'a str, &'a str)],
}

impl Orphans<'_> {
    /// Kills them and all below them until none is left; returns how many there were.
    pub(crate) fn kill(&self) -> usize {
        let mut killed = BTreeSet::new();
        // A tree that forks while it is killed: each round leaves fewer.
        for _ in 0..100 {
            let members = self.find();
            if members.is_empty() {
                break;
            }
            for entry in &members {
                if entry.signal(Signal::KILL) {
                    killed.insert((entry.pid, entry.started));
                }
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        killed.len()
    }

    fn find(&self) -> Vec<Process> {
        let own = std::process::id();
        let entries = Process::all();
        let roots = entries.iter().filter(|entry| entry.pid != own && self.is_meant(entry));
        let found = descendants(&entries, roots.map(|entry| entry.pid).collect());
        let members = entries.iter().filter(|entry| entry.pid != own && found.contains(&entry.pid));
        members.filter(|entry| !entry.is_zombie).copied().collect()
    }

    fn is_meant(&self, entry: &Process) -> bool {
        self.session == Some(entry.session) || self.is_marked(entry.pid)
    }

    fn is_marked(&self, pid: u32) -> bool {
        let Some(environment) = Environment::of(pid) else { return false };
        let is_there = |(name, wanted): &(&str, &str)| environment.get(name) == Some(wanted.as_bytes());
        !self.marks.is_empty() && self.marks.iter().all(is_there)
    }
}

/// Returns `roots` and all below them.
fn descendants(entries: &[Process], roots: BTreeSet<u32>) -> BTreeSet<u32> {
    let mut children: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for entry in entries {
        children.entry(entry.parent).or_default().push(entry.pid);
    }
    let mut open: Vec<u32> = roots.iter().copied().collect();
    let mut found = roots;
    while let Some(parent) = open.pop() {
        for child in children.get(&parent).into_iter().flatten() {
            if found.insert(*child) {
                open.push(*child);
            }
        }
    }
    found
}

/// Returns the time since the machine started in the ticks of `/proc/PID/stat`: hundredths of a second.
fn ticks_now() -> Option<u64> {
    let text = fs::read_to_string("/proc/uptime").ok()?;
    let (seconds, hundredths) = text.split_ascii_whitespace().next()?.split_once('.')?;
    Some(seconds.parse::<u64>().ok()? * 100 + hundredths.parse::<u64>().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descendants_are_found_through_generations() {
        let entry = |pid, parent| Process { pid, parent, session: 1, started: 0, is_zombie: false };
        let entries = [entry(5, 1), entry(2, 1), entry(9, 5), entry(3, 9), entry(4, 2)];
        assert_eq!(descendants(&entries, BTreeSet::from([5])), BTreeSet::from([5, 9, 3]));
        assert_eq!(live_below(&entries, 5), [entry(9, 5), entry(3, 9)]);
    }
}
