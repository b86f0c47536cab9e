//! Reading what a run directory holds, for resume and for showing it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use stead_model::bundle::RunMeta;
use stead_model::plan::Digest;

use crate::error::RecordError;
use crate::layout::{PLAN, RUN_META};

/// Why a stored run cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// There is no such directory, or it is no bundle.
    #[error("{path} is not a bundle: it has no {RUN_META}", path = path.display())]
    NotABundle {
        /// The directory.
        path: PathBuf,
    },
    /// A file is neither a directory nor an archive.
    #[error("{path} is not a bundle: it is neither a directory nor an archive of one", path = path.display())]
    NotAnArchive {
        /// The file.
        path: PathBuf,
    },
    /// An archive cannot be read to its end.
    #[error("{path} is a damaged archive: {reason}", path = path.display())]
    Damaged {
        /// The archive.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A file could not be read.
    #[error(transparent)]
    Read(#[from] RecordError),
    /// The metadata does not parse.
    #[error("{path} is not valid metadata of a run", path = path.display())]
    Meta {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: serde_json::Error,
    },
    /// The plan is not the one that was recorded.
    #[error("{path} was changed: its hash is {found}, recorded is {expected}", path = path.display())]
    PlanChanged {
        /// The file.
        path: PathBuf,
        /// The recorded hash.
        expected: Digest,
        /// The hash of what is there.
        found: Digest,
    },
}

/// Returns `run_meta.json` of the bundle at `bundle`.
pub fn load_meta(bundle: &Path) -> Result<RunMeta, LoadError> {
    let path = bundle.join(RUN_META);
    let bytes = match fs::read(&path) {
        Ok(bytes) => bytes,
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Err(LoadError::NotABundle { path: bundle.to_owned() });
        }
        Err(error) => return Err(RecordError::of("read", &path)(error).into()),
    };
    serde_json::from_slice(&bytes).map_err(|source| LoadError::Meta { path, source })
}

/// Returns the bytes of `plan.json` of the bundle at `bundle`, which must be those `meta` was recorded with.
pub fn load_plan(bundle: &Path, meta: &RunMeta) -> Result<Vec<u8>, LoadError> {
    let path = bundle.join(PLAN);
    let bytes = fs::read(&path).map_err(RecordError::of("read", &path))?;
    let (expected, found) = (meta.plan_hash, Digest::of(&bytes));
    if expected == found { Ok(bytes) } else { Err(LoadError::PlanChanged { path, expected, found }) }
}
