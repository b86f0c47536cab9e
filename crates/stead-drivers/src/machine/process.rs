//! Processes that are known again: by number, time of start and boot of this machine, never by number alone.

use std::fmt;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::OnceLock;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// A process of this machine, in this boot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ProcessMark {
    pub(super) pid: u32,
    /// In clock ticks since this machine booted, from `/proc/PID/stat`.
    pub(super) start: u64,
    /// This machine's boot.
    pub(super) boot: String,
}

impl fmt::Display for ProcessMark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.pid, self.start, self.boot)
    }
}

impl ProcessMark {
    /// Returns the mark of the live process `pid`.
    pub(crate) fn of(pid: u32) -> Option<Self> {
        let stat = Stat::read(pid).filter(|stat| !stat.is_dead)?;
        Some(Self { pid, start: stat.start, boot: boot_id()? })
    }

    /// Returns the mark that a line holds.
    pub(crate) fn parse(line: &str) -> Option<Self> {
        let mut words = line.split_ascii_whitespace();
        let mark = Self {
            pid: words.next()?.parse().ok()?,
            start: words.next()?.parse().ok()?,
            boot: words.next()?.to_owned(),
        };
        words.next().is_none().then_some(mark)
    }

    /// Whether it was in another boot of this machine.
    pub(super) fn is_of_another_boot(&self) -> bool {
        boot_id().is_none_or(|boot| boot != self.boot)
    }

    /// Returns a handle on the process, if it lives and can be looked at.
    pub(crate) fn open(&self) -> Option<Handle> {
        self.find().ok().flatten()
    }

    /// Returns a handle on the process, if it lives.
    ///
    /// # Errors
    /// If it cannot be looked at, such as with too many files open: that is no sign of its end.
    pub(super) fn find(&self) -> io::Result<Option<Handle>> {
        let Some(pid) = i32::try_from(self.pid).ok().and_then(Pid::from_raw) else { return Ok(None) };
        let fd = match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(fd) => fd,
            Err(Errno::SRCH | Errno::INVAL) => return Ok(None),
            Err(errno) => return Err(errno.into()),
        };
        // Looked at with the handle in hand: from here the number cannot change its owner unnoticed.
        let stat = Stat::look(self.pid)?.filter(|stat| !stat.is_dead);
        let is_it = stat.is_some_and(|stat| stat.start == self.start) && !self.is_of_another_boot();
        Ok(is_it.then_some(Handle(fd)))
    }
}

/// A hold on a process.
#[derive(Debug)]
pub(crate) struct Handle(OwnedFd);

impl Handle {
    /// Sends a signal; one that is gone needs none.
    pub(crate) fn signal(&self, signal: Signal) {
        pidfd_send_signal(&self.0, signal).ok();
    }

    /// Whether it has ended.
    pub(super) fn is_gone(&self) -> bool {
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::new(&self.0, PollFlags::IN)], Some(&at_once)).is_ok_and(|ready| ready > 0)
    }

    /// Waits until it has ended. Cancel safe.
    #[expect(
        deprecated,
        reason = "the other constructor is unsafe; this descriptor is owned, and so stays what it is"
    )]
    pub(super) async fn ended(self) -> std::io::Result<()> {
        AsyncFd::with_interest(self.0, Interest::READABLE)?.readable().await.map(drop)
    }
}

/// What `/proc/PID/stat` says.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stat {
    pub(super) parent: u32,
    pub(super) start: u64,
    pub(super) is_dead: bool,
}

impl Stat {
    /// Reads it; nothing if there is no such process, or it cannot be looked at.
    pub(super) fn read(pid: u32) -> Option<Self> {
        Self::look(pid).ok().flatten()
    }

    /// Reads it; nothing if there is no such process.
    ///
    /// # Errors
    /// If it cannot be looked at.
    pub(super) fn look(pid: u32) -> io::Result<Option<Self>> {
        let text = of_process(pid, "stat")?;
        Ok(text.and_then(|text| Self::parse(&String::from_utf8_lossy(&text))))
    }

    fn parse(text: &str) -> Option<Self> {
        // The name, in parentheses, may hold anything; what follows its last one are numbers.
        let fields: Vec<&str> = text.rsplit_once(')')?.1.split_ascii_whitespace().collect();
        Some(Self {
            is_dead: matches!(*fields.first()?, "Z" | "X" | "x"),
            parent: fields.get(1)?.parse().ok()?,
            start: fields.get(19)?.parse().ok()?,
        })
    }
}

/// Returns this machine's boot.
pub(super) fn boot_id() -> Option<String> {
    static BOOT: OnceLock<String> = OnceLock::new();
    if let Some(boot) = BOOT.get() {
        return Some(boot.clone());
    }
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    Some(BOOT.get_or_init(|| boot.trim().to_owned()).clone())
}

/// Returns what `/proc` says of a process; nothing if it is gone, or somebody's whom this account may not look at.
///
/// # Errors
/// If nothing can be looked at, such as with too many files open.
pub(super) fn of_process(pid: u32, file: &str) -> io::Result<Option<Vec<u8>>> {
    match fs::read(format!("/proc/{pid}/{file}")) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied) => {
            Ok(None)
        }
        Err(error) if error.raw_os_error() == Some(Errno::SRCH.raw_os_error()) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns every process of this machine.
///
/// # Errors
/// If `/proc` cannot be read.
pub(super) fn all() -> io::Result<Vec<u32>> {
    let entries = fs::read_dir("/proc")?.collect::<io::Result<Vec<_>>>()?;
    Ok(entries.iter().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_known_by_number_start_and_boot() {
        let own = ProcessMark::of(std::process::id()).unwrap();
        assert_eq!(ProcessMark::parse(&own.to_string()), Some(own.clone()));
        assert!(own.open().is_some_and(|process| !process.is_gone()));
        let reused = ProcessMark { start: own.start + 1, ..own.clone() };
        assert!(reused.open().is_none(), "another process under that number is not taken");
        let before = ProcessMark { boot: "another".to_owned(), ..own };
        assert!(before.open().is_none() && before.is_of_another_boot());
        for bad in ["", "1 2", "x 2 b", "1 2 b c"] {
            assert_eq!(ProcessMark::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_name_with_parentheses_does_not_confuse() {
        let stat = Stat::parse("7 (a) R 1) S 42 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 99 0").unwrap();
        assert_eq!((stat.parent, stat.start, stat.is_dead), (42, 99, false));
    }
}
