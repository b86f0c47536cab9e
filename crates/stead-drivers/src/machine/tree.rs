//! What runs for a machine: the descendants of its process, and what a process that was killed left behind.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::home::Home;
use super::process::{Handle, ProcessMark, Stat, all, of_process};

/// How often ending processes are looked at.
const LOOK_AGAIN: Duration = Duration::from_millis(5);
/// A process that a kill does not end within this time waits for a broken disk.
const PATIENCE: Duration = Duration::from_secs(10);

/// Returns the children of `pid`, dead ones too.
pub(super) fn children(pid: u32) -> Vec<u32> {
    match fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")) {
        Ok(list) => list.split_ascii_whitespace().filter_map(|child| child.parse().ok()).collect(),
        // Not every kernel has the list.
        Err(_) => {
            let is_child = |child: &u32| Stat::read(*child).is_some_and(|stat| stat.parent == pid);
            all().unwrap_or_default().into_iter().filter(is_child).collect()
        }
    }
}

/// Returns the live descendants of `pid`.
pub(super) fn descendants(pid: u32) -> io::Result<Vec<u32>> {
    let mut children: BTreeMap<u32, Vec<(u32, bool)>> = BTreeMap::new();
    for process in all()? {
        if let Some(stat) = Stat::look(process)? {
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
    Ok(found)
}

/// Returns the live processes whose variable `mark` names `directory` or a place inside it, that run a program that
/// lies in it, or that have emptied their environment and are in it.
fn marked(mark: &str, directory: &Path) -> io::Result<BTreeSet<u32>> {
    let is_marked = |pid: u32| -> io::Result<bool> {
        let environment = of_process(pid, "environ")?.unwrap_or_default();
        let mut variables = environment.split(|byte| *byte == 0);
        let place = variables.find_map(|variable| variable.strip_prefix(mark.as_bytes())?.strip_prefix(b"="));
        let by_mark = place.is_some_and(|place| Path::new(OsStr::from_bytes(place)).starts_with(directory));
        let is_in = |link: &str| {
            fs::read_link(format!("/proc/{pid}/{link}")).is_ok_and(|place| place.starts_with(directory))
        };
        // Whoever looks around in the directory from a shell has an environment.
        Ok(by_mark || is_in("exe") || (environment.is_empty() && is_in("cwd")))
    };
    let lives = |pid: u32| Stat::look(pid).map(|stat| stat.is_some_and(|stat| !stat.is_dead));
    let own = ancestors(std::process::id());
    let mut found = BTreeSet::new();
    for pid in all()?.into_iter().filter(|pid| !own.contains(pid)) {
        if lives(pid)? && is_marked(pid)? {
            found.insert(pid);
        }
    }
    Ok(found)
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

/// Sends a signal to each of them that lives, and returns those.
pub(super) fn signal_each(pids: impl IntoIterator<Item = u32>, signal: Signal) -> io::Result<Vec<Handle>> {
    let mut handles = Vec::new();
    for pid in pids {
        let Some(mark) = ProcessMark::of(pid) else { continue };
        handles.extend(mark.find()?);
    }
    for handle in &handles {
        handle.signal(signal);
    }
    Ok(handles)
}

/// Kills the machine's process and everything that runs for it; returns whether nothing is left.
///
/// # Errors
/// If it cannot be told what is left.
pub(super) fn kill_all(home: &Home) -> io::Result<bool> {
    let end = Instant::now() + PATIENCE;
    let process = home.pid().map(|(mark, _)| mark);
    let live = process.as_ref().map(ProcessMark::find).transpose()?.flatten();
    if let Some((handle, pid)) = live.zip(process.map(|mark| mark.pid)) {
        // Stopped first: as long as it is there everything is its descendant, and it starts nothing more.
        handle.signal(Signal::STOP);
        while !kill_once(descendants(pid)?)? && Instant::now() < end {
            std::thread::sleep(LOOK_AGAIN);
        }
        handle.signal(Signal::KILL);
        while !handle.is_gone() && Instant::now() < end {
            std::thread::sleep(LOOK_AGAIN);
        }
    }
    kill_marked(home.kind().mark, home.directory(), end)
}

/// Kills everything whose variable `mark` names `directory` or a place inside it; returns whether nothing is left.
///
/// # Errors
/// If it cannot be told what is left.
pub(super) fn kill_leftovers(mark: &str, directory: &Path) -> io::Result<bool> {
    kill_marked(mark, directory, Instant::now() + PATIENCE)
}

/// Whether nothing lives whose variable `mark` names `directory` or a place inside it.
///
/// # Errors
/// If it cannot be told.
pub(super) fn is_quiet(mark: &str, directory: &Path) -> io::Result<bool> {
    Ok(marked(mark, directory)?.is_empty())
}

fn kill_marked(mark: &str, directory: &Path, end: Instant) -> io::Result<bool> {
    while Instant::now() < end {
        if kill_once(marked(mark, directory)?)? {
            return Ok(true);
        }
        std::thread::sleep(LOOK_AGAIN);
    }
    Ok(false)
}

/// Kills them; returns whether there was nothing to kill.
fn kill_once(pids: impl IntoIterator<Item = u32>) -> io::Result<bool> {
    Ok(signal_each(pids, Signal::KILL)?.is_empty())
}
