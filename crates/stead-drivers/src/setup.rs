//! Operations that are files with computed content plus a part of the running system.
//!
//! Each of them says only what it wants ([`Configure`]): entries, as file operations do, and what should hold in the
//! running system ([`Live`]). Reading, comparing, writing, predicting and undoing are the same for all and written
//! once here:
//!
//! ```text
//!   Configure::setup ──▶ Setup { entries, wishes, settle } ──┬─▶ Diff
//!                                                            ├─▶ teardown, files, live, settle (apply)
//!                                                            ├─▶ Predicted (dry run)
//!                                                            └─▶ inverse: `config.restored`
//! ```
//!
//! Under a root prefix there is no running system: wishes and settling are left out, neither compared nor done.

pub(crate) mod input;
pub(crate) mod live;
pub(crate) mod restored;
pub(crate) mod settle;

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use stead_model::operation::RootSupport;
use stead_model::{Descriptor, Op};
use stead_runner::operation::{
    Applied, Diff, FieldDiff, Observed, OpContext, OpError, Operation, Params, Registry, Stop,
};

use crate::disk::seen::{Depth, Kind, Seen, unknown};
use crate::disk::{Disk, Last, Spot};
use crate::file;
use crate::file::edit::LARGEST;
use crate::file::entry::{Entry, Record, Want};
use crate::network::watch::{self, Watch};
use live::Live;
use settle::Settle;

/// What a diff calls whether the running system has taken notice of the files.
const TAKEN_UP: &str = "taken up by the running system";

/// What the descriptors of these operations share.
pub(crate) const CONFIGURE: Descriptor = Descriptor {
    root: RootSupport::Files,
    needs_root: true,
    result: &[("files", "The files that were changed.")],
    ..file::params::WRITE
};

/// Adds the operation that undoes the others.
pub(crate) fn add_to(registry: &mut Registry) {
    registry.add_operation(Configured(restored::Restored));
}

/// Says what should be in files and what should hold in the running system.
pub(crate) trait Configure: Send + Sync {
    /// Returns what the operation declares of itself.
    fn descriptor(&self) -> &'static Descriptor;

    /// Puts what is there and what should be into `setup`. Reads only.
    fn setup(&self, setup: &mut Setup<'_>, params: &Params) -> Result<(), OpError>;
}

/// A part of the running system, as it is and as it should be.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Wish {
    /// Which part.
    pub(crate) part: Live,
    /// What holds; null: it is not there.
    pub(crate) seen: Value,
    /// What should hold; null: it should not be there.
    pub(crate) want: Value,
    /// Whether that is not the same.
    pub(crate) differs: bool,
}

/// What an operation wants, next to what is there.
pub(crate) struct Setup<'a> {
    pub(crate) cx: &'a OpContext,
    pub(crate) disk: &'a Disk,
    pub(crate) entries: Vec<Entry>,
    pub(crate) wishes: Vec<Wish>,
    /// What makes the running system take notice of changed files.
    pub(crate) settle: Vec<Settle>,
    /// Said to the user if something is changed.
    pub(crate) notes: Vec<String>,
}

impl<'a> Setup<'a> {
    pub(crate) fn new(cx: &'a OpContext, disk: &'a Disk) -> Self {
        let (entries, wishes) = (Vec::new(), Vec::new());
        Self { cx, disk, entries, wishes, settle: Vec::new(), notes: Vec::new() }
    }

    /// Whether there is a running system: not under a root prefix.
    pub(crate) fn is_running(&self) -> bool {
        self.cx.root.is_none()
    }

    /// Returns where `path` is and what is there, a link itself and not what it leads to.
    pub(crate) fn look(&self, path: &Path) -> Result<(Spot, Seen), OpError> {
        let spot = self.disk.locate(path, Last::Keep)?;
        let seen = self.disk.see(&spot, Depth::Content)?;
        Ok((spot, seen))
    }

    /// Returns the regular file at `path`: its bytes, or nothing if it is absent.
    pub(crate) fn read(&self, path: &Path) -> Result<Option<Vec<u8>>, OpError> {
        let (spot, seen) = self.look(path)?;
        expect_file(&spot, &seen)?;
        if seen.kind == Kind::Absent {
            return Ok(None);
        }
        self.disk.read(&spot, &seen, LARGEST).map(Some)
    }

    /// Returns the bytes that `path` leads to, links followed; nothing if that is not a file.
    pub(crate) fn read_through(&self, path: &Path) -> Result<Option<Vec<u8>>, OpError> {
        let spot = self.disk.locate(path, Last::Follow)?;
        let seen = self.disk.see(&spot, Depth::Content)?;
        match seen.kind {
            Kind::File => self.disk.read(&spot, &seen, LARGEST).map(Some),
            Kind::Absent | Kind::Directory | Kind::Symlink | Kind::Other | Kind::Unknown => Ok(None),
        }
    }

    /// Whether something is at `path`, links followed.
    pub(crate) fn exists(&self, path: &str) -> Result<bool, OpError> {
        self.disk.exists(Path::new(path))
    }

    /// Wants a regular file at `path`, or that there is none.
    pub(crate) fn file(&mut self, path: impl AsRef<Path>, want: Want) -> Result<(), OpError> {
        let (spot, seen) = self.look(path.as_ref())?;
        expect_file(&spot, &seen)?;
        self.push(spot, seen, want);
        Ok(())
    }

    /// Wants this content at `path`.
    pub(crate) fn content(&mut self, path: impl AsRef<Path>, bytes: Vec<u8>) -> Result<(), OpError> {
        self.file(path, Want::new(Kind::File).content(bytes))
    }

    /// Returns `want` as owned by root, where this account can give files away.
    pub(crate) fn owned_by_root(&self, want: Want) -> Want {
        if rustix::process::geteuid().is_root() { want.owner(0, 0) } else { want }
    }

    /// Wants nothing at `path`.
    pub(crate) fn absent(&mut self, path: impl AsRef<Path>) -> Result<(), OpError> {
        self.file(path, Want::new(Kind::Absent))
    }

    /// Wants `want` at `spot`, whatever is there.
    pub(crate) fn push(&mut self, spot: Spot, seen: Seen, want: Want) {
        let label = spot.path.display().to_string();
        self.entries.push(Entry { label, spot, seen, want });
    }

    /// Wants `want` of a part of the running system, if there is one.
    pub(crate) fn wish(&mut self, part: Live, want: Value) -> Result<(), OpError> {
        if self.is_running() {
            let seen = part.read(self.cx)?;
            let differs = part.differs(&seen, &want);
            self.wishes.push(Wish { part, seen, want, differs });
        }
        Ok(())
    }

    /// Wants this done once files have changed, if there is a running system.
    pub(crate) fn settle(&mut self, settle: Settle) {
        if self.is_running() || settle == Settle::Certificates {
            self.settle.push(settle);
        }
    }

    fn observed(&self) -> Result<Observed, OpError> {
        let mut made: Vec<PathBuf> = Vec::new();
        for entry in self.entries.iter().filter(|entry| entry.differs() && entry.want.kind != Kind::Absent) {
            made.extend(entry.spot.missing.iter().cloned());
        }
        made.sort();
        made.dedup();
        let files = self.entries.iter().map(Entry::record).collect();
        let due = self.is_due();
        let seen = State { files, made, wishes: self.wishes.clone(), settle: self.settle.clone(), due };
        let value = serde_json::to_value(seen);
        value.map(Observed).map_err(|error| OpError::permanent(format!("a path is not text: {error}")))
    }

    /// Whether the running system has not taken notice of files that are as they should be.
    fn is_due(&self) -> bool {
        self.settle.iter().any(|step| step.is_due(self.cx))
    }

    /// Makes everything as it should be: parts that go away first, while their files still say what they are.
    fn bring_about(self, params: &Params) -> Result<Applied, OpError> {
        let is_due = self.is_due();
        let Self { cx, disk, entries, wishes, settle, mut notes } = self;
        let written: Vec<String> =
            entries.iter().filter(|entry| entry.differs()).map(|entry| entry.label.clone()).collect();
        let differing: Vec<&Wish> = wishes.iter().filter(|wish| wish.differs).collect();
        let must_settle =
            is_due || !written.is_empty() || differing.iter().any(|wish| wish.part.is_derived());
        let steps: &[Settle] = if must_settle { &settle } else { &[] };
        for step in steps {
            step.prepare()?;
        }
        let watched = settle.iter().find_map(Settle::watched);
        let watch =
            watched.map(|seconds| Watch::start(cx, disk, seconds, &entries, &wishes, &settle)).transpose()?;
        let mut changed = false;
        let work = || -> Result<(), OpError> {
            let (mut gone, come): (Vec<&Wish>, Vec<&Wish>) =
                differing.iter().partition(|wish| live::is_gone(&wish.want));
            // What came last stands on what came before it.
            gone.reverse();
            let mut set = |wishes: &[&Wish]| -> Result<(), OpError> {
                for wish in wishes.iter().filter(|wish| !wish.part.is_derived()) {
                    if cx.cancel.now() >= Stop::Ask {
                        return Err(OpError::operation("cancelled before everything was done"));
                    }
                    wish.part.set(cx, &wish.seen, &wish.want)?;
                    changed = true;
                }
                Ok(())
            };
            set(&gone)?;
            for step in steps {
                step.begin(cx)?;
            }
            notes.extend(file::apply(cx, disk, params, entries)?.notes);
            set(&come)?;
            if !gone.is_empty() {
                // What was right may have gone along: a route with the address it was reached by.
                let kept = wishes.iter().filter(|wish| !wish.differs && !live::is_gone(&wish.want));
                for wish in kept.filter(|wish| !wish.part.is_derived()) {
                    let now = wish.part.read(cx)?;
                    if wish.part.differs(&now, &wish.want) {
                        wish.part.set(cx, &now, &wish.want)?;
                    }
                }
            }
            changed |= !written.is_empty();
            for step in steps {
                notes.extend(step.run(cx, disk)?);
                step.end(cx);
            }
            if watch.is_some() { watch::verify(cx, &wishes) } else { Ok(()) }
        };
        match (work(), watch) {
            (Ok(()), Some(watch)) => notes.extend(watch.finish()?),
            (Ok(()), None) => {}
            (Err(error), Some(watch)) => {
                watch.undo();
                return Err(error);
            }
            (Err(error), None) => return Err(OpError { changed: error.changed || changed, ..error }),
        }
        Ok(Applied { data: Some(json!({"files": written})), notes })
    }
}

/// An observation: the state before, as data.
#[derive(Debug, Default, Serialize, Deserialize)]
struct State {
    files: Vec<Record>,
    /// Directories that have to be made on the way.
    made: Vec<PathBuf>,
    wishes: Vec<Wish>,
    settle: Vec<Settle>,
    /// Files are as they should be, but a run was cut off before the running system took notice of them.
    #[serde(default)]
    due: bool,
}

impl State {
    fn of(seen: &Observed) -> Self {
        serde_json::from_value(seen.0.clone()).unwrap_or_default()
    }
}

/// An operation made of what it wants.
pub(crate) struct Configured<T>(pub(crate) T);

impl<T: Configure> Configured<T> {
    fn with<R>(
        &self,
        cx: &OpContext,
        params: &Params,
        then: impl FnOnce(Setup<'_>) -> Result<R, OpError>,
    ) -> Result<R, OpError> {
        let disk = Disk::open(cx)?;
        let mut setup = Setup::new(cx, &disk);
        self.0.setup(&mut setup, params)?;
        then(setup)
    }
}

impl<T: Configure> Operation for Configured<T> {
    fn descriptor(&self) -> &'static Descriptor {
        self.0.descriptor()
    }

    fn observe(&self, cx: &OpContext, params: &Params) -> Result<Observed, OpError> {
        self.with(cx, params, |setup| setup.observed())
    }

    fn diff(&self, _params: &Params, seen: &Observed) -> Diff {
        let state = State::of(seen);
        let mut diff = file::diff(&state.files);
        if state.due {
            diff.fields.push(FieldDiff {
                name: TAKEN_UP.to_owned(),
                before: false.into(),
                after: true.into(),
            });
        }
        let wishes = state.wishes.into_iter().filter(|wish| wish.differs);
        diff.fields.extend(wishes.map(|wish| FieldDiff {
            name: wish.part.to_string(),
            before: wish.seen,
            after: wish.want,
        }));
        diff
    }

    fn unchanged(&self, _cx: &OpContext, _params: &Params, _seen: &Observed) -> Option<Value> {
        Some(json!({"files": []}))
    }

    fn permit(&self, cx: &OpContext, _params: &Params, seen: &Observed) -> Result<(), OpError> {
        let name = self.descriptor().name;
        if self.descriptor().needs_root && cx.root.is_none() && !rustix::process::geteuid().is_root() {
            return Err(OpError::permanent(format!(
                "{name} needs root here; `become: sudo` on the host gives it"
            )));
        }
        file::permit(&Disk::open(cx)?, &State::of(seen).files)
    }

    fn apply(&self, cx: &OpContext, params: &Params, _diff: &Diff) -> Result<Applied, OpError> {
        // Looked at again, not taken from the diff: what is done follows from what is there now.
        self.with(cx, params, |setup| setup.bring_about(params))
    }

    fn predict(&self, cx: &OpContext, params: &Params, _diff: &Diff) {
        // It was observed a moment ago; if that fails now, later observations fail by themselves.
        let predicted = self.with(cx, params, |setup| {
            file::predict(setup.disk, &setup.entries);
            for wish in setup.wishes.iter().filter(|wish| wish.differs) {
                wish.part.predict(cx, &wish.want);
            }
            for step in setup.settle.iter().filter(|step| step.is_due(cx)) {
                step.predict(cx);
            }
            Ok(())
        });
        predicted.unwrap_or_default();
    }

    fn inverse(&self, _params: &Params, before: &Observed) -> Option<Op> {
        restored::inverse(State::of(before))
    }
}

/// Returns an error unless a regular file, or nothing, is at `spot`.
fn expect_file(spot: &Spot, seen: &Seen) -> Result<(), OpError> {
    let path = spot.path.display();
    match seen.kind {
        Kind::File | Kind::Absent => Ok(()),
        Kind::Unknown => Err(unknown(&spot.path)),
        Kind::Symlink => Err(OpError::permanent(format!(
            "`{path}` is a symbolic link to `{}`: something else manages it; remove the link first",
            seen.to.as_deref().unwrap_or_default()
        ))),
        Kind::Directory | Kind::Other => {
            Err(OpError::permanent(format!("`{path}` is a {}, not a file", seen.kind.as_str())))
        }
    }
}
