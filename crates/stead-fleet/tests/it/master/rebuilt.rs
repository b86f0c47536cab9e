//! Failures F8 and F9: a master that is away, and one that has lost everything.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use stead_fleet::api::{CallError, GroupPipeline, Master, PipelineReport, UNPUBLISHED, WatcherReport};
use stead_fleet::master::{Rebuild, Settings, start};
use stead_fleet::store::{Embedded, FleetStore, StoreError, Txn, begin_anew, keep_authority};
use stead_model::GroupName;
use stead_model::fleet::state::Outcome;

use super::yard::*;

fn report(groups: &[&str], number: u64) -> PipelineReport {
    let groups = groups.iter().map(|group| GroupPipeline {
        group: GroupName::parse(group).unwrap(),
        commit: commit(number),
        contains: vec![],
        stage: "submitted".to_owned(),
        failure: None,
    });
    PipelineReport { watcher: WatcherReport::default(), groups: groups.collect() }
}

/// F9: what runs is what the workers say; nothing is restarted, and numbers go on above those that were reported.
#[tokio::test]
async fn a_lost_state_is_rebuilt_from_reports() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("master.db");
    let running = master(dir.path()).await;
    let handle = running.handle();
    let mut workers = ["w1", "w2"].map(Worker::new);
    for worker in &mut workers {
        worker.beat(&*handle).await.unwrap();
    }
    let default = || vms("default", &[("web", 3, ""), ("job", 1, "")]);
    let edge = || vms("edge", &[("cam", 1, "")]);
    accepted(&*handle, 1, "default", default()).await;
    accepted(&*handle, 1, "edge", edge()).await;
    accepted(&*handle, 2, "default", default()).await;
    let before = places(&settle(&*handle, &mut workers, is_converged).await);
    let (epoch, applied) = (workers[0].epoch, workers[0].applied);
    running.stop().await;

    // The file is scribbled on: no start, and no empty one.
    std::fs::write(&path, vec![0x55; 40_000]).unwrap();
    assert!(matches!(Embedded::open(&path), Err(StoreError::Corrupted { .. })));
    // Without the authority it would be another fleet: nothing is changed.
    assert!(matches!(begin_anew(&path).await, Err(StoreError::NoAuthority { .. })));
    assert_eq!(std::fs::read(&path).unwrap().len(), 40_000);
    let copy = dir.path().join("master.db.authority");
    std::fs::write(&copy, r#"{"meta/ca":"secret","meta/fleet":"f1"}"#).unwrap();
    let (store, _) = begin_anew(&path).await.unwrap();
    let rebuild =
        Some(Rebuild { enrolled: vec![worker_name("w1"), worker_name("w2")], ..Rebuild::default() });
    let running = start(Settings { rebuild, ..settings(Arc::new(store)) }).await.unwrap();
    let handle = running.handle();
    for worker in &mut workers {
        worker.acts.clear();
    }
    let beat = workers[0].beat(&*handle).await.unwrap();
    assert!(beat.lease.is_some(), "what must not run twice runs on");
    assert!(
        !workers[0].obey(&*handle, Duration::from_millis(100)).await.unwrap(),
        "nobody is told anything yet"
    );
    let early = handle.reserve_generation(&commit(3), "p").await;
    assert!(matches!(early, Err(CallError::Away(_))), "{early:?}");
    workers[1].beat(&*handle).await.unwrap();
    // All were heard; the publisher publishes what it has, one group after the other.
    let generation = loop {
        match handle.reserve_generation(&commit(3), "p").await {
            Ok(generation) => break generation,
            Err(CallError::Away(_)) => tokio::time::sleep(Duration::from_millis(20)).await,
            Err(error) => panic!("{error}"),
        }
    };
    assert!(generation > 2, "{generation}");
    accepted(&*handle, 3, "default", default()).await;
    assert!(
        !workers[0].obey(&*handle, Duration::from_millis(100)).await.unwrap(),
        "nobody knows whether there is a policy"
    );
    let told = handle.report_pipeline(report(&["default", "edge"], 3)).await;
    let lacks = |code: &str, message: &str| code == UNPUBLISHED && message.ends_with("nothing of edge");
    assert!(matches!(&told, Err(CallError::Refused { code, message }) if lacks(code, message)), "{told:?}");
    // What was published again goes on; what is missing stays as it is.
    let has_converged = |count: u64| move |shown: &Value| shown["counts"]["converged"] == count;
    let shown = settle(&*handle, &mut workers, has_converged(4)).await;
    assert_eq!((&shown["state"], &shown["store"]["state"]), (&"degraded".into(), &"rebuilding".into()));
    assert!(shown["store"]["message"].as_str().unwrap().contains("edge"), "{shown:#}");
    assert_eq!(places(&shown), before);
    // A restart in between does not forget that it is being rebuilt.
    running.stop().await;
    let store = Embedded::open(&path).unwrap();
    let running = start(settings(Arc::new(store))).await.unwrap();
    let handle = running.handle();
    accepted(&*handle, 4, "default", vms("default", &[("web", 4, ""), ("job", 1, "")])).await;
    let verdict = publish(&*handle, 4, "edge", vec![]).await.unwrap();
    assert_eq!((verdict.outcome, verdict.problems[0].code.as_str()), (Outcome::Held, "empty-set"));
    let shown = settle(&*handle, &mut workers, has_converged(5)).await;
    let still = places(&shown);
    assert!(before.iter().all(|(key, worker)| still.get(key) == Some(worker)), "{still:?}");
    let camera = shown["instances"].as_array().unwrap().iter().find(|one| one["key"] == "cam/0").unwrap();
    assert_eq!((&camera["group"], &camera["code"]), (&"edge".into(), &"waiting-for-assignment".into()));
    assert!(camera["message"].as_str().unwrap().contains("state was lost"), "{camera:#}");
    accepted(&*handle, 5, "edge", edge()).await;
    let shown = settle(&*handle, &mut workers, is_converged).await;
    assert_eq!(places(&shown), still);
    let acts: Vec<&String> = workers.iter().flat_map(|worker| &worker.acts).collect();
    assert_eq!(acts, ["start web/3"], "nothing was restarted");
    assert!(workers[0].epoch > epoch && workers[0].applied.revision > applied.revision);
    running.stop().await;
}

/// A commit that changed something while the state was lost is rolled out as any other: one at a time.
#[tokio::test]
async fn what_changed_meanwhile_is_rolled_out() {
    let dir = tempfile::tempdir().unwrap();
    let running = master(dir.path()).await;
    let handle = running.handle();
    let mut workers = [Worker::new("w1")];
    workers[0].beat(&*handle).await.unwrap();
    accepted(&*handle, 1, "default", vms("default", &[("web", 3, "")])).await;
    settle(&*handle, &mut workers, is_converged).await;
    running.stop().await;
    std::fs::write(dir.path().join("master.db.authority"), r#"{"meta/ca":"secret","meta/fleet":"f1"}"#)
        .unwrap();
    let (store, _) = begin_anew(&dir.path().join("master.db")).await.unwrap();
    let rebuild = Some(Rebuild { enrolled: vec![worker_name("w1")], ..Rebuild::default() });
    let running = start(Settings { rebuild, ..settings(Arc::new(store)) }).await.unwrap();
    let handle = running.handle();
    workers[0].acts.clear();
    workers[0].beat(&*handle).await.unwrap();
    while handle.reserve_generation(&commit(2), "p").await.is_err() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let volume = r#","volumes":[{"name":"data","sizeMiB":1,"movable":true}],"rollout":{"minReadySeconds":0}"#;
    accepted(&*handle, 2, "default", vms("default", &[("web", 3, volume)])).await;
    handle.report_pipeline(report(&["default"], 2)).await.unwrap();
    settle(&*handle, &mut workers, is_converged).await;
    let wanted =
        ["web/0", "web/1", "web/2"].map(|key| [format!("stop {key}"), format!("start {key}")]).concat();
    assert_eq!(workers[0].acts, wanted, "each once, one after the other");
    running.stop().await;
}

/// F9: a master that is killed before it leads is followed by one that begins anew as well, though nobody asks it to: an empty
/// store would be one in which nothing is to run.
#[tokio::test]
async fn a_store_that_was_begun_anew_says_so_itself() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("master.db");
    std::fs::write(dir.path().join("master.db.authority"), r#"{"meta/ca":"secret","meta/fleet":"f1"}"#)
        .unwrap();
    let (store, _) = begin_anew(&path).await.unwrap();
    let running = start(Settings { rebuild: None, ..settings(Arc::new(store)) }).await.unwrap();
    let handle = running.handle();
    let mut worker = Worker::new("w1");
    worker.beat(&*handle).await.unwrap();
    assert_eq!(status(&*handle).await["store"]["state"], "rebuilding");
    assert!(!worker.obey(&*handle, Duration::from_millis(100)).await.unwrap(), "nobody is told anything yet");
    let early = handle.reserve_generation(&commit(1), "p").await;
    assert!(matches!(early, Err(CallError::Away(_))), "{early:?}");
    running.stop().await;
}

/// Sections 9, 13: what must not run twice is not started elsewhere while its worker has not been heard.
#[tokio::test]
async fn a_singleton_of_a_silent_worker_waits_for_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("master.db");
    let only = || vms("default", &[("only", 1, r#","singleton":true"#), ("web", 1, "")]);
    std::fs::write(dir.path().join("master.db.authority"), r#"{"meta/ca":"secret","meta/fleet":"f1"}"#)
        .unwrap();
    let (store, _) = begin_anew(&path).await.unwrap();
    let rebuild = Some(Rebuild {
        enrolled: vec![worker_name("w1"), worker_name("w2")],
        patience: Duration::from_millis(200),
    });
    let running = start(Settings { rebuild, ..settings(Arc::new(store)) }).await.unwrap();
    let handle = running.handle();
    let mut workers = [Worker::new("w1")];
    workers[0].beat(&*handle).await.unwrap();
    let shown = status(&*handle).await;
    assert_eq!(
        (&shown["store"]["state"], &shown["store"]["code"]),
        (&"rebuilding".into(), &"waiting-for-assignment".into())
    );
    assert!(shown["store"]["message"].as_str().unwrap().contains("w2"), "{shown:#}");
    while handle.reserve_generation(&commit(1), "p").await.is_err() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let shown = status(&*handle).await;
    assert_eq!(shown["workers"][0]["state"], "ready", "who is heard is there: {shown:#}");
    accepted(&*handle, 1, "default", only()).await;
    handle.report_pipeline(report(&["default"], 1)).await.unwrap();
    settle(&*handle, &mut workers, |shown| shown["counts"]["converged"] == 1).await;
    assert_eq!(workers[0].acts, ["start web/0"]);
    // The other one is heard, and has nothing: now it may run.
    let mut both = [workers.into_iter().next().unwrap(), Worker::new("w2")];
    let shown = settle(&*handle, &mut both, is_converged).await;
    assert_eq!(shown["store"]["state"], "ok");
    running.stop().await;
}

/// F8: while the master is away everything runs on; what it finds when it is back is what it left.
#[tokio::test]
async fn a_master_that_was_away_finds_everything() {
    let dir = tempfile::tempdir().unwrap();
    let running = master(dir.path()).await;
    let handle = running.handle();
    let mut workers = ["w1", "w2"].map(Worker::new);
    for worker in &mut workers {
        worker.beat(&*handle).await.unwrap();
    }
    accepted(&*handle, 1, "default", vms("default", &[("web", 2, ""), ("one", 1, ",\"singleton\":true")]))
        .await;
    settle(&*handle, &mut workers, is_converged).await;
    running.stop().await;
    let gone = workers[0].beat(&*handle).await;
    assert!(matches!(gone, Err(CallError::Away(_))), "{gone:?}");
    let running = master(dir.path()).await;
    let handle = running.handle();
    for worker in &mut workers {
        worker.acts.clear();
    }
    settle(&*handle, &mut workers, is_converged).await;
    assert!(workers.iter().all(|worker| worker.acts.is_empty()));
    running.stop().await;
}

/// What the authority keeps outlives a state that is lost.
#[tokio::test]
async fn the_authority_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("master.db");
    let store = Embedded::open(&path).unwrap();
    let txn = Txn::default().put("meta/ca", "secret").put("meta/fleet", "f1").put("place/web/0", "x");
    store.txn(txn).await.unwrap();
    drop(store);
    let (store, _) = begin_anew(&path).await.unwrap();
    let kept: Vec<String> =
        store.range("", None).await.unwrap().entries.into_iter().map(|entry| entry.key).collect();
    assert_eq!(kept, ["meta/ca", "meta/fleet", "meta/rebuild"]);
    // A copy is kept, and is enough; whoever dies in between is gone on from.
    keep_authority(&store, &path).await.unwrap();
    drop(store);
    std::fs::remove_file(&path).unwrap();
    let (store, _) = begin_anew(&path).await.unwrap();
    assert_eq!(store.get("meta/ca").await.unwrap().unwrap().value, b"secret");
    drop(store);
    std::fs::remove_file(dir.path().join("master.db.authority")).unwrap();
    std::fs::rename(&path, dir.path().join("master.db.next")).unwrap();
    assert!(matches!(Embedded::open(&path), Err(StoreError::Lost { .. })));
    let (store, _) = begin_anew(&path).await.unwrap();
    assert_eq!(store.get("meta/fleet").await.unwrap().unwrap().value, b"f1");
}
