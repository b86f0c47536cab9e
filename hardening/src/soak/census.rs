//! Counting what could grow: processes, descriptors, memory, mounts, links, files.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use super::world::World;

/// How long what was killed or cut may take to go away: longer than a host keeps a session for a driver that may come back.
const PATIENCE: Duration = Duration::from_secs(240);
/// What memory may grow by, for an allocator that keeps some: a share, and a few pages.
const MORE_MEMORY: (u64, u64) = (4, 4 << 10);

/// New files that are listed.
const SHOWN: usize = 40;

/// A process.
#[derive(Clone, Debug)]
pub(super) struct Process {
    pub(super) pid: u32,
    pub(super) name: String,
    words: String,
}

/// Returns the processes that name `place` in their environment or their command line.
pub(super) fn processes_of(place: &Path) -> Vec<Process> {
    let place = place.as_os_str().as_encoded_bytes();
    let names = |bytes: &[u8]| bytes.windows(place.len()).any(|part| part == place);
    let own = std::process::id();
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let read = |file: &str| fs::read(entry.path().join(file)).unwrap_or_default();
        let words = read("cmdline");
        if pid == own || words.is_empty() || !(names(&words) || names(&read("environ"))) {
            continue;
        }
        let name = String::from_utf8_lossy(&read("comm")).trim().to_owned();
        let words = String::from_utf8_lossy(&words).replace('\0', " ");
        found.push(Process { pid, name, words });
    }
    found
}

/// What there is at one moment.
#[derive(Clone, Debug, Default)]
pub(super) struct Census {
    /// By what is counted.
    counts: BTreeMap<String, u64>,
    /// The files, to tell which are new.
    files: BTreeSet<PathBuf>,
}

impl fmt::Display for Census {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = |what: &str| self.counts.get(what).copied().unwrap_or(0);
        let (processes, files) = (of("processes"), of("files"));
        write!(f, "{processes} processes, {files} files, server {} KiB", of("memory of server, KiB"))
    }
}

impl Census {
    /// Counts everything.
    pub(super) fn take(world: &World) -> Self {
        let mut counts = BTreeMap::new();
        let mut add = |what: &str, count: u64| *counts.entry(what.to_owned()).or_insert(0) += count;
        let mut processes = processes_of(world.path());
        for host in &world.hosts {
            processes.extend(processes_of(host.sshd.path()));
        }
        processes.sort_by_key(|process| process.pid);
        processes.dedup_by_key(|process| process.pid);
        add("processes", processes.len() as u64);
        let stays = world.path().join("stays").display().to_string();
        for process in &processes {
            let Some(kind) = kind(process, &stays) else { continue };
            add(&format!("descriptors of {kind}"), descriptors(process.pid));
            add(&format!("memory of {kind}, KiB"), memory(process.pid));
        }
        add("descriptors of this program", descriptors(std::process::id()));
        let place = world.path().display().to_string();
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        add("mounts", mounts.lines().filter(|line| line.contains(&place)).count() as u64);
        add("network links", entries(Path::new("/sys/class/net")));
        add("network namespaces", entries(Path::new("/run/netns")));
        let mut all = BTreeSet::new();
        let mut add_files = |what: &str, directory: &Path| {
            let found = files(directory);
            add(what, found.len() as u64);
            all.extend(found);
        };
        add_files("files", world.path());
        for host in &world.hosts {
            add_files("files on hosts", &host.sshd.workdir());
            add_files("files on hosts", &host.sshd.home());
        }
        add_files("temporary files", &world.path().join("tmp"));
        Self { counts, files: all }
    }

    /// Counts when it is calm: everything that was killed or cut is gone.
    pub(super) fn calm(world: &World) -> Self {
        let began = Instant::now();
        let mut last = Self::take(world);
        let mut since = Instant::now();
        // Nothing comes and goes for as long as a session could still be kept.
        while since.elapsed() < Duration::from_secs(15) && began.elapsed() < PATIENCE {
            thread::sleep(Duration::from_secs(1));
            let now = Self::take(world);
            if now.counts.get("processes") != last.counts.get("processes") {
                since = Instant::now();
            }
            last = now;
        }
        last
    }

    /// Prints both, and returns whether something has grown.
    #[expect(clippy::print_stdout, reason = "a program for a terminal and for CI")]
    pub(super) fn compare(&self, before: &Self) -> bool {
        let mut has_grown = false;
        println!("{:<34} {:>9} {:>9}", "", "before", "after");
        for (what, after) in &self.counts {
            let before = before.counts.get(what).copied().unwrap_or(0);
            let most = if what.starts_with("memory") {
                before + (before / MORE_MEMORY.0).max(MORE_MEMORY.1)
            } else {
                before
            };
            let grows = *after > most;
            has_grown |= grows;
            println!("{what:<34} {before:>9} {after:>9}{}", if grows { "  GROWS" } else { "" });
        }
        let is_more = self.files.len() > before.files.len();
        for path in self.files.difference(&before.files).filter(|_| is_more).take(SHOWN) {
            println!("    new: {}", path.display());
        }
        has_grown
    }

    /// Returns what is still there when all was taken away.
    pub(super) fn left(world: &World) -> Vec<String> {
        let began = Instant::now();
        loop {
            let mut left: Vec<String> = processes_of(world.path())
                .iter()
                .map(|process| format!("process {}: {}", process.pid, process.words))
                .collect();
            let place = world.path().display().to_string();
            let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
            left.extend(mounts.lines().filter(|line| line.contains(&place)).map(str::to_owned));
            if left.is_empty() || began.elapsed() > PATIENCE {
                return left;
            }
            thread::sleep(Duration::from_millis(500));
        }
    }
}

/// Returns which of those that live long a process is.
fn kind(process: &Process, stays: &str) -> Option<&'static str> {
    let is_stead = process.name.starts_with("stead");
    if process.name == "sshd" && process.words.contains(" -D ") {
        Some("SSH servers")
    } else if is_stead && process.words.contains(stays) && process.words.contains("server") {
        Some("server")
    } else if is_stead && process.words.contains("agent") {
        Some("agents")
    } else if is_stead && process.words.contains(stays) {
        Some("sandboxes")
    } else {
        None
    }
}

fn descriptors(pid: u32) -> u64 {
    entries(Path::new(&format!("/proc/{pid}/fd")))
}

/// Returns the memory of a process that is its own, in KiB.
fn memory(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

fn entries(directory: &Path) -> u64 {
    fs::read_dir(directory).map_or(0, |entries| entries.count() as u64)
}

/// Returns the files that are not the record of a run or of a job, of which there is one for each.
fn files(directory: &Path) -> BTreeSet<PathBuf> {
    let is_record =
        |name: &str| name == "runs" || (name.starts_with("server-") && name.ends_with(".outputs"));
    let walk = walkdir::WalkDir::new(directory).into_iter();
    let walk = walk.filter_entry(|entry| !entry.file_name().to_str().is_some_and(is_record));
    let files = walk.flatten().filter(|entry| !entry.file_type().is_dir());
    files.map(walkdir::DirEntry::into_path).collect()
}
