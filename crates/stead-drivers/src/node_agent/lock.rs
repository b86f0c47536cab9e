//! One agent per node: who holds the lock is it.

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;

use rustix::fs::FlockOperation;
use rustix::process::{Pid, Signal, kill_process};

use super::place::{AGENT, NodeFiles};

/// The place of the one agent of a node. Dropping it gives it up.
#[derive(Debug)]
pub(super) struct Held {
    _file: File,
}

/// Who is there already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Taken {
    pub(super) pid: Option<u32>,
}

fn open(files: &NodeFiles) -> io::Result<File> {
    let path = files.directory(AGENT)?.join("lock");
    File::options().create(true).truncate(false).read(true).write(true).mode(0o600).open(path)
}

/// Takes the place, unless another has it.
pub(super) fn take(files: &NodeFiles) -> io::Result<Result<Held, Taken>> {
    let mut file = open(files)?;
    if rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
        return Ok(Err(Taken { pid: read_pid(&mut file) }));
    }
    file.set_len(0)?;
    file.rewind()?;
    file.write_all(format!("{}\n", std::process::id()).as_bytes())?;
    Ok(Ok(Held { _file: file }))
}

/// Sends the agent that runs a signal; returns whether there is one.
pub(super) fn signal(files: &NodeFiles, signal: Signal) -> io::Result<bool> {
    let mut file = open(files)?;
    if rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared).is_ok() {
        return Ok(false);
    }
    let pid = read_pid(&mut file).and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw);
    Ok(pid.is_some_and(|pid| kill_process(pid, signal).is_ok()))
}

fn read_pid(file: &mut File) -> Option<u32> {
    let mut text = String::new();
    file.take(32).read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_is_told_who_is_there() {
        let dir = tempfile::tempdir().unwrap();
        let files = NodeFiles::below(dir.path());
        assert!(!signal(&files, Signal::WINCH).unwrap(), "nobody is there");
        let held = take(&files).unwrap().unwrap();
        assert_eq!(take(&files).unwrap().unwrap_err(), Taken { pid: Some(std::process::id()) });
        // Nobody minds this one.
        assert!(signal(&files, Signal::WINCH).unwrap());
        drop(held);
        assert!(take(&files).unwrap().is_ok());
    }
}
