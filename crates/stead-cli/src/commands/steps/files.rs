//! What is at the places of step files: facts for the compiler, which reads nothing itself.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use stead_engine::compile::steps::StepFile;

/// The places of step files below one root.
pub(crate) struct StepFiles {
    root: PathBuf,
    /// The root without links; none if it is not there.
    real_root: Option<PathBuf>,
    /// Directories that were resolved already: scripts come in few of them.
    real_directories: BTreeMap<PathBuf, Option<PathBuf>>,
}

impl StepFiles {
    /// Returns the places below `root`.
    pub(crate) fn below(root: &Path) -> Self {
        let real_root = root.canonicalize().ok();
        Self { root: root.to_owned(), real_root, real_directories: BTreeMap::new() }
    }

    /// Returns what is at `path` below the root, links followed.
    pub(crate) fn inspect(&mut self, path: &str) -> StepFile {
        let Some(real) = self.resolve(&self.root.join(path)) else { return StepFile::Missing };
        if !self.real_root.as_ref().is_some_and(|root| real.starts_with(root)) {
            return StepFile::Outside;
        }
        match real.metadata() {
            Err(_) => StepFile::Missing,
            Ok(found) if !found.is_file() => StepFile::NotRegular,
            Ok(found) if found.permissions().mode() & 0o111 == 0 => StepFile::NotExecutable,
            Ok(_) => match begins_runnable(&real) {
                Ok(true) => StepFile::Fine,
                Ok(false) | Err(_) => StepFile::NotRunnable,
            },
        }
    }

    /// Returns the file without links on the way, if it is there.
    fn resolve(&mut self, file: &Path) -> Option<PathBuf> {
        let (directory, name) = (file.parent()?, file.file_name()?);
        if !self.real_directories.contains_key(directory) {
            self.real_directories.insert(directory.to_owned(), directory.canonicalize().ok());
        }
        let real = self.real_directories.get(directory)?.as_ref()?.join(name);
        match real.symlink_metadata().ok()?.is_symlink() {
            true => real.canonicalize().ok(),
            false => Some(real),
        }
    }
}

/// Whether the kernel can start the file by itself.
fn begins_runnable(file: &Path) -> io::Result<bool> {
    let mut beginning = Vec::new();
    File::open(file)?.take(4).read_to_end(&mut beginning)?;
    Ok(beginning.starts_with(b"#!") || beginning == b"\x7fELF")
}
