//! `file.present`: a file with this content.

use std::fs::File;
use std::sync::Arc;

use stead_model::Descriptor;
use stead_model::executor::{EntryKind, SourceEntry};
use stead_model::operation::{ParamKind, ParamSpec, judge_texts};
use stead_runner::files::Exclude;
use stead_runner::operation::{OpContext, OpError, Params};

use super::entry::Want;
use super::params::{BACKUP, FOLLOW, GROUP, MODE, OWNER, PARENTS, PATH, VALIDATE, WRITE};
use super::{Desire, Entry, params};
use crate::disk::Disk;
use crate::disk::base64;
use crate::disk::body::{Body, WHOLE};
use crate::disk::seen::Kind;

static DESCRIPTOR: Descriptor = Descriptor {
    name: "file.present",
    summary: "Makes sure a file is there, with this content, mode and owner.",
    params: &[
        PATH,
        ParamSpec::new(
            "content",
            ParamKind::Text,
            "The content, as text; default: kept, a new file is empty.",
        )
        .secret(),
        ParamSpec::new("content_base64", ParamKind::Text, "The content, as base64.").secret().judged(
            |value| {
                judge_texts(value, |text| base64::decode(text).is_none().then(|| "not base64".to_owned()))
            },
        ),
        ParamSpec::new("source", ParamKind::SourcePath, "A file on the driver that holds the content."),
        MODE,
        OWNER,
        GROUP,
        BACKUP,
        VALIDATE,
        FOLLOW,
        PARENTS,
    ],
    exclusive: &[&["content", "content_base64", "source"]],
    ..WRITE
};

pub(crate) struct Present;

impl Desire for Present {
    fn descriptor(&self) -> &'static Descriptor {
        &DESCRIPTOR
    }

    fn entries(&self, cx: &OpContext, disk: &Disk, params: &Params) -> Result<Vec<Entry>, OpError> {
        let (spot, seen) = params::file(disk, params)?;
        let mut want = params::want(cx, disk, params, Kind::File)?;
        if let Some(text) = params.text("content") {
            want = want.content(text.as_bytes().to_vec());
        } else if let Some(text) = params.text("content_base64") {
            let bytes =
                base64::decode(text).ok_or_else(|| OpError::invalid("`content_base64` is not base64"))?;
            want = want.content(bytes);
        } else if let Some(source) = params.text("source") {
            want = want_source(cx, want, source, source_file(cx, source)?, seen.body.as_ref())?;
        }
        Ok(vec![Entry { label: String::new(), spot, seen, want }])
    }
}

/// Returns the driver's file called `source`.
pub(crate) fn source_file(cx: &OpContext, source: &str) -> Result<SourceEntry, OpError> {
    let tree = cx.files.tree(source, &Exclude::default())?;
    match tree.entries.first() {
        Some(entry) if entry.kind == EntryKind::File => Ok(entry.clone()),
        Some(_) | None => Err(OpError::permanent(format!("source `{source}` is not a regular file"))),
    }
}

/// Returns `want` with the content of a driver's file, which is read only if it differs from what is there: what is
/// short at once, for the diff, what is long when it is written.
pub(super) fn want_source(
    cx: &OpContext,
    want: Want,
    source: &str,
    entry: SourceEntry,
    seen: Option<&Body>,
) -> Result<Want, OpError> {
    let named = Body::named(entry.size, &entry.sha256);
    if let Some(seen) = seen.filter(|seen| **seen == named) {
        return Ok(Want { body: Some(seen.clone()), ..want });
    }
    if entry.size > WHOLE {
        return Ok(Want { body: Some(named), from: Some(Arc::new((source.to_owned(), entry))), ..want });
    }
    Ok(Want { body: Some(read_source(cx, source, &entry)?), ..want })
}

/// Returns the content of a driver's file.
pub(crate) fn read_source(cx: &OpContext, source: &str, entry: &SourceEntry) -> Result<Body, OpError> {
    let path = cx.files.content(source, entry)?;
    let body = File::open(&path).and_then(|mut file| Body::read(&mut file));
    let body = body
        .map_err(|error| OpError::permanent(format!("cannot read source `{}`: {error}", path.display())))?;
    Ok(body.with_source(path))
}
