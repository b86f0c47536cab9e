//! `--json`: exactly one document, whatever happens.

use rustix::process::Signal;
use serde_json::Value;

use super::lab::{Lab, statuses, task};

const PLAN: &str = r#"api_version: v1
name: doc
grace: 1s
vars: {fail: false, block: false, need: null}
tasks:
  - {name: a, shell: "echo noise; echo noise >&2"}
  - {name: b, depends_on: a, when: "vars.fail", shell: "exit 3"}
  - {name: c, depends_on: a, when: "vars.block", shell: "touch started; exec sleep 60"}
finally:
  - {name: f, shell: "echo f >> out"}
"#;

/// The keys of a report, in the order of section 12.
const KEYS: [&str; 18] = [
    "schema",
    "run_id",
    "bundle",
    "plan",
    "plan_hash",
    "mode",
    "status",
    "exit_code",
    "started_at",
    "finished_at",
    "duration_ms",
    "segments",
    "summary",
    "counts",
    "tasks",
    "errors",
    "warnings",
    "rollback",
];

#[track_caller]
fn report(document: &Value, code: i32) {
    for key in KEYS {
        assert!(document.get(key).is_some(), "no `{key}` in {document}");
    }
    assert_eq!(document["exit_code"], code);
    let counts = document["counts"].as_object().unwrap();
    let sum: u64 =
        counts.iter().filter(|(name, _)| *name != "tasks").map(|(_, count)| count.as_u64().unwrap()).sum();
    assert_eq!(counts["tasks"], sum, "{document}");
    assert_eq!(document["tasks"].as_array().unwrap().len() as u64, sum);
}

/// Case 26: success, failure, dry run, resume and a run that could not start: a report each.
#[test]
fn runs_print_one_report() {
    let lab = Lab::new(PLAN);
    let need = ["--var", "need=x"];
    let run = |args: &[&str], code: i32| lab.plan_report(&[&need[..], args].concat(), code);
    report(&run(&["--run-id", "good"], 0), 0);
    let failed = run(&["--run-id", "bad", "--var", "fail=true", "-v", "--progress", "tty"], 1);
    report(&failed, 1);
    assert_eq!(task(&failed, "b")["status"], "failed");
    assert_eq!(failed["errors"][0]["task"], "b");
    assert_eq!(failed["errors"][0]["class"], "exit");
    report(&run(&["--dry-run"], 0), 0);
    report(&run(&["--dry-run", "--fail-on-change"], 4), 4);
    report(&run(&["--no-journal"], 0), 0);
    report(&lab.run(["resume", "good", "--json"]).exits(0).document(), 0);
    report(&lab.run(["resume", "bad", "--json"]).exits(1).document(), 1);
    assert_eq!(lab.report("bad")["segments"], 2);
    // What is in the bundle is what was printed.
    let printed = run(&["--run-id", "same"], 0);
    assert_eq!(lab.report("same"), printed);
}

/// Case 26: refused input: one document with every problem, and where.
#[test]
fn input_errors_print_one_document() {
    let lab = Lab::new(PLAN);
    lab.write("bad.yaml", "api_version: v1\nname: x\ntasks:\n  - {name: a, exec: [x], depnds_on: b}\n  - {name: b, timeout: 30, exec: [x]}\n");
    lab.write("torn.yaml", "api_version: v1\ntasks: [");
    lab.write("latin.yaml", b"name: \xe4\n");
    for (args, code, problems) in [
        (&["plan", "run", "bad.yaml", "--json"][..], 3, 2),
        (&["plan", "run", "torn.yaml", "--json"], 3, 1),
        (&["plan", "run", "latin.yaml", "--json"], 3, 1),
        (&["plan", "run", "none.yaml", "--json"], 3, 1),
        (&["plan", "run", "p.yaml", "--json"], 3, 1),
        (&["plan", "run", "p.yaml", "--json", "--var", "need=1", "--var", "nope=1"], 2, 1),
        (&["plan", "run", "p.yaml", "--json", "--bogus"], 2, 1),
        (&["plan", "run", "p.yaml", "--json", "--parallel", "0"], 2, 1),
        (&["plan", "run", "p.yaml", "--json", "--events", "-"], 2, 1),
        (&["plan", "run", "p.yaml", "--json", "--var", "need=1", "--only", "zz"], 2, 1),
        (&["plan", "show", "bad.yaml", "--json"], 3, 2),
        (&["resume", "nothing", "--json"], 2, 1),
        (&["resume", "--json"], 2, 1),
    ] {
        let document = lab.run(args.iter().copied()).exits(code).document();
        assert_eq!(document["exit_code"], code, "{args:?}");
        assert_eq!(document["schema"], 1, "{args:?}");
        // Problems of files have places; what was typed has a message and a way out.
        let found = document["diagnostics"].as_array().unwrap();
        assert_eq!(found.len(), problems, "{args:?}: {document}");
        for problem in found.iter().chain([&document["error"]]) {
            assert!(
                !problem["message"].as_str().unwrap().is_empty()
                    && !problem["code"].as_str().unwrap().is_empty()
            );
        }
    }
    let document = lab.run(["plan", "run", "bad.yaml", "--json"]).document();
    assert_eq!(
        (&document["diagnostics"][0]["line"], &document["diagnostics"][0]["column"]),
        (&4.into(), &26.into())
    );
    assert!(!lab.path("state").exists(), "no run directory");
}

/// Case 26: one signal, two signals: the report is whole, `finally` ran or not, the exit code is 130.
#[test]
fn signals_print_one_report() {
    for signals in [1, 2] {
        let lab =
            Lab::new(&PLAN.replace(
                "echo f >> out",
                "echo f >> out; touch cleaning; test -e two && exec sleep 60 || true",
            ));
        if signals == 2 {
            lab.write("two", "");
        }
        let running = lab.start_plan("r1", &["--json", "--var", "need=x", "--var", "block=true"]);
        lab.wait_for_file("started");
        running.signal(Signal::INT);
        if signals == 2 {
            lab.wait_for_file("cleaning");
            running.signal(Signal::INT);
        }
        let document = running.end().exits(130).document();
        report(&document, 130);
        assert_eq!(document["status"], "cancelled");
        let f = if signals == 1 { "f:changed" } else { "f:cancelled" };
        assert_eq!(statuses(&document), ["a:changed", "b:skipped", "c:cancelled", f]);
        lab.nothing_runs();
        lab.verify("r1");
    }
}

/// Case 26: a terminal's worth of noise stays out of stdout, and `--events FILE` goes along with it.
#[test]
fn talk_goes_elsewhere() {
    let lab = Lab::new(PLAN);
    let ended = lab.plan(&[
        "--json",
        "--var",
        "need=x",
        "-v",
        "--events",
        "e.jsonl",
        "--junit",
        "j.xml",
        "--markdown",
        "m.md",
    ]);
    let ended = ended.exits(0);
    ended.document();
    assert!(ended.stderr.contains("a@local | noise"), "{}", ended.stderr);
    assert!(!ended.stderr.contains('\x1b'));
    for file in ["e.jsonl", "j.xml", "m.md"] {
        assert!(!lab.read(file).is_empty(), "{file}");
    }
}
