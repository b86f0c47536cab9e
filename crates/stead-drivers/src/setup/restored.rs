//! `config.restored`: files and parts of the running system as they were recorded. The inverse of every operation
//! that is made of both.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use stead_model::operation::{ParamDefault, ParamKind, ParamSpec, RootSupport};
use stead_model::plan::Param;
use stead_model::{Descriptor, Op, OperationName};
use stead_runner::operation::{OpError, Params};

use super::live::{Live, is_gone};
use super::settle::Settle;
use super::{CONFIGURE, Configure, Setup, State, Wish};
use crate::disk::seen::Kind;
use crate::file::entry::Want;
use crate::file::restored::{Recorded, changing, recorded, too_long};

static DESCRIPTOR: Descriptor = Descriptor {
    name: "config.restored",
    summary: "Makes sure files and parts of the running system are as they were recorded; the inverse of configuration operations.",
    root: RootSupport::Full,
    params: &[
        ParamSpec::new(
            "files",
            ParamKind::Map,
            "By absolute path: `kind` (file, directory, symlink, absent), `mode`, `uid`, `gid`, `text` or `base64`, `to`.",
        )
        .secret(),
        ParamSpec::new(
            "made",
            ParamKind::TextList,
            "Directories to be removed if nothing else is in them; default: none.",
        ).default(ParamDefault::Texts(&[])),
        ParamSpec::new("running", ParamKind::Any, "List of parts of the running system with their values."),
        ParamSpec::new("settle", ParamKind::Any, "List of what makes the running system take notice."),
    ],
    ..CONFIGURE
};

/// A part of the running system with the value it had.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Part {
    part: Live,
    value: Value,
}

pub(super) struct Restored;

impl Configure for Restored {
    fn descriptor(&self) -> &'static Descriptor {
        &DESCRIPTOR
    }

    fn setup(&self, setup: &mut Setup<'_>, params: &Params) -> Result<(), OpError> {
        let files: BTreeMap<PathBuf, Recorded> = given(params, "files")?.unwrap_or_default();
        let made = params.texts("made").into_iter().map(|path| (PathBuf::from(path), None));
        let mut paths: BTreeMap<PathBuf, Option<Recorded>> = made.collect();
        paths.extend(files.into_iter().map(|(path, recorded)| (path, Some(recorded))));
        if let Some(path) = paths.keys().find(|path| !path.is_absolute()) {
            return Err(OpError::invalid(format!("`{}` is not an absolute path", path.display())));
        }
        let going: Vec<PathBuf> = paths
            .iter()
            .filter(|(_, recorded)| recorded.as_ref().is_none_or(|recorded| recorded.kind == Kind::Absent))
            .map(|(path, _)| path.clone())
            .collect();
        for (path, recorded) in paths {
            let (spot, seen) = setup.look(&path)?;
            let want = recorded.map_or(Ok(Want::new(Kind::Absent)), Recorded::into_want)?;
            let keeps = want.kind == Kind::Absent
                && seen.kind == Kind::Directory
                && !only_holds(setup, &path, &going)?;
            if !spot.is_root() && !keeps {
                setup.push(spot, seen, want);
            }
        }
        for Part { part, value } in given::<Vec<Part>>(params, "running")?.unwrap_or_default() {
            setup.wish(part, value)?;
        }
        setup.settle = given::<Vec<Settle>>(params, "settle")?.unwrap_or_default();
        if !setup.is_running() {
            setup.settle.retain(|step| matches!(step, Settle::Certificates));
        }
        Ok(())
    }
}

fn given<T: for<'de> Deserialize<'de>>(params: &Params, name: &str) -> Result<Option<T>, OpError> {
    let value = params.get(name).cloned();
    value
        .map(serde_json::from_value)
        .transpose()
        .map_err(|error| OpError::invalid(format!("`{name}` is not as recorded: {error}")))
}

/// Whether a directory holds nothing but what goes with it.
fn only_holds(setup: &Setup<'_>, directory: &Path, going: &[PathBuf]) -> Result<bool, OpError> {
    let (spot, _) = setup.look(directory)?;
    let children = setup.disk.children(&spot)?;
    Ok(children.iter().all(|child| going.contains(&child.path)))
}

/// Returns the operation that restores a state; nothing if not enough of it was seen.
pub(super) fn inverse(state: State) -> Option<Op> {
    // Configuration is short; what is not has no place in an inverse.
    if !too_long(&state.files).is_empty() {
        return None;
    }
    let mut files = BTreeMap::new();
    for (_, record) in changing(&state.files) {
        let recorded = recorded(record, false)?;
        files.insert(record.path.to_str()?.to_owned(), serde_json::to_value(recorded).ok()?);
    }
    let moves = state.wishes.iter().any(|wish| wish.differs && matches!(wish.part, Live::Address(..)));
    // A route goes with the address it is reached by, also one that nobody changed.
    let goes_along = |wish: &Wish| moves && matches!(wish.part, Live::Route(_)) && !is_gone(&wish.seen);
    let parts = state.wishes.into_iter().filter(|wish| wish.differs || goes_along(wish));
    let parts = parts.filter(|wish| !wish.part.is_derived());
    let running: Vec<Part> = parts.map(|wish| Part { part: wish.part, value: wish.seen }).collect();
    let mut params =
        BTreeMap::from([("files".to_owned(), Param::Value(Value::Object(files.into_iter().collect())))]);
    let mut add = |name: &str, value: serde_json::Result<Value>| -> Option<()> {
        let value = value.ok()?;
        if value.as_array().is_some_and(|items| !items.is_empty()) {
            params.insert(name.to_owned(), Param::Value(value));
        }
        Some(())
    };
    add("made", serde_json::to_value(state.made))?;
    add("running", serde_json::to_value(running))?;
    add("settle", serde_json::to_value(state.settle))?;
    Some(Op { operation: OperationName::parse(DESCRIPTOR.name).ok()?, params })
}
