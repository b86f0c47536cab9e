//! Names of runs, and what a run directory says of itself.

use std::collections::BTreeSet;
use std::fs;
use std::process::{Command, Stdio};

use super::lab::{Lab, program, wait_until};

const QUICK: &str =
    "{api_version: v1, name: quick, lock: false, tasks: [{name: t, op: assert, params: {that: [\"true\"]}}]}";

/// Case 24: a hundred runs at once: a hundred directories, whose names sort as they started.
#[test]
fn a_hundred_runs_at_once_get_names_that_sort_by_start() {
    let lab = Lab::new(QUICK);
    let started: Vec<_> = (0..100)
        .map(|_| {
            let mut command = lab.stead(["plan", "run", "p.yaml", "--progress", "none"]);
            command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
        })
        .collect();
    for mut child in started {
        assert!(child.wait().unwrap().success());
    }
    let mut names: Vec<String> = fs::read_dir(lab.path("state/runs"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(names.len(), 100);
    // In the order of the ids the starts, told in microseconds, never go back, wherever they are told.
    let times: Vec<String> =
        names.iter().map(|name| lab.report(name)["started_at"].as_str().unwrap().to_owned()).collect();
    assert!(times.is_sorted(), "{:#?}", names.iter().zip(&times).collect::<Vec<_>>());
    for (name, time) in names.iter().zip(&times) {
        let meta = fs::read(lab.bundle(name).join("run_meta.json")).unwrap();
        let meta: serde_json::Value = serde_json::from_slice(&meta).unwrap();
        let first = &lab.events(name)[0];
        assert_eq!(
            (&meta["started_at"], &first["ev"], &first["t"]),
            (&time.as_str().into(), &"run_started".into(), &time.as_str().into())
        );
    }
    for (name, time) in names.iter().zip(&times) {
        let (date, random) = name.rsplit_once('-').unwrap();
        assert!(
            random.len() == 8
                && random.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'2'..=b'7' | b'0'..=b'9')),
            "{name}"
        );
        let as_time = date.replacen('_', "T", 1);
        let (day, clock) = as_time.split_once('T').unwrap();
        let made = format!("{day}T{}", clock.replace('-', ":"));
        assert_eq!(made, time[..made.len()], "{name}");
    }
    let random: BTreeSet<&str> = names.iter().map(|name| name.rsplit_once('-').unwrap().1).collect();
    assert_eq!(random.len(), 100);
    lab.run(["bundle", "list", lab.path("state/runs").to_str().unwrap()]).exits(0).says(&names[0]);
}

/// Case 24: runs one after the other sort in that order.
#[test]
fn runs_in_a_row_sort_in_that_order() {
    let lab = Lab::new(QUICK);
    let ids: Vec<String> =
        (0..10).map(|_| lab.plan_report(&[], 0)["run_id"].as_str().unwrap().to_owned()).collect();
    assert!(ids.is_sorted(), "{ids:?}");
    let last = lab.run(["resume", "last", "--json"]).exits(0).document();
    assert_eq!(last["run_id"], ids[9].as_str());
    // The random part and a unique prefix name it too; what fits several names candidates.
    let random = ids[3].rsplit_once('-').unwrap().1;
    assert_eq!(lab.run(["resume", random, "--json"]).exits(0).document()["run_id"], ids[3].as_str());
    lab.run(["resume", &ids[0][..4]]).exits(2).says(&ids[0]);
}

/// Case 24: a name that is no name, or taken, is refused, and nothing is written.
#[test]
fn bad_and_taken_run_ids_are_refused() {
    let lab = Lab::new(QUICK);
    let long = "x".repeat(129);
    for id in ["../x", "..", ".", "", "/tmp/x", "a/b", "-x", "x y", "x\n", "ä", long.as_str()] {
        let ended = lab.plan(&[&format!("--run-id={id}"), "--json"]).exits(2);
        assert_eq!(ended.document()["exit_code"], 2, "{id}");
    }
    assert!(!lab.path("state").exists() && !lab.path("x").exists());
    assert_eq!(fs::read_dir(lab.root()).unwrap().count(), 1);
    lab.plan(&["--run-id", &"x".repeat(128)]).exits(0);
    lab.plan(&["--run-id", "r1"]).exits(0);
    let before = lab.snapshot("state/runs");
    lab.plan(&["--run-id", "r1"]).exits(2).says("r1");
    assert_eq!(lab.snapshot("state/runs"), before);
}

/// Case 25: the hash of the plan is the hash of its file, told alike everywhere; spelling does not change it.
#[test]
fn the_plan_hash_is_the_hash_of_plan_json() {
    let lab = Lab::new("api_version: v1\nname: h\ntasks:\n  - {name: a, exec: ['true'], target: local}\n");
    lab.plan(&["--run-id", "r1"]).exits(0);
    let Some(sha256sum) = program("sha256sum") else { return };
    let sum = Command::new(sha256sum).arg(lab.bundle("r1").join("plan.json")).output().unwrap();
    let sum = String::from_utf8(sum.stdout).unwrap()[..64].to_owned();
    let meta: serde_json::Value =
        serde_json::from_slice(&fs::read(lab.bundle("r1").join("run_meta.json")).unwrap()).unwrap();
    assert_eq!(meta["plan_hash"], sum.as_str());
    assert_eq!(lab.report("r1")["plan_hash"], sum.as_str());
    assert_eq!(lab.events("r1")[0]["plan_hash"], sum.as_str());
    let shown = lab.run(["plan", "show", "p.yaml", "--json"]).exits(0).document();
    assert!(shown.to_string().contains(&sum));
    let source = fs::read(lab.bundle("r1").join("plan.yaml")).unwrap();
    assert_eq!(source, fs::read(lab.path("p.yaml")).unwrap());
    // Comments, order of keys and spelled-out defaults are the same plan; another value is not.
    let same = "# said\nname: h\nlock: true\ntasks:\n  - name: a\n    on_error: stop_all\n    op: command.exec\n    params: {args: [], env: {}, stdin: '', ok_exit: [0], command: 'true'}\napi_version: v1\n";
    lab.write_plan(same);
    assert_eq!(lab.plan_report(&[], 0)["plan_hash"], sum.as_str());
    lab.write_plan(&same.replace("lock: true", "lock: false"));
    assert_ne!(lab.plan_report(&[], 0)["plan_hash"], sum.as_str());
    lab.write_plan(&same.replace("args: []", "args: ['']"));
    assert_ne!(lab.plan_report(&[], 0)["plan_hash"], sum.as_str());
    // `hashes.txt` is in sha256sum's own form.
    let program = program("sha256sum").unwrap();
    let checked =
        Command::new(program).args(["-c", "--quiet", "hashes.txt"]).current_dir(lab.bundle("r1")).status();
    assert!(checked.unwrap().success());
}

/// Section 11: a run appears with its name only when it is whole, and is sealed at its end.
#[test]
fn a_run_directory_appears_whole() {
    let lab = Lab::new(
        "{api_version: v1, name: w, tasks: [{name: t, shell: \"while ! test -e go; do sleep 0.02; done\"}]}",
    );
    let running = lab.start_plan("r1", &[]);
    wait_until("the run directory", || lab.bundle("r1").exists());
    for name in ["run_meta.json", "plan.json", "plan.yaml", "versions.json"] {
        assert!(lab.bundle("r1").join(name).exists(), "{name}");
    }
    assert!(!lab.bundle("r1").join("hashes.txt").exists());
    let bundle = lab.bundle("r1");
    let unsealed = lab.run(["bundle", "verify", bundle.to_str().unwrap()]);
    assert_ne!(unsealed.code, 0);
    lab.write("go", "");
    running.end().exits(0);
    lab.verify("r1");
    let names: Vec<_> =
        fs::read_dir(lab.path("state/runs")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["r1"]);
}
