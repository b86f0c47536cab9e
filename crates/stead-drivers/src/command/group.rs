//! Whether a process group still has somebody in it who does something.
//!
//! A cancelled command's leader is often a shell that dies of the request at once, while the program it started
//! uses the grace period to clean up. The kernel cannot be asked about that: its only question, a signal of
//! nothing to the group, is answered by zombies too.

use std::collections::HashSet;

use rustix::process::Pid;
use tokio::sync::Mutex;
use tokio::time::Instant;

/// The groups that had a living member at some time.
struct Seen {
    at: Instant,
    groups: HashSet<i32>,
}

/// The last look at the process table. One look answers everybody who asked before it began, so that ten thousand
/// commands cancelled together do not look ten thousand times.
static SEEN: Mutex<Option<Seen>> = Mutex::const_new(None);

/// Returns whether `group` has a member that is no zombie. Where there is no `/proc`, no.
pub(super) async fn is_alive(group: Pid) -> bool {
    let asked = Instant::now();
    let mut seen = SEEN.lock().await;
    if seen.as_ref().is_none_or(|seen| seen.at < asked) {
        let at = Instant::now();
        let groups = tokio::task::spawn_blocking(living_groups).await.unwrap_or_default();
        *seen = Some(Seen { at, groups });
    }
    seen.as_ref().is_some_and(|seen| seen.groups.contains(&group.as_raw_nonzero().get()))
}

fn living_groups() -> HashSet<i32> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return HashSet::new() };
    let pids = entries.flatten().filter(|entry| {
        entry.file_name().to_str().is_some_and(|name| name.bytes().all(|byte| byte.is_ascii_digit()))
    });
    pids.filter_map(|entry| living_group(&std::fs::read_to_string(entry.path().join("stat")).ok()?)).collect()
}

/// Returns the group of a process from its `stat`, unless it is a zombie.
fn living_group(stat: &str) -> Option<i32> {
    // The name in brackets may itself hold brackets and spaces: what counts is behind the last one.
    let (_, rest) = stat.rsplit_once(") ")?;
    let mut fields = rest.split(' ');
    let is_zombie = matches!(fields.next()?, "Z" | "X");
    let group = fields.nth(1)?.parse().ok()?;
    (!is_zombie).then_some(group)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zombies_and_odd_names_are_seen_through() {
        assert_eq!(living_group("12 (sh) S 1 10 10 0 -1"), Some(10));
        assert_eq!(living_group("12 (a) Z 7) R 1 11 10 0 -1"), Some(11));
        assert_eq!(living_group("12 (sh) Z 1 10 10 0 -1"), None);
        assert_eq!(living_group(""), None);
    }
}
