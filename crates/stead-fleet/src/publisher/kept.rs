//! What a publisher remembers: the last accepted head, and how far its pipeline is. Written whole, or not at all.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, DirBuilder, File};
use std::io::{self, Write as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use stead_engine::fleet::watch::FailureClass;
use stead_model::GroupName;
use stead_model::fleet::CommitId;

use super::PublishError;
use super::failure::{SUPERSEDED, Stage};
use super::pipeline::Paths;
use crate::api::GroupPipeline;

/// The most accepted commits that wait for a number while the master is away.
const MOST_WAITING: usize = 1000;

/// The most logs that are kept.
const MOST_LOGS: usize = 200;

/// The publisher's own directory.
#[derive(Debug)]
pub(super) struct Place {
    /// The directory.
    pub(super) directory: PathBuf,
    // Held as long as this lives.
    _lock: File,
}

/// What is remembered.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Kept {
    schema: u32,
    /// The last accepted head.
    pub(super) accepted: Option<CommitId>,
    /// The last refused head.
    #[serde(default)]
    pub(super) rejected: Option<Rejection>,
    /// Accepted commits that have no number yet, in the order they were accepted.
    #[serde(default)]
    waiting: Vec<CommitId>,
    /// What is under way, or came to an end.
    #[serde(default)]
    pub(super) work: Option<Work>,
    /// Every group that was ever published.
    #[serde(default)]
    pub(super) groups: BTreeSet<GroupName>,
}

/// A head that was refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Rejection {
    /// Which.
    pub(super) head: CommitId,
    /// `rewrite-rejected` or `signature-rejected`.
    pub(super) state: String,
    /// Why, in a sentence.
    pub(super) error: String,
}

/// The pipeline of a commit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Work {
    /// The commit.
    pub(super) commit: CommitId,
    /// What it contains, newest first, without itself.
    #[serde(default)]
    pub(super) contains: Vec<CommitId>,
    /// Its number, once the master gave one.
    #[serde(default)]
    pub(super) generation: Option<u64>,
    /// How far each group is.
    #[serde(default)]
    pub(super) groups: BTreeMap<GroupName, GroupPipeline>,
    /// Whether every group came to an end.
    #[serde(default)]
    pub(super) is_done: bool,
}

impl Place {
    /// Opens and locks the publisher's directory below `fleet`.
    pub(super) fn open(fleet: &Path) -> Result<Self, PublishError> {
        let directory = fleet.join("publisher");
        let failed = |what, path: &Path| {
            let path = path.to_owned();
            move |source| PublishError::File { what, path, source }
        };
        let mut make = DirBuilder::new();
        make.recursive(true).mode(0o700);
        for path in ["", "logs", "work", "evaluations", "nix"].map(|name| directory.join(name)) {
            make.create(&path).map_err(failed("make", &path))?;
        }
        let path = directory.join("lock");
        let options = File::options().create(true).truncate(false).write(true).open(&path);
        let lock = options.map_err(failed("open", &path))?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => return Err(PublishError::Locked(directory)),
            Err(error) => return Err(failed("lock", &path)(error.into())),
        }
        let place = Self { directory, _lock: lock };
        // What a killed publisher was in the middle of.
        let work = place.paths().work;
        fs::remove_dir_all(&work).and_then(|()| make.create(&work)).map_err(failed("empty", &work))?;
        Ok(place)
    }

    /// Returns where the clone is.
    pub(super) fn clone_directory(&self) -> PathBuf {
        self.directory.join("clone.git")
    }

    /// Returns where things are.
    pub(super) fn paths(&self) -> Paths {
        let below = |name: &str| self.directory.join(name);
        Paths {
            work: below("work"),
            logs: below("logs"),
            evaluations: below("evaluations"),
            nix_home: below("nix"),
        }
    }

    /// Removes the oldest logs beyond a bound.
    pub(super) fn trim_logs(&self) {
        let Ok(entries) = fs::read_dir(self.paths().logs) else { return };
        let mut logs: Vec<_> = entries
            .flatten()
            .filter_map(|entry| Some((entry.metadata().ok()?.modified().ok()?, entry.path())))
            .collect();
        logs.sort();
        let surplus = logs.len().saturating_sub(MOST_LOGS);
        for (_, path) in logs.into_iter().take(surplus) {
            // One that stays is tried again with the next commit.
            fs::remove_file(path).unwrap_or(());
        }
    }

    /// Returns what was remembered; none: nothing, or it cannot be read, and the master is asked instead.
    pub(super) fn read(&self) -> Option<Kept> {
        let kept: Kept = serde_json::from_slice(&fs::read(self.state_file()).ok()?).ok()?;
        (kept.schema == 1).then_some(kept)
    }

    fn state_file(&self) -> PathBuf {
        self.directory.join("state.json")
    }

    /// Remembers.
    pub(super) fn write(&self, kept: &Kept) -> Result<(), PublishError> {
        let path = self.state_file();
        let written = Kept { schema: 1, ..kept.clone() };
        let text = serde_json::to_vec_pretty(&written).map_err(io::Error::from);
        text.and_then(|text| replace(&path, &text)).map_err(|source| PublishError::File {
            what: "write",
            path,
            source,
        })
    }
}

/// Puts a file in place of another, so that after a crash one of them is there whole.
pub(super) fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let directory = path.parent().unwrap_or(Path::new("/"));
    let mut file = tempfile::NamedTempFile::new_in(directory)?;
    file.write_all(bytes)?;
    file.as_file().sync_all()?;
    file.persist(path).map_err(|error| error.error)?;
    File::open(directory)?.sync_all()
}

impl Kept {
    /// Returns accepted commits that have no number yet, oldest first.
    pub(super) fn waiting(&self) -> &[CommitId] {
        &self.waiting
    }

    /// Accepts a head: it is the anchor from now on and waits for its number.
    pub(super) fn accept(&mut self, head: CommitId, contains: Vec<CommitId>) {
        self.accepted = Some(head.clone());
        self.rejected = None;
        self.begin(head, contains);
    }

    /// Begins the pipeline of a commit, in every group that is known.
    pub(super) fn begin(&mut self, commit: CommitId, contains: Vec<CommitId>) {
        if self.waiting.last() != Some(&commit) {
            self.waiting.push(commit.clone());
        }
        // Numbers of commits that were superseded only keep the order.
        let surplus = self.waiting.len().saturating_sub(MOST_WAITING);
        self.waiting.drain(..surplus);
        let mut known = self.groups.clone();
        known.insert(GroupName::default_group());
        let groups = known.into_iter().map(|group| (group.clone(), observed(group, &commit))).collect();
        self.work = Some(Work { commit, contains, generation: None, groups, is_done: false });
    }

    /// Takes the number of a commit.
    pub(super) fn reserved(&mut self, commit: &CommitId, generation: u64) {
        if let Some(at) = self.waiting.iter().position(|waiting| waiting == commit) {
            self.waiting.drain(..=at);
        }
        if let Some(work) = self.work.as_mut().filter(|work| work.commit == *commit) {
            work.generation = Some(generation);
        }
    }
}

fn observed(group: GroupName, commit: &CommitId) -> GroupPipeline {
    let stage = Stage::Observed.word().to_owned();
    GroupPipeline { group, commit: commit.clone(), contains: Vec::new(), stage, failure: None }
}

impl Work {
    /// Returns the row of a group.
    pub(super) fn group(&mut self, group: &GroupName) -> &mut GroupPipeline {
        let commit = &self.commit;
        self.groups.entry(group.clone()).or_insert_with(|| observed(group.clone(), commit))
    }

    /// Returns the groups that came to an end: with the master, or failed for good.
    pub(super) fn ended(&self) -> BTreeSet<GroupName> {
        let is_ended = |row: &GroupPipeline| {
            let is_failed =
                row.failure.as_ref().is_some_and(|failure| failure.class == FailureClass::Permanent);
            is_failed || row.stage == Stage::Submitted.word() || row.stage == SUPERSEDED
        };
        self.groups.values().filter(|row| is_ended(row)).map(|row| row.group.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn commit(digit: char) -> CommitId {
        CommitId::parse(&digit.to_string().repeat(40)).unwrap()
    }

    #[test]
    fn what_is_remembered_is_there_again_and_belongs_to_one() {
        let directory = tempfile::tempdir().unwrap();
        let place = Place::open(directory.path()).unwrap();
        assert_eq!(place.read(), None);
        let mut kept = Kept::default();
        kept.accept(commit('a'), vec![]);
        kept.accept(commit('b'), vec![commit('a')]);
        assert_eq!(kept.waiting(), [commit('a'), commit('b')]);
        kept.reserved(&commit('a'), 4);
        kept.reserved(&commit('b'), 5);
        place.write(&kept).unwrap();
        let read = place.read().unwrap();
        assert_eq!(read.work.as_ref().and_then(|work| work.generation), Some(5));
        assert_eq!((read.waiting().len(), read.accepted.clone()), (0, Some(commit('b'))));
        assert!(matches!(Place::open(directory.path()), Err(PublishError::Locked(_))));
        fs::write(place.state_file(), "{").unwrap();
        assert_eq!(place.read(), None);
        drop(place);
        Place::open(directory.path()).unwrap();
    }
}
