//! Every task of every shipped example fails, is stopped, and loses its driver: the world is clean after each.

use std::fs;
use std::path::Path;

use rustix::process::Signal;
use serde_json::{Value, json};

use super::lab::{Lab, statuses};

/// An example in a lab of its own: what it does below `/tmp` it does there.
struct Example {
    name: String,
    plan: Value,
    inventory: Option<String>,
}

fn examples() -> Vec<Example> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    let mut found = Vec::new();
    for entry in fs::read_dir(&dir).unwrap() {
        let path = entry.unwrap().path();
        let is_plan =
            path.extension().is_some_and(|end| end == "yaml") && path.file_stem().unwrap() != "inventory";
        if is_plan {
            let text = fs::read_to_string(&path)
                .unwrap()
                .replace("sleep 1\n", "sleep 0.02\n")
                .replace("200ms", "20ms");
            let plan: Value = serde_saphyr::from_str(&text).unwrap();
            let inventory = fs::read_to_string(dir.join("inventory.yaml")).ok();
            found.push(Example {
                name: path.file_stem().unwrap().to_str().unwrap().to_owned(),
                plan,
                inventory,
            });
        }
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    assert!(found.len() >= 3);
    found
}

impl Example {
    /// Names of all tasks with their place: section and index.
    fn tasks(&self) -> Vec<(&'static str, usize, String)> {
        let in_section = |section: &'static str| {
            let tasks = self.plan[section].as_array().into_iter().flatten().enumerate();
            tasks.map(move |(index, task)| (section, index, task["name"].as_str().unwrap().to_owned()))
        };
        in_section("tasks").chain(in_section("finally")).collect()
    }

    /// Returns a fresh lab in which `change` was done to one task.
    fn lab(&self, change: impl FnOnce(&mut Value)) -> Lab {
        let mut plan = self.plan.clone();
        // So that every task has its turn.
        for (name, value) in [("publish", true), ("healthy", true)] {
            if plan["vars"].get(name).is_some() {
                plan["vars"][name] = json!(value);
            }
        }
        plan["grace"] = json!("1s");
        change(&mut plan);
        let lab = Lab::new("");
        let here = |text: &str| text.replace("/tmp/stead-", &format!("{}/stead-", lab.root().display()));
        lab.write("p.yaml", here(&plan.to_string()));
        if let Some(inventory) = &self.inventory {
            lab.write("inventory.yaml", here(inventory));
        }
        let template = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/first.conf.template");
        lab.write("first.conf.template", fs::read(template).unwrap());
        lab
    }

    /// Checks what holds however a run ended.
    fn world_is_clean(&self, lab: &Lab, at: &str, code: i32) -> Value {
        let report = lab.report("r1");
        assert_eq!(report["exit_code"], code, "{at}: {}", report["summary"]);
        let rows = report["tasks"].as_array().unwrap();
        let bases: Vec<&str> =
            rows.iter().map(|row| row["name"].as_str().unwrap().split('[').next().unwrap()).collect();
        for (_, _, name) in self.tasks() {
            assert!(bases.contains(&name.as_str()), "{at}: no row for {name}");
        }
        let known = ["changed", "unchanged", "skipped", "failed", "cancelled", "not_run"];
        assert!(rows.iter().all(|row| known.contains(&row["status"].as_str().unwrap())), "{at}");
        let events = lab.events("r1");
        assert_eq!(events.last().unwrap()["ev"], "run_finished", "{at}");
        lab.verify("r1");
        lab.nothing_runs();
        report
    }
}

fn of<'a>(report: &'a Value, base: &str) -> Vec<&'a str> {
    let rows = report["tasks"].as_array().unwrap().iter();
    rows.filter(|row| row["name"].as_str().unwrap().split('[').next() == Some(base))
        .map(|row| row["status"].as_str().unwrap())
        .collect()
}

/// Replaces what a task does by a script, keeping where it stands.
fn scripted(task: &mut Value, script: &str) {
    let keys = task.as_object_mut().unwrap();
    for key in
        ["op", "params", "exec", "shell", "sequence", "undo", "changed_when", "failed_when", "when_host"]
    {
        keys.remove(key);
    }
    keys.insert("shell".to_owned(), json!(script));
}

/// Fault sweep, section 6: each task fails in turn: its row says so, nothing is half told, nothing is left.
#[test]
fn every_task_of_every_example_fails_cleanly() {
    for example in examples() {
        for (section, index, name) in example.tasks() {
            let at = format!("{}: {name} fails", example.name);
            let lab = example.lab(|plan| {
                let task = &mut plan[section][index];
                task.as_object_mut().unwrap().remove("retry");
                match task.get_mut("sequence") {
                    Some(parts) => parts[1]["failed_when"] = json!("true"),
                    None => task["failed_when"] = json!("true"),
                }
            });
            let ended = lab.plan(&["--run-id", "r1", "--progress", "none"]);
            assert_eq!(ended.code, 1, "{at}: {ended:?}");
            let report = example.world_is_clean(&lab, &at, 1);
            assert!(of(&report, &name).contains(&"failed"), "{at}: {:?}", statuses(&report));
            if report["rollback"].is_null() {
                // It may succeed now: what its first try made is there.
                let ended = lab.run(["resume", "r1", "--progress", "none"]);
                example.world_is_clean(&lab, &at, ended.code);
            } else {
                assert_eq!(report["rollback"]["failed"], json!([]), "{at}");
                lab.run(["resume", "r1"]).exits(3);
            }
        }
    }
}

/// Fault sweep: each example twice: the second run finds everything done.
#[test]
fn every_example_runs_twice() {
    for example in examples() {
        let lab = example.lab(|_| ());
        lab.plan(&["--run-id", "r1"]).exits(0);
        let first = example.world_is_clean(&lab, &example.name, 0);
        assert!(first["counts"]["changed"].as_u64().unwrap() > 0);
        let second = lab.plan_report(&["--run-id", "r2"], 0);
        assert_eq!(second["counts"]["changed"], 0, "{}: {:?}", example.name, statuses(&second));
        lab.plan(&["--dry-run"]).exits(0);
        lab.verify("r2");
    }
}

/// Fault sweep: a signal comes while each task runs.
#[test]
fn every_task_of_every_example_is_cancelled_cleanly() {
    for example in examples() {
        for (section, index, name) in example.tasks() {
            let at = format!("{}: {name} is cancelled", example.name);
            // The grandchild must go too.
            let lab = example.lab(|plan| {
                scripted(&mut plan[section][index], "sleep 60 & echo x > \"$STEAD_LAB/started\"; wait")
            });
            let running = lab.start_plan("r1", &["--progress", "none"]);
            lab.wait_for_file("started");
            running.signal(Signal::TERM);
            // A running `finally` is not what the first signal stops.
            if section == "finally" {
                running.signal(Signal::INT);
            }
            let ended = running.end();
            let report = example.world_is_clean(&lab, &at, ended.code);
            assert!(of(&report, &name).contains(&"cancelled"), "{at}: {:?}", statuses(&report));
            assert_eq!(ended.code, 130, "{at}");
        }
    }
}

/// Fault sweep: the driver is killed while each task runs, and the run taken up again.
#[test]
fn every_task_of_every_example_survives_the_death_of_its_driver() {
    for example in examples() {
        for (section, index, name) in example.tasks() {
            let at = format!("{}: {name} loses its driver", example.name);
            let script = "test -e \"$STEAD_LAB/go\" && exit 0; echo x > \"$STEAD_LAB/started\"; sleep 60";
            let lab = example.lab(|plan| scripted(&mut plan[section][index], script));
            let running = lab.start_plan("r1", &["--progress", "none"]);
            lab.wait_for_file("started");
            running.kill_hard();
            lab.write("go", "");
            // A command is not run again unasked.
            let first = lab.run(["resume", "r1", "--json", "--progress", "none"]).exits(1).document();
            let rows = first["tasks"].as_array().unwrap();
            let interrupted: Vec<&str> = rows
                .iter()
                .filter(|row| row["class"] == "interrupted")
                .map(|row| row["name"].as_str().unwrap())
                .collect();
            assert!(!interrupted.is_empty(), "{at}: {:?}", statuses(&first));
            example.world_is_clean(&lab, &at, 1);
            if !first["rollback"].is_null() {
                continue;
            }
            let rerun = interrupted.iter().flat_map(|task| ["--rerun", task]);
            let ended = lab.run(["resume", "r1", "--progress", "none"].into_iter().chain(rerun));
            let report = example.world_is_clean(&lab, &at, ended.code);
            assert!(
                of(&report, &name).iter().all(|status| *status == "changed"),
                "{at}: {:?}",
                statuses(&report)
            );
        }
    }
}
