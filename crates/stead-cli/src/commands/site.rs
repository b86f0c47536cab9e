//! The site directory, for every command that needs one.

use std::borrow::Cow;
use std::io::Read;
use std::path::{Path, PathBuf};

use stead_drivers::site::{self, Loaded, Manifests, SiteSearch};
use stead_model::diagnostic::Place;
use stead_model::{Diagnostic, Diagnostics};

use crate::args::SiteArgs;
use crate::commands::nodes::code_of;
use crate::failure::{Failure, FailureKind, Source};
use crate::settings::Settings;

/// Where the site is, and what to call it.
#[derive(Clone, Debug)]
pub(super) struct SiteDir {
    pub(super) path: PathBuf,
    pub(super) shown: PathBuf,
}

impl SiteDir {
    /// Returns what to call the directory where it stands alone: of the current one that is its whole path.
    pub(super) fn named(&self) -> std::path::Display<'_> {
        if self.shown.as_os_str().is_empty() { self.path.display() } else { self.shown.display() }
    }
}

/// Returns the site directory.
pub(super) fn find(args: &SiteArgs, settings: &Settings) -> Result<SiteDir, Failure> {
    let search = SiteSearch {
        flag: args.site.clone(),
        variable: settings.site_variable(),
        current_dir: settings.current_dir.clone(),
    };
    let path = site::discover(&search).map_err(|error| {
        Failure::caused_by(FailureKind::Invalid, error)
            .code("node/not-found")
            .hint("`stead init nodes` writes one that works")
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
    let code = match &failure.code {
        Some(Cow::Borrowed(code)) => *code,
        Some(Cow::Owned(_)) | None => code_of(failure.exit_code()),
    };
    let problem = Diagnostic::error(code, Place::Named(command.to_owned()), failure.message());
    let problem = problem.help(failure.hints.join("\n"));
    let source = Source::Diagnostics(Diagnostics(vec![problem]));
    // The problem says what to try.
    Failure { source, code: None, hints: Vec::new(), ..failure }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_problem_of_a_failure_has_its_code_and_its_help() {
        let of = |failure| {
            let error = with_document(failure, "stead config apply").to_error();
            (error["code"].as_str().unwrap().to_owned(), error["help"].as_str().unwrap().to_owned())
        };
        let plain = |kind| of(Failure::new(kind, "refused").hint("knock again"));
        assert_eq!(
            plain(FailureKind::Unreachable),
            ("node/unreachable".to_owned(), "knock again".to_owned())
        );
        assert_eq!(plain(FailureKind::Work).0, "node/failed");
        assert_eq!(plain(FailureKind::Invalid).0, "node/invalid");
        let own = Failure::new(FailureKind::Invalid, "there is none").code("node/not-found");
        assert_eq!(of(own), ("node/not-found".to_owned(), String::new()));
    }
}
