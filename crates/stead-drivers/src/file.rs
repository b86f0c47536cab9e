//! `file.*`: bring files, directories and links to a described state.
//!
//! Each operation says only what it wants at which path ([`Desire`]); reading, comparing, writing, predicting and
//! undoing are the same for all and written once here:
//!
//! ```text
//!   Desire::entries ──▶ [Entry { spot, seen, want }] ──┬─▶ compare  ──▶ Diff
//!                                                      ├─▶ permit   ──▶ whether it could be written
//!                                                      ├─▶ write    ──▶ the disk
//!                                                      ├─▶ Want::after ──▶ Predicted (dry run)
//!                                                      └─▶ seen     ──▶ inverse: `file.restored`
//! ```
//!
//! # After a kill
//! A file is written beside its place as `.NAME.stead-tmp`, held by a lock, and renamed over it: at any moment the
//! old or the new file is there. A kill before the rename leaves the temporary file, unlocked; the path is then
//! still different, so the next run writes it again and removes the leftover first. See [`write`].

mod absent;
mod block;
pub(crate) mod compare;
mod copy;
mod directory;
pub(crate) mod edit;
pub(crate) mod entry;
mod fetch;
pub(crate) mod kept;
mod line;
pub(crate) mod owner;
pub(crate) mod params;
mod permit;
pub(crate) mod present;
pub(crate) mod restored;
mod symlink;
mod template;
pub(crate) mod temporary;
mod write;

use serde_json::{Value, json};
use stead_model::{Descriptor, Op};
use stead_runner::files::Needs;
use stead_runner::operation::{Applied, Diff, Observed, OpContext, OpError, Operation, Params, Registry};

use crate::disk::Disk;
use crate::disk::seen::Kind;
use entry::{Entry, Record};

/// Adds every `file.*` operation.
pub(crate) fn add_to(registry: &mut Registry) {
    registry.add_operation(Filed(absent::Absent));
    registry.add_operation(Filed(block::Block));
    registry.add_operation(Filed(copy::Copy));
    registry.add_operation(Filed(directory::Directory));
    registry.add_action(fetch::Fetch);
    registry.add_operation(Filed(line::Line));
    registry.add_operation(Filed(present::Present));
    registry.add_operation(Filed(restored::Restored));
    registry.add_operation(Filed(symlink::Symlink));
    registry.add_operation(Filed(template::Template));
}

/// Says what should be where.
pub(crate) trait Desire: Send + Sync {
    /// Returns what the operation declares of itself.
    fn descriptor(&self) -> &'static Descriptor;

    /// Returns every path that matters, with what is there and what should be, parents before children.
    fn entries(&self, cx: &OpContext, disk: &Disk, params: &Params) -> Result<Vec<Entry>, OpError>;

    /// Returns what it needs of the driver.
    fn needs(&self, params: &Params) -> Needs {
        Needs::of(self.descriptor(), params)
    }
}

/// A file operation, made of what it wants.
pub(crate) struct Filed<T>(pub(crate) T);

impl<T: Desire> Operation for Filed<T> {
    fn descriptor(&self) -> &'static Descriptor {
        self.0.descriptor()
    }

    fn observe(&self, cx: &OpContext, params: &Params) -> Result<Observed, OpError> {
        let disk = Disk::open(cx)?;
        observe_keeping(cx, &self.0.entries(cx, &disk, params)?)
    }

    fn diff(&self, _params: &Params, seen: &Observed) -> Diff {
        diff(&records(seen))
    }

    fn unchanged(&self, _cx: &OpContext, params: &Params, _seen: &Observed) -> Option<Value> {
        Some(json!({"path": params.text("path")}))
    }

    fn permit(&self, cx: &OpContext, _params: &Params, seen: &Observed) -> Result<(), OpError> {
        permit(&Disk::open(cx)?, &records(seen))
    }

    fn apply(&self, cx: &OpContext, params: &Params, _diff: &Diff) -> Result<Applied, OpError> {
        let disk = Disk::open(cx)?;
        // Looked at again, not taken from the diff: what is written follows from what is there now.
        let entries = self.0.entries(cx, &disk, params)?;
        let written = write::apply(cx, &disk, params, entries)?;
        let mut data = json!({"path": params.text("path")});
        if let Some(backup) = written.backup {
            data["backup"] = backup.into();
        }
        Ok(Applied { data: Some(data), notes: written.notes })
    }

    fn predict(&self, cx: &OpContext, params: &Params, _diff: &Diff) {
        let Ok(disk) = Disk::open(cx) else { return };
        // It was observed a moment ago; if that fails now, later observations fail by themselves.
        if let Ok(entries) = self.0.entries(cx, &disk, params) {
            predict(&disk, &entries);
        }
    }

    fn inverse(&self, _params: &Params, before: &Observed) -> Option<Op> {
        restored::inverse(&records(before), &missing(before))
    }

    fn needs(&self, params: &Params) -> Needs {
        self.0.needs(params)
    }
}

/// Returns everything at `path`, to be removed: what `file.absent` would act on.
pub(crate) fn entries_to_remove(cx: &OpContext, disk: &Disk, params: &Params) -> Result<Vec<Entry>, OpError> {
    absent::Absent.entries(cx, disk, params)
}

/// Returns the entries as data.
pub(crate) fn observe(entries: &[Entry]) -> Result<Observed, OpError> {
    to_observed(entries.iter().map(Entry::record).collect(), entries)
}

/// As [`observe`], of entries whose content is kept where an inverse has no room for it.
pub(crate) fn observe_keeping(cx: &OpContext, entries: &[Entry]) -> Result<Observed, OpError> {
    if !cx.undo.is_wanted() {
        return observe(entries);
    }
    to_observed(entries.iter().map(|entry| Record { is_kept: true, ..entry.record() }).collect(), entries)
}

fn to_observed(records: Vec<Record>, entries: &[Entry]) -> Result<Observed, OpError> {
    let missing = entries.first().map(|entry| entry.spot.missing.clone()).unwrap_or_default();
    let value = serde_json::to_value((records, missing));
    value.map(Observed).map_err(|error| OpError::permanent(format!("a path is not text: {error}")))
}

/// Returns the entries an observation holds.
pub(crate) fn records(seen: &Observed) -> Vec<Record> {
    seen.0.get(0).and_then(|records| serde_json::from_value(records.clone()).ok()).unwrap_or_default()
}

/// Returns the directories that were missing above the first entry.
pub(crate) fn missing(seen: &Observed) -> Vec<std::path::PathBuf> {
    seen.0.get(1).and_then(|missing| serde_json::from_value(missing.clone()).ok()).unwrap_or_default()
}

/// Records what the entries would be.
pub(crate) fn predict(disk: &Disk, entries: &[Entry]) {
    for entry in entries.iter().filter(|entry| entry.differs()) {
        // Nothing is made on the way to what goes.
        let made: &[_] = if entry.want.kind == Kind::Absent { &[] } else { &entry.spot.missing };
        for path in made {
            // An earlier entry may have said more of it.
            if disk.predicted_at(path).is_none_or(|seen| seen.kind != Kind::Directory) {
                disk.predict(path, &entry::directory_on_the_way());
            }
        }
        disk.predict(&entry.spot.path, &entry.want.after(&entry.seen));
    }
}

pub(crate) use compare::diff;
pub(crate) use permit::permit;
pub(crate) use write::apply;
