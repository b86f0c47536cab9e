//! What Git says of the files of an intent. Reads only; the commit itself is made by the operation.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use stead_model::diagnostic::Place;
use stead_model::{Diagnostic, Diagnostics};

use super::prepared::PreparedFile;

/// What is in the way of a commit.
const CODE: &str = "intent/dirty";

/// Variables of a Git that started us: the files are asked about in their own repository.
pub(super) const FOREIGN: [&str; 5] =
    ["GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_COMMON_DIR"];

/// What Git has under way while these exist, by their names in its directory.
const UNDER_WAY: [(&str, &str); 5] = [
    ("MERGE_HEAD", "a merge"),
    ("rebase-merge", "a rebase"),
    ("rebase-apply", "a rebase"),
    ("CHERRY_PICK_HEAD", "a cherry-pick"),
    ("REVERT_HEAD", "a revert"),
];

/// Runs git where the file is.
fn git(directory: &Path, args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> std::io::Result<Output> {
    let mut command = Command::new("git");
    command.arg("-C").arg(directory).args(["-c", "core.fsmonitor=false"]).args(args);
    // Looking must not write, and `status` would refresh the index.
    command.env("GIT_OPTIONAL_LOCKS", "0").env("GIT_TERMINAL_PROMPT", "0").env("LC_ALL", "C");
    FOREIGN.iter().for_each(|name| {
        command.env_remove(name);
    });
    command.stdin(Stdio::null()).output()
}

/// Returns the top of the work tree in which exactly these files can be committed, or all that is in the way.
pub fn ready_to_commit(root: &Path, files: &[PreparedFile]) -> Result<PathBuf, Diagnostics> {
    let problem = |place: &str, message: String, help: &str| {
        Diagnostic::error(CODE, Place::Named(place.to_owned()), message).help(help)
    };
    let top = match top_of(root) {
        Ok(top) => top,
        Err(why) => {
            let message = format!("--commit needs a Git work tree: {why}");
            return Err(Diagnostics(vec![problem("--commit", message, "leave --commit out")]));
        }
    };
    let mut problems = Diagnostics::default();
    for (name, what) in UNDER_WAY {
        let path = git(&top, ["rev-parse", "--git-path", name]).ok().and_then(|said| line(&said.stdout));
        if path.is_some_and(|path| top.join(path).exists()) {
            let message = format!("{what} is under way in {}", top.display());
            problems.push(problem("--commit", message, "finish or abort it first"));
            break;
        }
    }
    for file in files {
        let directory = file.real.parent().unwrap_or(root);
        match top_of(directory) {
            Ok(other) if other == top => {}
            Ok(_) | Err(_) => {
                let message = format!("the file is not in the work tree {}", top.display());
                problems.push(problem(&file.name, message, "leave --commit out"));
                continue;
            }
        }
        match state_of(&file.real) {
            Ok(None) => {}
            Ok(Some(why)) => {
                problems.push(problem(&file.name, why.to_owned(), "commit, stash or discard that first"));
            }
            Err(why) => problems.push(problem(&file.name, why, "")),
        }
    }
    if problems.has_errors() { Err(problems) } else { Ok(top) }
}

/// Returns the top of the work tree that `directory` is in, or why there is none.
fn top_of(directory: &Path) -> Result<PathBuf, String> {
    let said = git(directory, ["rev-parse", "--show-toplevel"]).map_err(|error| format!("git: {error}"))?;
    match line(&said.stdout) {
        Some(top) if said.status.success() => {
            top.canonicalize().map_err(|error| format!("{}: {error}", top.display()))
        }
        Some(_) | None => Err(complaint(&said)),
    }
}

/// Returns what is uncommitted of a file, in words; none if it is as committed.
fn state_of(file: &Path) -> Result<Option<&'static str>, String> {
    let directory = file.parent().unwrap_or(file);
    let ask = |args: &[&str]| -> Result<Output, String> {
        let all = args.iter().map(OsStr::new).chain([OsStr::new("--"), file.as_os_str()]);
        git(directory, all).map_err(|error| format!("git: {error}"))
    };
    let known = ask(&["--literal-pathspecs", "ls-files", "--error-unmatch"])?;
    if !known.status.success() {
        return Ok(Some("Git does not track the file"));
    }
    let status = ask(&["--literal-pathspecs", "status", "--porcelain", "-z"])?;
    if !status.status.success() {
        return Err(complaint(&status));
    }
    Ok((!status.stdout.is_empty()).then_some("the file has uncommitted changes"))
}

/// Whether all files, which are in one work tree, are as they are committed.
pub(super) fn is_committed(files: &[PathBuf]) -> bool {
    !files.is_empty() && files.iter().all(|file| state_of(file) == Ok(None))
}

/// Returns the top of the work tree that the first of these files is in.
pub(super) fn top_of_any(files: &[PathBuf]) -> Option<PathBuf> {
    files.first().and_then(|file| file.parent()).and_then(|directory| top_of(directory).ok())
}

/// Returns the commit that is checked out.
pub(super) fn head(directory: &Path) -> Option<String> {
    let said = git(directory, ["rev-parse", "--verify", "--quiet", "HEAD"]).ok()?;
    line(&said.stdout).filter(|_| said.status.success()).map(|head| head.to_string_lossy().into_owned())
}

fn line(stdout: &[u8]) -> Option<PathBuf> {
    let line = stdout.strip_suffix(b"\n").unwrap_or(stdout);
    (!line.is_empty()).then(|| PathBuf::from(OsStr::from_bytes(line)))
}

/// Returns what git complained about, in one line.
fn complaint(said: &Output) -> String {
    let text = String::from_utf8_lossy(&said.stderr);
    let first = text.lines().next().unwrap_or("git failed");
    first.strip_prefix("fatal: ").unwrap_or(first).to_owned()
}
