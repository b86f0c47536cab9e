use stead_model::node::wire::{JobState, ReportKind, ReportStatus, SignalKind};

use super::*;

fn open(dir: &std::path::Path) -> Store {
    open_until(dir).0
}

/// Returns a store, and what it stops with.
fn open_until(dir: &std::path::Path) -> (Store, watch::Sender<bool>) {
    let place = ServerPlace { site: dir.join("site"), state: dir.to_owned() };
    std::fs::create_dir_all(place.directory()).unwrap();
    let (stop, stopping) = watch::channel(false);
    (Store::open(&place, 1, stopping, Arc::new(|_| ())).unwrap(), stop)
}

fn edge() -> NodeName {
    NodeName::parse("edge").unwrap()
}

fn converge() -> SignalRequest {
    SignalRequest { kind: SignalKind::Converge, payload: serde_json::Map::new() }
}

fn job(argument: &str) -> JobRequest {
    serde_json::from_value(serde_json::json!({"node": "edge", "argv": ["echo", argument], "ttl": 60}))
        .unwrap()
}

/// A journal that was moved away does not give ids again that agents have taken down.
#[tokio::test]
async fn ids_go_on_where_a_journal_was_lost() {
    let dir = tempfile::tempdir().unwrap();
    let before = open(dir.path()).signal(&edge(), &converge()).await.unwrap();
    std::fs::remove_file(dir.path().join("server/server-1.journal")).unwrap();
    // Ids come from a clock of milliseconds.
    std::thread::sleep(Duration::from_millis(2));
    let after = open(dir.path()).signal(&edge(), &converge()).await.unwrap();
    assert!(after.sequence() > before.sequence(), "{before} {after}");
}

/// A poll that is not allowed any more when there is something for it gets nothing, and the signal stays.
#[tokio::test]
async fn who_may_not_know_any_more_is_told_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _stop) = open_until(dir.path());
    let allowed = std::sync::atomic::AtomicBool::new(true);
    let may_know = || match allowed.load(std::sync::atomic::Ordering::SeqCst) {
        true => Ok(()),
        false => Err(WireError::new(WireCode::E303, "revoked")),
    };
    let waiting = edge();
    let poll = store.next(&waiting, Taken::Unsaid, Duration::from_secs(60), may_know);
    let revoke = async {
        while store.connected() == 0 {
            tokio::task::yield_now().await;
        }
        allowed.store(false, std::sync::atomic::Ordering::SeqCst);
        store.signal(&edge(), &converge()).await.unwrap()
    };
    let (answer, sent) = tokio::join!(poll, revoke);
    assert_eq!(answer.unwrap_err().code, WireCode::E303);
    let next = store.next(&waiting, Taken::Unsaid, Duration::ZERO, || Ok(())).await.unwrap();
    assert_eq!(next.unwrap().id, sent);
}

/// A list that is too long for one answer comes in parts, none of which is empty.
#[tokio::test]
async fn lists_come_in_parts() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let long = "x".repeat(3 << 20);
    let mut ids = Vec::new();
    for _ in 0..5 {
        ids.push(store.submit(&job(&long), "ann").await.unwrap().id);
    }
    let (mut seen, mut after, mut parts) = (Vec::new(), None, 0);
    loop {
        let page = store.jobs(after.as_ref());
        assert!(!page.items.is_empty());
        seen.extend(page.items.into_iter().map(|job| job.id));
        parts += 1;
        match page.next {
            Some(next) => after = Some(MessageId::parse(&next).unwrap()),
            None => break,
        }
    }
    assert_eq!((seen, parts), (ids, 3));
}

/// What a job wrote and is not there any more is said to be missing, not shown as nothing.
#[tokio::test]
async fn output_that_is_gone_is_said_to_be_gone() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(dir.path());
    let id = store.submit(&job("hi"), "ann").await.unwrap().id;
    store.next(&edge(), Taken::Unsaid, Duration::ZERO, || Ok(())).await.unwrap().unwrap();
    let report = NodeReport {
        id: Some(id.clone()),
        rc: Some(0),
        stdout: "hi".to_owned(),
        ..NodeReport::new(
            stead_model::node::wire::ReportKind::Job,
            stead_model::node::wire::ReportStatus::Complete,
        )
    };
    store.report(&edge(), report).await.unwrap();
    assert_eq!((store.job(&id).unwrap().stdout.as_str(), store.job(&id).unwrap().error), ("hi", None));
    std::fs::remove_file(dir.path().join(format!("server/server-1.outputs/{id}"))).unwrap();
    let job = store.job(&id).unwrap();
    assert_eq!(job.state, JobState::Succeeded);
    assert!(job.error.unwrap().contains("not there any more"));
}

/// Section 9: connected is who asks, or asked less than 15 seconds ago.
#[test]
fn an_agent_is_connected_for_15_seconds_after_its_last_poll() {
    let polled = clock::instant();
    let presence = |polling| Presence { poll: 1, polling, last_poll: Some(polled), ..Presence::default() };
    for (seconds, is_connected) in [(0, true), (14, true), (15, false), (3600, false)] {
        let now = polled + Duration::from_secs(seconds);
        assert_eq!(presence(0).is_connected(now), is_connected, "{seconds}");
        assert!(presence(1).is_connected(now), "it asks still: {seconds}");
    }
    assert!(!Presence::default().is_connected(polled), "it never asked");
}

/// Section 9: an agent that was heard and asks no more is stale, also for a server that was not there then.
#[tokio::test]
async fn an_agent_that_was_heard_before_is_stale() {
    let dir = tempfile::tempdir().unwrap();
    let state = |store: &Store| store.statuses(None).items.first().map(|status| status.agent);
    let (store, _stop) = open_until(dir.path());
    assert_eq!(state(&store), None);
    assert_eq!(unheard(&edge()).agent, AgentState::None);
    store.next(&edge(), Taken::Unsaid, Duration::ZERO, || Ok(())).await.unwrap();
    let report = NodeReport::new(ReportKind::Config, ReportStatus::Complete);
    store.report(&edge(), report).await.unwrap();
    drop(store);
    let later = open(dir.path());
    assert_eq!(state(&later), Some(AgentState::Stale));
}
