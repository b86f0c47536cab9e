//! Several masters that share an etcd, each a process of its own: case 19.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;
use stead_testkit::etcd;

use super::daemons::{Daemons, is_alive};
use super::{PATIENCE, checked};
use crate::cases_17_32::lab::Ended;

const MASTERS: [&str; 3] = ["m1", "m2", "m3"];

/// Asks one master, on its own account.
fn ask(daemons: &Daemons, master: &str, words: &[&str]) -> Ended {
    checked(words, daemons.command(&[master, "fleet"]).args(words).output().unwrap().into())
}

/// Waits until the status that a master answers is as wanted, and returns it.
#[track_caller]
fn until(daemons: &Daemons, master: &str, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let ended = ask(daemons, master, &["status", "--json"]);
        let status: Option<Value> = serde_json::from_str(&ended.stdout).ok();
        if let Some(status) = status.filter(&wanted) {
            return status;
        }
        assert!(Instant::now() < deadline, "not {what}: {ended:?}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn leader(status: &Value) -> &str {
    status["leader"]["name"].as_str().unwrap_or_default()
}

fn pids(daemons: &Daemons, status: &Value) -> BTreeMap<String, u64> {
    let keys = status["instances"].as_array().unwrap().iter().map(|one| one["key"].as_str().unwrap());
    keys.map(|key| {
        let record = daemons.lab.read(&format!("w1/fleet/instances/{}/record.json", key.replace('/', ".")));
        let record: Value = serde_json::from_str(&record).unwrap();
        (key.to_owned(), record["pid"].as_u64().unwrap())
    })
    .collect()
}

/// Case 19: the leader is killed, the next one stands still and goes on. Somebody else leads, nothing restarts, and whoever
/// was deposed changes nothing: all masters say the same.
#[test]
fn leaders_that_are_killed_and_paused_are_followed() {
    let Some(server) = etcd::Server::start() else { return };
    let mut daemons = Daemons::nobody(&["w1"]);
    let store = format!("{{kind: distributed, endpoints: ['{}']}}", server.address());
    let mut addresses = Vec::new();
    for name in MASTERS {
        let words = [
            name,
            "fleet",
            "master",
            "--name",
            name,
            "--observe",
            "127.0.0.1:0",
            "--json",
            "--store",
            &store,
        ];
        let first = daemons.begin(&words, "--listen", "127.0.0.1:0");
        addresses.push(first["listen"].as_str().unwrap().to_owned());
    }
    let masters = addresses.join(",");
    daemons.lab.run(["init", "fleet", "repo"]).exits(0);
    let blobs = daemons.lab.path("blobs").display().to_string();
    let repo = daemons.lab.path("repo").display().to_string();
    let token = |role: &str, name: &str| {
        let minted = ask(&daemons, "m1", &["token", "mint", "--role", role, "--name", name]).exits(0);
        daemons.lab.write(&format!("{name}.token"), minted.stdout);
        format!("{name}.token")
    };
    let (of_worker, of_publisher) = (token("worker", "w1"), token("publisher", "p1"));
    daemons.launch(
        "w1",
        &[
            "worker",
            "--drivers",
            "{sandbox: {}}",
            "--capacity",
            "{cpuMilli: 8000, memMiB: 8192}",
            "--artifacts",
            &blobs,
            "--masters",
            &masters,
            "--join-file",
            &of_worker,
        ],
    );
    let publish = [
        "publish",
        "--once",
        "--repo",
        &repo,
        "--ref",
        "refs/heads/main",
        "--artifacts",
        &blobs,
        "--masters",
        &masters,
    ];
    let joined =
        daemons.command(&["p1", "fleet"]).args(publish).args(["--join-file", &of_publisher]).output();
    Ended::from(joined.unwrap()).exits(0);
    let is_there = |status: &Value| status["state"] == "converged";
    let before = until(&daemons, "m1", "there", is_there);
    let pids_before = pids(&daemons, &before);
    assert_eq!(pids_before.len(), 3, "{before}");

    let first = leader(&before).to_owned();
    daemons.kill(&first);
    let left: Vec<&str> = MASTERS.into_iter().filter(|name| *name != first).collect();
    let after = until(&daemons, left[0], "followed", |status| leader(status) != first && is_there(status));
    assert_eq!((pids(&daemons, &after), &after["generation"]), (pids_before.clone(), &before["generation"]));

    let second = leader(&after).to_owned();
    let third = left.into_iter().find(|name| *name != second).unwrap();
    daemons.signal(&second, Signal::STOP);
    let after =
        until(&daemons, third, "followed again", |status| leader(status) == third && is_there(status));
    let epoch = after["leader"]["epoch"].as_u64().unwrap();
    ask(&daemons, third, &["hold", "worker/w1", "--for", "1h", "--reason", "of the new leader"]).exits(0);
    daemons.signal(&second, Signal::CONT);
    // It is asked before it may know: what it does is refused, or done by who leads.
    let late = ask(&daemons, &second, &["hold", "group/default", "--for", "1h", "--reason", "late"]);
    let seen = until(&daemons, &second, "deposed", |status| leader(status) == third);
    let seen_by_third = until(&daemons, third, "the same", |status| status["holds"] == seen["holds"]);
    let holds = seen_by_third["holds"].as_array().unwrap();
    assert_eq!(holds.len(), 1 + usize::from(late.code == 0), "{late:?} {seen_by_third}");
    assert!(holds.iter().any(|hold| hold["reason"] == "of the new leader"), "{seen_by_third}");
    assert_eq!(seen_by_third["leader"]["epoch"], epoch, "nobody led in between");
    assert_eq!(pids(&daemons, &seen_by_third), pids_before);
    assert!(pids_before.values().all(|pid| is_alive(u32::try_from(*pid).unwrap())));
    let stops = daemons
        .happened()
        .into_iter()
        .filter(|(ev, _)| ["stopped", "exited", "fenced"].contains(&ev.as_str()));
    assert_eq!(stops.count(), 0, "{:?}", daemons.happened());
}
