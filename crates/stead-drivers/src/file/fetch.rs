//! `file.fetch`: a file of the target, on the driver. A read: the target is not touched, so it is never `changed`.

use std::path::Path;

use serde_json::json;
use stead_model::operation::{ParamDefault, ParamKind, ParamSpec};
use stead_model::{Descriptor, Effect};
use stead_runner::files::{Content, Needs, Place};
use stead_runner::operation::{Action, OpContext, OpError, Outcome, Params};

use super::params::{PATH, WRITE};
use crate::disk::seen::{Depth, Kind, open_file};
use crate::disk::{Disk, Last, Spot};

static DESCRIPTOR: Descriptor = Descriptor {
    name: "file.fetch",
    summary: "Brings a file of the target to the driver, checked by hash.",
    effect: Effect::Read,
    undo: false,
    params: &[
        PATH,
        ParamSpec::new(
            "to",
            ParamKind::SourcePath,
            "Where it goes on the driver, relative to the plan file; default: the run's artifacts/HOST/PATH.",
        ),
        ParamSpec::new("required", ParamKind::Bool, "A missing file is a failure; default: true.")
            .default(ParamDefault::Flag(true)),
    ],
    result: &[
        ("to", "Where it is on the driver."),
        ("size", "Its size in bytes."),
        ("sha256", "Its hash."),
        ("found", "Whether it was there."),
    ],
    ..WRITE
};

pub(super) struct Fetch;

#[async_trait::async_trait]
impl Action for Fetch {
    fn descriptor(&self) -> &'static Descriptor {
        &DESCRIPTOR
    }

    async fn check(&self, cx: &OpContext, params: &Params) -> Result<Outcome, OpError> {
        look(cx, params)?;
        Ok(Outcome::default())
    }

    async fn run(&self, cx: &OpContext, params: &Params) -> Result<Outcome, OpError> {
        let (cx, params) = (cx.clone(), params.clone());
        let fetched = tokio::task::spawn_blocking(move || fetch(&cx, &params)).await;
        fetched.map_err(|error| OpError::operation(format!("fetching ended early: {error}")))?
    }

    fn needs(&self, params: &Params) -> Needs {
        Needs { keeps: place(params).ok(), ..Needs::default() }
    }
}

/// Returns the file to be fetched, if it is there.
fn look(cx: &OpContext, params: &Params) -> Result<Option<Spot>, OpError> {
    let disk = Disk::open(cx)?;
    let spot = disk.locate(Path::new(params.required("path")?), Last::Follow)?;
    let seen = disk.see(&spot, Depth::Attributes)?;
    match seen.kind {
        Kind::File | Kind::Unknown => Ok(Some(spot)),
        Kind::Absent if !params.flag("required", true) => Ok(None),
        Kind::Absent => Err(OpError::operation(format!("`{}` does not exist", spot.path.display()))),
        Kind::Directory | Kind::Symlink | Kind::Other => Err(OpError::permanent(format!(
            "`{}` is a {}, not a file",
            spot.path.display(),
            seen.kind.as_str()
        ))),
    }
}

fn fetch(cx: &OpContext, params: &Params) -> Result<Outcome, OpError> {
    let Some(spot) = look(cx, params)? else {
        return Ok(Outcome { data: Some(json!({"found": false})), ..Outcome::default() });
    };
    let failed =
        |error: std::io::Error| OpError::io(format_args!("cannot fetch `{}`", spot.path.display()), &error);
    let Some(directory) = &spot.directory else { return Err(failed(std::io::ErrorKind::NotFound.into())) };
    let mut from = open_file(directory, &spot.name).map_err(|errno| failed(errno.into()))?;
    let content = Content::read(&mut from).map_err(failed)?;
    let to = cx.files.keep(&place(params)?, &mut from, &content)?;
    let data = json!({"found": true, "to": to, "size": content.size, "sha256": content.sha256});
    Ok(Outcome { data: Some(data), ..Outcome::default() })
}

/// Returns where the file goes on the driver.
fn place(params: &Params) -> Result<Place, OpError> {
    Ok(Place { to: params.text("to").map(str::to_owned), path: params.required("path")?.to_owned() })
}
