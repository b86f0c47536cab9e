//! The parameters that file operations share, and what they mean.

use std::path::Path;

use stead_model::operation::{ParamDefault, ParamKind, ParamSpec, RootSupport};
use stead_model::{Descriptor, Effect};
use stead_runner::operation::{OpContext, OpError, Params};

use super::entry::{Want, expect};
use super::owner;
use crate::disk::seen::{Depth, Kind, Seen};
use crate::disk::{Disk, Last, Spot};

pub(crate) const PATH: ParamSpec =
    ParamSpec::new("path", ParamKind::AbsolutePath, "Absolute path on the target.").required();
pub(super) const MODE: ParamSpec = ParamSpec::new(
    "mode",
    ParamKind::Mode,
    "Permission bits as a string of 3 or 4 octal digits; default: kept.",
);
pub(crate) const OWNER: ParamSpec =
    ParamSpec::new("owner", ParamKind::Principal, "User that owns it, a name or an id; default: kept.");
pub(super) const GROUP: ParamSpec =
    ParamSpec::new("group", ParamKind::Principal, "Group that owns it, a name or an id; default: kept.");
pub(super) const BACKUP: ParamSpec = ParamSpec::new(
    "backup",
    ParamKind::Bool,
    "Keep a copy `PATH.stead.TIMESTAMP` of what is replaced; default: false.",
)
.default(ParamDefault::Flag(false));
pub(super) const VALIDATE: ParamSpec = ParamSpec::new(
    "validate",
    ParamKind::NonEmptyTextList,
    "Program and arguments, one of them `{}` for the new file; if it fails the target stays untouched.",
)
.judged(|value| {
    let words = value.as_array().map(Vec::as_slice).unwrap_or_default();
    let places = words.iter().filter(|word| word.as_str() == Some("{}")).count();
    (places != 1).then(|| format!("expected one `{{}}` for the new file, found {places}"))
});
pub(super) const FOLLOW: ParamSpec = ParamSpec::new(
    "follow",
    ParamKind::Bool,
    "A symbolic link at `path` means its target; default: false, a link there is an error.",
)
.default(ParamDefault::Flag(false));
pub(super) const PARENTS: ParamSpec =
    ParamSpec::new("parents", ParamKind::Bool, "Make missing directories above, 0755; default: false.")
        .default(ParamDefault::Flag(false));
pub(crate) const STATE: ParamSpec =
    ParamSpec::new("state", ParamKind::Enum(&["present", "absent"]), "`present` (default) or `absent`.")
        .default(ParamDefault::Text("present"));
pub(super) const CREATE: ParamSpec = ParamSpec::new(
    "create",
    ParamKind::Bool,
    "Make the file if it is missing; default: false, which is an error.",
)
.default(ParamDefault::Flag(false));
pub(super) const AFTER: ParamSpec = ParamSpec::new(
    "after",
    ParamKind::Regex,
    "Insert after the last line that matches, or at `EOF` (default; also if none matches) or `BOF`.",
)
.default(ParamDefault::Text("EOF"));
pub(super) const BEFORE: ParamSpec = ParamSpec::new(
    "before",
    ParamKind::Regex,
    "Insert before the last line that matches, or at `BOF` or `EOF`; if none matches, at the end.",
);

pub(super) const RESULT: &[(&str, &str)] = &[
    ("path", "The path that was changed."),
    ("backup", "The copy of what was replaced, if `backup` is true and something was."),
];

/// What the descriptors of file operations share.
pub(crate) const WRITE: Descriptor = Descriptor {
    name: "",
    summary: "",
    effect: Effect::Write,
    idempotent: true,
    check: true,
    undo: true,
    platforms: &["linux"],
    root: RootSupport::Full,
    needs_root: false,
    params: &[],
    exclusive: &[],
    one_of: &[],
    result: RESULT,
};

/// Returns the permission bits of `mode`.
pub(crate) fn mode(params: &Params) -> Option<u32> {
    params.text("mode").and_then(|mode| u32::from_str_radix(mode, 8).ok())
}

/// Returns the wish for something of `kind` with the given mode, owner and group.
pub(crate) fn want(cx: &OpContext, disk: &Disk, params: &Params, kind: Kind) -> Result<Want, OpError> {
    Ok(Want {
        mode: mode(params),
        uid: owner::uid(cx, disk, params, "owner")?,
        gid: owner::gid(cx, disk, params, "group")?,
        ..Want::new(kind)
    })
}

/// Returns where `path` leads, by `follow` and `parents`.
pub(super) fn spot(disk: &Disk, params: &Params) -> Result<Spot, OpError> {
    let path = Path::new(params.required("path")?);
    let last = if params.flag("follow", false) { Last::Follow } else { Last::Keep };
    let spot = disk.locate(path, last)?;
    if let Some(missing) = spot.missing.first()
        && !params.flag("parents", false)
    {
        return Err(OpError::operation(format!(
            "directory `{}` does not exist; `parents: true` makes it",
            missing.display()
        )));
    }
    Ok(spot)
}

/// Returns where `path` leads and the regular file there, if any.
pub(super) fn file(disk: &Disk, params: &Params) -> Result<(Spot, Seen), OpError> {
    let spot = spot(disk, params)?;
    let seen = disk.see(&spot, Depth::Content)?;
    expect(&spot, &seen, &[Kind::File, Kind::Absent])?;
    Ok((spot, seen))
}
