//! Finds the program a command names, so that a missing one is said with the places searched.
//!
//! The search follows the `PATH` the command would get, then the usual system directories: a service manager or a
//! bare SSH login often has none of the `sbin` ones.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use rustix::fs::Access;

/// Searched after `PATH`.
const SYSTEM_DIRECTORIES: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Why a program cannot be started, as the exit code a shell would give for it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NotStarted {
    /// 127: not found; 126: found, but not executable.
    pub(crate) code: i32,
    /// What is wrong, naming program and places.
    pub(crate) message: String,
}

/// Returns the file that `name` means for a command started in `cwd` with this `PATH`.
pub(crate) fn find(name: &str, cwd: &Path, path: Option<&OsStr>) -> Result<PathBuf, NotStarted> {
    search(name, cwd, path, Some(SYSTEM_DIRECTORIES))
}

/// As [`find`], on `PATH` alone.
pub(crate) fn find_on_path(name: &str, cwd: &Path, path: Option<&OsStr>) -> Result<PathBuf, NotStarted> {
    search(name, cwd, path, None)
}

fn search(name: &str, cwd: &Path, path: Option<&OsStr>, more: Option<&str>) -> Result<PathBuf, NotStarted> {
    if name.contains('/') {
        // Made absolute here: whether a relative program belongs to the old or the new directory differs by system.
        let file = cwd.join(name);
        return match probe(&file) {
            Found::Runnable => Ok(file),
            Found::NotExecutable => Err(not_executable(&file)),
            Found::Nothing => {
                Err(NotStarted { code: 127, message: format!("program `{}` not found", file.display()) })
            }
        };
    }
    let mut blocked = None;
    let searched = path.map_or_else(OsString::new, OsStr::to_os_string);
    let directories = searched.as_bytes().split(|byte| *byte == b':').filter(|_| path.is_some());
    let more_directories = more.into_iter().flat_map(|more| more.as_bytes().split(|byte| *byte == b':'));
    for directory in directories.chain(more_directories) {
        // An empty element means the working directory, as in every shell.
        let file = cwd.join(OsString::from_vec(directory.to_vec())).join(name);
        match probe(&file) {
            Found::Runnable => return Ok(file),
            Found::NotExecutable => blocked = blocked.or(Some(file)),
            Found::Nothing => {}
        }
    }
    Err(match blocked {
        Some(file) => not_executable(&file),
        None => NotStarted {
            code: 127,
            message: format!(
                "program `{name}` not found in PATH `{}`{}",
                searched.to_string_lossy(),
                more.map_or_else(String::new, |more| format!(" nor in {more}"))
            ),
        },
    })
}

fn not_executable(file: &Path) -> NotStarted {
    NotStarted { code: 126, message: format!("`{}` is not executable", file.display()) }
}

enum Found {
    Runnable,
    NotExecutable,
    Nothing,
}

fn probe(file: &Path) -> Found {
    // `access` first: for the usual miss it is the only call.
    match rustix::fs::access(file, Access::EXEC_OK) {
        Ok(()) if file.is_file() => Found::Runnable,
        Err(rustix::io::Errno::ACCESS) if file.is_file() => Found::NotExecutable,
        Ok(()) | Err(_) => Found::Nothing,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_program_is_named_with_the_path_searched() {
        let error = find("no-such-program", Path::new("/"), Some(OsStr::new("/opt/x:/opt/y"))).unwrap_err();
        assert_eq!(error.code, 127);
        assert!(error.message.contains("`no-such-program`") && error.message.contains("/opt/x:/opt/y"));
    }

    #[test]
    fn system_directories_are_searched_without_a_path() {
        assert!(find("sh", Path::new("/"), None).is_ok());
    }

    #[test]
    fn a_file_without_execute_permission_is_126() {
        let error = find("/etc/passwd", Path::new("/"), None).unwrap_err();
        assert_eq!(error.code, 126);
    }

    #[test]
    fn a_relative_program_belongs_to_the_working_directory() {
        assert_eq!(find("bin/sh", Path::new("/"), None).unwrap(), Path::new("/bin/sh"));
    }
}
