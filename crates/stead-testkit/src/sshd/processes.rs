//! Which processes came from which, by `/proc`.

use std::fs;

/// Returns every process with its parent.
fn all() -> Vec<(u32, u32)> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries
        .filter_map(|entry| {
            let pid: u32 = entry.ok()?.file_name().to_str()?.parse().ok()?;
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
            // The name may hold anything, even brackets: what follows the last one is ours.
            let parent = stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()?;
            Some((pid, parent))
        })
        .collect()
}

/// Returns the processes that `pid` started itself.
pub(super) fn children(pid: u32) -> Vec<u32> {
    all().into_iter().filter(|(_, parent)| *parent == pid).map(|(child, _)| child).collect()
}

/// Returns the processes below `pid`.
pub(super) fn descendants(pid: u32) -> Vec<u32> {
    let all = all();
    let mut found = vec![pid];
    let mut next = 0;
    while let Some(parent) = found.get(next).copied() {
        found.extend(all.iter().filter(|(_, above)| *above == parent).map(|(child, _)| *child));
        next += 1;
    }
    found.remove(0);
    found
}

/// Returns the processes whose environment has this entry.
pub(super) fn with_environment(entry: &str) -> Vec<u32> {
    let has = |pid: &u32| {
        fs::read(format!("/proc/{pid}/environ"))
            .is_ok_and(|bytes| bytes.split(|byte| *byte == 0).any(|variable| variable == entry.as_bytes()))
    };
    all().into_iter().map(|(pid, _)| pid).filter(has).collect()
}

/// Returns the name of a process.
pub(super) fn name(pid: u32) -> Option<String> {
    Some(fs::read_to_string(format!("/proc/{pid}/comm")).ok()?.trim().to_owned())
}
