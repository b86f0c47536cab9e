//! Rollouts, stops and publishers that do not go as they should, with real processes.

use serde_json::Value;

use super::daemons::{Daemons, has_nix, is_alive, starts};
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
