//! Control groups of machines: what runs in one can be found and ended by it, whatever became of the rest.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::machine::local::LOOK_AGAIN;
use crate::machine::tree;

const MOUNTED: &str = "/sys/fs/cgroup";
/// How long killed processes may take to go.
const PATIENCE: Duration = Duration::from_secs(10);
/// Where a machine puts its own processes, so that it can have groups beside them.
const LEAF: &str = "init";

/// Returns the groups called `id`: one, or one per controller.
fn groups(id: &str) -> Vec<PathBuf> {
    let mounted = Path::new(MOUNTED);
    let below = fs::read_dir(mounted).into_iter().flatten().flatten().map(|entry| entry.path().join(id));
    std::iter::once(mounted.join(id)).chain(below).filter(|group| group.is_dir()).collect()
}

/// Returns a group with all below it, innermost first.
fn all_below(group: &Path) -> Vec<PathBuf> {
    let walk = walkdir::WalkDir::new(group).contents_first(true).into_iter().flatten();
    walk.filter(|entry| entry.file_type().is_dir()).map(walkdir::DirEntry::into_path).collect()
}

/// Ends everything that runs in the groups called `id`, and removes them. Returns whether nothing is left.
pub(super) fn remove(id: &str) -> bool {
    end(|| groups(id))
}

/// Ends everything that runs in the groups that `there_are`, and removes them. Returns whether nothing is left.
pub(in crate::machine) fn end(there_are: impl Fn() -> Vec<PathBuf>) -> bool {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let groups = there_are();
        if groups.is_empty() {
            return true;
        }
        for group in groups.iter().flat_map(|group| all_below(group)) {
            let members = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
            let members = members.split_ascii_whitespace().filter_map(|pid| pid.parse().ok());
            tree::signal_each(members.filter(|pid| *pid != 0), Signal::KILL).ok();
            // Works once it is empty.
            fs::remove_dir(&group).ok();
        }
        if Instant::now() > deadline {
            return false;
        }
        std::thread::sleep(LOOK_AGAIN);
    }
}

/// Makes room for groups in the machine's own: a group of the second sort has processes or groups, not both. Called by
/// the machine's first process.
pub(super) fn make_room() -> io::Result<()> {
    let own = Path::new(MOUNTED);
    let Ok(controllers) = fs::read_to_string(own.join("cgroup.controllers")) else { return Ok(()) };
    match fs::create_dir(own.join(LEAF)) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        Ok(()) | Err(_) => {}
    }
    for pid in fs::read_to_string(own.join("cgroup.procs"))?.split_ascii_whitespace() {
        fs::write(own.join(LEAF).join("cgroup.procs"), pid)?;
    }
    for controller in controllers.split_ascii_whitespace() {
        // One that cannot be handed on limits nothing below; the rest still does.
        fs::write(own.join("cgroup.subtree_control"), format!("+{controller}")).ok();
    }
    Ok(())
}
