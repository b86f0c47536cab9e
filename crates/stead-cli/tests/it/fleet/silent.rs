//! Workers that are not heard of, and come back: F3, F4, F5 and F6 with real processes.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;

use super::daemons::{Daemons, has_nix, is_alive};

/// Programs that take nothing from a store. `one` must not run twice, and says so if it does.
const FLAKE: &str = r#"{
  outputs = { self }: let
    vm = more: {
      resources = { cpuMilli = 100; memMiB = 16; };
      runtime = { driver = "sandbox"; argv = [ "/bin/sleep" "100000" ]; };
    } // more;
  in {
    orchestrator.vms = {
      web = vm { replicas = 3; spread.maxPerWorker = 2; };
      stay = vm { replicas = 3; spread.maxPerWorker = 1; onLost = "wait"; };
      one = vm {
        singleton = true;
        runtime = {
          driver = "sandbox";
          argv = [ "/bin/sh" "-c" "exec 9>>@/lock; /usr/bin/flock -n 9 || echo twice >>@/twice; exec sleep 100000" ];
        };
      };
    };
    orchestrator.vmImages = { };
  };
}
"#;

const WORKERS: [&str; 3] = ["w1", "w2", "w3"];

/// Starts a fleet whose workers count as silent, and as lost, after what `liveness` says, and waits until it runs.
fn start(liveness: &str) -> (Daemons, Value) {
    let policy = format!("api_version: v1\npolicy: {{liveness: {{{liveness}}}}}\n");
    let files = [("flake.nix", FLAKE.as_bytes()), ("fleet.yaml", policy.as_bytes())];
    let daemons = Daemons::start(&WORKERS, "{sandbox: {}}", &files);
    // Whoever is short of time for a moment counts as silent until it is heard again.
    let status = until(&daemons, "there", |status| {
        (&status["state"], &status["counts"]["converged"]) == (&"converged".into(), &7.into())
    });
    (daemons, status)
}

/// Waits until a status is as wanted, and returns it: what takes a while by its nature has all the time it needs.
#[track_caller]
pub(super) fn until(daemons: &Daemons, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
    let deadline = Instant::now() + Duration::from_secs(150);
    loop {
        let ended = daemons.fleet(&["status", "--json"]);
        // A master that is short of time does not answer at once.
        let status: Option<Value> = serde_json::from_str(&ended.stdout).ok();
        if let Some(status) = status.filter(&wanted) {
            return status;
        }
        assert!(Instant::now() < deadline, "not {what}: {ended:?}");
        std::thread::sleep(Duration::from_millis(250));
    }
}

fn worker_state<'a>(status: &'a Value, worker: &str) -> &'a str {
    let all = status["workers"].as_array().unwrap();
    all.iter().find(|one| one["id"] == worker).unwrap()["state"].as_str().unwrap()
}

/// Returns where each instance is assigned to.
pub(super) fn places(status: &Value) -> BTreeMap<String, String> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let all = status["instances"].as_array().unwrap();
    all.iter()
        .filter(|one| one["leaving"] != true)
        .map(|one| (text(&one["key"]), text(&one["worker"])))
        .collect()
}

/// Returns the process that a worker has for an instance; none: it does not run there.
pub(super) fn pid(daemons: &Daemons, worker: &str, instance: &str) -> Option<u32> {
    let place = instance.replace('/', ".");
    let record = daemons.lab.read(&format!("{worker}/fleet/instances/{place}/record.json"));
    let record: Value = serde_json::from_str(&record).ok()?;
    record["pid"].as_u64()?.try_into().ok()
}

/// Returns the processes of everything but the singleton, which may be fenced whenever its worker is short of time.
fn pids(daemons: &Daemons, places: &BTreeMap<String, String>) -> BTreeMap<String, u32> {
    let others = places.iter().filter(|(key, _)| *key != "one/0");
    others.map(|(key, worker)| (key.clone(), pid(daemons, worker, key).unwrap())).collect()
}

/// F3: a worker whose agent stands still until nobody knows of it, and goes on: nothing moved, nothing restarted.
#[test]
fn a_worker_that_was_silent_for_a_while_goes_on() {
    if !has_nix() {
        return;
    }
    // Whatever else stands still meanwhile, nobody is lost.
    let (daemons, before) = start("heartbeat: 1s, late: 3s, unknown: 10s, lease: 20m, lost: 30m");
    let (places_before, happened) = (places(&before), daemons.happened());
    let pids_before = pids(&daemons, &places_before);
    daemons.signal("w1", Signal::STOP);
    let silent = until(&daemons, "silent", |status| worker_state(status, "w1") == "unknown");
    assert_eq!(places(&silent), places_before);
    let here = silent["instances"].as_array().unwrap().iter().filter(|one| one["worker"] == "w1");
    assert!(here.clone().count() > 0 && here.clone().all(|one| one["code"] == "worker-unknown"), "{silent}");
    daemons.fleet(&["status"]).exits(11).says("worker-unknown");
    daemons.signal("w1", Signal::CONT);
    let after = until(&daemons, "back", |status| {
        status["state"] == "converged" && worker_state(status, "w1") == "ready"
    });
    assert_eq!(places(&after), places_before);
    assert_eq!((pids(&daemons, &places_before), daemons.happened()), (pids_before, happened));
}

/// F4, F5: a worker that is cut off for good is moved away from, and only from it; coming back it ends what runs
/// elsewhere, and gets nothing back. What must not run twice never does.
#[test]
fn a_lost_worker_is_moved_away_from_and_gets_nothing_back() {
    if !has_nix() {
        return;
    }
    // A worker is lost half a minute after its last lease at the earliest.
    let (daemons, before) =
        start("heartbeat: 1s, late: 3s, unknown: 6s, lease: 10s, lost: 40s, movePerWorker: 1s");
    let places_before = places(&before);
    let pids_before = pids(&daemons, &places_before);
    let lost = places_before["one/0"].as_str();
    let leaves = |key: &str| places_before[key] == lost && !key.starts_with("stay/");
    daemons.cables[lost].cut();
    let moved = until(&daemons, "moved", |status| {
        let all = status["instances"].as_array().unwrap();
        let is_up = |one: &&Value| one["ready"] == true && one["worker"] != lost;
        let keys: Vec<&str> = all.iter().filter(is_up).map(|one| one["key"].as_str().unwrap()).collect();
        places_before.keys().filter(|key| leaves(key)).all(|key| keys.contains(&key.as_str()))
    });
    assert_eq!(worker_state(&moved, lost), "lost", "{moved}");
    let fenced = pid(&daemons, lost, "one/0");
    assert!(!fenced.is_some_and(is_alive), "its lease was over long before it was lost");
    let places_after = places(&moved);
    for (key, worker) in &places_before {
        assert_eq!(places_after[key] != *worker, leaves(key), "{key}: {moved}");
        assert!(pids_before.get(key).is_none_or(|pid| is_alive(*pid)), "{key} runs on, there too");
    }
    let webs = |worker: &str| {
        places_after.iter().filter(|(key, place)| key.starts_with("web/") && *place == worker).count()
    };
    assert!(WORKERS.iter().all(|worker| webs(worker) <= 2), "{places_after:?}");
    daemons.fleet(&["status"]).exits(11).says("worker-lost");
    let pids_after = pids(&daemons, &places_after);

    daemons.cables[lost].mend();
    let copies: Vec<&String> = pids_before.keys().filter(|key| leaves(key)).collect();
    assert!(!copies.is_empty(), "{places_before:?}");
    let back = until(&daemons, "back", |status| {
        let is_over = |key: &&String| told(&daemons, "stopped", key, lost).is_some();
        status["state"] == "converged" && copies.iter().all(is_over)
    });
    assert_eq!((places(&back), pids(&daemons, &places_after)), (places_after.clone(), pids_after));
    assert_eq!(daemons.lab.read("twice"), "", "never two of them");
    for key in copies {
        assert!(!is_alive(pids_before[key]), "{key} is only where it was moved to");
        let ready = told(&daemons, "ready", key, &places_after[key]);
        assert!(ready.is_some() && ready <= told(&daemons, "stopped", key, lost), "{key}");
    }
}

/// Section 9, F5: an agent that is killed fences nobody, and what it ran goes on; but what keeps the machine of a singleton
/// ends it with its lease, long before it is started elsewhere. The agent comes back: it tells how that ended.
#[test]
fn a_singleton_ends_with_its_lease_though_its_agent_was_killed() {
    if !has_nix() {
        return;
    }
    let (mut daemons, before) =
        start("heartbeat: 1s, late: 3s, unknown: 6s, lease: 10s, lost: 40s, movePerWorker: 1s");
    let places_before = places(&before);
    let pids_before = pids(&daemons, &places_before);
    let lost = places_before["one/0"].as_str();
    let guest = pid(&daemons, lost, "one/0").unwrap();
    daemons.kill(lost);
    let moved = until(&daemons, "moved", |status| {
        // The copies of a lost worker are shown as well until their replacements are ready.
        let place = &places(status)["one/0"];
        assert!(place == lost || worker_state(status, lost) == "lost", "{status}");
        let all = status["instances"].as_array().unwrap();
        place != lost
            && all.iter().any(|one| one["key"] == "one/0" && one["worker"] != lost && one["ready"] == true)
    });
    assert!(!is_alive(guest), "what keeps it ended it");
    assert_eq!(daemons.lab.read("twice"), "", "never two of them");
    let new_place = places(&moved)["one/0"].clone();
    let new_guest = pid(&daemons, &new_place, "one/0").unwrap();
    daemons.work_again(lost, "{sandbox: {}}");
    let back = until(&daemons, "back", |status| {
        status["state"] == "converged" && worker_state(status, lost) == "ready"
    });
    assert!(!is_alive(guest), "{back}");
    assert_eq!((&places(&back)["one/0"], pid(&daemons, &new_place, "one/0")), (&new_place, Some(new_guest)));
    let ended = daemons.events().into_iter().find(|line| {
        (&line["ev"], &line["instance"], &line["worker"]) == (&"exited".into(), &"one/0".into(), &lost.into())
    });
    assert_eq!(ended.expect("it is told why")["reason"], "its lease is over");
    // What only waits for its worker was never touched.
    for (key, worker) in places_before.iter().filter(|(key, _)| key.starts_with("stay/")) {
        assert_eq!(
            (&places(&back)[key], pid(&daemons, worker, key)),
            (worker, pids_before.get(key).copied())
        );
    }
}

/// F6: with half of the workers cut off the brake is on: not even a drain moves anything, and the status says so. They come
/// back: what they had was neither stopped nor started, and the drain goes on.
#[test]
fn with_half_of_the_workers_silent_nothing_is_moved() {
    if !has_nix() {
        return;
    }
    let policy = "api_version: v1\npolicy: {liveness: {heartbeat: 1s, late: 2s, unknown: 3s, lease: 20m, lost: 30m}, brake: {min: 2}}\n";
    let files = [("flake.nix", FLAKE.as_bytes()), ("fleet.yaml", policy.as_bytes())];
    let daemons = Daemons::start(&["w1", "w2", "w3", "w4"], "{sandbox: {}}", &files);
    let before = until(&daemons, "there", |status| {
        (&status["state"], &status["counts"]["converged"]) == (&"converged".into(), &7.into())
    });
    let places_before = places(&before);
    let on = |places: &BTreeMap<String, String>, worker: &str| {
        places.values().filter(|place| *place == worker).count()
    };
    // Somebody who stays and has something to lose.
    let drained = ["w3", "w4"].into_iter().find(|worker| on(&places_before, worker) > 0).unwrap();
    for worker in ["w1", "w2"] {
        daemons.cables[worker].cut();
    }
    let is_braked = |status: &Value| status["brake"]["active"] == true;
    until(&daemons, "braked", is_braked);
    daemons.fleet(&["status"]).exits(11).says("brake:");
    daemons.lab.write("repo/fleet.yaml", format!("{policy}workers: {{{drained}: {{drain: true}}}}\n"));
    daemons.commit("drain");
    let silent = until(&daemons, "told to drain", |status| worker_state(status, drained) == "draining");
    assert!(is_braked(&silent), "{silent}");
    assert_eq!(places(&silent), places_before, "nothing is moved");
    let pids_before = pids(&daemons, &places_before);
    for worker in ["w1", "w2"] {
        daemons.cables[worker].mend();
    }
    let after = until(&daemons, "drained", |status| {
        status["state"] == "converged" && !is_braked(status) && on(&places(status), drained) == 0
    });
    let pids_after = pids(&daemons, &places(&after));
    for (key, worker) in places_before.iter().filter(|(key, worker)| *worker != drained && *key != "one/0") {
        assert_eq!((&places(&after)[key], pids_after[key]), (worker, pids_before[key]), "{key}");
    }
}

/// Returns when something happened to an instance on a worker for the first time.
fn told(daemons: &Daemons, ev: &str, instance: &str, worker: &str) -> Option<String> {
    let events = daemons.events();
    let is_it = |line: &&Value| line["ev"] == ev && line["instance"] == instance && line["worker"] == worker;
    events.iter().find(is_it).map(|line| line["t"].as_str().unwrap().to_owned())
}
