//! Secrets: where they may stand, and that they are nowhere else.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Stdio;

use super::lab::{Lab, task, wait_until};

const SECRET: &str = "s3cr3t-tok3n-value";
const LINES: &str = "-----BEGIN-----\nfirstline-abc\nsecondline-def\nxy\n-----END-----";

fn plan(task: &str) -> String {
    format!(
        "api_version: v1\nname: secret\nsecrets: {{key: {{env: API_KEY}}}}\ntasks:\n  - {{name: t, {task}}}\n"
    )
}

/// Case 29: in argv, script, guards, names and other parameters: exit 3, the code named, before the value is even read.
#[test]
fn secrets_in_argv_or_script_are_refused() {
    for (text, code) in [
        ("exec: [echo, \"{{ secrets.key }}\"]", "plan/secret-in-argv"),
        ("shell: \"echo {{ secrets.key }}\"", "plan/secret-in-argv"),
        ("shell: \"echo {{ secrets.key | quote }}\"", "plan/secret-in-argv"),
        ("op: command.exec, params: {command: \"{{ secrets.key }}\"}", "plan/secret-in-argv"),
        ("exec: ['true'], params: {creates: \"{{ secrets.key }}\"}", "plan/secret-in-argv"),
        ("exec: ['true'], params: {unless: \"test {{ secrets.key }}\"}", "plan/secret-in-argv"),
        ("exec: ['true'], params: {cwd: \"{{ secrets.key }}\"}", "plan/secret-in-argv"),
        ("exec: ['true'], params: {env: {\"{{ secrets.key }}\": x}}", ""),
        ("exec: ['true'], when: \"secrets.key == 'x'\"", "plan/secret-in-argv"),
        ("op: file.present, params: {path: \"/tmp/{{ secrets.key }}\", content: x}", "plan/secret-in-argv"),
    ] {
        let lab = Lab::new(&plan(text));
        let ended = lab.plan(&["--json"]).exits(3);
        let said = ended.document().to_string();
        assert!(said.contains(code), "{text}: {said}");
        assert!(!lab.path("state").exists());
    }
}

/// Case 29: a missing, empty or short secret is named, exit 3, and nothing ran.
#[test]
fn missing_and_short_secrets_are_refused() {
    let lab = Lab::new(&plan("shell: \"touch ran\", params: {env: {KEY: \"{{ secrets.key }}\"}}"));
    for value in [None, Some(""), Some("abc")] {
        let mut command = lab.stead(["plan", "run", "p.yaml"]);
        if let Some(value) = value {
            command.env("API_KEY", value);
        }
        let ended = command.output().unwrap();
        assert_eq!(ended.status.code(), Some(3), "{value:?}");
        let said = String::from_utf8(ended.stderr).unwrap() + &String::from_utf8(ended.stdout).unwrap();
        assert!(said.contains("key") || said.contains("API_KEY"), "{said}");
        assert!(!said.contains("abc"));
    }
    assert!(!lab.path("ran").exists());
}

/// Every file below a directory, by path.
fn files(dir: &Path) -> BTreeMap<std::path::PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut todo = vec![dir.to_owned()];
    while let Some(path) = todo.pop() {
        if path.is_dir() {
            todo.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        } else {
            found.insert(path.clone(), fs::read(&path).unwrap());
        }
    }
    found
}

fn holds(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|window| window == text.as_bytes())
}

/// Everything a task can do to let a secret out, in one plan; it blocks until `go` is there.
const LEAKS: &str = r#"api_version: v1
name: leaks
on_error: continue
secrets: {key: {env: API_KEY}, pem: {file: pem}}
tasks:
  - name: prints
    shell: |
      touch started
      while ! test -e go; do sleep 0.02; done
      echo "value $KEY and again $KEY$KEY"
      echo "on stderr $KEY" >&2
      exit 3
    params: {env: {KEY: "{{ secrets.key }}"}}
  - name: splits
    shell: |
      printf '%s' "${KEY%%-*}-tok"
      touch half
      while ! test -e half-seen; do sleep 0.02; done
      printf '%s\n' "${KEY#*-tok}"
    params: {env: {KEY: "{{ secrets.key }}"}}
  - name: lines
    shell: printf '%s\n' "$PEM"; printf '%s' "$PEM" | sed -n 3p
    params: {env: {PEM: "{{ secrets.pem }}"}}
  - name: reads
    shell: cat
    params: {stdin: "in {{ secrets.key }} out"}
  - name: writes
    op: file.present
    params: {path: @/written, content: "key={{ secrets.key }}\n", mode: "0600"}
  - name: errs
    op: assert
    depends_on: reads
    params: {that: ["results.reads.data.stdout == 'x'"], message: "got {{ results.reads.data.stdout }}"}
  - name: passes
    depends_on: reads
    shell: printf '%s' "$GOT" > passed
    params: {env: {GOT: "{{ results.reads.data.stdout }}"}}
"#;

/// Case 29: a secret in `env`, `stdin` or file content is in no argv, file of the run, output or report; split or not.
#[test]
fn a_secret_is_nowhere_but_where_it_belongs() {
    let lab = Lab::new(LEAKS);
    lab.write("pem", format!("{LINES}\n"));
    lab.write("written", "key=older\n");
    let args = [
        "plan",
        "run",
        "p.yaml",
        "--run-id",
        "r1",
        "-v",
        "--json",
        "--diff",
        "--events",
        "e.jsonl",
        "--junit",
        "j.xml",
        "--markdown",
        "m.md",
    ];
    let mut command = lab.stead(args);
    let child = command.env("API_KEY", SECRET).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    lab.wait_for_file("started");
    lab.wait_for_file("half");
    // The first half has been read when it is in the log, masked or held back; the process list shows no secret.
    for (pid, line) in lab.processes() {
        assert!(!line.contains(SECRET), "{pid}: {line}");
    }
    lab.write("half-seen", "");
    lab.write("go", "");
    let ended = child.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(1));

    let report: serde_json::Value = serde_json::from_slice(&ended.stdout).unwrap();
    assert_eq!(task(&report, "prints")["data"]["stdout"], "value *** and again ******\n");
    assert_eq!(task(&report, "splits")["data"]["stdout"], "***\n");
    assert_eq!(task(&report, "reads")["data"]["stdout"], "in *** out");
    assert_eq!(lab.read("written"), format!("key={SECRET}\n"), "the target got it");
    assert_eq!(lab.read("passed"), "in *** out", "no secret passes between tasks");
    assert!(String::from_utf8_lossy(&ended.stderr).contains("prints@local | value *** and again ******"));

    let mut places = files(&lab.bundle("r1"));
    places.insert("stdout".into(), ended.stdout);
    places.insert("stderr".into(), ended.stderr);
    for name in ["e.jsonl", "j.xml", "m.md"] {
        places.insert(name.into(), fs::read(lab.path(name)).unwrap());
    }
    places.extend(files(&lab.path("state/locks")));
    for (place, bytes) in &places {
        for part in [SECRET, "firstline-abc", "secondline-def", "-----BEGIN-----", "-----END-----"] {
            assert!(!holds(bytes, part), "`{part}` is in {}", place.display());
        }
    }
    lab.verify("r1");
    // Shown again later, it is still masked.
    let shown = lab.stead(["resume", "r1", "--json"]).env("API_KEY", SECRET).output().unwrap();
    assert!(!holds(&shown.stdout, SECRET) && !holds(&shown.stderr, SECRET));
    for (place, bytes) in files(&lab.bundle("r1")) {
        assert!(!holds(&bytes, SECRET), "after resume: {}", place.display());
    }
}

/// Case 29: differences of a dry run are masked.
#[test]
fn a_dry_run_masks_secrets() {
    let lab =
        Lab::new(&plan("op: file.present, params: {path: @/f, content: \"a\\nkey={{ secrets.key }}\\n\"}"));
    lab.write("f", format!("a\nold={SECRET}\n"));
    let ended = lab
        .stead(["plan", "run", "p.yaml", "--dry-run", "--diff", "--json"])
        .env("API_KEY", SECRET)
        .output()
        .unwrap();
    let text = String::from_utf8(ended.stdout).unwrap() + &String::from_utf8(ended.stderr).unwrap();
    assert!(text.contains("key=***") && !text.contains(SECRET), "{text}");
}

/// Case 29: what is already masked when a run is watched as it goes.
#[test]
fn a_log_read_while_it_is_written_is_masked() {
    let lab = Lab::new(&plan(
        "shell: 'printf \"%s\" \"${KEY%value}\"; touch half; while ! test -e go; do sleep 0.02; done; printf value', params: {env: {KEY: \"{{ secrets.key }}\"}}",
    ));
    let mut command = lab.stead(["plan", "run", "p.yaml", "--run-id", "r1"]);
    let mut child =
        command.env("API_KEY", SECRET).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    lab.wait_for_file("half");
    let log = lab.bundle("r1").join("logs/t/local.1.stdout");
    let part = &SECRET[..SECRET.len() - 5];
    assert!(!holds(&fs::read(&log).unwrap_or_default(), part), "half a secret is held back");
    lab.write("go", "");
    assert!(child.wait().unwrap().success());
    wait_until("the log", || fs::read(&log).is_ok_and(|bytes| bytes == b"***"));
}

/// Case 29: what the command knows of its surroundings shows no value of a variable in `Debug`.
#[test]
fn the_commands_settings_show_no_secret() {
    use stead_cli::args::GlobalArgs;
    use stead_cli::settings::{Environment, Settings, Terminals};
    let environment: Environment = [("API_KEY", SECRET), ("STEAD_DIR", "/state")].into_iter().collect();
    let settings =
        Settings::new(&GlobalArgs::default(), environment.clone(), Terminals::default(), "/".into());
    assert_eq!(settings.environment.get("API_KEY"), Some(std::ffi::OsStr::new(SECRET)));
    let shown = format!("{environment:?} {settings:?} {settings:#?}");
    assert!(shown.contains("API_KEY") && !shown.contains(SECRET), "{shown}");
}
