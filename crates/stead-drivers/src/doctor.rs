//! Whether this machine has what Stead's drivers use: a list of small checks, each with what to do.
//!
//! Nothing here changes anything that stays: a directory that had to be made to be tried is gone afterwards.

mod needs;
pub(crate) mod place;
mod target;

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::command::program;

pub use needs::{MachineDriverName, driver, programs};
pub use target::{Target, target};

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    /// What was looked at.
    pub name: String,
    /// How it is.
    pub status: CheckStatus,
    /// What was found.
    pub detail: String,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
}

/// How a check ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CheckStatus {
    /// It is as it should be.
    Pass,
    /// It is not, and something will not work.
    Fail,
    /// It is not needed, or could not be looked at.
    Skip,
}

impl CheckStatus {
    /// Returns the word used in output.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Fail => "fail",
            Self::Skip => "skip",
        }
    }
}

impl Check {
    /// Returns a check that found what it wanted.
    pub fn pass(name: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { name: name.into(), status: CheckStatus::Pass, detail: detail.into(), fix: None }
    }

    /// Returns a check that did not, with what to do.
    pub fn fail(name: impl Into<String>, detail: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { name: name.into(), status: CheckStatus::Fail, detail: detail.into(), fix: Some(fix.into()) }
    }

    /// Returns a check of something that is not needed, or could not be looked at.
    pub fn skip(name: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { name: name.into(), status: CheckStatus::Skip, detail: detail.into(), fix: None }
    }

    /// Returns this check with what to do.
    pub fn fix(mut self, fix: impl Into<String>) -> Self {
        self.fix = Some(fix.into());
        self
    }
}

/// What a run writes at the least; a machine with less is nearly full.
const LEAST_SPACE: u64 = 64 << 20;

/// Returns whether runs can be recorded in the state directory `path`, which need not exist.
pub fn state_directory(path: &Path) -> Vec<Check> {
    let shown = path.display();
    let fix = "name another with --state-dir or $STEAD_DIR";
    let writable = match place::probe(path) {
        Ok(place::Probed { existed: true }) => {
            Check::pass("state-directory", format!("{shown} can be written"))
        }
        Ok(place::Probed { existed: false }) => {
            Check::pass("state-directory", format!("{shown} is not there yet and can be made"))
        }
        Err(why) => Check::fail("state-directory", format!("{shown}: {why}"), fix),
    };
    let space = match place::space(path) {
        Some(bytes) if bytes >= LEAST_SPACE => {
            Check::pass("free-space", format!("{} MiB are free for {shown}", bytes >> 20))
        }
        Some(bytes) => {
            let detail = format!("only {} MiB are free for {shown}", bytes >> 20);
            Check::fail("free-space", detail, format!("free some, or {fix}"))
        }
        None => Check::skip("free-space", format!("the free space for {shown} is not known")),
    };
    vec![writable, space]
}

/// Finds programs as commands find them.
#[derive(Clone, Debug)]
pub struct Programs<'a> {
    /// The `PATH`; the system's own directories are searched after it.
    pub path: Option<&'a OsStr>,
}

impl Programs<'_> {
    fn find(&self, name: &str) -> Option<PathBuf> {
        program::find(name, Path::new("/"), self.path).ok()
    }
}
