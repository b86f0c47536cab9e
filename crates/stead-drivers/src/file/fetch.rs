//! `file.fetch`: a file of the target, on the driver. A read: the target is not touched, so it is never `changed`.

use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use serde_json::json;
use stead_model::operation::{ParamDefault, ParamKind, ParamSpec};
use stead_model::{Descriptor, Effect};
use stead_runner::operation::{Action, OpContext, OpError, Outcome, Params};

use super::params::{PATH, WRITE};
use crate::disk::body::{Body, hash};
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

/// Returns where the file goes on the driver.
fn place(cx: &OpContext, params: &Params) -> Result<PathBuf, OpError> {
    if let Some(to) = params.text("to") {
        return Ok(cx.base_dir.join(to));
    }
    let Some(artifacts) = &cx.artifacts else {
        return Err(OpError::invalid(
            "this run is not recorded and keeps no artifacts: say where the file goes with `to`",
        ));
    };
    // What is left of the path without `/` and `..` cannot leave the directory.
    let parts = Path::new(params.required("path")?).components();
    let inside = parts.filter(|part| matches!(part, std::path::Component::Normal(_)));
    Ok(inside.fold(artifacts.clone(), |path, part| path.join(part)))
}

fn fetch(cx: &OpContext, params: &Params) -> Result<Outcome, OpError> {
    let to = place(cx, params)?;
    let Some(spot) = look(cx, params)? else {
        return Ok(Outcome { data: Some(json!({"found": false})), ..Outcome::default() });
    };
    let failed = |error: std::io::Error| {
        OpError::io(format_args!("cannot fetch `{}` to `{}`", spot.path.display(), to.display()), &error)
    };
    let Some(directory) = &spot.directory else { return Err(failed(std::io::ErrorKind::NotFound.into())) };
    let mut from = open_file(directory, &spot.name).map_err(|errno| failed(errno.into()))?;
    let body = bring(&mut from, &to).map_err(failed)?;
    let data = json!({"found": true, "to": to.to_string_lossy(), "size": body.size, "sha256": body.sha256()});
    Ok(Outcome { data: Some(data), ..Outcome::default() })
}

/// Copies `from` to `to`, through a temporary file; the same bytes there already are left alone.
fn bring(from: &mut File, to: &Path) -> std::io::Result<Body> {
    use std::io::Seek;
    let body = Body::hashed(from)?;
    if let Ok(mut there) = File::open(to)
        && there.metadata()?.is_file()
        && Body::hashed(&mut there)? == body
    {
        return Ok(body);
    }
    if let Some(directory) = to.parent() {
        std::fs::create_dir_all(directory)?;
    }
    let mut name = to.file_name().unwrap_or_default().to_owned();
    name.push(".stead-tmp");
    let temporary: PathBuf = to.with_file_name(name);
    from.rewind()?;
    let brought = (|| {
        let mut file = File::create(&temporary)?;
        std::io::copy(&mut from.take(body.size), &mut file)?;
        file.flush()?;
        file.sync_all()?;
        let (size, sha256) = hash(&mut File::open(&temporary)?)?;
        if (size, sha256) != (body.size, body.sha256()) {
            return Err(std::io::Error::other("it changed while it was read"));
        }
        std::fs::rename(&temporary, to)
    })();
    if brought.is_err() {
        std::fs::remove_file(&temporary).unwrap_or(());
    }
    brought.map(|()| body)
}
