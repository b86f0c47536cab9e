//! Section 5: `confirm`, without a terminal and on a real one.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::process::{Child, Command};

use super::stage::Stage;
use crate::terminal::pty;

const QUESTIONS: &str = "  - {name: a, shell: 'true', changed_when: 'false'}
  - {name: drop, depends_on: a, confirm: 'Drop it?', shell: 'touch dropped'}
  - {name: after, depends_on: drop, shell: 'true'}
  - {name: same, depends_on: a, only_if_changed: true, confirm: 'Really?', shell: 'touch same'}
";

/// Section 5: without a terminal and without `--yes` nothing starts, and the tasks that ask are listed.
#[test]
fn questions_nobody_can_answer_are_listed_and_nothing_starts() {
    let stage = Stage::of(QUESTIONS);
    let outcome = stage.run(&[]).exits(6);
    let said = outcome.report["errors"].to_string();
    assert!(said.contains("drop (Drop it?)") && said.contains("same (Really?)"), "{said}");
    assert_eq!(outcome.statuses(), "a=not_run drop=not_run after=not_run same=not_run");
    assert!(!stage.has("dropped"));

    let outcome = stage.run(&["--yes", "--run-id", "r2"]).exits(0);
    assert_eq!(outcome.statuses(), "a=unchanged drop=changed after=changed same=skipped");
    assert!(stage.has("dropped"));
}

/// Starts the plan in a session whose terminal is the pty: that is where questions go.
fn at_a_terminal(stage: &Stage) -> (Child, File) {
    let (slave, master) = pty(24, 80);
    let mut command = Command::new("setsid");
    command.args(["--ctty", env!("CARGO_BIN_EXE_stead"), "plan", "run", "p.yaml"]);
    command.args(["--state-dir", "state", "--run-id", "r", "--progress", "plain", "--json"]);
    command.env_clear().env("PATH", "/usr/bin:/bin").env("TERM", "xterm").current_dir(stage.path(""));
    let stdout = File::create(stage.path("stdout")).unwrap();
    let child = command.stdin(slave.try_clone().unwrap()).stdout(stdout).stderr(slave).spawn().unwrap();
    (child, master)
}

/// Answers the question of `drop` with `typed`, and returns the exit code and every task with its status and cause.
fn answered_with(stage: &Stage, typed: &str) -> (Option<i32>, String) {
    let (mut child, mut master) = at_a_terminal(stage);
    let (mut shown, mut buffer, mut answered) = (String::new(), [0; 1024], false);
    // Reading fails once the last process has closed the terminal.
    while let Ok(count @ 1..) = master.read(&mut buffer) {
        shown.push_str(&String::from_utf8_lossy(&buffer[..count]));
        if !answered && shown.contains("drop: Drop it? [y/N] ") {
            master.write_all(typed.as_bytes()).unwrap();
            answered = true;
        }
        assert!(!shown.contains("Really?"), "asked although nothing changed: {shown}");
    }
    let code = child.wait().unwrap().code();
    let report: serde_json::Value = serde_json::from_str(&stage.text("stdout").unwrap()).unwrap();
    let rows = report["tasks"].as_array().unwrap().iter();
    let seen: Vec<String> = rows
        .map(|row| {
            let cause = row["cause"].as_str().map(|cause| format!("/{cause}")).unwrap_or_default();
            format!("{}={}{cause}", row["name"].as_str().unwrap(), row["status"].as_str().unwrap())
        })
        .collect();
    (code, seen.join(" "))
}

/// Section 5: a question is asked when its task is ready and its guards have passed; no is `declined`.
#[test]
fn a_declined_task_is_skipped() {
    for (typed, drop) in [("n\n", "skipped/declined"), ("y\n", "changed")] {
        let stage = Stage::of(QUESTIONS);
        let statuses = format!("a=unchanged drop={drop} after=changed same=skipped/unchanged");
        assert_eq!(answered_with(&stage, typed), (Some(0), statuses));
        assert_eq!(stage.has("dropped"), typed == "y\n");
    }
}

/// Section 6: Ctrl-C takes a question back and ends the run.
#[test]
fn an_interrupt_takes_a_question_back() {
    let stage = Stage::of(QUESTIONS);
    let (code, statuses) = answered_with(&stage, "\x03");
    assert_eq!(code, Some(130));
    assert!(statuses.starts_with("a=unchanged drop=not_run after=not_run same="), "{statuses}");
    assert!(!stage.has("dropped"));
}
