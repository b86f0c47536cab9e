//! Facts in plans: gathered before their first use, once per host and run, journaled, kept by a resume.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use serde_json::{Value, json};

use crate::cases_17_32::lab::{Lab, program, statuses, task};

const INVENTORY: &str = "\
api_version: v1
hosts:
  web1: {transport: local, root: \"@/web1\", labels: {role: web}}
  web2: {transport: local, root: \"@/web2\", labels: {role: web}}
  lost: {transport: local, root: \"@/lost\"}
";

/// Returns a lab with a Debian host `web1`, an Alpine host `web2`, and `lost`, whose root is not there.
fn lab(plan: &str) -> Lab {
    let lab = Lab::new(plan);
    lab.write("inventory.yaml", INVENTORY.replace("@/", &format!("{}/", lab.root().display())));
    lab.write("web1/etc/os-release", "ID=debian\nVERSION_ID=\"12\"\n");
    lab.write("web1/etc/hostname", "alpha\n");
    lab.write("web2/etc/os-release", "ID=alpine\nVERSION_ID=3.20.1\n");
    lab.write("web2/etc/hostname", "beta\n");
    lab
}

const PLAN: &str = "\
api_version: v1
name: facts
tasks:
  - {name: debian, target: 'role:web', when_host: \"fact.os.family == 'debian'\", op: file.present,
     params: {path: /motd, content: \"{{ fact.hostname }} {{ fact.os.major }}\\n\"}}
  - {name: other, target: local, depends_on: debian, when: \"facts['web1'].arch == facts['web2'].arch\",
     shell: \"echo {{ facts['web2'].hostname | quote }}\"}
";

fn gathered(events: &[Value]) -> Vec<String> {
    let facts = events.iter().filter(|event| event["ev"] == "facts_gathered");
    let mut hosts: Vec<String> = facts.map(|event| event["host"].as_str().unwrap().to_owned()).collect();
    hosts.sort();
    hosts
}

fn position(events: &[Value], what: impl Fn(&Value) -> bool) -> usize {
    events.iter().position(what).unwrap()
}

#[test]
fn facts_decide_fill_parameters_and_are_gathered_once_per_host() {
    let lab = lab(PLAN);
    let report = lab.plan_report(&["--run-id", "r1"], 0);
    assert_eq!(statuses(&report), ["debian:changed", "other:changed"]);
    let rows = task(&report, "debian")["hosts"].as_array().unwrap();
    assert_eq!((&rows[0]["status"], &rows[1]["status"]), (&json!("changed"), &json!("skipped")));
    assert_eq!(rows[1]["reason"], "guard is false: fact.os.family == 'debian'");
    assert_eq!(lab.read("web1/motd"), "alpha 12\n");
    assert_eq!(task(&report, "other")["data"]["stdout"], "beta\n");

    let events = lab.events("r1");
    assert_eq!(gathered(&events), ["web1", "web2"]);
    let facts = position(&events, |event| event["ev"] == "facts_gathered" && event["host"] == "web1");
    let result = position(&events, |event| event["ev"] == "host_result" && event["host"] == "web1");
    assert!(facts < result);
    assert_eq!(events[facts]["facts"]["os"]["distribution"], "debian");
    lab.verify("r1");
}

#[test]
fn a_dry_run_gathers_facts_and_writes_nothing() {
    let lab = lab(PLAN);
    let before = lab.snapshot("web1");
    let report = lab.plan_report(&["--dry-run"], 0);
    assert_eq!(task(&report, "debian")["status"], "changed");
    assert_eq!(task(&report, "debian")["hosts"][1]["status"], "skipped");
    assert_eq!(lab.snapshot("web1"), before);
    assert!(!lab.path("state").exists());
}

#[test]
fn a_resume_keeps_the_facts_the_run_has_gathered() {
    let lab = lab("\
api_version: v1
name: facts
tasks:
  - {name: first, target: web1, op: file.present, params: {path: /first, content: \"{{ fact.hostname }}\"}}
  - {name: gate, target: local, depends_on: first, exec: [test, -e, \"@/open\"]}
  - {name: second, target: web1, depends_on: gate, op: file.present, params: {path: /second, content: \"{{ fact.hostname }}\"}}
");
    lab.plan_report(&["--run-id", "r1"], 1);
    assert_eq!(lab.read("web1/first"), "alpha");
    lab.write("web1/etc/hostname", "renamed\n");
    lab.write("open", "");
    lab.run(["resume", "r1"]).exits(0);
    assert_eq!(lab.read("web1/second"), "alpha", "the facts of the run, not of the moment");
    assert_eq!(gathered(&lab.events("r1")), ["web1"]);
    lab.plan_report(&["--run-id", "r2"], 0);
    assert_eq!(lab.read("web1/second"), "renamed", "another run looks again");
}

#[test]
fn template_files_assertions_and_outcomes_read_facts() {
    let lab = lab("\
api_version: v1
name: facts
tasks:
  - {name: file, target: web1, op: file.template, params: {source: motd.j2, path: /motd}}
  - {name: text, target: web2, op: file.template, params: {content: \"{{ fact.hostname }}\", path: /motd}}
  - {name: sure, target: web2, op: assert, params: {that: [\"fact.os.major == 3\", \"facts.web1.os.major == 12\"]}}
  - {name: judged, target: web2, shell: 'echo x >> \"@/count\"; exit 3', failed_when: \"fact.os.family != 'alpine'\",
     changed_when: \"facts['web1'].hostname == 'nobody'\"}
");
    lab.write(
        "motd.j2",
        "{% for n in [1, 2] %}{{ fact.hostname }} {% endfor %}of {{ facts.web2.hostname }}\n",
    );
    let report = lab.plan_report(&["--parallel", "1"], 0);
    assert_eq!(lab.read("web1/motd"), "alpha alpha of beta\n");
    assert_eq!(lab.read("web2/motd"), "beta");
    assert_eq!(task(&report, "sure")["status"], "unchanged");
    assert_eq!(task(&report, "judged")["status"], "unchanged");
    assert_eq!(lab.read("count"), "x\n", "what has run is not run again to be judged");
}

#[test]
fn facts_that_cannot_be_gathered_fail_the_row_with_their_class() {
    let lab = lab("\
api_version: v1
name: facts
on_error: continue
tasks:
  - {name: row, target: [web1, lost], when_host: \"fact.os.family == 'debian'\", exec: ['true'], host_failure: all}
  - {name: guard, target: local, when: \"facts['lost'].arch == 'x'\", exec: ['true']}
  - {name: outcome, target: web1, exec: ['true'], changed_when: \"facts['lost'].arch == 'x'\"}
");
    let report = lab.plan_report(&[], 1);
    let rows = task(&report, "row")["hosts"].as_array().unwrap();
    assert_eq!(rows[0]["status"], "changed");
    assert_eq!((&rows[1]["status"], &rows[1]["class"]), (&json!("failed"), &json!("operation")));
    assert!(rows[1]["error"].as_str().unwrap().starts_with("facts of lost: "), "{rows:?}");
    assert_eq!(task(&report, "guard")["class"], "guard");
    assert!(task(&report, "guard")["error"].as_str().unwrap().contains("facts of lost"), "{report}");
    let outcome = task(&report, "outcome");
    assert_eq!((&outcome["status"], &outcome["changed"]), (&json!("failed"), &json!(true)), "it has run");
}

#[test]
fn hosts_that_are_not_there_and_guards_without_a_host_are_refused() {
    let lab = lab("\
api_version: v1
name: facts
tasks:
  - {name: a, target: local, when: \"facts['web3'].arch == 'x'\", exec: ['true']}
  - {name: b, target: local, when: \"fact.arch == 'x'\", exec: ['true']}
  - {name: c, target: local, op: facts, params: {only: [1]}}
");
    let ended = lab.plan(&[]).exits(3).says("reach/unknown-host").says("web1").says("when_host");
    ended.says("plan/bad-param");
    assert!(!lab.path("state").exists());
}

#[test]
fn the_operation_gives_facts_and_says_which_custom_ones_are_bad() {
    let lab = lab("\
api_version: v1
name: facts
tasks:
  - {name: look, target: web1, op: facts, params: {only: [hostname, custom]}}
");
    lab.write("web1/etc/stead/facts.d/rack.json", "{\"row\": 7}");
    lab.write("web1/etc/stead/facts.d/bad.json", "{");
    lab.write("web1/etc/stead/facts.d/said", "#!/bin/sh\necho 42\n");
    let program = lab.path("web1/etc/stead/facts.d/said");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let report = lab.plan_report(&[], 0);
    assert_eq!(task(&report, "look")["status"], "unchanged");
    let data = json!({"hostname": "alpha", "custom": {"rack": {"row": 7}, "said": 42}});
    assert_eq!(task(&report, "look")["data"], data);
    let warnings = report["warnings"].as_array().unwrap();
    assert_eq!((warnings.len(), &warnings[0]["code"]), (1, &json!("reach/bad-fact")), "{warnings:?}");
    let text = warnings[0]["text"].as_str().unwrap();
    assert!(text.starts_with("web1: /etc/stead/facts.d/bad.json: no valid JSON"), "{text}");
}

#[test]
fn a_secret_in_a_fact_is_masked_in_journal_and_parameters() {
    let lab = lab("\
api_version: v1
name: facts
secrets: {key: {env: KEY}}
tasks:
  - {name: a, target: web1, op: file.present, params: {path: /a, content: \"{{ fact.custom.note }}\"}}
  - {name: b, target: web1, exec: ['true'], params: {env: {K: \"{{ secrets.key }}\"}}}
");
    lab.write("web1/etc/stead/facts.d/note.json", "\"hunter22 is the key\"");
    let ended: crate::cases_17_32::lab::Ended = lab
        .stead(["plan", "run", "p.yaml", "--run-id", "r1"])
        .env("KEY", "hunter22")
        .output()
        .unwrap()
        .into();
    ended.exits(0);
    let journal = fs::read_to_string(lab.bundle("r1").join("events.jsonl")).unwrap();
    assert!(!journal.contains("hunter22") && journal.contains("*** is the key"));
}

/// Case 16: no child process is started for built-in facts.
#[test]
fn no_program_is_started_for_built_in_facts() {
    let Some(strace) = program("strace") else { return };
    let lab = Lab::new(
        "\
api_version: v1
name: facts
tasks:
  - {name: look, target: local, op: facts}
",
    );
    let mut traced = std::process::Command::new(strace);
    let log = lab.path("strace.log");
    let stead = lab.stead(["plan", "run", "p.yaml", "--no-journal", "--json"]);
    traced.args(["-f", "-qq", "-e", "trace=execve,execveat,fork,vfork,clone,clone3", "-o"]).arg(&log);
    traced.arg(stead.get_program()).args(stead.get_args()).current_dir(lab.root());
    traced.env_clear().env("PATH", "/usr/bin:/bin");
    let ended: crate::cases_17_32::lab::Ended = traced.output().unwrap().into();
    let report = ended.exits(0).document();
    assert_eq!(task(&report, "look")["data"]["schema"], 1);
    let log = fs::read_to_string(log).unwrap();
    let calls: Vec<&str> = log.lines().filter(|line| !line.contains("resumed>")).collect();
    assert_eq!(calls.iter().filter(|call| call.contains("exec")).count(), 1, "the command itself: {log}");
    let children = calls
        .iter()
        .filter(|call| (call.contains(" clone") && !call.contains("CLONE_THREAD")) || call.contains("fork("));
    assert_eq!(children.count(), 0, "{log}");
}

/// A host behind SSH: its facts are gathered there, once, and templates rendered there know them.
#[test]
fn facts_of_a_host_behind_ssh_are_gathered_there() {
    if !stead_testkit::sshd::available() {
        return;
    }
    let server = stead_testkit::sshd::Sshd::start();
    let lab = Lab::new("\
api_version: v1
name: facts
tasks:
  - {name: guarded, target: far, when_host: \"fact.os.family == 'debian' or fact.kernel.name == 'Linux'\", op: file.present,
     params: {path: \"@/far/guarded\", content: \"{{ fact.stead.version }}\"}}
  - {name: rendered, target: far, depends_on: guarded, op: file.template, params: {source: motd.j2, path: \"@/far/rendered\"}}
  - {name: sure, target: far, op: assert, params: {that: \"fact.hostname == facts['far'].hostname\"}}
  - {name: here, target: local, depends_on: rendered, when: \"facts['far'].arch == facts['local'].arch\", exec: ['true']}
");
    fs::create_dir(lab.path("far")).unwrap();
    lab.write("motd.j2", "{% for _ in [1] %}on {{ fact.hostname }}{% endfor %}\n");
    lab.write(
        "inventory.yaml",
        format!(
            "api_version: v1\nhosts:\n  far: {{transport: \"{}\", workdir: \"{}\"}}\n",
            server.spec_text(),
            server.workdir().display()
        ),
    );
    let report = lab.plan_report(&["--run-id", "r1"], 0);
    assert_eq!(statuses(&report), ["guarded:changed", "rendered:changed", "sure:unchanged", "here:changed"]);
    let hostname = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    assert_eq!(lab.read("far/guarded"), env!("CARGO_PKG_VERSION"));
    assert_eq!(lab.read("far/rendered"), format!("on {hostname}"));
    assert_eq!(gathered(&lab.events("r1")), ["far", "local"]);
}
