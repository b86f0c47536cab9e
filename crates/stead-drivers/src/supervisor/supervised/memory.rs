//! The most memory a role had.
//!
//! What the kernel says of children that have ended counts, for each, the memory its parent had when it was forked. So
//! that figure holds only where it is above the supervisor's own; below, what was seen while the role ran does.

use std::time::Duration;

use nix::sys::resource::{UsageWho, getrusage};
use tokio::time::Instant;

/// How soon it is looked at for the second time; then after twice as long each time.
const FIRST: Duration = Duration::from_millis(5);
/// How often it is looked at in the long run.
const OFTEN_ENOUGH: Duration = Duration::from_secs(1);

/// What is known of the memory of one process.
#[derive(Debug)]
pub(super) struct Memory {
    pid: u32,
    seen: u64,
    next: Instant,
    interval: Duration,
}

impl Memory {
    /// Looks at a process that was just started.
    pub(super) fn of(pid: u32, now: Instant) -> Self {
        let mut memory = Self { pid, seen: 0, next: now, interval: FIRST };
        memory.look(now);
        memory
    }

    /// Returns when it is to be looked at again.
    pub(super) const fn looks_at(&self) -> Instant {
        self.next
    }

    /// Looks if it is time.
    pub(super) fn look(&mut self, now: Instant) {
        if now < self.next {
            return;
        }
        (self.next, self.interval) = (now + self.interval, (self.interval * 2).min(OFTEN_ENOUGH));
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid));
        let peak = status.ok().and_then(|status| peak_in(&status));
        self.seen = self.seen.max(peak.unwrap_or(0));
    }

    /// Returns the most memory the process, or another child that has ended, had at once, in bytes.
    pub(super) fn peak(&self) -> u64 {
        let (own, children) = (usage(UsageWho::RUSAGE_SELF), usage(UsageWho::RUSAGE_CHILDREN));
        if children > own { children.max(self.seen) } else { self.seen }
    }
}

fn usage(who: UsageWho) -> u64 {
    let peak = getrusage(who).map_or(0, |usage| u64::try_from(usage.max_rss()).unwrap_or(0));
    // The kernel counts in KiB, macOS in bytes.
    if cfg!(target_os = "macos") { peak } else { peak * 1024 }
}

fn peak_in(status: &str) -> Option<u64> {
    let value = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: u64 = value.trim().strip_suffix("kB")?.trim_end().parse().ok()?;
    Some(kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peak_is_found_in_the_status_of_a_process() {
        let status = "Name:\tsh\nVmPeak:\t    2800 kB\nVmHWM:\t    1536 kB\nVmRSS:\t     900 kB\n";
        assert_eq!(peak_in(status), Some(1536 * 1024));
        assert_eq!(peak_in("Name:\tzombie\nState:\tZ (zombie)\n"), None);
    }

    #[test]
    fn it_is_looked_at_rarely_in_the_long_run() {
        let now = Instant::now();
        let mut memory = Memory::of(std::process::id(), now);
        assert!(memory.seen > 0 && memory.looks_at() == now + FIRST);
        for _ in 0..20 {
            memory.look(memory.looks_at());
        }
        let last = memory.looks_at();
        memory.look(last);
        assert_eq!(memory.looks_at(), last + OFTEN_ENOUGH);
    }
}
