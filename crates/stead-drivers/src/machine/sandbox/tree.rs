//! What runs in a sandbox: the descendants of its supervisor, and what a supervisor that was killed left behind.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::process::{Handle, ProcessMark, Stat, all};

/// The variable by which everything started in a sandbox is known: its directory.
pub(super) const MARK: &str = "STEAD_SANDBOX";

/// How often ending processes are looked at.
const LOOK_AGAIN: Duration = Duration::from_millis(5);
/// A process that a kill does not end within this time waits for a broken disk.
const PATIENCE: Duration = Duration::from_secs(10);

/// Returns the children of `pid`, dead ones too.
pub(super) fn children(pid: u32) -> Vec<u32> {
    match fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")) {
        Ok(list) => list.split_ascii_whitespace().filter_map(|child| child.parse().ok()).collect(),
        // Not every kernel has the list.
        Err(_) => all().filter(|child| Stat::read(*child).is_some_and(|stat| stat.parent == pid)).collect(),
    }
}

/// Returns the live descendants of `pid`.
pub(super) fn descendants(pid: u32) -> Vec<u32> {
    let mut children: BTreeMap<u32, Vec<(u32, bool)>> = BTreeMap::new();
    for process in all() {
        if let Some(stat) = Stat::read(process) {
            children.entry(stat.parent).or_default().push((process, stat.is_dead));
        }
    }
    let mut found = Vec::new();
    let mut todo = vec![pid];
    while let Some(parent) = todo.pop() {
        for (child, is_dead) in children.remove(&parent).unwrap_or_default() {
            todo.push(child);
            if !is_dead {
                found.push(child);
            }
        }
    }
    found
}

/// Returns the live processes that carry the mark of the sandbox in `directory` or of one inside it, run a program
/// that lies in it, or have emptied their environment and are in it.
fn marked(directory: &Path) -> BTreeSet<u32> {
    let is_marked = |pid: &u32| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        let mut variables = environment.split(|byte| *byte == 0);
        let place = variables.find_map(|variable| variable.strip_prefix(MARK.as_bytes())?.strip_prefix(b"="));
        let by_mark = place.is_some_and(|place| Path::new(OsStr::from_bytes(place)).starts_with(directory));
        let is_in = |link: &str| {
            fs::read_link(format!("/proc/{pid}/{link}")).is_ok_and(|place| place.starts_with(directory))
        };
        // Whoever looks around in the directory from a shell has an environment.
        by_mark || is_in("exe") || (environment.is_empty() && is_in("cwd"))
    };
    let lives = |pid: &u32| Stat::read(*pid).is_some_and(|stat| !stat.is_dead);
    let own = ancestors(std::process::id());
    all().filter(|pid| !own.contains(pid) && lives(pid) && is_marked(pid)).collect()
}

/// Returns `pid` and what it descends from.
fn ancestors(pid: u32) -> BTreeSet<u32> {
    let mut found = BTreeSet::new();
    let mut next = Some(pid);
    while let Some(pid) = next.filter(|pid| *pid > 0 && found.insert(*pid)) {
        next = Stat::read(pid).map(|stat| stat.parent);
    }
    found
}

/// Sends a signal to each of them.
pub(super) fn signal_each(pids: impl IntoIterator<Item = u32>, signal: Signal) -> Vec<Handle> {
    let open = |pid| ProcessMark::of(pid)?.open();
    let handles: Vec<Handle> = pids.into_iter().filter_map(open).collect();
    for handle in &handles {
        handle.signal(signal);
    }
    handles
}

/// Kills the supervisor and everything that runs in the sandbox; returns whether nothing is left.
pub(super) fn kill_all(directory: &Path, supervisor: Option<&ProcessMark>) -> bool {
    let end = Instant::now() + PATIENCE;
    if let Some((handle, pid)) = supervisor.and_then(|mark| Some((mark.open()?, mark.pid))) {
        // Stopped first: as long as it is there everything is its descendant, and it starts nothing more.
        handle.signal(Signal::STOP);
        while !kill_once(descendants(pid)) && Instant::now() < end {
            std::thread::sleep(LOOK_AGAIN);
        }
        handle.signal(Signal::KILL);
        while !handle.is_gone() && Instant::now() < end {
            std::thread::sleep(LOOK_AGAIN);
        }
    }
    while Instant::now() < end {
        if kill_once(marked(directory)) {
            return true;
        }
        std::thread::sleep(LOOK_AGAIN);
    }
    false
}

/// Kills them; returns whether there was nothing to kill.
fn kill_once(pids: impl IntoIterator<Item = u32>) -> bool {
    signal_each(pids, Signal::KILL).is_empty()
}
