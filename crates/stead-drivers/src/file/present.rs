//! `file.present`: a file with this content.

use std::fs::File;
use std::path::Path;

use stead_model::Descriptor;
use stead_model::operation::{ParamKind, ParamSpec};
use stead_runner::operation::{OpContext, OpError, Params};

use super::params::{BACKUP, FOLLOW, GROUP, MODE, OWNER, PARENTS, PATH, VALIDATE, WRITE};
use super::{Desire, Entry, params};
use crate::disk::Disk;
use crate::disk::base64;
use crate::disk::body::Body;
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
        ParamSpec::new("content_base64", ParamKind::Text, "The content, as base64.").secret(),
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
            want.body = Some(source_body(&cx.base_dir.join(source))?);
        }
        Ok(vec![Entry { label: String::new(), spot, seen, want }])
    }
}

/// Returns the content of a file on the driver.
pub(super) fn source_body(source: &Path) -> Result<Body, OpError> {
    let cannot = |error: std::io::Error| {
        OpError::permanent(format!("cannot read source `{}`: {error}", source.display()))
    };
    let mut file = File::open(source).map_err(cannot)?;
    if !file.metadata().map_err(cannot)?.is_file() {
        return Err(OpError::permanent(format!("source `{}` is not a regular file", source.display())));
    }
    Ok(Body::read(&mut file).map_err(cannot)?.with_source(source.to_owned()))
}
