//! `stead bundle …`: one bundle is found the same way by every command.

use std::path::{Path, PathBuf};

use stead_bundle::diff::Target;
use stead_bundle::{LoadError, ResolveError, SigningKey};

use crate::args::SiteArgs;
use crate::commands::site;
use crate::failure::{Failure, FailureKind};
use crate::settings::Settings;

pub(super) mod export;
pub(super) mod info;
pub(super) mod list;
pub(crate) mod replay;
pub(super) mod report;
pub(super) mod verify;

/// Returns the directories that hold runs: `runs` here, the state directory's, and that of the site there is from here.
pub(crate) fn run_directories(settings: &Settings) -> Vec<PathBuf> {
    let mut all = vec![settings.current_dir.join("runs"), settings.state_dir.runs()];
    // Runs of nodes are kept with their site, which commands over nodes find from here too.
    if let Ok(site) = site::find(&SiteArgs::default(), settings) {
        let runs = settings.state_dir.from(&site.path).runs();
        if !all.contains(&runs) {
            all.push(runs);
        }
    }
    all
}

/// Returns the directories of runs, those of the site that `args` name among them.
pub(crate) fn run_directories_with(args: &SiteArgs, settings: &Settings) -> Vec<PathBuf> {
    let mut all = run_directories(settings);
    if let Ok(site) = site::find(args, settings) {
        let runs = settings.state_dir.from(&site.path).runs();
        if !all.contains(&runs) {
            all.push(runs);
        }
    }
    all
}

/// Returns the key to sign with; one that cannot be used is said before anything starts.
pub(crate) fn signing_key(path: &Path, settings: &Settings) -> Result<SigningKey, Failure> {
    let agent = settings.environment.get("SSH_AUTH_SOCK").filter(|socket| !socket.is_empty()).map(Path::new);
    let key = SigningKey::load(&settings.current_dir.join(path), agent);
    key.map_err(|error| Failure::caused_by(FailureKind::Invalid, error))
}

/// Returns the bundle that PATH names: a directory or file, else a run id, a part of one, or `last`.
fn find(path: &str, settings: &Settings) -> Result<PathBuf, Failure> {
    let here = settings.current_dir.join(path);
    if !path.is_empty() && here.exists() {
        return Ok(here);
    }
    stead_bundle::resolve(path, &run_directories(settings))
        .map_err(|error| unresolved(error, FailureKind::Invalid))
}

/// Returns what PATH names where a capture alone will do.
pub(super) fn target(path: &str, settings: &Settings) -> Result<Target, Failure> {
    Target::at(&find(path, settings)?, path).map_err(unreadable)
}

/// Returns the failure of an argument that names no run, or more than one.
pub(super) fn unresolved(error: ResolveError, kind: FailureKind) -> Failure {
    match error {
        ResolveError::Unknown { .. } | ResolveError::Ambiguous { .. } => Failure::caused_by(kind, error)
            .code("usage/unknown-name")
            .hint("`stead bundle list` shows what there is"),
        ResolveError::Read(_) => Failure::caused_by(FailureKind::Invalid, error),
    }
}

/// Returns the failure of a bundle that cannot be read.
pub(crate) fn unreadable(error: LoadError) -> Failure {
    let kind = match error {
        LoadError::NotABundle { .. }
        | LoadError::NotAnArchive { .. }
        | LoadError::Damaged { .. }
        | LoadError::Read(_)
        | LoadError::Meta { .. } => FailureKind::Invalid,
        LoadError::PlanChanged { .. } => FailureKind::Verification,
    };
    Failure::caused_by(kind, error)
}
