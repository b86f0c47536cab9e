//! `package.refresh`: fetch the index of packages anew.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::json;
use stead_model::operation::{ParamDefault, ParamKind, ParamSpec};
use stead_model::{Descriptor, Effect};
use stead_runner::operation::{Action, OpContext, OpError, Outcome, Params};

use super::{WRITE, manager, need_root};
use crate::disk::Disk;

static DESCRIPTOR: Descriptor = Descriptor {
    name: "package.refresh",
    summary: "Fetches the index of packages anew; changed if its bytes did.",
    effect: Effect::Command,
    check: false,
    undo: false,
    params: &[ParamSpec::new(
        "max_age",
        ParamKind::Duration,
        "An index fetched more recently is left as it is; default: 0s, always fetch.",
    )
    .default(ParamDefault::Text("0s"))],
    result: &[("manager", "The package manager.")],
    ..WRITE
};

pub(super) struct Refresh;

#[async_trait::async_trait]
impl Action for Refresh {
    fn descriptor(&self) -> &'static Descriptor {
        &DESCRIPTOR
    }

    async fn check(&self, _cx: &OpContext, _params: &Params) -> Result<Outcome, OpError> {
        Err(OpError {
            not_known: true,
            ..OpError::operation("only fetching the index tells whether it changed")
        })
    }

    async fn run(&self, cx: &OpContext, params: &Params) -> Result<Outcome, OpError> {
        let (cx, max_age) = (cx.clone(), params.duration("max_age", Duration::ZERO));
        crate::system::off_thread(move || refresh(&cx, max_age)).await
    }
}

fn refresh(cx: &OpContext, max_age: Duration) -> Result<Outcome, OpError> {
    let manager = manager(cx)?;
    need_root(&*manager, DESCRIPTOR.name)?;
    let disk = Disk::open(cx)?;
    let index = |path: &&str| disk.real_path(Path::new(path));
    let directories: Vec<PathBuf> = manager.index().iter().map(index).collect::<Result<_, _>>()?;
    let data = Some(json!({"manager": manager.name()}));
    let age = directories.iter().filter_map(|directory| age(directory)).min();
    if let Some(age) = age.filter(|age| *age < max_age) {
        let reason = format!(
            "the index is {} old",
            stead_model::duration::to_exact(Duration::from_secs(age.as_secs()))
        );
        return Ok(Outcome { reason: Some(reason), data, ..Outcome::default() });
    }
    let before = contents(&directories);
    manager.refresh()?;
    Ok(Outcome { changed: contents(&directories) != before, data, ..Outcome::default() })
}

/// Returns how long ago an index was last fetched: managers touch its directories even if nothing is new.
fn age(directory: &Path) -> Option<Duration> {
    let touched = |path: PathBuf| path.metadata().ok()?.modified().ok()?.elapsed().ok();
    // A directory that never held an index was made by an installer, not by a fetch.
    walkdir::WalkDir::new(directory).into_iter().flatten().find(|entry| entry.file_type().is_file())?;
    [directory.to_owned(), directory.join("partial")].into_iter().filter_map(touched).min()
}

/// Returns the hash of every file of the index.
fn contents(directories: &[PathBuf]) -> BTreeMap<PathBuf, String> {
    let files =
        directories.iter().flat_map(|directory| walkdir::WalkDir::new(directory).into_iter().flatten());
    let files = files.filter(|entry| entry.file_type().is_file() && entry.file_name() != "lock");
    let hash = |path: &Path| Some(crate::disk::body::hash(&mut std::fs::File::open(path).ok()?).ok()?.1);
    files.filter_map(|entry| Some((entry.path().to_owned(), hash(entry.path())?))).collect()
}
