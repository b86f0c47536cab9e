//! Instances, selections and questions.

use std::io::{Read as _, Write as _};
use std::process::Stdio;

use super::lab::{Lab, statuses, task};
use crate::terminal::pty;

const PLAN: &str = r#"api_version: v1
name: choose
vars: {regions: {eu: one, us: two}}
tasks:
  - {name: p, for_each: "{{ vars.regions }}", shell: "echo $WHERE >> out", params: {env: {WHERE: "{{ item.key }}={{ item.value }}"}}}
  - {name: after, depends_on: p, shell: "echo after >> out"}
  - {name: one, depends_on: "p[us]", shell: "echo one >> out"}
  - {name: third, shell: "echo third >> out"}
finally:
  - {name: done, shell: "echo done >> out"}
"#;

/// Case 30: one task per entry, by key; a name means all of them, a name with key one.
#[test]
fn for_each_over_a_map_makes_named_instances() {
    let lab = Lab::new(PLAN);
    let report = lab.plan_report(&["--parallel", "1"], 0);
    let names =
        ["p[eu]:changed", "p[us]:changed", "after:changed", "one:changed", "third:changed", "done:changed"];
    assert_eq!(statuses(&report), names);
    let out = lab.read("out");
    let place =
        |line: &str| out.lines().position(|found| found == line).unwrap_or_else(|| panic!("{line}: {out}"));
    assert!(place("eu=one") < place("after") && place("us=two") < place("after"));
    // `after` waits for both: it does not run if one of them fails.
    let lab = Lab::new(
        &PLAN
            .replace("echo $WHERE >> out", "test $WHERE != us=two")
            .replace("vars:", "on_error: continue\nvars:"),
    );
    let report = lab.plan_report(&[], 1);
    assert_eq!(task(&report, "after")["reason"], "dependency failed: p[us]");
    assert_eq!(task(&report, "one")["cause"], "dependency");
}

/// Case 30: `--only` keeps the named task, what it depends on, and `finally`; the rest is `not_selected`.
#[test]
fn only_leaves_out_the_others() {
    let lab = Lab::new(PLAN);
    let report = lab.plan_report(&["--only", "third"], 0);
    assert_eq!(
        statuses(&report),
        ["p[eu]:skipped", "p[us]:skipped", "after:skipped", "one:skipped", "third:changed", "done:changed"]
    );
    for name in ["p[eu]", "p[us]", "after", "one"] {
        assert_eq!(task(&report, name)["cause"], "not_selected");
    }
    assert_eq!(lab.read("out"), "third\ndone\n");
    let report = lab.plan_report(&["--only", "one"], 0);
    assert_eq!(task(&report, "p[us]")["status"], "changed");
    assert_eq!(task(&report, "p[eu]")["cause"], "not_selected");
    // A base name selects all instances; several selections add up.
    let report = lab.plan_report(&["--only", "p", "--only", "third"], 0);
    assert_eq!(task(&report, "p[eu]")["status"], "changed");
    assert_eq!(task(&report, "after")["cause"], "not_selected");
    lab.plan(&["--only", "thrid"]).exits(2).says("third");
}

/// Case 30: `--only` holds for the resume of the run too.
#[test]
fn a_resumed_selection_stays_selected() {
    let lab = Lab::new(&PLAN.replace("echo third >> out", "echo third >> out; test -e fixed"));
    lab.plan(&["--only", "third", "--run-id", "r1"]).exits(1);
    lab.write("fixed", "");
    let report = lab.run(["resume", "r1", "--json"]).exits(0).document();
    assert_eq!(task(&report, "after")["cause"], "not_selected");
    assert_eq!(lab.read("out"), "third\ndone\nthird\ndone\n");
}

const ASKS: &str = r#"api_version: v1
name: asks
tasks:
  - {name: free, shell: "echo free >> out"}
  - {name: drop, confirm: "Drop it?", shell: "echo drop >> out"}
  - {name: wipe, confirm: "Wipe it?", shell: "echo wipe >> out"}
  - {name: behind, depends_on: drop, shell: "echo behind >> out"}
"#;

/// Case 30: nobody to ask: exit 6, every question listed, nothing ran, nothing recorded. `--yes` runs.
#[test]
fn confirm_without_a_terminal_needs_yes() {
    let lab = Lab::new(ASKS);
    let ended = lab.plan(&["--json"]).exits(6);
    let document = ended.document();
    assert_eq!(statuses(&document), ["free:not_run", "drop:not_run", "wipe:not_run", "behind:not_run"]);
    let said = document["errors"].to_string();
    assert!(said.contains("drop") && said.contains("wipe"), "{said}");
    assert!(!lab.path("out").exists() && !lab.path("state").exists());
    // One line says it, with the questions, and nothing else is an error.
    let ended = lab.plan(&["--progress", "plain"]).exits(6);
    let both = format!("{}{}", ended.stdout, ended.stderr);
    assert_eq!(both.matches("error[confirm/needed]:").count(), 1, "{both}");
    assert_eq!(both.matches("confirmation is needed").count(), 1, "{both}");
    // What is not selected is not asked.
    lab.plan(&["--only", "free"]).exits(0);
    assert_eq!(lab.read("out"), "free\n");
    lab.plan(&["--yes", "--parallel", "1"]).exits(0);
    assert_eq!(lab.read("out"), "free\nfree\ndrop\nwipe\nbehind\n");
}

/// Section 5: asked on a terminal when the task is ready; no is `declined`, and passes; others go on.
#[test]
fn a_person_at_a_terminal_is_asked() {
    let lab = Lab::new(ASKS);
    let (slave, mut master) = pty(24, 80);
    let mut command = lab.stead(["plan", "run", "p.yaml", "--run-id", "r1", "--progress", "plain"]);
    command.stdin(slave.try_clone().unwrap()).stdout(Stdio::null()).stderr(slave);
    // A session of its own, with this terminal: the question goes to /dev/tty.
    let mut in_session = std::process::Command::new("setsid");
    in_session.args(["--ctty", "--wait"]).arg(command.get_program()).args(command.get_args());
    in_session.env_clear().envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let (slave_in, slave_err) = {
        let path = rustix::pty::ptsname(&master, Vec::new()).unwrap();
        let open = || std::fs::File::options().read(true).write(true).open(path.to_str().unwrap()).unwrap();
        (open(), open())
    };
    drop(command);
    let mut child = in_session
        .current_dir(lab.root())
        .stdin(slave_in)
        .stdout(Stdio::null())
        .stderr(slave_err)
        .spawn()
        .unwrap();
    drop(in_session);
    let (mut shown, mut buffer, mut answered) = (String::new(), [0; 1024], 0);
    while let Ok(count @ 1..) = master.read(&mut buffer) {
        shown.push_str(&String::from_utf8_lossy(&buffer[..count]));
        if shown.matches("[y/N] ").count() > answered {
            answered += 1;
            let last = &shown[shown.rfind("? [y/N] ").unwrap_or(0).saturating_sub(12)..];
            let answer: &[u8] = if last.contains("Drop") { b"n\n" } else { b"y\n" };
            master.write_all(answer).unwrap();
        }
    }
    assert!(child.wait().unwrap().success(), "{shown}");
    assert_eq!(answered, 2, "{shown}");
    let report = lab.report("r1");
    assert_eq!(task(&report, "drop")["cause"], "declined");
    assert_eq!(task(&report, "wipe")["status"], "changed");
    assert_eq!(task(&report, "behind")["status"], "changed", "a declined task passes");
    let answers: Vec<_> = lab.events("r1").into_iter().filter(|event| event["ev"] == "confirmed").collect();
    assert_eq!(answers.len(), 2);
}
