//! How much of the processors a sandbox may use: a control group of its own, where this account may make one.
//!
//! What runs in a sandbox is in the group, and its supervisor too, but for when it comes up and goes down: a machine that
//! used up what it may have would not end otherwise. A group is made below the one that the driver runs in, else beside it,
//! else at the top; which of these works depends on who handed what on. Where none does there is no quota, and that is
//! said.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use super::home::Home;
use crate::machine::home::{Found, write_text};
use crate::machine::oci::{end_groups, group_name};

/// Where control groups are.
const MOUNTED: &str = "/sys/fs/cgroup";
/// What groups of sandboxes are called.
const PREFIX: &str = "stead-sandbox-";
/// How often a group is made anew that somebody took for one that was left: nobody was in it yet.
const TRIES: usize = 10;
/// Where the group of a machine is, in its directory; there before the group is.
const FILE: &str = "cgroup";
/// A period of the quota, in microseconds.
const PERIOD: u64 = 100_000;
/// The kernel takes no quota below a millisecond.
const LEAST: u64 = 1_000;

/// How often it was tried whether there can be groups.
static TRIED: AtomicU32 = AtomicU32::new(0);

/// The group of one sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Quota {
    group: PathBuf,
    sort: Sort,
    milli: u64,
}

/// How the kernel sorts groups: one tree for each controller, or one for all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sort {
    First,
    Second,
}

impl Quota {
    /// Makes the group that the machine is to have; none if nothing limits it.
    ///
    /// # Errors
    /// If no group can be made; nothing of one is left then.
    pub(super) fn of(home: &Home) -> io::Result<Option<Self>> {
        let Found::Ours(record) = home.find() else { return Ok(None) };
        let Some(milli) = record.spec.cpu_milli else { return Ok(None) };
        let groups = fs::read_to_string("/proc/self/cgroup")?;
        let mut why = io::Error::other("the kernel has no control groups for processors");
        for (sort, place) in places(Path::new(MOUNTED), &groups) {
            sweep(&place);
            let group = place.join(name_of(home));
            write_text(&home.file(FILE), &group.display().to_string(), 0o600)?;
            match make(sort, &group, milli) {
                Ok(()) => return Ok(Some(Self { group, sort, milli })),
                Err(error) => why = io::Error::new(error.kind(), format!("{}: {error}", place.display())),
            }
        }
        Err(why)
    }

    /// Puts this process into the group, and with it what it starts from now on.
    pub(super) fn enter(&self) -> io::Result<()> {
        for _ in 0..TRIES {
            match join(&self.group) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    make(self.sort, &self.group, self.milli)?;
                }
                joined => return joined,
            }
        }
        join(&self.group)
    }

    /// Takes this process out of the group again.
    pub(super) fn leave(&self) {
        // Where it cannot leave, it has less time to go.
        self.group.parent().map(join).transpose().ok();
    }

    /// Removes the group, if nobody is in it any more.
    pub(super) fn remove(&self) {
        // What is left in it is ended by whoever drives the machine next, and the group with it.
        fs::remove_dir(&self.group).ok();
    }
}

/// Returns the name of a machine's group.
fn name_of(home: &Home) -> String {
    format!("{PREFIX}{}", group_name(home).trim_start_matches("stead-"))
}

/// Removes groups that nobody is in: of sandboxes that were killed, and whose directories went without their driver.
fn sweep(place: &Path) {
    let entries = fs::read_dir(place).into_iter().flatten().flatten();
    let is_one = |name: &std::ffi::OsStr| name.to_str().is_some_and(|name| name.starts_with(PREFIX));
    for left in entries.filter(|entry| is_one(&entry.file_name())) {
        // One that somebody is in stays.
        fs::remove_dir(left.path()).ok();
    }
}

fn join(group: &Path) -> io::Result<()> {
    fs::write(group.join("cgroup.procs"), std::process::id().to_string())
}

/// Takes back the group of a machine, with what is left in it. Returns whether nothing is left.
pub(super) fn release(home: &Home) -> bool {
    let Ok(text) = fs::read_to_string(home.file(FILE)) else { return true };
    let group = PathBuf::from(text);
    // The machine can write there: only what has its name is its group.
    if group.file_name().is_none_or(|name| name != name_of(home).as_str()) {
        return true;
    }
    let is_gone = end_groups(|| if group.is_dir() { vec![group.clone()] } else { Vec::new() });
    if is_gone {
        fs::remove_file(home.file(FILE)).ok();
    }
    is_gone
}

/// Tries whether sandboxes of this process can have a quota. Leaves nothing.
///
/// # Errors
/// With why not.
pub(super) fn attempt() -> Result<(), String> {
    let groups = fs::read_to_string("/proc/self/cgroup").map_err(|error| error.to_string())?;
    let mut why = "the kernel has no control groups for processors".to_owned();
    // Several may try at once in one process.
    let number = TRIED.fetch_add(1, Ordering::Relaxed);
    for (sort, place) in places(Path::new(MOUNTED), &groups) {
        let group = place.join(format!("stead-try-{}-{number}", std::process::id()));
        match make(sort, &group, 1000) {
            Ok(()) => return fs::remove_dir(&group).map_err(|error| error.to_string()),
            Err(error) => why = format!("{}: {error}", place.display()),
        }
    }
    Err(why)
}

/// Returns where the group of a machine may be made, best first. `groups` is what `/proc/self/cgroup` says.
fn places(mounted: &Path, groups: &str) -> Vec<(Sort, PathBuf)> {
    let (sort, root) = match mounted.join("cgroup.controllers").exists() {
        true => (Sort::Second, mounted.to_owned()),
        false => (Sort::First, mounted.join("cpu")),
    };
    if !root.is_dir() {
        return Vec::new();
    }
    let own = groups.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, path) = (parts.next()?, parts.next()?);
        let is_it = match sort {
            Sort::First => controllers.split(',').any(|name| name == "cpu"),
            Sort::Second => controllers.is_empty(),
        };
        is_it.then(|| root.join(path.trim_start_matches('/')))
    });
    // What is mounted here may be a part of the tree that the kernel speaks of.
    let own = own.filter(|own| own.is_dir()).unwrap_or_else(|| root.clone());
    let beside = own.parent().filter(|parent| parent.starts_with(&root)).map(Path::to_owned);
    let mut places: Vec<PathBuf> = vec![own];
    for place in beside.into_iter().chain([root]) {
        if !places.contains(&place) {
            places.push(place);
        }
    }
    places.into_iter().map(|place| (sort, place)).collect()
}

/// Makes a group with a quota, again if somebody took it for one that was left. Leaves nothing where that does not work.
fn make(sort: Sort, group: &Path, milli: u64) -> io::Result<()> {
    let is_swept =
        |made: &io::Result<()>| made.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
    let mut made = make_once(sort, group, milli);
    for _ in 1..TRIES {
        if !is_swept(&made) {
            break;
        }
        made = make_once(sort, group, milli);
    }
    made
}

fn make_once(sort: Sort, group: &Path, milli: u64) -> io::Result<()> {
    match fs::create_dir(group) {
        // One that was left by a run that was killed: it is given what is to be given now.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        made => made?,
    }
    let limited = limit(sort, group, milli);
    if limited.is_err() {
        fs::remove_dir(group).ok();
    }
    limited
}

fn limit(sort: Sort, group: &Path, milli: u64) -> io::Result<()> {
    let quota = (PERIOD.saturating_mul(milli) / 1000).max(LEAST);
    match sort {
        Sort::First => {
            fs::write(group.join("cpu.cfs_period_us"), PERIOD.to_string())?;
            fs::write(group.join("cpu.cfs_quota_us"), quota.to_string())
        }
        Sort::Second => {
            let file = group.join("cpu.max");
            if !file.exists()
                && let Some(place) = group.parent()
            {
                fs::write(place.join("cgroup.subtree_control"), "+cpu")?;
            }
            fs::write(file, format!("{quota} {PERIOD}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(places: Vec<(Sort, PathBuf)>, root: &Path) -> Vec<(Sort, String)> {
        let name = |place: &Path| place.strip_prefix(root).unwrap().display().to_string();
        places.iter().map(|(sort, place)| (*sort, name(place))).collect()
    }

    #[test]
    fn a_group_is_made_below_the_own_one_beside_it_or_at_the_top() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        assert_eq!(places(root, "0::/a\n"), [], "there are no groups at all");
        fs::create_dir_all(root.join("cpu/a/b")).unwrap();
        let first = |own: &str| named(places(root, own), root);
        let at = |names: &[&str], sort: Sort| -> Vec<(Sort, String)> {
            names.iter().map(|name| (sort, (*name).to_owned())).collect()
        };
        assert_eq!(
            first("3:cpuset:/x\n1:cpu,cpuacct:/a/b\n0::/\n"),
            at(&["cpu/a/b", "cpu/a", "cpu"], Sort::First)
        );
        assert_eq!(first("1:cpu:/\n"), at(&["cpu"], Sort::First));
        assert_eq!(first("1:cpu:/somewhere/else\n"), at(&["cpu"], Sort::First));
        fs::write(root.join("cgroup.controllers"), "cpu memory").unwrap();
        fs::create_dir_all(root.join("system.slice/w.service/agent")).unwrap();
        let second = |own: &str| named(places(root, own), root);
        let expected = at(&["system.slice/w.service/agent", "system.slice/w.service", ""], Sort::Second);
        assert_eq!(second("0::/system.slice/w.service/agent\n"), expected);
    }

    #[test]
    fn a_quota_is_a_part_of_a_period_and_never_too_small() {
        let dir = tempfile::tempdir().unwrap();
        let read = |name: &str| fs::read_to_string(dir.path().join(name)).unwrap();
        limit(Sort::First, dir.path(), 2500).unwrap();
        assert_eq!((read("cpu.cfs_period_us"), read("cpu.cfs_quota_us")), ("100000".into(), "250000".into()));
        fs::write(dir.path().join("cpu.max"), "max 100000").unwrap();
        limit(Sort::Second, dir.path(), 1).unwrap();
        assert_eq!(read("cpu.max"), "1000 100000");
    }

    #[test]
    fn what_cannot_be_limited_leaves_no_group() {
        let dir = tempfile::tempdir().unwrap();
        let group = dir.path().join("group");
        // Processors cannot be handed on to groups here.
        fs::create_dir(dir.path().join("cgroup.subtree_control")).unwrap();
        assert!(make(Sort::Second, &group, 100).is_err());
        assert!(!group.exists());
    }
}
