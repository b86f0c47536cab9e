//! The clock of a worker: milliseconds since this machine booted, suspends included.

use std::fs;

use stead_model::fleet::Millis;

/// Clock ticks in a second, as `/proc` counts them on every Linux.
const TICKS: u64 = 100;

pub(super) use crate::boottime::now;

/// Returns the moment that a count of clock ticks since boot names.
pub(super) fn of_ticks(ticks: u64) -> Millis {
    ticks.saturating_mul(1000 / TICKS)
}

/// Returns this boot of the machine.
pub(super) fn boot_id() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").map(|id| id.trim().to_owned()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_is_that_since_boot() {
        let first = now();
        let uptime = fs::read_to_string("/proc/uptime").unwrap();
        let seconds: Millis = uptime.split('.').next().unwrap().parse().unwrap();
        assert!(first.abs_diff(seconds * 1000) < 60_000 && now() >= first && !boot_id().is_empty());
    }
}
