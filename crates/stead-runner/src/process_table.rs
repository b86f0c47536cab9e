//! The processes of this machine, as `/proc` shows them. Elsewhere there are none.

use std::fs;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// A process as `/proc/PID/stat` shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process {
    /// Its number.
    pub pid: u32,
    /// The number of its parent.
    pub parent: u32,
    /// The number of its session.
    pub session: u32,
    /// When it started, in clock ticks since the machine did.
    pub started: u64,
    /// Whether it has ended and nobody has waited for it yet.
    pub is_zombie: bool,
}

impl Process {
    /// Returns every process there is.
    pub fn all() -> Vec<Self> {
        pids().filter_map(Self::read).collect()
    }

    /// Returns the process with this number, if there is one.
    pub fn read(pid: u32) -> Option<Self> {
        // The name in it may be any bytes.
        let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
        Self::parse(pid, &String::from_utf8_lossy(&stat))
    }

    fn parse(pid: u32, stat: &str) -> Option<Self> {
        // The name in parentheses may hold anything, parentheses too: the fields begin after the last one.
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_ascii_whitespace().collect();
        Some(Self {
            pid,
            is_zombie: matches!(*fields.first()?, "Z" | "X" | "x"),
            parent: fields.get(1)?.parse().ok()?,
            session: fields.get(3)?.parse().ok()?,
            started: fields.get(19)?.parse().ok()?,
        })
    }

    /// Sends the process a signal; returns whether it was there. One that is gone needs none; one that is not ours
    /// stays and is found again.
    ///
    /// The handle stays with the process though its number be used again, and is held only here: a tree may have more
    /// processes than this one may have files.
    pub fn signal(&self, signal: Signal) -> bool {
        let Some(pid) = i32::try_from(self.pid).ok().and_then(Pid::from_raw) else { return false };
        let Ok(handle) = pidfd_open(pid, PidfdFlags::empty()) else { return false };
        let lives = self.lives();
        if lives {
            pidfd_send_signal(&handle, signal).unwrap_or(());
        }
        lives
    }

    /// Returns whether it still runs: not whether something else has its number now, or only its end is left to be told.
    pub fn lives(&self) -> bool {
        Self::read(self.pid).is_some_and(|now| now.started == self.started && !now.is_zombie)
    }
}

/// Returns the numbers of all processes.
pub(crate) fn pids() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// The environment a process was started with. It may hold secrets: `Debug` shows none of it.
pub struct Environment(Vec<u8>);

impl std::fmt::Debug for Environment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Environment")
    }
}

impl Environment {
    /// Returns that of the process with this number, if it may be read.
    pub fn of(pid: u32) -> Option<Self> {
        fs::read(format!("/proc/{pid}/environ")).ok().map(Self)
    }

    /// Returns the value of a variable.
    pub fn get(&self, name: &str) -> Option<&[u8]> {
        let mut entries = self.0.split(|byte| *byte == 0);
        entries.find_map(|entry| entry.strip_prefix(name.as_bytes())?.strip_prefix(b"="))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_parentheses_do_not_confuse() {
        let line = "7 (a) b (c)) S 3 7 5 0 -1 4194304 1 0 0 0 0 0 0 0 20 0 1 0 4711 0 0";
        let process = Process::parse(7, line).unwrap();
        assert_eq!(process, Process { pid: 7, parent: 3, session: 5, started: 4711, is_zombie: false });
        assert_eq!(Process::parse(7, "7 (x"), None);
    }

    #[test]
    fn variables_are_found_by_their_whole_name() {
        let environment = Environment(b"AB=1\0A=2=3\0EMPTY=\0broken\0".to_vec());
        assert_eq!(environment.get("A"), Some(&b"2=3"[..]));
        assert_eq!((environment.get("EMPTY"), environment.get("broken")), (Some(&b""[..]), None));
        assert_eq!(format!("{environment:?}"), "Environment");
    }
}
