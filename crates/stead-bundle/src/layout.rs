//! Names and places: what a bundle's files are called and where the state directory is.

use std::borrow::Cow;
use std::ffi::OsStr;
use std::path::{Component, Path, PathBuf};

use stead_model::plan::Digest;

/// What a run is and how it stands.
pub const RUN_META: &str = "run_meta.json";
/// What made the bundle.
pub const VERSIONS: &str = "versions.json";
/// The compiled plan.
pub const PLAN: &str = "plan.json";
/// The event log.
pub const EVENTS: &str = "events.jsonl";
/// The report.
pub const REPORT: &str = "report.json";
/// The hashes of all files; its presence is the seal.
pub const HASHES: &str = "hashes.txt";
/// The signature of [`HASHES`].
pub const SIGNATURE: &str = "hashes.txt.sig";
/// Held while a run lives.
pub const LOCK: &str = "lock";
/// Directory of output.
pub const LOGS: &str = "logs";
/// Directory of what tasks left.
pub const ARTIFACTS: &str = "artifacts";

/// How names of files and directories that are not complete yet begin. No run id begins so.
pub(crate) const TEMPORARY: &str = ".tmp-";
/// How names of role files that are still arriving end; they begin with a dot.
pub const ARRIVING: &str = ".stead-tmp";
/// What a file system allows in one name.
const LONGEST_NAME: usize = 255;
/// The state directory's name.
const STATE: &str = ".stead";

/// Returns the state directory: the one given, else the environment's, else the nearest `.stead` from `cwd`
/// upwards, else `.stead` in `cwd`. Empty values count as not given; relative ones are relative to `cwd`.
pub fn state_directory(explicit: Option<&Path>, env_value: Option<&OsStr>, cwd: &Path) -> PathBuf {
    let given = explicit.filter(|path| !path.as_os_str().is_empty());
    let given = given.or_else(|| env_value.filter(|value| !value.is_empty()).map(Path::new));
    match given {
        Some(path) => cwd.join(path),
        None => {
            let above = cwd.ancestors().map(|directory| directory.join(STATE)).find(|state| state.is_dir());
            above.unwrap_or_else(|| cwd.join(STATE))
        }
    }
}

/// Returns where a state directory keeps its runs.
pub fn runs_directory(state: &Path) -> PathBuf {
    state.join("runs")
}

/// Returns where a state directory keeps the locks of hosts.
pub fn locks_directory(state: &Path) -> PathBuf {
    state.join("locks")
}

/// Returns `name` with `suffix` as one file name, shortened with a digest if the file system could not hold it.
///
/// A name that is no plain file name (empty, `..`, with a `/`) is replaced by its digest: nothing that
/// comes out of here leaves its directory.
pub fn file_name(name: &str, suffix: &str) -> String {
    let plain = is_plain(name);
    if plain && name.len() + suffix.len() <= LONGEST_NAME {
        return format!("{name}{suffix}");
    }
    let digest = Digest::of(name.as_bytes()).to_string();
    let tail = format!("~{}{suffix}", &digest[..16]);
    let room = if plain { LONGEST_NAME.saturating_sub(tail.len()) } else { 0 };
    let cut = (0..=room.min(name.len())).rev().find(|at| name.is_char_boundary(*at)).unwrap_or(0);
    format!("{}{tail}", &name[..cut])
}

fn is_plain(name: &str) -> bool {
    !name.starts_with('.') && !name.contains(['/', '\0', '~']) && !name.is_empty()
}

/// Returns `path` if it names something below the directory it is relative to, and nothing else.
pub(crate) fn inside(path: &str) -> Option<&Path> {
    let path = Path::new(path);
    let plain = path.components().all(|component| matches!(component, Component::Normal(_)));
    (plain && path.components().next().is_some()).then_some(path)
}

/// Returns a path's text for messages and JSON, bytes that are not UTF-8 replaced.
pub(crate) fn shown(path: &Path) -> Cow<'_, str> {
    path.to_string_lossy()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_state_directory_is_searched_in_the_documented_order() {
        let dir = tempfile::tempdir().unwrap();
        let deep = dir.path().join("a/b/c");
        fs::create_dir_all(&deep).unwrap();
        assert_eq!(state_directory(Some(Path::new("/x")), Some(OsStr::new("/y")), &deep), Path::new("/x"));
        assert_eq!(state_directory(None, Some(OsStr::new("/y")), &deep), Path::new("/y"));
        assert_eq!(state_directory(None, Some(OsStr::new("z")), &deep), deep.join("z"));
        fs::create_dir(dir.path().join("a/.stead")).unwrap();
        assert_eq!(state_directory(None, Some(OsStr::new("")), &deep), dir.path().join("a/.stead"));
        fs::write(deep.join(".stead"), "a file is not a state directory").unwrap();
        assert_eq!(state_directory(None, None, &deep), dir.path().join("a/.stead"));
        assert_eq!(state_directory(None, None, Path::new("/")), Path::new("/.stead"));
    }

    #[test]
    fn file_names_stay_in_their_directory_and_fit() {
        assert_eq!(file_name("p[eu]", ".1.stdout"), "p[eu].1.stdout");
        for name in ["..", ".", "", "a/b", "../../x", ".hidden", "a\0b", &"x".repeat(260), &"ü".repeat(200)]
        {
            let file = file_name(name, ".12.stdout");
            assert!(file.len() <= LONGEST_NAME && file.ends_with(".12.stdout"), "{file}");
            assert!(!file.contains(['/', '\0']) && !file.starts_with('.'), "{file}");
        }
        assert_ne!(file_name(&"x".repeat(260), ""), file_name(&"x".repeat(261), ""));
    }

    #[test]
    fn only_paths_below_are_inside() {
        assert!(inside("a/b").is_some());
        for bad in ["", ".", "..", "/a", "a/../../b", "a/.."] {
            assert!(inside(bad).is_none(), "{bad:?}");
        }
    }
}
