//! Rollouts, stops and publishers that do not go as they should, with real processes.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::daemons::{Daemons, SANDBOXES, has_nix, is_alive, starts};
use super::{hash_of, instances};
use crate::cases_17_32::lab::{Ended, wait_until};

/// `web` says which text it has, and stays.
const FLAKE: &str = r#"{
  outputs = { self }: {
    orchestrator.vms.web = {
      replicas = 2;
      resources = { cpuMilli = 100; memMiB = 16; };
      runtime = { driver = "sandbox"; argv = [ "/bin/sh" "-c" "echo one $$ >>@/starts; exec sleep 100000" ]; };
      restart = { backoffSeconds = 1; maxBackoffSeconds = 1; };
      rollout = { minReadySeconds = 0; };
      stopSeconds = 1;
    };
    orchestrator.vmImages = { };
  };
}
"#;

fn start() -> (Daemons, Value) {
    let daemons = Daemons::start(&["w1"], "{sandbox: {}}", &[("flake.nix", FLAKE.as_bytes())]);
    let status = daemons.converged(&daemons.git(&["rev-parse", "HEAD"]));
    (daemons, status)
}

fn write(daemons: &Daemons, old: &str, new: &str) -> String {
    let text = daemons.lab.read("repo/flake.nix");
    assert!(text.contains(old), "{text}");
    daemons.lab.write("repo/flake.nix", text.replace(old, new));
    daemons.commit("a change")
}

/// Waits until workers have told so often that an instance is ready, and returns how much they have told.
fn told(daemons: &Daemons, ready: usize) -> usize {
    let is_ready = |(ev, _): &&(String, String)| ev == "ready";
    wait_until("all are ready", || daemons.happened().iter().filter(is_ready).count() == ready);
    daemons.happened().len()
}

/// Returns where something happened to an instance first.
fn at(happened: &[(String, String)], ev: &str, instance: &str) -> usize {
    let found = happened.iter().position(|(what, of)| what == ev && of == instance);
    found.unwrap_or_else(|| panic!("no {ev} of {instance}: {happened:?}"))
}

/// Case 3: an image that changes replaces its own instances, one after the other, each fetched before it stops; of a VM that
/// goes nothing is left, and nothing keeps its image.
#[test]
fn a_new_image_goes_one_at_a_time() {
    if !has_nix() {
        return;
    }
    let flake =
        SANDBOXES.replace("inherit replicas;", "inherit replicas; rollout = { minReadySeconds = 1; };");
    let flake = flake.replace("vm web 2", "vm web 3");
    let daemons = Daemons::start(&["w1", "w2", "w3"], "{sandbox: {}}", &[("flake.nix", flake.as_bytes())]);
    daemons.converged(&daemons.git(&["rev-parse", "HEAD"]));
    let before = told(&daemons, 4);
    let db = starts(&daemons).into_iter().find(|start| start.0 == "db-one").unwrap().1;
    daemons.change("\"web-one\"", "\"web-two\"");
    told(&daemons, 7);
    let happened = daemons.happened().split_off(before);
    let turns = happened.iter().filter(|(ev, _)| ["stopped", "ready"].contains(&ev.as_str()));
    let turns: Vec<(&str, &str)> = turns.map(|(ev, of)| (ev.as_str(), of.as_str())).collect();
    let web = ["web/0", "web/1", "web/2"];
    assert_eq!(turns, web.map(|key| [("stopped", key), ("ready", key)]).concat(), "{happened:?}");
    for key in web {
        assert!(at(&happened, "fetched", key) < at(&happened, "stopped", key), "{happened:?}");
    }
    assert!(happened.iter().all(|(_, of)| of != "db/0") && is_alive(db), "{happened:?}");

    let of = |worker: &str, what: &str| daemons.lab.path(&format!("{worker}/fleet/{what}"));
    let place = ["w1", "w2", "w3"].into_iter().find(|worker| of(worker, "instances/db.0").exists());
    let place = place.unwrap();
    let inside = |path: &Path| -> Vec<PathBuf> {
        std::fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
    };
    let is_root = |link: &PathBuf| {
        std::fs::read_link(link).is_ok_and(|image| image.to_string_lossy().ends_with("-vm-db"))
    };
    let roots = || {
        let links = inside(&of(place, "roots")).into_iter().flat_map(|root| inside(&root));
        links.filter(is_root).count()
    };
    let machines = || inside(&of(place, "machines")).len();
    let before = machines();
    assert_eq!(roots(), 1);
    let status = daemons.change("; db = vm db 1", "");
    assert_eq!(instances(&status), web);
    assert!(!is_alive(db));
    wait_until("nothing is left of it", || {
        !of(place, "instances/db.0").exists() && machines() == before - 1 && roots() == 0
    });
}

/// Case 4: what may not stay where it is goes, says why, and works elsewhere before it stops; the rest is not touched.
#[test]
fn a_new_selector_moves_what_it_forbids() {
    if !has_nix() {
        return;
    }
    let other = r#"orchestrator.vms.db = {
      resources = { cpuMilli = 100; memMiB = 16; };
      runtime = { driver = "sandbox"; argv = [ "/bin/sh" "-c" "echo db $$ >>@/starts; exec sleep 100000" ]; };
    };
    orchestrator.vmImages"#;
    let flake = FLAKE.replace("replicas = 2;", "replicas = 2; selector = { disk = \"ssd\"; };");
    let flake = flake.replace("orchestrator.vmImages", other);
    let fleet = "api_version: v1\nworkers: {w1: {labels: {disk: ssd}}, w2: {labels: {disk: hdd}}}\n";
    let files = [("flake.nix", flake.as_bytes()), ("fleet.yaml", fleet.as_bytes())];
    let daemons = Daemons::start(&["w1", "w2"], "{sandbox: {}}", &files);
    daemons.converged(&daemons.git(&["rev-parse", "HEAD"]));
    let before = told(&daemons, 3);
    let db = starts(&daemons).into_iter().find(|start| start.0 == "db").unwrap().1;
    let old = starts(&daemons);
    let after = daemons.converged(&write(&daemons, "disk = \"ssd\"", "disk = \"hdd\""));
    told(&daemons, 5);
    let web = ["web/0", "web/1"];
    wait_until("the old ones are gone", || {
        let gone = old.iter().filter(|start| !is_alive(start.1)).count();
        gone == web.len() && is_alive(db)
    });
    for instance in after["instances"].as_array().unwrap() {
        assert!(
            instance["key"] == "db/0" || instance["worker"] == "w2" || instance["leaving"] == true,
            "{after:#}"
        );
    }
    let happened = daemons.happened().split_off(before);
    for key in web {
        assert!(at(&happened, "ready", key) < at(&happened, "stopped", key), "{happened:?}");
    }
    assert!(happened.iter().all(|(_, of)| of != "db/0"), "{happened:?}");
    let events = daemons.lab.read("m/fleet/events/events-001.jsonl");
    let events = events.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let moved: Vec<(String, String)> = events
        .filter(|line| line["ev"] == "moved")
        .map(|line| [&line["instance"], &line["reason"]].map(|word| word.as_str().unwrap().to_owned()).into())
        .collect();
    assert_eq!(moved, web.map(|key| (key.to_owned(), "selector-changed".to_owned())));
}

/// F19, case 22: an image that crashes again and again is held (11) at its first instance, the other keeps the old one; a
/// commit that mends it resumes.
#[test]
fn an_image_that_crashes_is_held_and_mended() {
    if !has_nix() {
        return;
    }
    let (daemons, before) = start();
    let bad = write(&daemons, "echo one $$ >>", "exit 3; echo one $$ >>");
    let waited = daemons.fleet(&["wait", "--commit", &bad, "--timeout", "150s"]).exits(11);
    let waited = waited.says("on hold").says("web/0");
    drop(waited);
    daemons.fleet(&["status"]).exits(11).says("rollout of web: held").says("crash-loop");
    let status = daemons.fleet(&["status", "--json"]).document();
    assert_eq!(hash_of(&status, "web/1"), hash_of(&before, "web/1"), "it keeps the old one");
    let old: Vec<u32> = starts(&daemons).iter().map(|start| start.1).collect();
    assert_eq!((old.len(), old.iter().filter(|pid| is_alive(**pid)).count()), (2, 1));
    let mended = daemons.converged(&write(&daemons, "exit 3; echo one $$ >>", "echo two $$ >>"));
    assert_ne!(hash_of(&mended, "web/1"), hash_of(&before, "web/1"));
    assert_eq!(hash_of(&mended, "web/0"), hash_of(&mended, "web/1"));
    let texts: Vec<String> = starts(&daemons).into_iter().map(|start| start.0).collect();
    assert_eq!(texts, ["one", "one", "two", "two"]);
}

/// F21: what does not stop when it is asked is forced to, and nothing of it is left.
#[test]
fn what_hangs_on_stop_is_forced_to() {
    if !has_nix() {
        return;
    }
    let (daemons, _) = start();
    let stubborn = "trap '' TERM; echo two $$ >>@/starts; while :; do sleep 1; done";
    let stubborn = stubborn.replace("@/", &format!("{}/", daemons.lab.root().display()));
    let argv = daemons.lab.read("repo/flake.nix");
    let argv = argv.split('"').find(|part| part.starts_with("echo one")).unwrap().to_owned();
    daemons.converged(&write(&daemons, &argv, &stubborn));
    let hanging: Vec<u32> =
        starts(&daemons).into_iter().filter(|start| start.0 == "two").map(|start| start.1).collect();
    assert!(hanging.len() == 2 && hanging.iter().all(|pid| is_alive(*pid)), "{hanging:?}");
    let left = || std::fs::read_dir(daemons.lab.path("w1/fleet/machines")).unwrap().count();
    let before = left();
    let after = daemons.converged(&write(&daemons, "replicas = 2", "replicas = 1"));
    assert_eq!(instances(&after), ["web/0"]);
    assert_eq!(hanging.iter().filter(|pid| is_alive(**pid)).count(), 1);
    wait_until("nothing is left of it", || left() == before - 1);
    assert!(!daemons.lab.path("w1/fleet/instances/web.1").exists());
}

/// Case 12: a second publisher on the repository, with a token that has no name: one Accepted, one Duplicate.
#[test]
fn a_second_publisher_finds_everything_published() {
    if !has_nix() {
        return;
    }
    let (daemons, before) = start();
    let again = |state: &str| -> Ended {
        let token = daemons.fleet(&["token", "mint", "--role", "publisher"]).exits(0).stdout;
        daemons.lab.write(&format!("{state}.token"), token);
        let root = daemons.lab.root().display().to_string();
        let nix = format!(
            "{{store: {root}/{state}/nix, cache: 'file://{root}/cache', secret_key_file: {root}/secret, settings: {{substituters: ''}}}}"
        );
        let mut command = daemons.command(&[state, "fleet", "publish", "--once", "--json"]);
        command.env("HOME", daemons.lab.path("home")).args(["--repo", &format!("{root}/repo")]);
        command.args(["--ref", "refs/heads/main", "--nix", &nix, "--masters", &daemons.master]);
        command.args(["--join-file", &format!("{state}.token")]).output().unwrap().into()
    };
    for state in ["p2", "p3"] {
        let published = again(state).exits(0).document();
        assert_eq!(published["ending"], "published", "{published}");
        let events = daemons.lab.read(&format!("{state}/fleet/events/events-001.jsonl"));
        assert!(events.contains("\"code\":\"duplicate\""), "{events}");
    }
    let after = daemons.fleet(&["status", "--json"]).document();
    assert_eq!(after["generation"], before["generation"]);
    let joined = daemons.fleet(&["token", "list"]).exits(0).stdout;
    let names = joined.lines().filter(|line| line.contains("publisher-")).count();
    assert_eq!(names, 1, "the second of the two has another name: {joined}");
}
