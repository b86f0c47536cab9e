//! `stead init fleet`: a repository whose first commit is a fleet.

use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::json;
use stead_model::ExitCode;
use stead_model::fleet::starter::starter;

use crate::args::InitFleetArgs;
use crate::failure::{Failure, FailureKind};
use crate::output::Output;
use crate::render::json as render_json;
use crate::settings::Settings;

pub(crate) fn run(
    args: &InitFleetArgs,
    settings: &Settings,
    output: &mut Output,
) -> Result<ExitCode, Failure> {
    let directory = settings.current_dir.join(&args.directory);
    // Nothing is written that could not be committed.
    git(&settings.current_dir, &["--version"])?;
    let files = starter();
    super::write(&directory, &files, "nothing was written; name another directory")?;
    let commit = first_commit(&directory)?;
    let name = args.directory.display();
    if args.json {
        let paths: Vec<&str> = files.iter().map(|file| file.path.as_str()).collect();
        let document = json!({"repo": directory.display().to_string(), "commit": commit, "files": paths});
        output.out.print(&render_json::document(&document));
    } else {
        let short = commit.get(..12).unwrap_or(&commit);
        output.out.print_line(&format!("wrote {} files below {name}, committed as {short}", files.len()));
        output.err.print_line(&format!("next: stead fleet dev {name}"));
        // The first commit could be made for them; the next one is theirs.
        if git(&directory, &["var", "GIT_COMMITTER_IDENT"]).is_err() {
            output.err.print_line(
                "hint: Git does not know who you are and will refuse your commits: \
                 git config --global user.name NAME; git config --global user.email ADDRESS",
            );
        }
    }
    Ok(ExitCode::Success)
}

/// Commits everything in a new repository; one that is there already gets a commit more.
fn first_commit(directory: &Path) -> Result<String, Failure> {
    if !directory.join(".git").exists() {
        git(directory, &["init", "--quiet", "--initial-branch=main"])?;
    }
    git(directory, &["add", "--all"])?;
    let mut words = Vec::new();
    // Somebody who has not told Git who they are wants to see a fleet first.
    for (key, value) in [("user.name", "stead"), ("user.email", "stead@localhost")] {
        if git(directory, &["config", key]).is_err() {
            words.extend(["-c".to_owned(), format!("{key}={value}")]);
        }
    }
    let mut words: Vec<&str> = words.iter().map(String::as_str).collect();
    words.extend(["commit", "--quiet", "--message", "a fleet"]);
    git(directory, &words)?;
    git(directory, &["rev-parse", "HEAD"])
}

fn git(directory: &Path, words: &[&str]) -> Result<String, Failure> {
    let output = Command::new("git").args(words).current_dir(directory).stdin(Stdio::null()).output();
    let output = output.map_err(|error| {
        Failure::new(FailureKind::Work, format!("git cannot be started: {error}"))
            .hint("a fleet is kept in Git: install it")
    })?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(Failure::new(
            FailureKind::Work,
            format!("git {} failed: {}", words.join(" "), said.trim()),
        ));
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
