//! Strict verification: whether a bundle is whole, unchanged, and what it claims to be.
//!
//! First everything is [observed](observe), from a directory on every core or from an archive as a stream; then it is
//! [judged](judge), which needs no file any more.

mod judge;
mod observe;

use std::path::{Path, PathBuf};

use serde::Serialize;
use stead_model::ExitCode;
use stead_model::time::Timestamp;

use crate::error::RecordError;
use crate::layout::LOCK;
use crate::lock::{Holder, holder_of};
use crate::signature::{AllowedSigners, Signature};
use crate::source::{Form, Source};
use crate::stored::LoadError;

/// What to forgive and what to ask for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VerifyOptions {
    /// Files that `hashes.txt` does not list are warnings.
    pub allow_extra: bool,
    /// A bundle without signature is invalid.
    pub require_signature: bool,
    /// Who may have signed, and when that is asked. A bundle that nobody signed is invalid then.
    pub signers: Option<(AllowedSigners, Timestamp)>,
}

/// What verification found. Each path is in one list at most once; lists are sorted by path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Verification {
    /// Whether there are no errors.
    pub valid: bool,
    /// Whether there is a `hashes.txt`.
    pub sealed: bool,
    /// The run, if its metadata says so.
    pub run_id: Option<String>,
    /// How the run ended, if its metadata says so.
    pub status: Option<String>,
    /// How many files were looked at.
    pub files_checked: u64,
    /// How many of them have the hash they should have.
    pub hashes_verified: u64,
    /// Files with another hash.
    pub hash_mismatches: Vec<String>,
    /// Files that are listed or required and not there.
    pub missing_files: Vec<String>,
    /// Files that are not listed.
    pub extra_files: Vec<String>,
    /// Everything that makes it invalid.
    pub errors: Vec<Finding>,
    /// What a person should know.
    pub warnings: Vec<Finding>,
    /// Its signature.
    pub signature: Signature,
}

/// One thing found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// A stable word.
    pub code: &'static str,
    /// The file, relative to the bundle.
    pub path: String,
    /// One sentence.
    pub message: String,
}

/// Why there is nothing to verify.
#[derive(Debug, thiserror::Error)]
pub enum VerifyError {
    /// No such directory, or no bundle.
    #[error("{path} is not a bundle", path = path.display())]
    NotABundle {
        /// What was given.
        path: PathBuf,
    },
    /// The run still lives.
    #[error("{path} is in progress{}", by(holder.as_ref()), path = path.display())]
    InProgress {
        /// The bundle.
        path: PathBuf,
        /// Who runs it, if known.
        holder: Option<Holder>,
    },
    /// It could not be read.
    #[error(transparent)]
    Read(#[from] RecordError),
}

fn by(holder: Option<&Holder>) -> String {
    holder.map_or_else(String::new, |holder| format!(": pid {} since {}", holder.pid, holder.since))
}

impl VerifyError {
    /// Returns what the process exits with.
    pub fn exit_code(&self) -> ExitCode {
        match self {
            Self::NotABundle { .. } => ExitCode::Invalid,
            Self::InProgress { .. } => ExitCode::Locked,
            Self::Read(_) => ExitCode::Verification,
        }
    }
}

impl From<LoadError> for VerifyError {
    fn from(error: LoadError) -> Self {
        match error {
            LoadError::Read(error) => Self::Read(error),
            LoadError::NotABundle { path }
            | LoadError::NotAnArchive { path }
            | LoadError::Damaged { path, .. }
            | LoadError::Meta { path, .. }
            | LoadError::PlanChanged { path, .. } => Self::NotABundle { path },
        }
    }
}

impl Verification {
    /// Returns what the process exits with.
    pub fn exit_code(&self) -> ExitCode {
        if self.valid { ExitCode::Success } else { ExitCode::Verification }
    }
}

/// Returns what is wrong with the bundle at `path`, a directory or an archive, if anything is.
pub fn verify(path: &Path, options: &VerifyOptions) -> Result<Verification, VerifyError> {
    let source = Source::open(path)?;
    if source.form() == Form::Directory
        && let Some(holder) = holder_of(&path.join(LOCK))?
    {
        return Err(VerifyError::InProgress { path: path.to_owned(), holder });
    }
    verify_source(&source, options)
}

/// As [`verify`], also while this process holds the lock of the run.
pub(crate) fn verify_source(source: &Source, options: &VerifyOptions) -> Result<Verification, VerifyError> {
    let observed = observe::observe(source)?;
    if observed.is_no_bundle() {
        return Err(VerifyError::NotABundle { path: source.path().to_owned() });
    }
    Ok(judge::judge(observed, options))
}
