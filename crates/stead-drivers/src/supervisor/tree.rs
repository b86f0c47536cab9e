//! The processes of a role, found through `/proc`: all that descend from its supervisor, however they hide.
//!
//! A supervisor is a child subreaper, so whoever lost its parent becomes its child. When the supervisor itself is
//! killed, its holder finds what is left by session and by the marks of the role's environment.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::fd::OwnedFd;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// A process as `/proc/PID/stat` shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    pid: u32,
    parent: u32,
    session: u32,
    /// When it started, in clock ticks since the machine did.
    started: u64,
    is_zombie: bool,
}

/// One live process of a tree, with a handle that stays with it though its number be used again.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) pid: u32,
    started: u64,
    handle: OwnedFd,
}

impl Member {
    /// Returns the process, unless it is gone or its number is another's by now.
    fn open(entry: &Entry) -> Option<Self> {
        let pid = Pid::from_raw(i32::try_from(entry.pid).ok()?)?;
        let handle = pidfd_open(pid, PidfdFlags::empty()).ok()?;
        let now = read_entry(entry.pid)?;
        let is_same = now.started == entry.started && !now.is_zombie;
        is_same.then_some(Self { pid: entry.pid, started: entry.started, handle })
    }

    /// Sends a signal. One that is gone needs none; one that is not ours stays and is found again.
    pub(crate) fn signal(&self, signal: Signal) {
        pidfd_send_signal(&self.handle, signal).unwrap_or(());
    }
}

/// Returns the live processes below the process `root`, itself left out.
pub(crate) fn below(root: u32) -> Vec<Member> {
    let entries = entries();
    let found = descendants(&entries, BTreeSet::from([root]));
    let members = entries.iter().filter(|entry| entry.pid != root && found.contains(&entry.pid));
    members.filter(|entry| !entry.is_zombie).filter_map(Member::open).collect()
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
        for member in below(root) {
            let is_meant = pass == 0 || now.is_some_and(|now| member.started < now);
            if is_meant && told.insert((member.pid, member.started)) {
                member.signal(signal);
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
            for member in &members {
                member.signal(Signal::KILL);
                killed.insert((member.pid, member.started));
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        killed.len()
    }

    fn find(&self) -> Vec<Member> {
        let own = std::process::id();
        let entries = entries();
        let roots = entries.iter().filter(|entry| entry.pid != own && self.is_meant(entry));
        let found = descendants(&entries, roots.map(|entry| entry.pid).collect());
        let members = entries.iter().filter(|entry| entry.pid != own && found.contains(&entry.pid));
        members.filter(|entry| !entry.is_zombie).filter_map(Member::open).collect()
    }

    fn is_meant(&self, entry: &Entry) -> bool {
        self.session == Some(entry.session) || self.is_marked(entry.pid)
    }

    fn is_marked(&self, pid: u32) -> bool {
        let Ok(environ) = fs::read(format!("/proc/{pid}/environ")) else { return false };
        let value = |name: &str| {
            let mut entries = environ.split(|byte| *byte == 0);
            entries.find_map(|entry| entry.strip_prefix(name.as_bytes())?.strip_prefix(b"="))
        };
        !self.marks.is_empty()
            && self.marks.iter().all(|(name, wanted)| value(name) == Some(wanted.as_bytes()))
    }
}

/// Returns `roots` and all below them.
fn descendants(entries: &[Entry], roots: BTreeSet<u32>) -> BTreeSet<u32> {
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

fn entries() -> Vec<Entry> {
    let Ok(directory) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = directory.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter_map(read_entry).collect()
}

fn read_entry(pid: u32) -> Option<Entry> {
    // The name in it may be any bytes.
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    parse_stat(pid, &String::from_utf8_lossy(&stat))
}

fn parse_stat(pid: u32, stat: &str) -> Option<Entry> {
    // The name in parentheses may hold anything, parentheses too: the fields begin after the last one.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_ascii_whitespace().collect();
    Some(Entry {
        pid,
        is_zombie: matches!(*fields.first()?, "Z" | "X"),
        parent: fields.get(1)?.parse().ok()?,
        session: fields.get(3)?.parse().ok()?,
        started: fields.get(19)?.parse().ok()?,
    })
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
    fn names_with_parentheses_do_not_confuse() {
        let line = "7 (a) b (c)) S 3 7 5 0 -1 4194304 1 0 0 0 0 0 0 0 20 0 1 0 4711 0 0";
        let entry = parse_stat(7, line).unwrap();
        assert_eq!(entry, Entry { pid: 7, parent: 3, session: 5, started: 4711, is_zombie: false });
        assert_eq!(parse_stat(7, "7 (x"), None);
    }

    #[test]
    fn descendants_are_found_through_generations() {
        let entry = |pid, parent| Entry { pid, parent, session: 1, started: 0, is_zombie: false };
        let entries = [entry(5, 1), entry(2, 1), entry(9, 5), entry(3, 9), entry(4, 2)];
        assert_eq!(descendants(&entries, BTreeSet::from([5])), BTreeSet::from([5, 9, 3]));
    }
}
