//! Trying a directory: can files be made there, and how much room is there?

use std::fs::{DirBuilder, File};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// What trying a directory showed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Probed {
    /// Whether it was there before.
    pub(crate) existed: bool,
}

/// Makes a file in `path` and removes it; what had to be made for that is removed too. Returns why it cannot be.
pub(crate) fn probe(path: &Path) -> Result<Probed, String> {
    let made = make(path)?;
    let file = path.join(format!(".stead-probe-{}", std::process::id()));
    let written = File::options()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&file)
        .and_then(|mut opened| opened.write_all(b"probe").and_then(|()| opened.sync_all()));
    std::fs::remove_file(&file).unwrap_or(());
    remove(&made);
    written
        .map(|()| Probed { existed: made.is_empty() })
        .map_err(|error| format!("cannot write there: {error}"))
}

/// Makes the directories of `path` that are missing and returns them, topmost first.
fn make(path: &Path) -> Result<Vec<PathBuf>, String> {
    let missing: Vec<&Path> = path.ancestors().take_while(|directory| !directory.exists()).collect();
    let mut made = Vec::new();
    for directory in missing.into_iter().rev() {
        if let Err(error) = DirBuilder::new().mode(0o700).create(directory) {
            remove(&made);
            return Err(format!("cannot make {}: {error}", directory.display()));
        }
        made.push(directory.to_owned());
    }
    if !path.is_dir() {
        return Err("it is not a directory".to_owned());
    }
    Ok(made)
}

fn remove(made: &[PathBuf]) {
    // Somebody else may have put something there meanwhile: then it stays.
    made.iter().rev().try_for_each(std::fs::remove_dir).unwrap_or(());
}

/// Returns the bytes an ordinary account may still write where `path` is, or would be.
pub(crate) fn space(path: &Path) -> Option<u64> {
    let there = path.ancestors().find(|directory| directory.is_dir())?;
    let space = rustix::fs::statvfs(there).ok()?;
    // A file system that lives in memory alone may not count: then it is not full either.
    (space.f_blocks > 0).then(|| space.f_bavail.checked_mul(space.f_frsize))?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_count_its_space_is_not_full() {
        assert_eq!(space(Path::new("/proc")), None);
        assert!(space(&std::env::temp_dir()).is_some());
    }

    #[test]
    fn a_directory_that_was_absent_is_absent_afterwards() {
        let here = std::env::temp_dir().join(format!("stead-place-{}", std::process::id()));
        std::fs::create_dir(&here).unwrap();
        assert_eq!(probe(&here), Ok(Probed { existed: true }));
        assert_eq!(probe(&here.join("a/b/c")), Ok(Probed { existed: false }));
        assert_eq!(std::fs::read_dir(&here).unwrap().count(), 0);
        std::fs::write(here.join("file"), "").unwrap();
        assert!(probe(&here.join("file")).unwrap_err().contains("not a directory"));
        assert!(probe(&here.join("file/below")).unwrap_err().contains("cannot make"));
        assert!(space(&here.join("a/b")).is_some());
        std::fs::remove_dir_all(&here).unwrap();
    }
}
