//! `stead init`: files that work.

pub(super) mod first;
pub(super) mod fleet;
pub(super) mod nodes;

use std::path::Path;

use stead_drivers::site::{StartError, start};
use stead_model::starter::StarterFile;

use crate::failure::{Failure, FailureKind};

/// Writes `files` below `directory`, or none of them.
fn write(directory: &Path, files: &[StarterFile], hint: &str) -> Result<(), Failure> {
    start(directory, files).map_err(|error| match error {
        StartError::There { .. } => {
            Failure::caused_by(FailureKind::Invalid, error).code("input/exists").hint(hint)
        }
        StartError::Write { .. } => Failure::caused_by(FailureKind::Work, error),
    })
}
