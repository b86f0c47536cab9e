//! What sessions leave when they are killed: processes of operations that were under way, and directories.
//!
//! Every process an executor starts carries [`MARK`] in its environment, and those of an operation its task, host and
//! attempt. A session notes which operations are under way in `inflight`, so that a daemon that a finished command
//! left on purpose is never taken for a leftover.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::home::Home;

/// The variable that says which session started a process.
pub(super) const MARK: &str = "STEAD_EXECUTOR";

/// How long processes of a killed session may take to end by themselves.
const GRACE: Duration = Duration::from_secs(2);
/// How often processes are looked at while they end.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// Which operations are under way, on the disk.
#[derive(Debug)]
pub(super) struct Inflight(Option<File>);

/// One operation, as its processes know it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Attempt(BTreeMap<String, String>);

impl Attempt {
    /// Returns the attempt of these variables.
    pub(super) fn new(marks: &BTreeMap<String, String>) -> Self {
        let names = ["STEAD_TASK", "STEAD_HOST", "STEAD_ATTEMPT"];
        Self(names.into_iter().filter_map(|name| Some((name.to_owned(), marks.get(name)?.clone()))).collect())
    }
}

impl Inflight {
    pub(super) fn create(home: &Home) -> Self {
        let mut options = File::options();
        Self(options.create(true).append(true).open(home.directory.join("inflight")).ok())
    }

    pub(super) fn begin(&mut self, host: &str, id: u32, attempt: &Attempt) {
        self.note(&serde_json::json!({"host": host, "id": id, "marks": attempt.0}));
    }

    pub(super) fn end(&mut self, host: &str, id: u32) {
        self.note(&serde_json::json!({"host": host, "id": id}));
    }

    fn note(&mut self, line: &serde_json::Value) {
        // On a full disk the note is lost, and with it only the care for a session that is killed as well.
        if let Some(file) = &mut self.0 {
            file.write_all(format!("{line}\n").as_bytes()).unwrap_or(());
        }
    }
}

/// Returns the operations that were under way when a session ended.
fn under_way(directory: &Path) -> BTreeSet<Attempt> {
    let mut open: BTreeMap<(String, u64), Attempt> = BTreeMap::new();
    let text = fs::read_to_string(directory.join("inflight")).unwrap_or_default();
    for line in text.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok()) {
        let (Some(host), Some(id)) = (line["host"].as_str(), line["id"].as_u64()) else { continue };
        let key = (host.to_owned(), id);
        match serde_json::from_value(line["marks"].clone()) {
            Ok(marks) => open.insert(key, Attempt(marks)),
            Err(_) => open.remove(&key),
        };
    }
    open.into_values().collect()
}

/// Ends what dead sessions of `base` left and removes their directories; returns how many processes there were.
///
/// Call it with the doorstep's lock, or for a session that is known to be dead.
pub(super) fn sweep(base: &Path) -> usize {
    let Ok(entries) = fs::read_dir(base.join("run")) else { return 0 };
    let mut ended = 0;
    for entry in entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
        let home = Home { base: base.to_owned(), directory: entry.path() };
        if home.connect().is_ok() {
            continue;
        }
        let attempts = under_way(&home.directory);
        if !attempts.is_empty() {
            ended += end(&home.directory, &attempts, GRACE);
        }
        home.remove();
    }
    ended
}

/// Ends the processes of `attempts` of the session in `directory`: asks, waits for `grace`, kills; says how many.
pub(super) fn end(directory: &Path, attempts: &BTreeSet<Attempt>, grace: Duration) -> usize {
    let mut found = scan(directory, attempts);
    let count = found.len();
    for process in &found {
        signal(process, Signal::TERM);
    }
    let mut waited = Duration::ZERO;
    while !found.is_empty() {
        found.retain(|process| !is_gone(process));
        if waited >= grace {
            found = scan(directory, attempts);
            for process in &found {
                signal(process, Signal::KILL);
            }
            if waited >= grace + GRACE {
                break;
            }
        }
        if !found.is_empty() {
            std::thread::sleep(LOOK_AGAIN);
            waited += LOOK_AGAIN;
        }
    }
    count
}

/// One that is gone needs no signal.
fn signal(process: &OwnedFd, signal: Signal) {
    pidfd_send_signal(process, signal).unwrap_or(());
}

fn is_gone(process: &OwnedFd) -> bool {
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&at_once)).is_ok_and(|ready| ready > 0)
}

fn scan(directory: &Path, attempts: &BTreeSet<Attempt>) -> Vec<OwnedFd> {
    let own = std::process::id();
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let fits = |pid: u32| is_marked(pid, directory, attempts);
    pids.filter(|pid| *pid != own && fits(*pid))
        .filter_map(|pid| {
            pidfd_open(Pid::from_raw(i32::try_from(pid).ok()?)?, PidfdFlags::empty()).ok().zip(Some(pid))
        })
        // The number may have changed owner before the handle was made: ask again with the handle in hand.
        .filter(|(process, pid)| fits(*pid) && !is_gone(process))
        .map(|(process, _)| process)
        .collect()
}

fn is_marked(pid: u32, directory: &Path, attempts: &BTreeSet<Attempt>) -> bool {
    let Ok(environ) = fs::read(format!("/proc/{pid}/environ")) else { return false };
    let value = |name: &str| {
        let mut entries = environ.split(|byte| *byte == 0);
        entries.find_map(|entry| entry.strip_prefix(name.as_bytes())?.strip_prefix(b"="))
    };
    value(MARK) == Some(directory.as_os_str().as_bytes())
        && attempts
            .iter()
            .any(|attempt| attempt.0.iter().all(|(name, wanted)| value(name) == Some(wanted.as_bytes())))
}
