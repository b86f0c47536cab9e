//! Case 19: three masters on one distributed store.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use stead_fleet::api::{CallError, Master};
use stead_fleet::master::{Handle, Observe, Running, Settings, start};
use stead_fleet::store::Etcd;
use stead_model::fleet::VmSpec;
use stead_model::fleet::state::{Outcome, Snapshot};
use stead_testkit::etcd::Server;
use tokio_util::sync::CancellationToken;

use super::killed::{Process, acknowledged, generations, of_commit};
use super::observed::ask;
use super::yard::*;

fn on(server: &Server, name: &str) -> Settings {
    let store = Etcd::new(&[server.address()], "stead/", None).unwrap();
    Settings { name: name.to_owned(), address: format!("{name}:44444"), ..settings(Arc::new(store)) }
}

/// Waits until one of the masters leads; returns which, and how long it took.
async fn leader_of(masters: &[Arc<Handle>]) -> (usize, Duration) {
    let began = Instant::now();
    loop {
        for (at, master) in masters.iter().enumerate() {
            if master.reserve_generation(&commit(1), "p").await.is_ok() {
                return (at, began.elapsed());
            }
        }
        assert!(began.elapsed() < Duration::from_secs(60), "somebody leads");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn signal(pid: u32, signal: Signal) {
    kill_process(Pid::from_raw(i32::try_from(pid).unwrap()).unwrap(), signal).unwrap();
}

/// A leader that is gone is followed; nothing is restarted and no generation is lost.
#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_is_killed_is_followed() {
    let Some(server) = Server::start() else { return };
    let ways: Arc<Mutex<BTreeMap<String, Arc<dyn Master>>>> = Arc::default();
    let mut running: Vec<Running> = Vec::new();
    for name in ["m1", "m2", "m3"] {
        let known = Arc::clone(&ways);
        let peers = Arc::new(move |address: &str| known.lock().unwrap().get(address).cloned());
        let one = start(Settings { peers: Some(peers), ..on(&server, name) }).await.unwrap();
        ways.lock().unwrap().insert(format!("{name}:44444"), one.handle());
        if running.is_empty() {
            leader_of(&[one.handle()]).await;
        }
        running.push(one);
    }
    let masters: Vec<Arc<Handle>> = running.iter().map(Running::handle).collect();
    let mut workers = ["w1", "w2"].map(Worker::new);
    for worker in &mut workers {
        worker.beat(&*masters[0]).await.unwrap();
    }
    accepted(&*masters[0], 2, "default", vms("default", &[("web", 3, "")])).await;
    settle(&*masters[0], &mut workers, is_converged).await;
    // A follower names the leader, and answers as it would.
    let elsewhere = workers[0].beat(&*masters[1]).await;
    assert_eq!(elsewhere.err(), Some(CallError::NotLeader { leader: "m1:44444".to_owned() }));
    let shown = status(&*masters[2]).await;
    assert_eq!((&shown["state"], &shown["leader"]["name"]), (&"converged".into(), &"m1".into()));
    assert!(!workers[0].obey(&*masters[1], Duration::from_millis(50)).await.unwrap(), "it is current");
    let before = places(&shown);
    let epoch = masters[1].leader().await.epoch;
    assert_eq!(epoch, 1);

    // Dropped, not stopped: nobody gives the lease back.
    drop(running.remove(0));
    let (next, took) = leader_of(&masters[1..]).await;
    // Its lease is over after six seconds: ten are enough where nobody else is busy.
    assert!(took < Duration::from_secs(50), "{took:?}");
    let next = &masters[1 + next];
    for worker in &mut workers {
        worker.acts.clear();
    }
    let shown = settle(&**next, &mut workers, is_converged).await;
    assert_eq!((places(&shown), shown["generation"].as_u64()), (before, Some(2)));
    assert!(workers.iter().all(|worker| worker.acts.is_empty()));
    assert_eq!(shown["leader"]["epoch"], 2);
    assert_eq!(shown["store"]["kind"], "distributed");
    // A leader that is stopped gives way.
    let leads = shown["leader"]["name"] == "m2";
    let last = if leads { running.pop().unwrap() } else { running.remove(0) };
    running.pop().unwrap().stop().await;
    leader_of(&[last.handle()]).await;
    last.stop().await;
}

/// A leader that is paused is followed, and when it goes on it writes nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_was_paused_writes_nothing() {
    let Some(server) = Server::start() else { return };
    let dir = tempfile::tempdir().unwrap();
    let acks = dir.path().join("acks");
    let order = json!({"etcd": server.address(), "acks": acks, "first": 10, "name": "paused"});
    let process = Process::start(&order);
    let end = Instant::now() + Duration::from_secs(60);
    while acknowledged(&acks).len() < 3 {
        assert!(Instant::now() < end, "it leads");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let running = start(on(&server, "m2")).await.unwrap();
    let master = running.handle();
    signal(process.0.id(), Signal::STOP);
    let paused = Instant::now();
    leader_of(std::slice::from_ref(&master)).await;
    assert!(paused.elapsed() < Duration::from_secs(50), "{:?}", paused.elapsed());
    let before = acknowledged(&acks);
    let newest = *before.last().unwrap();
    // What it acknowledged is there; what comes now is the new leader's.
    let text = master.snapshot().await.unwrap();
    let there = Snapshot::read("snapshot", &text.0).unwrap().groups[0].commit.clone();
    assert!(there == commit(newest) || there == commit(newest + 1), "{there} after {newest}");
    accepted(&*master, 5_000, "default", vms("default", &[("web", 1, "")])).await;
    signal(process.0.id(), Signal::CONT);
    let end = Instant::now() + Duration::from_secs(60);
    while !std::fs::read_to_string(&acks).unwrap().contains("not-leader") {
        assert!(Instant::now() < end, "it learns that it was deposed");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let text = master.snapshot().await.unwrap();
    let group = Snapshot::read("snapshot", &text.0).unwrap().groups.remove(0);
    assert_eq!((group.commit, group.specs.len()), (commit(5_000), 1));
    assert!(acknowledged(&acks).len() <= before.len() + 1, "nothing more was acknowledged");
    running.stop().await;
}

/// Case 19: three masters, each a process that publishes whenever it leads. The one that leads is paused in the middle of that,
/// and goes on when another one leads; then that one is killed. What was acknowledged is of one leader after the other,
/// in order, and the newest of it is stored as a whole.
#[tokio::test(flavor = "multi_thread")]
async fn leaders_that_are_paused_and_killed_under_load_lose_no_generation() {
    let Some(server) = Server::start() else { return };
    let dir = tempfile::tempdir().unwrap();
    let acks = ["m1", "m2", "m3"].map(|name| dir.path().join(name));
    let mut processes: BTreeMap<usize, Process> = BTreeMap::new();
    for (at, file) in acks.iter().enumerate() {
        let (first, name) = (1 + at as u64 * 1_000_000, format!("m{}", at + 1));
        let order = json!({"etcd": server.address(), "acks": file, "first": first, "name": name});
        processes.insert(at, Process::start(&order));
    }
    /// Waits until one of these has acknowledged twenty more than it had, and returns which.
    async fn busy(acks: &[PathBuf], among: &[usize]) -> usize {
        let before: Vec<usize> = acks.iter().map(|file| acknowledged(file).len()).collect();
        let end = Instant::now() + Duration::from_secs(60);
        loop {
            let found = among.iter().find(|at| acknowledged(&acks[**at]).len() >= before[**at] + 20);
            if let Some(found) = found {
                return *found;
            }
            assert!(Instant::now() < end, "somebody leads");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
    let others = |at: usize| (0..3).filter(|other| *other != at).collect::<Vec<_>>();
    let refusals =
        |at: usize| std::fs::read_to_string(&acks[at]).unwrap_or_default().matches("not-leader").count();

    let paused = busy(&acks, &[0, 1, 2]).await;
    signal(processes[&paused].0.id(), Signal::STOP);
    let (refused, had) = (refusals(paused), acknowledged(&acks[paused]).len());
    let killed = busy(&acks, &others(paused)).await;
    signal(processes[&paused].0.id(), Signal::CONT);
    let end = Instant::now() + Duration::from_secs(60);
    while refusals(paused) == refused {
        assert!(Instant::now() < end, "it learns that it was deposed");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(acknowledged(&acks[paused]).len() <= had + 1, "nothing more was acknowledged");
    processes.remove(&killed);
    busy(&acks, &others(killed)).await;
    processes.clear();

    let mut all: Vec<(u64, usize, u64)> = Vec::new();
    for (at, file) in acks.iter().enumerate() {
        let of = generations(file);
        assert!(of.is_sorted_by(|a, b| a.0 < b.0 && a.1 < b.1), "m{} went back", at + 1);
        all.extend(of.into_iter().map(|(number, generation)| (generation, at, number)));
    }
    all.sort_unstable();
    assert!(all.is_sorted_by(|a, b| a.0 < b.0), "a number was given twice");
    let running = start(on(&server, "m4")).await.unwrap();
    let master = running.handle();
    leader_of(std::slice::from_ref(&master)).await;
    // Where leaders took turns in between, there were more turns than leaders.
    let turns = 1 + all.windows(2).filter(|pair| pair[0].1 != pair[1].1).count() as u64;
    let leaders = master.leader().await.epoch - 1;
    assert!((3..=leaders).contains(&turns), "{turns} turns of {leaders} leaders");
    let text = master.snapshot().await.unwrap();
    let group = Snapshot::read("snapshot", &text.0).unwrap().groups.remove(0);
    let (newest, _, number) = *all.last().unwrap();
    let there = u64::from_str_radix(group.commit.as_str(), 16).unwrap();
    // What was stored last may not have been acknowledged any more.
    assert!(group.generation >= newest, "{} after {newest}", group.generation);
    assert!(group.generation > newest || there == number, "{there} is not {number}");
    let wanted: Vec<VmSpec> = of_commit(there).iter().map(|spec| (**spec).clone()).collect();
    assert_eq!(group.specs, wanted, "a mix");
    running.stop().await;
}

/// Section 13: without its store a master answers from memory, marked stale, and refuses to change anything.
#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_is_away_stops_changes_and_nothing_else() {
    let Some(server) = Server::start() else { return };
    let running = start(on(&server, "m1")).await.unwrap();
    let master = running.handle();
    leader_of(std::slice::from_ref(&master)).await;
    let mut workers = [Worker::new("w1")];
    workers[0].beat(&*master).await.unwrap();
    accepted(&*master, 2, "default", vms("default", &[("web", 2, "")])).await;
    settle(&*master, &mut workers, is_converged).await;
    signal(server.pid(), Signal::STOP);
    let refused = publish(&*master, 3, "default", vms("default", &[("web", 3, "")])).await;
    let Err(error) = refused else { panic!("{refused:?}") };
    let is_refusal = matches!(&error, CallError::Refused { code, .. } if code == "store-unavailable");
    assert!(is_refusal || matches!(error, CallError::Away(_)), "{error}");
    let end = Instant::now() + Duration::from_secs(60);
    let shown = loop {
        let shown = status(&*master).await;
        if shown["store"]["state"] == "stale" {
            break shown;
        }
        assert!(Instant::now() < end, "it says so");
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    assert_eq!((&shown["state"], &shown["store"]["code"]), (&"degraded".into(), &"stale".into()));
    assert_eq!(shown["generation"], 2);
    // Section 15: who has no store is not well, and still shows what it knows.
    let listener = Observe::listen("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let stop = CancellationToken::new();
    let observe = Observe { tls: None, check: Arc::new(|_| false) };
    let looking = async {
        let (head, body) = ask(port, "GET /healthz").await;
        assert!(head.starts_with("HTTP/1.1 503") && body == "no store\n", "{head} {body}");
        assert!(ask(port, "GET /status.json").await.0.starts_with("HTTP/1.1 200"));
        stop.cancel();
    };
    tokio::join!(observe.serve(listener, running.handle(), stop.clone()), looking);
    assert!(!workers[0].obey(&*master, Duration::from_millis(50)).await.unwrap(), "nothing new for anybody");
    let refused = master.reserve_generation(&commit(4), "p").await;
    assert!(
        matches!(refused, Err(CallError::Refused { ref code, .. }) if code == "store-unavailable"),
        "{refused:?}"
    );
    // Another one may lead by now: whoever reports is sent to look for it, and may stay when it comes back.
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        match workers[0].beat(&*master).await {
            Err(CallError::Away(_)) => break,
            other => assert!(other.is_ok() && Instant::now() < end, "{other:?}"),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(workers[0].beat(&*master).await.unwrap().lease, None, "nothing runs on for its word");
    signal(server.pid(), Signal::CONT);
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        // Whatever became of the first try: Accepted or Duplicate.
        match publish(&*master, 3, "default", vms("default", &[("web", 3, "")])).await {
            Ok(verdict) => {
                assert!(matches!(verdict.outcome, Outcome::Accepted | Outcome::Duplicate), "{verdict:?}");
                break;
            }
            Err(_) => assert!(Instant::now() < end, "it comes back"),
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    workers[0].acts.clear();
    let shown = settle(&*master, &mut workers, is_converged).await;
    assert_eq!(
        (shown["generation"].as_u64() >= Some(3), shown["store"]["state"].as_str()),
        (true, Some("ok"))
    );
    assert_eq!(workers[0].acts, ["start web/2"]);
    running.stop().await;
}
