//! Writes the files of a new site. What is there is never overwritten.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use stead_model::site::starter::StarterFile;

/// Why no site was started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Files are there already. Nothing was written.
    #[error("{} is there already{}", first.display(), more(*others))]
    There {
        /// The first of them.
        first: PathBuf,
        /// How many more there are.
        others: usize,
    },
    /// A file could not be written.
    #[error("failed to write {}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

fn more(others: usize) -> String {
    if others == 0 { String::new() } else { format!(", and {others} more files of a site") }
}

/// Writes `files` below `directory`, all of them or, if one is there already, none.
pub fn start(directory: &Path, files: &[StarterFile]) -> Result<(), StartError> {
    let there: Vec<PathBuf> = files
        .iter()
        .map(|file| directory.join(&file.path))
        .filter(|path| path.symlink_metadata().is_ok())
        .collect();
    if let Some(first) = there.first() {
        return Err(StartError::There { first: first.clone(), others: there.len() - 1 });
    }
    for file in files {
        let path = directory.join(&file.path);
        let failed = |source| StartError::Write { path: path.clone(), source };
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(failed)?;
        }
        let mode = if file.is_secret { 0o600 } else { 0o644 };
        let mut open = OpenOptions::new();
        let mut written = open.write(true).create_new(true).mode(mode).open(&path).map_err(failed)?;
        written.write_all(file.content.as_bytes()).and_then(|()| written.sync_all()).map_err(failed)?;
    }
    Ok(())
}
