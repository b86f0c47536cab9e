//! The error of every act on a file of a bundle: what was being done, to which path, and why it failed.

use std::io;
use std::path::{Path, PathBuf};

/// Why something could not be recorded or read: action, path and cause.
#[derive(Debug, thiserror::Error)]
#[error("failed to {action} {path}")]
pub struct RecordError {
    /// What was being done, such as `create directory`.
    pub action: &'static str,
    /// To which path.
    pub path: PathBuf,
    /// Why it failed.
    #[source]
    pub source: io::Error,
}

impl RecordError {
    /// Returns a function that makes an error of an IO error while doing `action` to `path`.
    pub(crate) fn of(action: &'static str, path: &Path) -> impl Fn(io::Error) -> Self {
        move |source| Self { action, path: path.to_owned(), source }
    }
}
