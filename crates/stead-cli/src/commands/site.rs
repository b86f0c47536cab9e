//! The site directory, for every command that needs one.

use std::io::Read;
use std::path::{Path, PathBuf};

use stead_drivers::site::{self, Loaded, Manifests, SiteSearch};
use stead_model::diagnostic::Place;
use stead_model::{Diagnostic, Diagnostics};

use crate::args::SiteArgs;
use crate::failure::{Failure, FailureKind, Source};
use crate::settings::Settings;

/// Where the site is, and what to call it.
#[derive(Clone, Debug)]
pub(super) struct SiteDir {
    pub(super) path: PathBuf,
    pub(super) shown: PathBuf,
}

/// Returns the site directory.
pub(super) fn find(args: &SiteArgs, settings: &Settings) -> Result<SiteDir, Failure> {
    let search = SiteSearch {
        flag: args.site.clone(),
        variable: settings.site_variable(),
        current_dir: settings.current_dir.clone(),
    };
    let path = site::discover(&search).map_err(|error| {
        Failure::caused_by(FailureKind::Invalid, error).hint("`stead init nodes` writes one that works")
    })?;
    let shown = path.strip_prefix(&settings.current_dir).map_or_else(|_| path.clone(), Path::to_owned);
    Ok(SiteDir { path, shown })
}

/// Reads the site.
pub(super) fn load(directory: &SiteDir, manifests: Manifests<'_>) -> Result<Loaded, Failure> {
    site::load(&directory.path, &directory.shown, manifests)
        .map_err(|error| Failure::caused_by(FailureKind::Invalid, error))
}

/// Returns what standard input holds, up to a little more than a site's file may.
pub(super) fn read_stdin() -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::new();
    let most = stead_model::yaml::Codes::NODE.max_bytes as u64 + 1;
    match std::io::stdin().lock().take(most).read_to_end(&mut bytes) {
        Ok(_) => Ok(bytes),
        Err(error) => {
            Err(Failure::caused_by(FailureKind::Invalid, error).hint("standard input cannot be read"))
        }
    }
}

/// Returns a failure of `command` whose document has its problem among `diagnostics` too, whatever it is about.
pub(super) fn with_document(failure: Failure, command: &str) -> Failure {
    if matches!(failure.source, Source::Diagnostics(_)) {
        return failure;
    }
    let problem = Diagnostic::error("node/not-found", Place::Named(command.to_owned()), failure.message());
    Failure { source: Source::Diagnostics(Diagnostics(vec![problem])), code: None, ..failure }
}
