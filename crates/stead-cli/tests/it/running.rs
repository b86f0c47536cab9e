//! Plans through the built binary: what the flags show, and where.

use std::io::Read as _;
use std::path::Path;
use std::process::Stdio;

use crate::process::stead;
use crate::terminal::pty;

const PLAN: &str = r#"api_version: v1
name: web
vars: {word: hello}
tasks:
  - {name: a, shell: "echo {{ vars.word | quote }}"}
  - {name: b, depends_on: a, shell: "echo bad >&2; exit 3", on_error: continue}
  - {name: c, depends_on: b, shell: "true"}
  - {name: d, depends_on: a, exec: ["true"], changed_when: "false"}
"#;

fn directory(plan: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("p.yaml"), plan).unwrap();
    dir
}

fn run(dir: &Path, args: &[&str]) -> (i32, String, String) {
    let result = stead(dir).args(args).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (result.status.code().unwrap(), text(result.stdout), text(result.stderr))
}

#[test]
fn plain_progress_is_on_stderr_and_the_summary_on_stdout() {
    let dir = directory(PLAN);
    let (code, stdout, stderr) = run(
        dir.path(),
        &["plan", "run", "p.yaml", "--parallel", "1", "--run-id", "r1", "-v", "--var", "word=it's"],
    );
    assert_eq!(code, 1);
    assert!(
        stdout.starts_with("failed: b: exit code 3\n4 tasks: 1 changed, 1 unchanged, 1 skipped, 1 failed\n"),
        "{stdout}"
    );
    assert!(stdout.ends_with("hint: stead resume r1\n"), "{stdout}");
    for line in ["[start] a", "a@local | it's", "b@local | bad", "[skipped] c: dependency failed: b"] {
        assert!(stderr.lines().any(|shown| shown == line), "no `{line}` in {stderr}");
    }
    assert!(!stderr.contains('\x1b'));
}

/// Case 26: `--json` prints exactly one document on success, failure, invalid YAML and a missing file.
#[test]
fn json_is_one_document_whatever_happens() {
    let dir = directory(PLAN);
    std::fs::write(dir.path().join("good.yaml"), "{api_version: v1, name: x, tasks: []}").unwrap();
    std::fs::write(dir.path().join("bad.yaml"), "api_version: v1\ntaks: [").unwrap();
    let ask = "{api_version: v1, name: x, tasks: [{name: t, confirm: Sure?, exec: [touch, made]}]}";
    std::fs::write(dir.path().join("ask.yaml"), ask).unwrap();
    for (file, wanted) in
        [("good.yaml", 0), ("p.yaml", 1), ("bad.yaml", 3), ("none.yaml", 3), ("ask.yaml", 6)]
    {
        let (code, stdout, stderr) = run(dir.path(), &["plan", "run", file, "--json"]);
        assert_eq!(code, wanted, "{file}: {stderr}");
        let document: serde_json::Value = serde_json::from_str(&stdout).unwrap();
        assert_eq!(document["exit_code"], wanted, "{file}");
        assert_eq!(document["schema"], 1);
    }
    // Case 30: nothing ran.
    assert!(!dir.path().join("made").exists());
    assert_eq!(run(dir.path(), &["plan", "run", "ask.yaml", "--yes"]).0, 0);
    assert!(dir.path().join("made").exists());
}

#[test]
fn events_are_the_journal_byte_for_byte() {
    let dir = directory(PLAN);
    let (_, stdout, stderr) = run(dir.path(), &["plan", "run", "p.yaml", "--events", "-", "--run-id", "r1"]);
    let journal = std::fs::read_to_string(dir.path().join(".stead/runs/r1/events.jsonl")).unwrap();
    assert_eq!(stdout, journal);
    assert!(stderr.contains("4 tasks: "), "the summary moves to stderr: {stderr}");
    run(dir.path(), &["plan", "run", "p.yaml", "--events", "e.jsonl", "--run-id", "r2"]);
    let journal = std::fs::read(dir.path().join(".stead/runs/r2/events.jsonl")).unwrap();
    assert_eq!(std::fs::read(dir.path().join("e.jsonl")).unwrap(), journal);
}

#[test]
fn reports_are_written_where_asked_and_a_bad_place_is_told() {
    let dir = directory(PLAN);
    run(dir.path(), &["plan", "run", "p.yaml", "--junit", "j.xml", "--markdown", "m.md", "--no-journal"]);
    assert!(
        std::fs::read_to_string(dir.path().join("j.xml"))
            .unwrap()
            .contains("<failure message=\"exit code 3\"")
    );
    assert!(std::fs::read_to_string(dir.path().join("m.md")).unwrap().contains("| b | failed |"));
    assert!(!dir.path().join(".stead").exists());
    let (code, stdout, stderr) =
        run(dir.path(), &["plan", "run", "p.yaml", "--only", "d", "--junit", "no/j.xml"]);
    assert_eq!(code, 1);
    assert!(stdout.contains("4 tasks: 1 changed, 1 unchanged, 2 skipped"), "{stdout}");
    assert!(stderr.contains("error[work/output]: cannot write "), "{stderr}");
}

#[test]
fn wrong_names_exit_2_with_candidates() {
    let dir = directory(PLAN);
    for (args, said) in [
        (&["plan", "run", "p.yaml", "--only", "e"][..], "known: a, b, c, d"),
        (&["plan", "run", "p.yaml", "--var", "wrd=x"], "did you mean `word`?"),
        (&["plan", "graph", "p.yaml", "--run", "x"], "there are no runs"),
        (&["resume", "x"], "there are no runs"),
    ] {
        let (code, _, stderr) = run(dir.path(), args);
        assert_eq!(code, 2, "{args:?}: {stderr}");
        assert!(stderr.contains(said) || stderr.contains("did you mean"), "{args:?}: {stderr}");
    }
    assert!(!dir.path().join(".stead").exists());
}

/// Case 2: `plan show --json` of a diamond has 3 levels; an empty plan runs with `0 tasks`.
#[test]
fn show_counts_levels() {
    let dir = directory(
        "{api_version: v1, name: x, tasks: [{name: a, shell: w}, {name: b, shell: w, depends_on: a}, {name: c, shell: w, depends_on: a}, {name: d, shell: w, depends_on: [b, c]}]}",
    );
    let (code, stdout, _) = run(dir.path(), &["plan", "show", "p.yaml", "--json"]);
    assert_eq!(code, 0);
    let document: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(document["levels"].as_array().unwrap().len(), 3);
    std::fs::write(dir.path().join("p.yaml"), "{api_version: v1, name: x, tasks: []}").unwrap();
    let (code, stdout, _) = run(dir.path(), &["plan", "run", "p.yaml"]);
    assert_eq!(code, 0);
    assert!(stdout.starts_with("0 tasks\n"), "{stdout}");
}

/// Case 27: the command itself, on a pty of 10 rows, with 50 running tasks.
#[test]
fn fifty_running_tasks_fit_a_pty_of_ten_rows() {
    let tasks: String = (0..50).map(|i| format!("  - {{name: t{i:02}, exec: [sleep, '0.4']}}\n")).collect();
    let dir = directory(&format!(
        "api_version: v1\nname: wide\nlimits: {{parallel: 64, per_target: 64}}\ntasks:\n{tasks}"
    ));
    let (slave, mut master) = pty(10, 60);
    let mut child = stead(dir.path())
        .env("TERM", "xterm")
        .args(["plan", "run", "p.yaml"])
        .stdout(Stdio::null())
        .stderr(slave)
        .spawn()
        .unwrap();
    let (mut emulator, mut buffer) = (vt100::Parser::new(10, 60, 1000), [0; 4096]);
    let (mut was_hidden, mut counted) = (false, false);
    while let Ok(count @ 1..) = master.read(&mut buffer) {
        for byte in &buffer[..count] {
            emulator.process(&[*byte]);
            was_hidden |= emulator.screen().hide_cursor();
        }
        counted |= emulator.screen().contents().contains("… and 42 more");
    }
    assert!(child.wait().unwrap().success());
    assert!(was_hidden && counted, "{}", emulator.screen().contents());
    assert!(!emulator.screen().hide_cursor());
    emulator.screen_mut().set_scrollback(usize::MAX);
    assert_eq!(emulator.screen().scrollback(), 41, "only finished lines scrolled");
}

/// Operations that read a result by an expression or a template of their own: a dry run cannot know, and says so.
#[test]
fn a_dry_run_that_lacks_a_result_is_unknown_not_failed() {
    let plan = r#"api_version: v1
name: x
tasks:
  - {name: look, shell: echo 3, changed_when: "false"}
  - {name: check, depends_on: look, op: assert, params: {that: "results.look.data.stdout | trim | int == 3"}}
  - name: write
    depends_on: look
    op: file.template
    params: {path: /stead-never, source: t}
"#;
    let dir = directory(plan);
    std::fs::write(dir.path().join("t"), "{{ results.look.data.stdout }}").unwrap();
    let (code, stdout, stderr) = run(dir.path(), &["plan", "run", "p.yaml", "--dry-run"]);
    assert_eq!(code, 0, "{stdout}{stderr}");
    assert!(stdout.starts_with("dry run: 3 tasks: 1 changed, 2 unknown\n"), "{stdout}{stderr}");
}

#[test]
fn the_graph_of_a_for_each_has_an_edge_for_each_instance() {
    let plan = r#"{api_version: v1, name: x, tasks: [
        {name: p, for_each: {eu: 1, us: 2}, exec: ["true"]}, {name: q, depends_on: p, exec: ["true"]}]}"#;
    let dir = directory(plan);
    let (_, dot, _) = run(dir.path(), &["plan", "graph", "p.yaml"]);
    assert!(dot.ends_with("  \"p[eu]\" -> \"q\";\n  \"p[us]\" -> \"q\";\n}\n"), "{dot}");
    let (_, mermaid, _) = run(dir.path(), &["plan", "graph", "p.yaml", "--format", "mermaid"]);
    assert!(mermaid.ends_with("  t0 --> t2\n  t1 --> t2\n"), "{mermaid}");
}
