//! `stead exec`: commands and operations on hosts.

use std::process::Stdio;

use serde_json::{Value, json};

use super::{Site, Told};

fn two() -> Site {
    Site::of("  a1: {transport: local, labels: {role: web}}\n  a2: {transport: local, labels: {role: web}}\n")
}

/// Nodes, section 12: the document, and exit 0 if every command ended well, else 1.
#[test]
fn a_command_gives_one_result_per_host() {
    let site = two();
    let script = "echo out; echo err >&2; test \"$STEAD_HOST\" = a1 || exit 3";
    let told = site.run(&["exec", "role:web", "--json", "--", "sh", "-c", script]).exits(1);
    let document = told.json();
    assert_eq!(document["success"], false);
    let rows = document["results"].as_array().unwrap();
    assert_eq!((&rows[0]["target"], &rows[0]["rc"]), (&json!("a1"), &json!(0)));
    assert_eq!((&rows[1]["target"], &rows[1]["rc"]), (&json!("a2"), &json!(3)));
    for row in rows {
        assert_eq!((&row["stdout"], &row["stderr"]), (&json!("out\n"), &json!("err\n")));
        assert_eq!(row["truncated"], false);
        assert!(row["duration"].as_f64().unwrap() < 60.0, "{row}");
    }
    let told = site.run(&["exec", "a1", "--json", "--", "true"]).exits(0);
    assert_eq!(told.json()["success"], true);
    // Nothing was recorded, and nothing locked.
    assert!(!site.file(".stead").exists());
}

#[test]
fn lines_have_their_host_in_front_and_a_summary_follows() {
    let site = two();
    let told =
        site.run(&["exec", "a1", "--", "sh", "-c", "echo out; printf end; echo err >&2; exit 3"]).exits(1);
    insta::assert_snapshot!(told.transcript());
    let told = site.run(&["exec", "role:web", "--", "sh", "-c", "echo out"]).exits(0);
    let mut lines: Vec<&str> = told.stdout.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["a1 | out", "a2 | out"]);
    assert!(told.stderr.starts_with("2 hosts: 2 ok in "), "{}", told.stderr);
}

/// Section 2: words reach the program byte for byte; nothing in them is a template or a shell's.
#[test]
fn a_command_gets_its_words_as_they_are() {
    let site = two();
    let words = ["a b", "$(x)", "{{ vars.x }}", "it's", "", "~", "-n", "\"", "*", "\\", "ä"];
    let mut args = vec!["exec", "a1", "--json", "--", "printf", "%s\\n"];
    args.extend(words);
    let told = site.run(&args).exits(0);
    let expected: String = words.iter().map(|word| format!("{word}\n")).collect();
    assert_eq!(told.json()["results"][0]["stdout"], expected);
}

#[test]
fn more_output_than_is_kept_is_said() {
    let site = two();
    let told =
        site.run(&["exec", "a1", "--json", "--", "sh", "-c", "yes | head -c 1500000; echo end"]).exits(0);
    let row = told.json()["results"][0].clone();
    assert_eq!(row["truncated"], true);
    let stdout = row["stdout"].as_str().unwrap();
    assert!(stdout.len() <= 1 << 20 && stdout.ends_with("end\n"), "{}", stdout.len());
}

#[test]
fn a_program_that_is_not_there_is_127() {
    let told = two().run(&["exec", "a1", "--json", "--", "no-such-program"]).exits(1);
    let row = told.json()["results"][0].clone();
    assert_eq!(row["rc"], 127, "{row}");
    assert!(row["error"].as_str().unwrap().contains("no-such-program"), "{row}");
}

/// A host by SSH, or one that wants another account, is never served by this machine instead.
#[test]
fn hosts_out_of_reach_fail_and_the_others_run() {
    let site = Site::of(
        "  a1: local\n  far: {transport: 'ssh://u@127.0.0.1:1?agent=false&ssh_config=none&connect_timeout=5s'}\n",
    );
    let told = site.run(&["exec", "a1", "far", "--json", "--", "sh", "-c", "echo $STEAD_HOST >> ran"]);
    assert_ne!(told.code, Some(0));
    let rows = told.json()["results"].clone();
    assert_eq!((&rows[0]["rc"], &rows[1]["rc"]), (&json!(0), &Value::Null));
    assert!(rows[1]["error"].as_str().is_some_and(|error| !error.is_empty()), "{rows}");
    assert_eq!(std::fs::read_to_string(site.file("ran")).unwrap(), "a1\n");
}

/// Section 5: one operation, its parameters as pairs or as JSON, predicted and done.
#[test]
fn an_operation_is_predicted_and_then_done() {
    let site = two();
    let motd = site.file("motd");
    let path = format!("path={}", motd.display());
    let op = ["exec", "a1", "--op", "file.present", path.as_str(), "content=be nice\n", "mode=0600"];
    let told = site.run(&[&op[..], &["--dry-run", "--diff", "--json"]].concat()).exits(0);
    let row = told.json()["results"][0].clone();
    assert_eq!(
        (&row["target"], &row["status"], &row["changed"]),
        (&json!("a1"), &json!("changed"), &json!(true))
    );
    assert!(row["diff"].is_object(), "{row}");
    for member in ["data", "diff", "class", "error", "reason", "duration_ms"] {
        assert!(row.get(member).is_some(), "{member}: {row}");
    }
    assert!(!motd.exists());

    let told = site.run(&[&op[..], &["--diff"]].concat()).exits(0);
    assert!(told.stdout.starts_with("a1 changed\n  ") && told.stdout.contains("+be nice"), "{}", told.stdout);
    assert!(told.stderr.starts_with("1 host: 1 changed in "), "{}", told.stderr);
    assert_eq!(std::fs::read_to_string(&motd).unwrap(), "be nice\n");

    let params = json!({"path": motd, "content": "be nice\n"}).to_string();
    let told = site.run(&["exec", "a1", "--op", "file.present", "--params", &params, "--json"]).exits(0);
    assert_eq!(told.json()["results"][0]["status"], "unchanged");

    // A failing one: exit 1, with class and error.
    let told = site.run(&[
        "exec",
        "a1",
        "a2",
        "--json",
        "--op",
        "file.absent",
        &format!("path={}", site.path().display()),
    ]);
    let document = told.exits(1).json();
    assert_eq!(document["success"], false);
    for row in document["results"].as_array().unwrap() {
        assert_eq!(row["status"], "failed");
        assert!(row["class"].is_string() && row["error"].is_string(), "{row}");
    }
}

#[test]
fn pairs_take_the_type_of_their_parameter() {
    let site = two();
    site.write("tree/file", "x");
    let path = format!("path={}", site.file("tree").display());
    site.run(&["exec", "a1", "--op", "file.absent", &path, "recursive=true"]).exits(0);
    assert!(!site.file("tree").exists());
    site.run(&["exec", "a1", "--op", "command.exec", "command=test", "args=text"]).exits(0);
    site.run(&["exec", "a1", "--op", "command.exec", "command=test", "args:=[\"-n\", \"\"]"]).exits(1);
}

/// Section 5: facts by host, all of them or parts.
#[test]
fn facts_are_printed_by_host() {
    let site = two();
    let told = site
        .run(&["exec", "role:web", "--facts", "--only", "arch", "--only", "os.family", "--json"])
        .exits(0);
    let document = told.json();
    assert_eq!(document["unreachable"], json!([]));
    for host in ["a1", "a2"] {
        let facts = document["facts"][host].as_object().unwrap_or_else(|| panic!("{document}"));
        assert_eq!(facts.keys().collect::<Vec<_>>(), ["arch", "os"]);
    }
    let told = site.run(&["exec", "a1", "--facts", "--json"]).exits(0);
    assert_eq!(told.json()["facts"]["a1"]["schema"], 1);
    let told = site.run(&["exec", "a1", "--facts", "--only", "arch"]).exits(0);
    assert!(told.stdout.starts_with("a1 {\n  \"arch\": "), "{}", told.stdout);
    // A word of the command line, so nobody is asked.
    let told = site.run(&["exec", "a1", "--facts", "--only", "os.famly"]).exits(2);
    assert!(told.stderr.contains("did you mean `os.family`?"), "{}", told.stderr);
}

/// What is wrong on the command line exits 2, all of it at once.
#[test]
fn wrong_arguments_exit_2_and_say_what_to_do() {
    let site = two();
    let mut shown = String::new();
    for args in [
        &["exec", "a1"][..],
        &["exec", "--", "true"],
        &["exec", "a1", "--list", "--facts"],
        &["exec", "a1", "--op", "file.presnt"],
        &["exec", "a1", "--op", "file.present", "pth=/x", "mode=9"],
        &["exec", "a1", "--op", "file.present", "path"],
        &["exec", "a1", "--op", "file.present", "path=/x", "--params", "{}"],
        &["exec", "a1", "--op", "file.present", "--params", "[1]"],
        &["exec", "a1", "--op", "file.present", "--params", "{"],
        &["exec", "a1", "--only", "os", "--", "true"],
        &["exec", "a1", "--diff", "--", "true"],
        &["exec", "a1", "--params", "{}", "--facts"],
    ] {
        let told = site.run(args).exits(2);
        shown.push_str(&format!("$ stead {}\n{}\n", args.join(" "), told.transcript()));
    }
    insta::assert_snapshot!(shown);
    // With --json the one document is still there.
    let told = site.run(&["exec", "a1", "--json", "--op", "file.presnt"]).exits(2);
    assert!(told.json()["error"]["help"].as_str().unwrap().contains("file.present"));
}

/// `--dry-run` of a command runs nothing.
#[test]
fn a_dry_run_of_a_command_runs_nothing() {
    let site = two();
    let told = site.run(&["exec", "a1", "--dry-run", "--json", "--", "touch", "ran"]).exits(0);
    assert_eq!(told.json()["results"][0]["target"], "a1");
    assert!(!site.file("ran").exists());
}

/// What writes waits for its hosts; a command looks at them while a run holds them.
#[test]
fn what_writes_takes_the_lock_and_a_command_does_not() {
    let site = two();
    // The operation runs while a task of a plan holds the host.
    let inner =
        |what: &str| format!("env -u STEAD_RUN_ID \"$STEAD\" exec a1 {what} > told 2>&1; echo $? > code");
    let plan = |script: &str| {
        let quoted = serde_json::to_string(script).unwrap();
        format!("api_version: v1\nname: p\ntasks: [{{name: a, target: a1, shell: {quoted}}}]\n")
    };
    for (what, code) in [("--op file.present path=$PWD/x", "5\n"), ("-- true", "0\n")] {
        site.write("p.yaml", &plan(&inner(what)));
        let mut command = site.command(&["plan", "run", "p.yaml"]);
        command.env("STEAD", env!("CARGO_BIN_EXE_stead"));
        Told::of(command).exits(0);
        let told = std::fs::read_to_string(site.file("told")).unwrap();
        assert_eq!(std::fs::read_to_string(site.file("code")).unwrap(), code, "{told}");
    }
}

/// A host that is not reached is named once in a line, and its address once.
#[test]
fn a_host_that_is_not_reached_is_named_once() {
    let port = stead_testkit::sshd::free_port();
    let host = |name: &str| {
        format!("  {name}: \"ssh://ann@127.0.0.1:{port}?agent=false&connect_timeout=5s&ssh_config=none\"\n")
    };
    let site = Site::of(&(host("web1") + &host("web2")));
    let plan = "api_version: v1\nname: p\ntasks: [{name: t, target: [web1, web2], op: file.absent, params: {path: /none}}]\n";
    site.write("p.yaml", plan);
    for words in [&["plan", "run", "p.yaml"][..], &["exec", "_all", "--", "true"]] {
        let told = Told::of(site.command(words)).exits(7);
        let lines: Vec<&str> =
            told.stderr.lines().filter(|line| line.contains("Connection refused")).collect();
        assert!(lines.len() >= 2, "{}", told.stderr);
        for line in lines {
            for name in ["web1", "web2"] {
                assert!(line.matches(name).count() <= 1, "{line}");
            }
            let reasons = line.matches("Connection refused").count();
            assert_eq!(line.matches(&format!("127.0.0.1:{port}")).count(), reasons, "{line}");
        }
    }
}

/// Section 7: a file with a second name is written in place and this is said, in the document and beside the task.
#[test]
fn what_is_to_be_known_of_a_success_is_in_the_document() {
    let site = two();
    site.write("one", "a");
    std::fs::hard_link(site.file("one"), site.file("two")).unwrap();
    let path = format!("path={}", site.file("one").display());
    let told = site.run(&["exec", "a1", "--json", "--op", "file.present", &path, "content=b"]).exits(0);
    let row = &told.json()["results"][0];
    assert_eq!((&row["status"], &row["error"]), (&json!("changed"), &Value::Null));
    assert!(row["reason"].as_str().is_some_and(|reason| reason.contains("written in place")), "{row}");
    let params = json!({"path": site.file("one"), "content": "c"});
    let tasks = json!([{"name": "t", "op": "file.present", "params": params}]);
    site.write("p.yaml", &json!({"api_version": "v1", "name": "p", "tasks": tasks}).to_string());
    let told = site.run(&["plan", "run", "p.yaml"]).exits(0);
    let mut lines = told.stdout.lines().chain(told.stderr.lines());
    let said = lines.any(|line| line.starts_with("[changed] t ") && line.contains("written in place"));
    assert!(said, "{told:?}");
}

/// Sections 4 and 5: why nothing came of it is in the document, whoever was not reached or not free.
#[test]
fn a_document_says_why_a_host_was_not_reached_or_not_free() {
    let site = two();
    let far = "ssh://u@127.0.0.1:1?agent=false&ssh_config=none&connect_timeout=5s";
    let document = site.run(&["exec", far, "--facts", "--json"]).exits(7).json();
    let host = document["unreachable"][0].as_str().unwrap();
    assert!(document["errors"][host].as_str().is_some_and(|error| error.contains("127.0.0.1")), "{document}");

    let hold = format!("cd '{}'; touch held; while ! test -e go; do sleep 0.02; done", site.path().display());
    let tasks = json!([{"name": "t", "target": "a1", "shell": hold}]);
    site.write("p.yaml", &json!({"api_version": "v1", "name": "p", "tasks": tasks}).to_string());
    let mut holder = site.command(&["plan", "run", "p.yaml", "-i", "inventory.yaml"]);
    let mut holder = holder.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    while !site.file("held").exists() {
        assert!(holder.try_wait().unwrap().is_none(), "it ended before it held the host");
        std::thread::yield_now();
    }
    let path = format!("path={}", site.file("f").display());
    let told = site.run(&["exec", "a1", "--json", "--op", "file.present", &path, "content=b"]);
    site.write("go", "");
    assert!(holder.wait().unwrap().success());
    let document = told.exits(5).json();
    assert_eq!((&document["success"], &document["exit_code"]), (&json!(false), &json!(5)));
    assert_eq!(document["error"]["code"], "failed/locked", "{document}");
    assert!(document["error"]["message"].as_str().unwrap().contains("a1"), "{document}");
    assert!(document["error"]["help"].as_str().unwrap().contains("--wait-lock"), "{document}");
}

/// A file that has nowhere to go is refused alike by a run and by its prediction.
#[test]
fn a_file_is_fetched_to_a_place_that_is_named() {
    let site = two();
    site.write("one", "a");
    let path = format!("path={}", site.file("one").display());
    for dry_run in [&["--dry-run"][..], &[]] {
        let told = site.run(&[&["exec", "a1"], dry_run, &["--op", "file.fetch", &path]].concat()).exits(2);
        assert!(told.stderr.contains("say where the file goes with `to`"), "{}", told.stderr);
    }
    site.run(&["exec", "a1", "--op", "file.fetch", &path, "to=two"]).exits(0);
    assert_eq!(std::fs::read_to_string(site.file("two")).unwrap(), "a");
}
