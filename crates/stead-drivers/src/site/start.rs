//! Writes the files to start with. What is there is never overwritten.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use stead_model::starter::{Access, StarterFile};

/// Why nothing was started.
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
    if others == 0 { String::new() } else { format!(", and {others} more") }
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
    let mut made = Made::default();
    let outcome = files.iter().try_for_each(|file| {
        let path = directory.join(&file.path);
        write(file, &path, &mut made).map_err(|source| StartError::Write { path, source })
    });
    if outcome.is_err() {
        made.remove();
    }
    outcome
}

/// What this call wrote, in order.
#[derive(Default)]
struct Made {
    directories: Vec<PathBuf>,
    files: Vec<PathBuf>,
}

impl Made {
    /// Makes a directory and those it is in, as far as they are not there.
    fn directory(&mut self, path: &Path) -> io::Result<()> {
        let missing: Vec<&Path> =
            path.ancestors().take_while(|path| path.symlink_metadata().is_err()).collect();
        for path in missing.into_iter().rev().filter(|path| !path.as_os_str().is_empty()) {
            fs::create_dir(path)?;
            self.directories.push(path.to_owned());
        }
        Ok(())
    }

    /// Removes what was written, as far as that is possible: what is left is what stands in the way anyway.
    fn remove(self) {
        self.files.iter().for_each(|path| drop(fs::remove_file(path)));
        self.directories.iter().rev().for_each(|path| drop(fs::remove_dir(path)));
    }
}

fn write(file: &StarterFile, path: &Path, made: &mut Made) -> io::Result<()> {
    if let Some(parent) = path.parent() {
        made.directory(parent)?;
    }
    let mode = match file.access {
        Access::Open => 0o644,
        Access::Program => 0o755,
        Access::Secret => 0o600,
    };
    let mut written = OpenOptions::new().write(true).create_new(true).mode(mode).open(path)?;
    made.files.push(path.to_owned());
    written.write_all(file.content.as_bytes())?;
    written.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_site_that_cannot_be_written_whole_is_not_written_at_all() {
        let dir = tempfile::tempdir().unwrap();
        let site = dir.path().join("deep/site");
        let file = |path: &str| StarterFile::open(path, "x");
        // A file where a folder has to be.
        let files = [file("site.yaml"), file("specs/base.yaml"), file("site.yaml/x")];
        assert!(matches!(start(&site, &files), Err(StartError::Write { .. })));
        assert!(!dir.path().join("deep").exists(), "nothing is left");
        start(&site, &files[..2]).unwrap();
        assert!(matches!(start(&site, &files), Err(StartError::There { .. })));
        assert!(site.join("specs/base.yaml").exists(), "what was there stays");
    }
}
