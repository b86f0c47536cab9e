//! Acceptance cases of one master.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::Value;
use stead_fleet::api::{
    Applied, CallError, GroupPipeline, HoldOrder, Master, PipelineFailure, PipelineReport, StatusFilter,
    WatcherReport,
};
use stead_fleet::events::{Ev, read};
use stead_fleet::master::{Settings, start};
use stead_fleet::store::{Embedded, FleetStore, Txn};
use stead_model::fleet::InstanceKey;
use stead_model::fleet::state::{HoldTarget, Outcome, Snapshot};
use stead_model::plan::Digest;
use stead_model::{GroupName, VmId};

use super::yard::*;

fn watcher(head: u64) -> WatcherReport {
    WatcherReport {
        reference: "refs/heads/main".to_owned(),
        state: "ok".to_owned(),
        last_poll: 1_700_000_000_000,
        error: None,
        head: Some(commit(head)),
        rejected: None,
    }
}

fn stage(group: &str, number: u64, stage: &str, failure: Option<PipelineFailure>) -> GroupPipeline {
    GroupPipeline {
        group: GroupName::parse(group).unwrap(),
        commit: commit(number),
        contains: (1..number).rev().map(commit).collect(),
        stage: stage.to_owned(),
        failure,
    }
}

/// Sections 6 to 9, 14: a commit is published, placed, taken and shown; a restart of the master changes nothing.
#[tokio::test]
async fn a_commit_converges_and_a_restart_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let running = master(dir.path()).await;
    let master_ = running.handle();
    let mut workers = ["w1", "w2", "w3"].map(Worker::new);
    for worker in &mut workers {
        worker.beat(&*master_).await.unwrap();
    }
    accepted(&*master_, 1, "default", vms("default", &[("web", 2, ""), ("job", 1, "")])).await;
    let shown = settle(&*master_, &mut workers, is_converged).await;
    assert_eq!((&shown["generation"], &shown["convergence_percent"]), (&1.into(), &100.into()));
    assert_eq!(shown["counts"]["desired"], 3);
    assert_eq!(shown["leader"]["name"], "m1");
    let before = places(&shown);
    let epoch = workers[0].epoch;
    running.stop().await;

    let running = master(dir.path()).await;
    let master_ = running.handle();
    for worker in &mut workers {
        worker.acts.clear();
        worker.session += 1;
    }
    let shown = settle(&*master_, &mut workers, is_converged).await;
    assert_eq!((places(&shown), shown["generation"].as_u64()), (before, Some(1)));
    assert!(workers.iter().all(|worker| worker.acts.is_empty()), "nothing was started or stopped");
    let busy = workers.iter().find(|worker| !worker.runs.is_empty()).unwrap();
    assert!(busy.epoch > epoch, "a new leader counts on");
    running.stop().await;
    let kinds: BTreeSet<Ev> = read(&dir.path().join("events")).unwrap().iter().map(|line| line.ev).collect();
    for ev in [Ev::Reserved, Ev::Verdict, Ev::Activated, Ev::WorkerJoined, Ev::Placed, Ev::Leader] {
        assert!(kinds.contains(&ev), "{ev:?} of {kinds:?}");
    }
}

/// Case 8: what is wrong is refused with everything that is wrong, and nothing is stored.
#[tokio::test]
async fn broken_publications_change_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let running = master(dir.path()).await;
    let master = running.handle();
    accepted(&*master, 1, "default", vms("default", &[("web", 1, "")])).await;
    let generation = master.reserve_generation(&commit(2), "p").await.unwrap();
    assert_eq!(generation, 2);
    let good = publication("default", 2, generation, vms("default", &[("web", 2, "")]));
    let outcome = |publication| {
        let master = &master;
        async move { master.publish(publication, "p").await.unwrap() }
    };

    let mut wrong = good.clone();
    wrong.intent_hash = Digest::of(b"x");
    wrong.specs.extend(vms("default", &[("web", 1, "")]));
    let verdict = outcome(wrong).await;
    assert_eq!(verdict.outcome, Outcome::Invalid);
    let codes: BTreeSet<&str> = verdict.problems.iter().map(|problem| problem.code.as_str()).collect();
    assert_eq!(codes, ["specs-hash", "intent-hash", "duplicate-id"].into());

    let stale = publication("default", 1, 0, vms("default", &[("web", 1, "")]));
    assert_eq!(outcome(stale).await.outcome, Outcome::Stale);
    let other = publication("default", 9, 1, vms("default", &[("web", 9, "")]));
    assert_eq!(outcome(other).await.outcome, Outcome::Conflict, "same generation, other content");
    let not_reserved = publication("default", 3, generation, vms("default", &[("web", 2, "")]));
    assert_eq!(outcome(not_reserved).await.outcome, Outcome::Conflict, "generation of another commit");
    let same = publication("default", 1, 1, vms("default", &[("web", 1, "")]));
    assert_eq!(outcome(same).await.outcome, Outcome::Duplicate);
    assert_eq!(status(&*master).await["generation"], 1);
    assert_eq!(outcome(good).await.outcome, Outcome::Accepted);
    running.stop().await;
    // Section 15: every refusal is written down, with whose it is.
    let lines = read(&dir.path().join("events")).unwrap();
    let told: Vec<_> =
        lines.into_iter().filter(|line| line.ev == Ev::Refused).map(|line| line.fields).collect();
    assert!(told.iter().all(|fields| fields.by == "p" && fields.commit.is_some()), "{told:?}");
    let told: BTreeSet<&str> = told.iter().map(|fields| fields.code.as_str()).collect();
    assert!(told.is_superset(&["specs-hash", "intent-hash", "duplicate-id"].into()), "{told:?}");
}

/// Section 13: what a master of this version stored is found by the next one: each thing has its key.
#[tokio::test]
async fn everything_that_is_stored_has_its_key() {
    let dir = tempfile::tempdir().unwrap();
    let store: Arc<dyn FleetStore> = Arc::new(Embedded::open(&dir.path().join("master.db")).unwrap());
    let running = start(settings(Arc::clone(&store))).await.unwrap();
    let master = running.handle();
    let mut workers = [Worker::new("w1")];
    workers[0].beat(&*master).await.unwrap();
    publish_policy(&*master, 1, "policy: {rebalance: 1}\n").await;
    accepted(&*master, 1, "default", vms("default", &[("web", 1, "")])).await;
    settle(&*master, &mut workers, is_converged).await;
    let target = HoldTarget::Vm(VmId::parse("web").unwrap());
    let order = HoldOrder::Hold { target, duration: 60_000, reason: "x".to_owned() };
    let hold = master.set_hold(order, "ann").await.unwrap();
    let entries = store.range("", None).await.unwrap().entries;
    let keys: BTreeSet<&str> = entries.iter().map(|entry| entry.key.as_str()).collect();
    let (of_commit, of_hold) = (format!("commit/{}", commit(1)), format!("hold/{hold}"));
    for key in [
        "meta/leader",
        "meta/next-generation",
        "gen/default/1",
        "gen/fleet/1",
        "active/default",
        "active/fleet",
        &of_commit,
        "policy",
        "place/web/0",
        "worker/w1",
        &of_hold,
    ] {
        assert!(keys.contains(key), "{key} is not in {keys:?}");
    }
    assert!(keys.iter().any(|key| key.starts_with("spec/")), "{keys:?}");
    running.stop().await;
}

/// Section 13: who is elected and cannot read what is stored does not keep the lease from others.
#[tokio::test]
async fn who_cannot_read_the_store_does_not_lead() {
    let dir = tempfile::tempdir().unwrap();
    let store: Arc<dyn FleetStore> = Arc::new(Embedded::open(&dir.path().join("master.db")).unwrap());
    store.txn(Txn::default().put("place/web/0", "of a later version")).await.unwrap();
    assert!(start(settings(Arc::clone(&store))).await.is_err());
    let end = std::time::Instant::now() + Duration::from_secs(60);
    while store.get("meta/leader").await.unwrap().is_some() {
        assert!(std::time::Instant::now() < end, "it holds on to the lease");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // Another one that can read it leads at once, and the first does not stand again.
    store.txn(Txn::default().delete("place/web/0")).await.unwrap();
    let running = start(settings(store)).await.unwrap();
    accepted(&*running.handle(), 1, "default", vms("default", &[("web", 1, "")])).await;
    running.stop().await;
}

/// Section 14: a part of the status is counted by itself, and what the watcher refused is named.
#[tokio::test]
async fn a_part_of_the_status_counts_what_it_shows() {
    let dir = tempfile::tempdir().unwrap();
    let running = master(dir.path()).await;
    let master = running.handle();
    let mut workers = [Worker::new("w1")];
    workers[0].beat(&*master).await.unwrap();
    let watcher = WatcherReport { head: Some(commit(1)), ..WatcherReport::default() };
    let report = |watcher: WatcherReport| PipelineReport { watcher, groups: vec![] };
    let shown = settle(&*master, &mut workers, |_| true).await;
    assert_eq!(
        (&shown["state"], &shown["convergence_percent"], &shown["generation"]),
        (&"converging".into(), &100.into(), &0.into()),
        "case 1: nothing is published yet"
    );
    let away = WatcherReport { state: "unreachable".to_owned(), ..WatcherReport::default() };
    master.report_pipeline(report(away)).await.unwrap();
    assert_eq!(status(&*master).await["state"], "degraded", "nobody knows what there should be");
    master.report_pipeline(report(watcher.clone())).await.unwrap();
    assert_eq!(status(&*master).await["state"], "converging");
    accepted(&*master, 1, "default", vms("default", &[("web", 2, "")])).await;
    accepted(&*master, 1, "edge", vms("edge", &[("far", 1, r#","selector":{"disk":"tape"}"#)])).await;
    settle(&*master, &mut workers, |shown| shown["counts"]["converged"] == 2).await;
    let part = async |filter: StatusFilter| {
        let (text, _) = master.status(0, Duration::ZERO, &filter).await.unwrap();
        let shown: serde_json::Value = serde_json::from_str(&text.0).unwrap();
        check(&shown);
        let counts = &shown["counts"];
        (
            shown["state"].as_str().unwrap().to_owned(),
            counts["desired"].as_u64(),
            counts["converged"].as_u64(),
        )
    };
    let group = |name: &str| StatusFilter { group: GroupName::parse(name).ok(), ..StatusFilter::default() };
    assert_eq!(part(StatusFilter::default()).await, ("degraded".to_owned(), Some(3), Some(2)));
    assert_eq!(part(group("default")).await, ("converged".to_owned(), Some(2), Some(2)));
    assert_eq!(part(group("edge")).await, ("degraded".to_owned(), Some(1), Some(0)));
    let worker = StatusFilter { worker: Some(worker_name("w1")), ..StatusFilter::default() };
    assert_eq!(part(worker).await, ("converged".to_owned(), Some(2), Some(2)));
    master.report_pipeline(report(WatcherReport { rejected: Some(commit(9)), ..watcher })).await.unwrap();
    assert_eq!(status(&*master).await["watcher"]["rejected"], commit(9).to_string());
    running.stop().await;
}

/// Section 13: what is too large for the store is refused or cut, and keeps nobody from theirs.
#[tokio::test]
async fn what_is_too_large_stops_nobody() {
    let dir = tempfile::tempdir().unwrap();
    let running = master(dir.path()).await;
    let handle = running.handle();
    let mut workers = [Worker::new("w1")];
    workers[0].beat(&*handle).await.unwrap();
    let entries: String = (0..8_000)
        .map(|number| format!("  n{number}: {{labels: {{a: '{number}', b: '{}'}}}}\n", "x".repeat(60)))
        .collect();
    let verdict = publish_policy(&*handle, 1, &format!("workers:\n{entries}")).await;
    assert_eq!(verdict.outcome, Outcome::Accepted, "{verdict:?}");
    accepted(&*handle, 1, "default", vms("default", &[("web", 1, "")])).await;
    let mut huge = vms("edge", &[("huge", 1, "")]);
    Arc::make_mut(&mut huge[0]).runtime.argv = vec!["x".repeat(2 << 20)];
    let refused = publish(&*handle, 2, "edge", huge).await;
    assert!(matches!(&refused, Err(CallError::Refused { code, .. }) if code == "too-large"), "{refused:?}");
    accepted(&*handle, 3, "default", vms("default", &[("web", 2, "")])).await;
    let long = HoldOrder::Hold {
        target: HoldTarget::Vm(VmId::parse("web").unwrap()),
        duration: 1000,
        reason: "x".repeat(2_000),
    };
    assert!(matches!(handle.set_hold(long, "ann").await, Err(CallError::Refused { .. })));
    settle(&*handle, &mut workers, |shown| shown["counts"]["converged"] == 2).await;
    running.stop().await;
    // What was cut is whole again for who comes next.
    let running = master(dir.path()).await;
    let shown = settle(&*running.handle(), &mut workers, |shown| shown["counts"]["converged"] == 2).await;
    assert_eq!(shown["workers"].as_array().unwrap().len(), 8_001);
    running.stop().await;
}

/// Case 12: `unchanged` only with both numbers current, after the wait; two publishers give Accepted and Duplicate.
#[tokio::test]
async fn assignments_are_asked_for_by_number() {
    let dir = tempfile::tempdir().unwrap();
    let running = master(dir.path()).await;
    let master = running.handle();
    let mut workers = [Worker::new("w1")];
    workers[0].beat(&*master).await.unwrap();
    let specs = || vms("default", &[("web", 1, "")]);
    let [first, second] = [1, 2].map(|_| publish(&*master, 1, "default", specs()));
    let (first, second) = tokio::join!(first, second);
    let mut outcomes =
        [first.unwrap().outcome, second.unwrap().outcome].map(|outcome| format!("{outcome:?}"));
    outcomes.sort();
    assert_eq!(outcomes, ["Accepted", "Duplicate"]);
    settle(&*master, &mut workers, is_converged).await;

    let worker = &workers[0];
    let began = Instant::now();
    let wait = Duration::from_millis(200);
    let unchanged = master.assignment(&worker.name, worker.applied, wait).await.unwrap();
    assert!(unchanged.is_none() && began.elapsed() >= wait && began.elapsed() < Duration::from_secs(45));
    let Applied { generation, revision } = worker.applied;
    for old in [
        Applied { generation: generation - 1, revision },
        Applied { generation, revision: revision - 1 },
        Applied::default(),
    ] {
        let full = master.assignment(&worker.name, old, wait).await.unwrap().unwrap();
        assert_eq!((full.generation, full.revision, full.instances.len()), (generation, revision, 1));
    }
    // A wait ends with a change.
    let waiting = master.assignment(&worker.name, worker.applied, Duration::from_secs(50));
    let publishing = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        accepted(&*master, 2, "default", vms("default", &[("web", 2, "")])).await;
    };
    let began = Instant::now();
    let (changed, ()) = tokio::join!(waiting, publishing);
    assert_eq!(changed.unwrap().unwrap().instances.len(), 2);
    assert!(began.elapsed() < Duration::from_secs(45));
    running.stop().await;
}

/// Case 10: what fits nowhere says why, filter by filter; a worker that fits changes nothing else; drain and cordon.
#[tokio::test]
async fn what_fits_nowhere_waits_for_a_worker_and_drains_are_undone() {
    let dir = tempfile::tempdir().unwrap();
    let running = master(dir.path()).await;
    let master = running.handle();
    let mut workers = vec![Worker::new("w1"), Worker::new("w2")];
    for worker in &mut workers {
        worker.beat(&*master).await.unwrap();
    }
    let ssd = r#","selector":{"disk":"ssd"}"#;
    let specs = || vms("default", &[("web", 2, ""), ("fast", 1, ssd)]);
    accepted(&*master, 1, "default", specs()).await;
    let shown = settle(&*master, &mut workers, |shown| shown["counts"]["converged"] == 2).await;
    assert_eq!((&shown["state"], &shown["counts"]["unschedulable"]), (&"degraded".into(), &1.into()));
    let key = InstanceKey::parse("fast/0").unwrap();
    let told: Value = serde_json::from_str(&master.explain(&key).await.unwrap().0).unwrap();
    let refuses = told["candidates"].as_array().unwrap().iter().filter(|one| one["verdict"] == "refuses");
    assert_eq!(refuses.count(), 2, "{told:#}");
    assert!(told["why_not_yet"].as_str().unwrap().contains("2 workers"), "{told:#}");
    let before = places(&shown);

    let mut fitting = Worker::new("w3");
    fitting.labels.insert("disk".to_owned(), "ssd".to_owned());
    workers.push(fitting);
    let shown = settle(&*master, &mut workers, is_converged).await;
    let after = places(&shown);
    assert_eq!(after["fast/0"], "w3");
    assert!(["web/0", "web/1"].iter().all(|key| before[*key] == after[*key]), "nothing else moved");

    // Drain: what can leave does; what fits nowhere else stays and says so.
    publish_policy(&*master, 2, "workers:\n  w3:\n    drain: true\n  w1:\n    drain: true\n").await;
    let shown = settle(&*master, &mut workers, |shown| {
        let places = places(shown);
        places.values().all(|worker| worker != "w1") && shown["instances"].as_array().unwrap().len() == 3
    })
    .await;
    let fast =
        shown["instances"].as_array().unwrap().iter().find(|one| one["key"] == "fast/0").unwrap().clone();
    assert_eq!((&fast["worker"], &fast["code"]), (&"w3".into(), &"drain-blocked".into()));
    // Undone by the revert.
    publish_policy(&*master, 3, "").await;
    settle(&*master, &mut workers, is_converged).await;
    running.stop().await;
}

/// Returns the keys of a store below `prefix`.
async fn keys(dir: &Path, prefix: &str) -> Vec<String> {
    let store = Embedded::open(&dir.join("master.db")).unwrap();
    store.range(prefix, None).await.unwrap().entries.into_iter().map(|entry| entry.key).collect()
}

/// Section 6: a master that is to keep fewer generations than there are keeps the newest ones, those that are active, and every
/// spec that something still runs.
#[tokio::test]
async fn a_shorter_history_keeps_what_is_needed() {
    let dir = tempfile::tempdir().unwrap();
    let web = |text: &str, rollout: &str| {
        let mut specs = vms("default", &[("web", 1, rollout)]);
        Arc::make_mut(&mut specs[0]).runtime.argv = vec![text.to_owned()];
        specs
    };
    let paused = r#","rollout":{"pause":true}"#;
    let running = master(dir.path()).await;
    let first = running.handle();
    let mut workers = [Worker::new("w1")];
    workers[0].beat(&*first).await.unwrap();
    accepted(&*first, 1, "edge", vms("edge", &[("cam", 1, "")])).await;
    accepted(&*first, 2, "default", web("old", "")).await;
    settle(&*first, &mut workers, is_converged).await;
    for number in 3..=6 {
        accepted(&*first, number, "default", web(&number.to_string(), paused)).await;
    }
    let acts = workers[0].acts.len();
    running.stop().await;
    assert_eq!(keys(dir.path(), "gen/").await.len(), 6);

    let shorter = async || {
        let store = Embedded::open(&dir.path().join("master.db")).unwrap();
        start(Settings { history: 2, ..settings(Arc::new(store)) }).await.unwrap()
    };
    let goes_on = |shown: &Value| {
        shown["workers"][0]["state"] == "ready" && shown["instances"].as_array().unwrap().len() == 2
    };
    for _ in 0..2 {
        let running = shorter().await;
        workers[0].session += 1;
        settle(&*running.handle(), &mut workers, goes_on).await;
        let again = publish(&*running.handle(), 6, "default", web("6", paused)).await.unwrap();
        assert_eq!(again.outcome, Outcome::Duplicate);
        running.stop().await;
        assert_eq!(keys(dir.path(), "gen/").await, ["gen/default/5", "gen/default/6", "gen/edge/1"]);
        assert_eq!(keys(dir.path(), "spec/web/").await.len(), 1, "what runs and is wanted no more");
    }
    assert_eq!(workers[0].acts.len(), acts, "{:?}", workers[0].acts);
    let running = shorter().await;
    workers[0].session += 1;
    accepted(&*running.handle(), 7, "default", web("6", "")).await;
    settle(&*running.handle(), &mut workers, is_converged).await;
    assert_eq!(workers[0].acts[acts..], ["stop web/0", "start web/0"]);
    accepted(&*running.handle(), 8, "default", web("6", "")).await;
    settle(&*running.handle(), &mut workers, is_converged).await;
    running.stop().await;
    assert_eq!(keys(dir.path(), "spec/web/").await, Vec::<String>::new());
}

/// Section 6: a commit that is evaluated once more has the specs it had, unless `fleet.yaml` lets it have others.
#[tokio::test]
async fn a_commit_may_have_other_specs_where_that_is_allowed() {
    let dir = tempfile::tempdir().unwrap();
    let running = master(dir.path()).await;
    let master = running.handle();
    accepted(&*master, 1, "default", vms("default", &[("web", 1, "")])).await;
    accepted(&*master, 2, "default", vms("default", &[("web", 2, "")])).await;
    let refused = publish(&*master, 1, "default", vms("default", &[("web", 3, "")])).await.unwrap();
    let codes: Vec<&str> = refused.problems.iter().map(|problem| problem.code.as_str()).collect();
    assert_eq!((refused.outcome, codes), (Outcome::Invalid, vec!["evaluation-not-deterministic"]));
    accepted(&*master, 1, "default", vms("default", &[("web", 1, "")])).await;
    publish_policy(&*master, 3, "policy: {requireSameSpecs: false}\n").await;
    accepted(&*master, 1, "default", vms("default", &[("web", 3, "")])).await;
    running.stop().await;
}

/// Case 16: groups live on their own, and an id is of one group.
#[tokio::test]
async fn groups_are_apart() {
    let dir = tempfile::tempdir().unwrap();
    let running = master(dir.path()).await;
    let master = running.handle();
    let mut workers = [Worker::new("w1")];
    workers[0].beat(&*master).await.unwrap();
    accepted(&*master, 1, "default", vms("default", &[("web", 1, "")])).await;
    accepted(&*master, 1, "edge", vms("edge", &[("cam", 1, "")])).await;
    settle(&*master, &mut workers, is_converged).await;
    // The next commit of `edge` fails before the master; `default` goes on.
    let failure = PipelineFailure {
        stage: "built".to_owned(),
        class: stead_engine::fleet::watch::FailureClass::Permanent,
        vm: Some("cam".to_owned()),
        error: "flake.nix:3:5: builder failed".to_owned(),
        log: Some("/log".to_owned()),
    };
    let groups = vec![stage("default", 2, "submitted", None), stage("edge", 2, "failed", Some(failure))];
    master.report_pipeline(PipelineReport { watcher: watcher(2), groups }).await.unwrap();
    accepted(&*master, 2, "default", vms("default", &[("web", 2, "")])).await;
    let shown = settle(&*master, &mut workers, |shown| shown["counts"]["converged"] == 3).await;
    assert_eq!(shown["state"], "degraded");
    let group = |name: &str| {
        shown["groups"].as_array().unwrap().iter().find(|group| group["group"] == name).unwrap().clone()
    };
    let (default, edge) = (group("default"), group("edge"));
    assert_eq!((&default["active"]["generation"], &edge["active"]["generation"]), (&2.into(), &1.into()));
    assert_eq!(edge["evaluated"]["vm"], "cam");
    assert_eq!(edge["evaluated"]["log"], "/log");
    assert!(edge["why"].as_str().unwrap().contains("failed at `built` at VM `cam`"), "{edge:#}");
    let taken = publish(&*master, 3, "edge", vms("edge", &[("web", 1, "")])).await.unwrap();
    assert_eq!(taken.outcome, Outcome::Invalid);
    assert!(taken.problems[0].message.contains("`default`") && taken.problems[0].message.contains("`edge`"));
    // Only one group, and only one worker.
    let filter = StatusFilter { group: GroupName::parse("edge").ok(), ..StatusFilter::default() };
    let (text, _) = master.status(0, Duration::ZERO, &filter).await.unwrap();
    let part: Value = serde_json::from_str(&text.0).unwrap();
    check(&part);
    assert_eq!(places(&part).into_keys().collect::<Vec<_>>(), ["cam/0"]);
    assert_eq!(part["groups"].as_array().unwrap().len(), 1);
    running.stop().await;
}

/// Section 6: two groups give each other a VM in one commit. Both run on where they are, and the next master has both groups.
#[tokio::test]
async fn groups_give_each_other_vms() {
    let dir = tempfile::tempdir().unwrap();
    let running = master(dir.path()).await;
    let master_of_now = running.handle();
    let mut workers = [Worker::new("w1")];
    workers[0].beat(&*master_of_now).await.unwrap();
    accepted(&*master_of_now, 1, "default", vms("default", &[("web", 1, ""), ("a", 1, "")])).await;
    accepted(&*master_of_now, 1, "edge", vms("edge", &[("cam", 1, ""), ("b", 1, "")])).await;
    settle(&*master_of_now, &mut workers, is_converged).await;
    let acts = workers[0].acts.len();
    let generation = master_of_now.reserve_generation(&commit(2), "p").await.unwrap();
    let both = [("default", [("cam", 1, ""), ("a", 1, "")]), ("edge", [("web", 1, ""), ("b", 1, "")])];
    let both = both.map(|(group, ids)| publication(group, 2, generation, vms(group, &ids)));
    let verdicts = master_of_now.publish_together(both.to_vec(), "p").await.unwrap();
    let outcomes: Vec<Outcome> = verdicts.iter().map(|verdict| verdict.outcome).collect();
    assert_eq!(outcomes, [Outcome::Accepted; 2], "{verdicts:?}");
    let shown = settle(&*master_of_now, &mut workers, is_converged).await;
    let group_of = |shown: &Value, key: &str| {
        let instances = shown["instances"].as_array().unwrap();
        instances.iter().find(|instance| instance["key"] == key).unwrap()["group"].clone()
    };
    assert_eq!((group_of(&shown, "cam/0"), group_of(&shown, "web/0")), ("default".into(), "edge".into()));
    assert_eq!(workers[0].acts.len(), acts, "{:?}", workers[0].acts);
    running.stop().await;
    let running = master(dir.path()).await;
    let next = running.handle();
    let verdicts = next.publish_together(both.to_vec(), "p").await.unwrap();
    let outcomes: Vec<Outcome> = verdicts.iter().map(|verdict| verdict.outcome).collect();
    assert_eq!(outcomes, [Outcome::Duplicate; 2]);
    workers[0].beat(&*next).await.unwrap();
    settle(&*next, &mut workers, is_converged).await;
    assert_eq!(workers[0].acts.len(), acts, "{:?}", workers[0].acts);
    running.stop().await;
}

/// Case 20: a hold is seen with who and why, and ends by itself.
#[tokio::test]
async fn holds_are_seen_and_end() {
    let dir = tempfile::tempdir().unwrap();
    let running = master(dir.path()).await;
    let master = running.handle();
    let mut workers = [Worker::new("w1")];
    workers[0].beat(&*master).await.unwrap();
    accepted(&*master, 1, "default", vms("default", &[("web", 1, "")])).await;
    settle(&*master, &mut workers, is_converged).await;
    let order = |target: HoldTarget, duration: u64, reason: &str| HoldOrder::Hold {
        target,
        duration,
        reason: reason.to_owned(),
    };
    let w1 = || HoldTarget::Worker(worker_name("w1"));
    for (bad, code) in [
        (order(w1(), 25 * 3_600_000, "long"), "bad-hold"),
        (order(w1(), 1_000, " "), "bad-hold"),
        (order(HoldTarget::Vm(VmId::parse("none").unwrap()), 1_000, "x"), "unknown-target"),
        (HoldOrder::Release { id: "h9".to_owned() }, "unknown-hold"),
    ] {
        let Err(CallError::Refused { code: told, .. }) = master.set_hold(bad, "ann").await else {
            panic!("{code}")
        };
        assert_eq!(told, code);
    }
    let id = master.set_hold(order(w1(), 8_000, "looking at it"), "ann").await.unwrap();
    let shown = status(&*master).await;
    assert_eq!(shown["state"], "degraded");
    assert_eq!(shown["workers"][0]["state"], "cordoned");
    let hold = &shown["holds"][0];
    assert_eq!(
        (&hold["id"], &hold["by"], &hold["reason"]),
        (&id.clone().into(), &"ann".into(), &"looking at it".into())
    );
    assert_eq!(hold["target"], "worker/w1");
    // Nothing new goes there while it lasts.
    accepted(&*master, 2, "default", vms("default", &[("web", 2, "")])).await;
    assert_eq!(status(&*master).await["counts"]["unschedulable"], 1);
    let shown = settle(&*master, &mut workers, is_converged).await;
    assert_eq!(
        (shown["holds"].as_array().unwrap().len(), shown["workers"][0]["state"].as_str()),
        (0, Some("ready"))
    );
    let first = id;
    // One that is released is over at once, and a group that is held waits.
    let group = HoldTarget::Group(GroupName::default_group());
    let id = master.set_hold(order(group, 3_600_000, "freeze"), "ann").await.unwrap();
    let verdict = publish(&*master, 3, "default", vms("default", &[("web", 3, "")])).await.unwrap();
    assert_eq!(verdict.outcome, Outcome::Suspended);
    let shown = status(&*master).await;
    assert_eq!(shown["groups"][0]["held"]["code"], "suspended");
    master.set_hold(HoldOrder::Release { id: id.clone() }, "bob").await.unwrap();
    let shown = settle(&*master, &mut workers, is_converged).await;
    assert_eq!(shown["generation"], 3);
    running.stop().await;
    let lines = read(&dir.path().join("events")).unwrap();
    let held: Vec<&str> =
        lines.iter().filter(|line| line.ev == Ev::Hold).map(|line| line.fields.reason.as_str()).collect();
    // What begins and what ends says which hold it is, of whom and on what.
    assert_eq!(
        held,
        [
            format!("{first}: worker/w1 by ann: looking at it"),
            format!("{first}: worker/w1 by ann ended"),
            format!("{id}: group/default by ann: freeze"),
            format!("{id}: group/default by ann ended"),
        ]
    );
}

/// F26, section 6: what would stop too much is held, with counts and the line to approve; approving activates it.
#[tokio::test]
async fn an_empty_list_is_held_until_it_is_approved() {
    let dir = tempfile::tempdir().unwrap();
    let running = master(dir.path()).await;
    let master_ = running.handle();
    let mut workers = [Worker::new("w1")];
    workers[0].beat(&*master_).await.unwrap();
    accepted(&*master_, 1, "default", vms("default", &[("web", 2, "")])).await;
    settle(&*master_, &mut workers, is_converged).await;
    let verdict = publish(&*master_, 2, "default", vec![]).await.unwrap();
    assert_eq!(verdict.outcome, Outcome::Held);
    running.stop().await;
    // It is held after a restart too.
    let running = master(dir.path()).await;
    let master = running.handle();
    workers[0].session += 1;
    let shown = settle(&*master, &mut workers, |shown| shown["counts"]["converged"] == 2).await;
    let held = &shown["groups"][0]["held"];
    assert_eq!((&held["generation"], &held["code"]), (&2.into(), &"empty-set".into()));
    assert_eq!((&held["stops"], &held["running"]), (&2.into(), &2.into()), "{held:#}");
    let line = held["approve"].as_str().unwrap();
    assert!(held["message"].as_str().unwrap().contains(line), "{held:#}");
    publish_policy(&*master, 3, &format!("approve: [{line}]\n")).await;
    let shown = settle(&*master, &mut workers, is_converged).await;
    assert_eq!((shown["counts"]["desired"].as_u64(), workers[0].runs.len()), (Some(0), 0));
    running.stop().await;
}

/// Section 14: a snapshot is what a plan reads, and a status that waits comes with a change.
#[tokio::test]
async fn snapshots_and_waits() {
    let dir = tempfile::tempdir().unwrap();
    let running = master(dir.path()).await;
    let master = running.handle();
    let mut workers = [Worker::new("w1")];
    workers[0].beat(&*master).await.unwrap();
    accepted(&*master, 1, "default", vms("default", &[("web", 2, "")])).await;
    settle(&*master, &mut workers, is_converged).await;
    let text = master.snapshot().await.unwrap();
    let snapshot = Snapshot::read("snapshot", &text.0).unwrap();
    assert_eq!((snapshot.placements.len(), snapshot.workers.len(), snapshot.groups.len()), (2, 1, 1));
    assert_eq!(snapshot.groups[0].commit, commit(1));

    let everything = StatusFilter::default();
    let (_, seq) = master.status(0, Duration::ZERO, &everything).await.unwrap();
    let waiting = master.status(seq, Duration::from_secs(50), &everything);
    let report = PipelineReport { watcher: watcher(2), groups: vec![stage("default", 2, "observed", None)] };
    let ((text, later), told) =
        tokio::join!(async { waiting.await.unwrap() }, master.report_pipeline(report));
    told.unwrap();
    assert!(later > seq);
    let shown: Value = serde_json::from_str(&text.0).unwrap();
    check(&shown);
    assert_eq!(shown["watcher"]["ref"], "refs/heads/main");
    assert_eq!(shown["groups"][0]["evaluated"]["contains"][0], commit(1).to_string());
    let began = Instant::now();
    let (_, same) = master.status(later, Duration::from_millis(100), &everything).await.unwrap();
    assert!(same >= later && began.elapsed() < Duration::from_secs(45));
    let unknown = master.explain(&InstanceKey::parse("wep/0").unwrap()).await;
    let Err(CallError::Refused { code, message }) = unknown else { panic!("{unknown:?}") };
    assert_eq!(code, "unknown-instance");
    assert!(message.contains("web/0"), "{message}");
    running.stop().await;
}

/// F24: a heartbeat that is repeated or late is ignored and grants nothing.
#[tokio::test]
async fn repeated_heartbeats_are_ignored() {
    let dir = tempfile::tempdir().unwrap();
    let running = master(dir.path()).await;
    let master = running.handle();
    let mut workers = [Worker::new("w1")];
    workers[0].beat(&*master).await.unwrap();
    accepted(&*master, 1, "default", vms("default", &[("web", 1, "")])).await;
    settle(&*master, &mut workers, is_converged).await;
    let worker = &mut workers[0];
    assert!(worker.beat(&*master).await.unwrap().lease.is_some());
    worker.seq -= 1;
    let runs = std::mem::take(&mut worker.runs);
    assert!(worker.beat(&*master).await.unwrap().lease.is_none(), "the same number again");
    assert_eq!(status(&*master).await["state"], "converged", "what it said was not taken");
    worker.runs = runs;
    worker.session = 0;
    worker.seq = 1_000;
    assert!(worker.beat(&*master).await.unwrap().lease.is_none(), "an older session");
    running.stop().await;
}
