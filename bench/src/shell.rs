//! A thousand processes through the real binary, against ninja doing the same.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::Effort;
use crate::sample::{median, time};
use crate::table::Table;

/// How many commands run at once, in both.
const PARALLEL: usize = 4;

/// The line about shell tasks.
pub(crate) fn measure(effort: Effort, table: &mut Table) {
    let tasks = 1_000;
    let what = "1,000 shell tasks `true`, journal and logs on";
    let directory = tempfile::tempdir().expect("a temporary directory");
    let (ninja_file, plan_file) = (directory.path().join("build.ninja"), directory.path().join("plan.yaml"));
    write(&ninja_file, &ninja(tasks));
    write(&plan_file, &plan(tasks));
    if !is_installed("ninja") {
        return table.skipped(what, "ninja is not installed (Debian: ninja-build)");
    }
    let (mut ours, mut theirs): (Vec<Duration>, Vec<Duration>) = (Vec::new(), Vec::new());
    for round in 0..=effort.samples() {
        let one = time(|| run(stead(&plan_file, &directory.path().join(format!("state-{round}")))));
        let other =
            time(|| run(Command::new("ninja").arg(format!("-j{PARALLEL}")).current_dir(directory.path())));
        // The first round warms caches.
        if round > 0 {
            ours.push(one);
            theirs.push(other);
        }
    }
    table.within(what, median(ours).as_secs_f64(), ("ninja", median(theirs).as_secs_f64()), 1.2);
}

/// Returns the command that runs a plan, recorded in `state`.
pub(crate) fn stead(plan: &Path, state: &Path) -> Command {
    let mut command = Command::new(binary());
    command.args(["plan", "run"]).arg(plan).arg("--state-dir").arg(state);
    command.arg(format!("--parallel={PARALLEL}"));
    command
}

/// Returns the binary built beside this one.
pub(crate) fn binary() -> PathBuf {
    std::env::current_exe().expect("this program has a path").with_file_name("stead")
}

pub(crate) fn run(mut command: impl std::borrow::BorrowMut<Command>) {
    let command = command.borrow_mut();
    let output = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).output();
    let output = output.unwrap_or_else(|error| panic!("{command:?} could not be started: {error}"));
    let errors = String::from_utf8_lossy(&output.stderr);
    let last = errors.len().saturating_sub(2_000);
    assert!(output.status.success(), "{command:?} failed: {}", errors.get(last..).unwrap_or(&errors));
}

pub(crate) fn write(path: &Path, text: &str) {
    std::fs::write(path, text).expect("the temporary directory can be written to");
}

pub(crate) fn is_installed(program: &str) -> bool {
    Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok()
}

/// Returns a build file whose edges always run.
fn ninja(tasks: usize) -> String {
    let mut text = "rule true\n  command = true\n".to_owned();
    for task in 0..tasks {
        text += &format!("build t{task}: true\n");
    }
    text
}

fn plan(tasks: usize) -> String {
    let mut text = format!("api_version: v1\nname: shell\nlimits: {{per_target: {PARALLEL}}}\ntasks:\n");
    for task in 0..tasks {
        text += &format!("  - name: t{task}\n    shell: \"true\"\n");
    }
    text
}
