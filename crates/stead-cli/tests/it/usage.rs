//! Help, usage errors and the commands that need no plan.

use std::io::Read as _;
use std::process::Stdio;

use crate::process::{stead, transcript};

const COMMANDS: &[&[&str]] = &[
    &[],
    &["plan"],
    &["plan", "run"],
    &["plan", "show"],
    &["plan", "graph"],
    &["steps"],
    &["steps", "run"],
    &["steps", "list"],
    &["steps", "explain"],
    &["steps", "history"],
    &["steps", "check"],
    &["intent"],
    &["resume"],
    &["exec"],
    &["bundle"],
    &["bundle", "verify"],
    &["bundle", "info"],
    &["bundle", "list"],
    &["validate"],
    &["token"],
    &["token", "mint"],
    &["token", "inspect"],
    &["token", "verify"],
    &["token", "rotate"],
    &["token", "revoke"],
    &["init"],
    &["init", "plan"],
    &["init", "steps"],
    &["init", "run"],
    &["init", "nodes"],
    &["schema"],
    &["completions"],
    &["man"],
];

fn with<'a>(command: &[&'a str], more: &[&'a str]) -> Vec<&'a str> {
    command.iter().chain(more).copied().collect()
}

#[test]
fn short_help() {
    let shown: Vec<String> = COMMANDS.iter().map(|command| transcript(&with(command, &["-h"]))).collect();
    insta::assert_snapshot!(shown.join("\n"));
}

#[test]
fn long_help() {
    let shown: Vec<String> = COMMANDS.iter().map(|command| transcript(&with(command, &["--help"]))).collect();
    insta::assert_snapshot!(shown.join("\n"));
}

/// `--help` has examples for every command that does something.
#[test]
fn long_help_has_examples() {
    for command in
        COMMANDS.iter().filter(|command| !matches!(command, ["plan" | "bundle" | "steps" | "token" | "init"]))
    {
        assert!(transcript(&with(command, &["--help"])).contains("Examples:"), "{command:?}");
    }
}

#[test]
fn usage_errors_exit_2() {
    let cases: &[&[&str]] = &[
        &[],
        &["plna"],
        &["pl"],
        &["plan", "runn", "x"],
        &["plan", "run"],
        &["plan", "run", "p.yaml", "--paralel", "3"],
        &["plan", "run", "p.yaml", "--parallel", "0"],
        &["plan", "run", "p.yaml", "--timeout", "30"],
        &["plan", "run", "p.yaml", "--var", "x"],
        &["plan", "run", "p.yaml", "--var", "x:=nope"],
        &["plan", "run", "p.yaml", "--run-id", "../x"],
        &["plan", "run", "p.yaml", "--fail-on-change"],
        &["plan", "run", "p.yaml", "--progress", "fancy"],
        &["plan", "run", "p.yaml", "--junit", "-"],
        &["plan", "run", "p.yaml", "--json", "--events", "-"],
        &["resume", "last", "--json", "--events=-"],
        &["plan", "graph", "p.yaml", "--format", "png"],
        &["bundle", "list", "--status", "sad", "--json"],
        &["completions", "tcsh"],
        &["--json"],
    ];
    let shown: Vec<String> = cases.iter().map(|args| transcript(args)).collect();
    for (case, shown) in cases.iter().zip(&shown) {
        assert!(shown.contains("--- exit 2\n"), "{case:?}: {shown}");
    }
    insta::assert_snapshot!(shown.join("\n"));
}

/// Case 24: `--run-id ../x`: exit 2, nothing written. (`transcript` fails if something is left behind.)
#[test]
fn a_run_id_cannot_leave_its_directory() {
    let shown = transcript(&["plan", "run", "-", "--run-id", "../x", "--json"]);
    assert!(shown.contains("--- exit 2\n"), "{shown}");
}

/// Case 26: exactly one JSON document, also for bad flags.
#[test]
fn usage_errors_are_one_json_document_with_json() {
    let dir = tempfile::tempdir().unwrap();
    for args in [
        &["plan", "run", "--json"][..],
        &["plan", "run", "x", "--json", "--nope"],
        &["plna", "--json"],
        &["--json"],
        &["plan", "run", "x", "--events", "-", "--json"],
        &["validate", "--json-output", "--nope"],
    ] {
        let result = stead(dir.path()).args(args).output().unwrap();
        assert_eq!(result.status.code(), Some(2));
        let document: serde_json::Value = serde_json::from_slice(&result.stdout).unwrap();
        assert_eq!(document["schema"], 1);
        assert_eq!(document["exit_code"], 2);
        assert!(!document["error"]["message"].as_str().unwrap().is_empty(), "{document}");
        assert!(document["error"]["help"].is_string());
        assert!(!result.stderr.is_empty());
    }
}

#[test]
fn completions_name_every_command() {
    for shell in ["bash", "zsh", "fish"] {
        let shown = transcript(&["completions", shell]);
        assert!(shown.contains("--- exit 0\n"));
        for word in ["graph", "resume", "fail-on-change", "allow-extra"] {
            assert!(shown.contains(word), "{shell} lacks {word}");
        }
    }
}

#[test]
fn completions_are_scripts_the_shells_accept() {
    let dir = tempfile::tempdir().unwrap();
    for shell in ["bash", "zsh", "fish"] {
        let script = stead(dir.path()).args(["completions", shell]).output().unwrap().stdout;
        let path = dir.path().join(shell);
        std::fs::write(&path, script).unwrap();
        match std::process::Command::new(shell).arg("-n").arg(&path).output() {
            Ok(result) => assert!(result.status.success(), "{}", String::from_utf8_lossy(&result.stderr)),
            Err(_) => eprintln!("{shell} is not installed: its completions were not checked"),
        }
    }
}

#[test]
fn manual_pages_are_printed_or_written() {
    assert!(transcript(&["man"]).contains(".TH stead 1"));
    let dir = tempfile::tempdir().unwrap();
    let result = stead(dir.path()).args(["man", "--dir", "pages"]).output().unwrap();
    assert!(result.status.success() && result.stdout.is_empty());
    let page = std::fs::read_to_string(dir.path().join("pages/stead-plan-run.1")).unwrap();
    assert!(page.contains("Examples") && page.contains("dry"), "{page}");
}

/// A reader that goes away is a quiet end, never a panic.
#[test]
fn a_closed_pipe_is_quiet() {
    let dir = tempfile::tempdir().unwrap();
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut child =
        stead(dir.path()).args(["completions", "zsh"]).stdout(writer).stderr(Stdio::piped()).spawn().unwrap();
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(said, "");
}

#[test]
fn colour_is_for_terminals_or_on_demand() {
    let dir = tempfile::tempdir().unwrap();
    let has_escape = |args: &[&str]| stead(dir.path()).args(args).output().unwrap().stderr.contains(&0x1b);
    assert!(!has_escape(&["plna"]));
    assert!(has_escape(&["plna", "--color", "always"]));
    assert!(has_escape(&["--color=always", "plna"]));
    assert!(!has_escape(&["--color=never", "plna"]));
}
