//! Runs the built binary in a directory of its own, with an environment of its own.

use std::process::{Command, Stdio};

/// Returns the command, with nothing inherited but what it is given.
pub(crate) fn stead(dir: &std::path::Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_stead"));
    command.env_clear().env("PATH", "/usr/bin:/bin").current_dir(dir).stdin(Stdio::null());
    command
}

/// What a command did, in the form of the snapshots.
pub(crate) fn transcript(args: &[&str]) -> String {
    let dir = tempfile::tempdir().unwrap();
    let result = stead(dir.path()).args(args).output().unwrap();
    let stdout = String::from_utf8(result.stdout).unwrap();
    let stderr = String::from_utf8(result.stderr).unwrap();
    let left: Vec<_> =
        std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(left.is_empty(), "left behind: {left:?}");
    let code = result.status.code().map_or("signal".to_owned(), |code| code.to_string());
    format!("$ stead {}\n--- exit {code}\n--- stdout\n{stdout}--- stderr\n{stderr}", args.join(" "))
}
