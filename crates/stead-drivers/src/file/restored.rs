//! `file.restored`: paths as they were recorded. The inverse of every file operation.
//!
//! One operation undoes them all because a recorded state says everything: kind, content, mode, owner, or absence.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use stead_model::operation::{ParamDefault, ParamKind, ParamSpec};
use stead_model::plan::Param;
use stead_model::{Descriptor, Op, OperationName};
use stead_runner::operation::{OpContext, OpError, Params};

use super::absent::join;
use super::entry::{Record, Want};
use super::params::{PATH, WRITE};
use super::{Desire, Entry, compare, kept};
use crate::disk::body::{Body, WHOLE};
use crate::disk::seen::{Depth, Kind};
use crate::disk::{Disk, Last, Spot, base64};

static DESCRIPTOR: Descriptor = Descriptor {
    name: "file.restored",
    summary: "Makes sure paths are as they were recorded; the inverse of the other file operations.",
    params: &[
        PATH,
        ParamSpec::new(
            "entries",
            ParamKind::Map,
            "By path relative to `path` (`.` is itself): `kind` (file, directory, symlink, absent), `mode`, `uid`, `gid`, `text` or `base64` (or `size` and `sha256` of what the run keeps a copy of), `to`.",
        )
        .required()
        .secret(),
        ParamSpec::new(
            "empty_parents",
            ParamKind::TextList,
            "Directories above `path` to be removed if nothing else is in them; default: none.",
        ).default(ParamDefault::Texts(&[])),
        ParamSpec::new(
            "nothing_else",
            ParamKind::Bool,
            "Remove what is below `path` and not in `entries`; default: false.",
        )
        .default(ParamDefault::Flag(false)),
    ],
    result: &[("path", "The path that was changed.")],
    ..WRITE
};

/// One recorded path, as the parameter holds it.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Recorded {
    pub(crate) kind: Kind,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    mode: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    uid: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    gid: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    text: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    base64: Option<String>,
    /// Of content that is kept beside the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    size: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    sha256: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    to: Option<String>,
}

pub(crate) struct Restored;

impl Desire for Restored {
    fn descriptor(&self) -> &'static Descriptor {
        &DESCRIPTOR
    }

    fn entries(&self, cx: &OpContext, disk: &Disk, params: &Params) -> Result<Vec<Entry>, OpError> {
        let base = Path::new(params.required("path")?);
        let recorded = params.get("entries").cloned().unwrap_or_default();
        let recorded: BTreeMap<String, Recorded> = serde_json::from_value(recorded)
            .map_err(|error| OpError::invalid(format!("`entries` is not as recorded: {error}")))?;
        let mut entries = Vec::new();
        for directory in params.texts("empty_parents") {
            entries.extend(empty_parent(disk, Path::new(&directory), base)?);
        }
        if params.flag("nothing_else", false) {
            let names = |label: &str| recorded.contains_key(label);
            entries.extend(strangers(disk, base, &names)?);
        }
        for (label, recorded) in recorded {
            let below = Path::new(&label);
            if below.components().any(|part| !matches!(part, Component::Normal(_) | Component::CurDir)) {
                return Err(OpError::invalid(format!("`{label}` in `entries` does not stay below `path`")));
            }
            let spot =
                disk.locate(&if label == "." { base.to_owned() } else { base.join(below) }, Last::Keep)?;
            let seen = disk.see(&spot, Depth::Content)?;
            let label = if label == "." { String::new() } else { label };
            let mut want = recorded.into_want()?;
            if let Some(body) = &mut want.body
                && !body.is_whole()
                && want.bytes.is_none()
                && seen.body.as_ref() != Some(body)
            {
                body.source = Some(kept::find(cx, body).ok_or_else(|| kept::lost(cx, &spot.path, body))?);
            }
            entries.push(Entry { label, spot, seen, want });
        }
        Ok(entries)
    }
}

impl Recorded {
    /// Returns the wish to have it again.
    pub(crate) fn into_want(self) -> Result<Want, OpError> {
        let mut want = Want { uid: self.uid, gid: self.gid, to: self.to, ..Want::new(self.kind) };
        if let Some(mode) = self.mode {
            let bits = u32::from_str_radix(&mode, 8);
            want.mode = Some(bits.map_err(|_| OpError::invalid(format!("`{mode}` is not a mode")))?);
        }
        Ok(match (self.text, self.base64, self.size.zip(self.sha256)) {
            (Some(text), _, _) => want.content(text.into_bytes()),
            (None, Some(text), _) => {
                want.content(base64::decode(&text).ok_or_else(|| OpError::invalid("`base64` is not base64"))?)
            }
            (None, None, Some((size, sha256))) => {
                if stead_model::plan::Digest::parse(&sha256).is_none() {
                    return Err(OpError::invalid("`sha256` is not 64 lower-case hex digits"));
                }
                want.body = Some(Body::named(size, &sha256));
                want
            }
            (None, None, None) => want,
        })
    }
}

/// Returns the wishes to remove what is below `base` and has no name among the recorded ones.
fn strangers(disk: &Disk, base: &Path, is_recorded: &dyn Fn(&str) -> bool) -> Result<Vec<Entry>, OpError> {
    let mut entries = Vec::new();
    let spot = disk.locate(base, Last::Keep)?;
    if disk.see(&spot, Depth::Attributes)?.kind != Kind::Directory {
        return Ok(entries);
    }
    let below = |label: &str, spot: &Spot| -> Result<Vec<(String, Spot)>, OpError> {
        Ok(disk.children(spot)?.into_iter().map(|child| (join(label, &child), child)).collect())
    };
    let mut todo = below("", &spot)?;
    while let Some((label, spot)) = todo.pop() {
        let seen = disk.see(&spot, Depth::Attributes)?;
        if seen.kind == Kind::Directory {
            todo.extend(below(&label, &spot)?);
        }
        if !is_recorded(&label) {
            entries.push(Entry { label, spot, seen, want: Want::new(Kind::Absent) });
        }
    }
    Ok(entries)
}

/// Returns the wish to remove a directory above `base`, if nothing but the way to `base` is in it.
fn empty_parent(disk: &Disk, directory: &Path, base: &Path) -> Result<Option<Entry>, OpError> {
    let Ok(below) = base.strip_prefix(directory) else {
        return Err(OpError::invalid(format!("`{}` is not above `path`", directory.display())));
    };
    let spot = disk.locate(directory, Last::Keep)?;
    let seen = disk.see(&spot, Depth::Attributes)?;
    if spot.is_root() || seen.kind != Kind::Directory {
        return Ok(None);
    }
    let next = below.components().next().map(|part| part.as_os_str().to_owned());
    if disk.children(&spot)?.iter().any(|child| Some(&child.name) != next.as_ref()) {
        return Ok(None);
    }
    let label = directory.display().to_string();
    Ok(Some(Entry { label, spot, seen, want: Want::new(Kind::Absent) }))
}

/// Returns the operation that restores what the records saw; nothing if they did not see enough.
pub(crate) fn inverse(records: &[Record], missing: &[PathBuf]) -> Option<Op> {
    let base = &records.first()?.path;
    let too_long = too_long(records);
    if too_long.iter().any(|i| !records[*i].is_kept) {
        return None;
    }
    let mut entries = BTreeMap::new();
    for (i, record) in changing(records) {
        let below = record.path.strip_prefix(base).ok()?.to_str()?;
        let recorded = recorded(record, too_long.binary_search(&i).is_ok())?;
        let label = if below.is_empty() { ".".to_owned() } else { below.to_owned() };
        entries.insert(label, serde_json::to_value(recorded).ok()?);
    }
    let mut params = BTreeMap::from([
        ("path".to_owned(), Param::Value(base.to_str()?.into())),
        ("entries".to_owned(), Param::Value(Value::Object(entries.into_iter().collect()))),
    ]);
    if !missing.is_empty() {
        let parents: Option<Vec<Value>> = missing.iter().map(|path| path.to_str().map(Value::from)).collect();
        params.insert("empty_parents".to_owned(), Param::Value(parents?.into()));
    }
    Some(Op { operation: OperationName::parse(DESCRIPTOR.name).ok()?, params })
}

/// Returns the records that are going to change, with their places.
pub(crate) fn changing(records: &[Record]) -> impl Iterator<Item = (usize, &Record)> {
    let differs = |record: &Record| !compare::fields(&record.label, &record.seen, &record.want).is_empty();
    records.iter().enumerate().filter(move |(_, record)| differs(record))
}

/// Returns which records, in order, hold content that goes and that an inverse has no room for: [`WHOLE`] in all.
pub(crate) fn too_long(records: &[Record]) -> Vec<usize> {
    let mut room = WHOLE;
    let mut found = Vec::new();
    for (i, record) in changing(records) {
        let Some(body) = lost_content(record) else { continue };
        if body.is_whole() && body.size <= room {
            room -= body.size;
        } else {
            found.push(i);
        }
    }
    found
}

/// Returns the content that is gone after the change, if it was looked at.
fn lost_content(record: &Record) -> Option<&Body> {
    let goes = record.want.kind != Kind::File || record.want.body.is_some();
    record.seen.body.as_ref().filter(|_| record.seen.kind == Kind::File && goes)
}

/// Returns what a record saw, its content by hash if it is `too_long`.
pub(crate) fn recorded(record: &Record, too_long: bool) -> Option<Recorded> {
    let seen = &record.seen;
    let attributes = !matches!(seen.kind, Kind::Absent);
    let mut recorded = Recorded {
        kind: seen.kind,
        mode: (attributes && seen.kind != Kind::Symlink).then(|| format!("{:04o}", seen.mode)),
        uid: attributes.then_some(seen.uid),
        gid: attributes.then_some(seen.gid),
        text: None,
        base64: None,
        size: None,
        sha256: None,
        to: seen.to.clone(),
    };
    match seen.kind {
        // Content is needed only if it was going to be another.
        Kind::File if record.want.kind != Kind::File || record.want.body.is_some() => {
            let body = lost_content(record)?;
            if too_long {
                (recorded.size, recorded.sha256) = (Some(body.size), Some(body.sha256()));
                return Some(recorded);
            }
            match String::from_utf8(body.bytes()?) {
                Ok(text) => recorded.text = Some(text),
                Err(bytes) => recorded.base64 = Some(base64::encode(bytes.as_bytes())),
            }
            Some(recorded)
        }
        Kind::Absent | Kind::File | Kind::Directory | Kind::Symlink => Some(recorded),
        Kind::Other if record.want.kind == Kind::Other => Some(recorded),
        Kind::Other | Kind::Unknown => None,
    }
}
