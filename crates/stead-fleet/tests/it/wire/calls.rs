//! What is sent arrives, and what is answered comes back.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use stead_engine::fleet::canon::vm_hash;
use stead_fleet::api::{Applied, CallError, GroupPipeline, HoldOrder, Master, PipelineReport, StatusFilter};
use stead_fleet::events::{Ev, Events, read};
use stead_fleet::identity::{Authority, MemoryLedger};
use stead_fleet::master::{self, Settings};
use stead_fleet::store::{Embedded, StoreLedger};
use stead_fleet::wire::{Client, ServeError, serve};
use stead_model::fleet::peer::Role;
use stead_model::fleet::state::{
    Allocatable, HoldTarget, InstanceState, Outcome, Publication, Seen, WorkerFacts,
};
use stead_model::fleet::vm::{Driver, Resources};
use stead_model::fleet::{Code, FleetFile, InstanceKey};
use stead_model::plan::Digest;
use stead_model::{GroupName, WorkerName};
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::small::{Running, client, code, commit, heartbeat, publication};

#[tokio::test(flavor = "multi_thread")]
async fn calls_reach_the_master_and_come_back() {
    let running = Running::start().await;
    let publisher = running.client(Role::Publisher, "ci").await;
    assert_eq!(publisher.reserve_generation(&commit('a'), "ignored").await.unwrap(), 1);
    assert_eq!(publisher.reserve_generation(&commit('b'), "ignored").await.unwrap(), 2);
    let sent = publication(1, &["db", "web"]);
    let verdict = publisher.publish(sent.clone(), "ignored").await.unwrap();
    assert_eq!((verdict.outcome, verdict.active, verdict.highest), (Outcome::Accepted, 1, 1));
    let (published, by) = running.master.published.lock().unwrap()[0].clone();
    assert_eq!((published, by.as_str()), (sent.clone(), "ci"), "the certificate says who publishes");

    let policy = FleetFile {
        suspend: stead_model::fleet::fleet_file::Suspend { all: true, ..Default::default() },
        ..FleetFile::default()
    };
    for policy in [policy, FleetFile::default()] {
        let fleet = Publication {
            group: GroupName::fleet(),
            specs: vec![],
            policy: Some(Arc::new(policy.clone())),
            ..sent.clone()
        };
        publisher.publish(fleet.clone(), "").await.unwrap();
        assert_eq!(running.master.published.lock().unwrap().last().unwrap().0, fleet);
    }
    // Section 6: groups between which VMs move go in one message; each has its verdict.
    let both = vec![sent.clone(), publication(3, &["db"])];
    let verdicts = publisher.publish_together(both.clone(), "").await.unwrap();
    assert_eq!(verdicts.iter().map(|verdict| verdict.active).collect::<Vec<_>>(), [sent.generation, 3]);
    let published: Vec<_> =
        running.master.published.lock().unwrap().iter().map(|(one, _)| one.clone()).collect();
    assert!(published.ends_with(&both));
    publisher.publish(sent.clone(), "").await.unwrap();

    let worker = running.client(Role::Worker, "w1").await;
    let name = WorkerName::parse("w1").unwrap();
    let assignment = worker.assignment(&name, Applied::default(), Duration::ZERO).await.unwrap().unwrap();
    assert_eq!(assignment, *running.master.assignment.borrow());
    assert_eq!(assignment.specs, sent.specs);

    let mut report = heartbeat("w1", 5, 1);
    report.full = true;
    report.facts = Some(WorkerFacts {
        capacity: Allocatable { cpu_milli: 4_000, mem_mib: 4_096, disk_mib: Some(7) },
        used: Resources { cpu_milli: 1, mem_mib: 2, disk_mib: 3 },
        drivers: [Driver::Sandbox, Driver::Qemu].into(),
        labels: [("zone".to_owned(), "a".to_owned())].into(),
        arch: Default::default(),
        os: "linux".to_owned(),
        spec_version: 1,
        disk_pressure: true,
        nix_version: Some("2.8".to_owned()),
        notes: vec!["no quota".to_owned()],
        foreign: Default::default(),
        mapped: Default::default(),
    });
    for (at, (_, state)) in (0..).zip(InstanceState::WORDS) {
        report.instances.push(Seen {
            key: InstanceKey::parse(&format!("web/{at}")).unwrap(),
            vm_hash: (at > 0).then(|| vm_hash(&sent.specs[0])),
            state,
            ready: at % 2 == 0,
            uptime_ms: u64::MAX - at,
            attempts: 3,
            code: (at > 0).then_some(Code::CrashLoop),
            detail: "exit 1 – é".to_owned(),
            group: (at > 0).then(|| sent.group.clone()),
            takes: Resources { cpu_milli: 4, mem_mib: 5, disk_mib: at },
        });
    }
    let beat = worker.report(report.clone()).await.unwrap();
    assert_eq!((beat.lease, beat.interval, beat.needs_full), (Some(120_000), 5_000, true));
    assert_eq!(beat.leader, "here:1");
    assert_eq!(running.master.heard.lock().unwrap()[0], report);

    *running.master.status.lock().unwrap() = "x".repeat(3 << 20);
    let observer = running.client(Role::Observer, "page").await;
    let (status, seq) = observer.status(0, Duration::ZERO, &StatusFilter::default()).await.unwrap();
    assert_eq!((status.0.len(), seq), (3 << 20, 3));
    let web = InstanceKey::parse("web/0").unwrap();
    assert_eq!(observer.explain(&web).await.unwrap().0, "{\"instance\":\"web/0\"}");
    assert_eq!(code(observer.explain(&InstanceKey::parse("web/99").unwrap()).await), "unknown");
    assert_eq!(observer.snapshot().await.unwrap().0, "{\"schema\":1}");
    assert_eq!(observer.leader().await.epoch, 7);

    let pipeline = PipelineReport {
        watcher: Default::default(),
        groups: vec![GroupPipeline {
            group: GroupName::default_group(),
            commit: commit('a'),
            contains: vec![],
            stage: "built".to_owned(),
            failure: None,
        }],
    };
    publisher.report_pipeline(pipeline.clone()).await.unwrap();
    assert_eq!(*running.master.reports.lock().unwrap(), [pipeline]);
    let operator = running.client(Role::Operator, "ann").await;
    let hold =
        HoldOrder::Hold { target: HoldTarget::Worker(name), duration: 5_000, reason: "disk".to_owned() };
    assert_eq!(operator.set_hold(hold.clone(), "somebody else").await.unwrap(), "hold-1");
    assert_eq!(*running.master.holds.lock().unwrap(), [(hold, "ann".to_owned())]);
    running.stop().await;
}

/// Case 12: `unchanged` only if generation and revision are current, and then after the wait.
#[tokio::test(flavor = "multi_thread")]
async fn an_assignment_that_is_current_is_waited_for() {
    let running = Running::start().await;
    let worker = running.client(Role::Worker, "w1").await;
    let name = WorkerName::parse("w1").unwrap();
    running.master.publish(publication(3, &["web"]), "").await.unwrap();
    let current = Applied { generation: 3, revision: 1 };
    let start = Instant::now();
    assert_eq!(worker.assignment(&name, current, Duration::from_millis(300)).await.unwrap(), None);
    assert!(start.elapsed() >= Duration::from_millis(300) && start.elapsed() < Duration::from_secs(45));
    for older in [Applied { generation: 2, revision: 1 }, Applied { generation: 3, revision: 0 }] {
        let found = worker.assignment(&name, older, Duration::from_secs(50)).await.unwrap().unwrap();
        assert_eq!((found.generation, found.revision, found.instances.len()), (3, 1, 1));
    }
    let waiting = worker.assignment(&name, current, Duration::from_secs(50));
    let publish = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        running.master.publish(publication(4, &["web", "db"]), "").await.unwrap();
    };
    let (found, ()) = tokio::join!(waiting, publish);
    assert_eq!(found.unwrap().unwrap().generation, 4);
    running.stop().await;
}

/// Section 12: a spec that this version does not understand leaves the old instance alone.
#[tokio::test(flavor = "multi_thread")]
async fn a_spec_that_is_not_what_its_hash_says_does_not_come_along() {
    let running = Running::start().await;
    running.master.publish(publication(1, &["db", "web"]), "").await.unwrap();
    running.master.assignment.send_modify(|found| found.instances[0].vm_hash = Digest([7; 32]));
    let worker = running.client(Role::Worker, "w1").await;
    let name = WorkerName::parse("w1").unwrap();
    let found = worker.assignment(&name, Applied::default(), Duration::ZERO).await.unwrap().unwrap();
    assert_eq!((found.instances[0].spec, found.instances[1].spec), (u32::MAX, 1));
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_follow_the_leader() {
    let ledger = Arc::new(MemoryLedger::default());
    let leader = Running::with(ledger.clone(), "127.0.0.1:0").await;
    let follower = Running::with(ledger, "127.0.0.1:0").await;
    *follower.master.leader.lock().unwrap() = Some(leader.address.clone());
    let publisher = follower.client(Role::Publisher, "ci").await;
    assert_eq!(publisher.hello().await.unwrap().leader, leader.address);
    assert!(publisher.publish(publication(1, &["web"]), "").await.is_ok());
    assert_eq!(leader.master.published.lock().unwrap().len(), 1);
    assert!(follower.master.published.lock().unwrap().is_empty());
    // Nobody leads: the call says so, and does not hang.
    *leader.master.leader.lock().unwrap() = Some(String::new());
    let nobody = publisher.reserve_generation(&commit('a'), "").await;
    assert!(matches!(nobody, Err(CallError::NotLeader { .. })), "{nobody:?}");
    leader.stop().await;
    follower.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_master_that_is_away_is_found_again() {
    let ledger = Arc::new(MemoryLedger::default());
    let first = Running::with(ledger.clone(), "127.0.0.1:0").await;
    let address = first.address.clone();
    let mut identity = first.identity(Role::Worker, "w1").await;
    // The first of two masters never answers.
    identity.masters.insert(0, "127.0.0.1:1".to_owned());
    let worker = client(identity);
    assert!(worker.report(heartbeat("w1", 1, 1)).await.is_ok());
    first.stop().await;
    let start = Instant::now();
    assert!(matches!(worker.report(heartbeat("w1", 1, 2)).await, Err(CallError::Away(_))));
    assert!(start.elapsed() < Duration::from_secs(45));
    let second = Running::with(ledger, &address).await;
    let mut seq = 3;
    while worker.report(heartbeat("w1", 1, seq)).await.is_err() {
        assert!(start.elapsed() < Duration::from_secs(100));
        seq += 1;
    }
    assert_eq!(second.master.heard.lock().unwrap().len(), 1);
    second.stop().await;
}

/// The real master behind the wire, with its store and the authority in it.
struct Real {
    master: master::Running,
    authority: Arc<Authority>,
    address: String,
    shutdown: CancellationToken,
    served: JoinHandle<Result<(), ServeError>>,
}

impl Real {
    async fn start(dir: &Path) -> Self {
        let store = Arc::new(Embedded::open(&dir.join("master.db")).unwrap());
        let authority = Authority::open(Arc::new(StoreLedger::new(store.clone())), "m1").await.unwrap();
        let events = Arc::new(Events::open(&dir.join("events")).unwrap());
        authority.log_to(Arc::clone(&events));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let settings = Settings {
            name: "m1".to_owned(),
            address: address.clone(),
            store,
            history: 100,
            events: Some(events),
            peers: None,
            rebuild: None,
        };
        let master = master::start(settings).await.unwrap();
        let shutdown = CancellationToken::new();
        let served = serve(listener, master.handle(), Arc::clone(&authority), shutdown.clone());
        let served = Handle::current().spawn(served);
        Self { master, authority, address, shutdown, served }
    }

    async fn member(&self, role: Role, name: &str) -> Arc<Client> {
        let mut identity = self.authority.enrol(role, name).await.unwrap();
        identity.masters = vec![self.address.clone()];
        client(identity)
    }

    async fn stop(self) {
        self.shutdown.cancel();
        self.served.await.unwrap().unwrap();
        self.master.stop().await;
    }
}

/// Section 6: everything that is wrong is told at once, each under its VM, and written down; nothing is stored.
#[tokio::test(flavor = "multi_thread")]
async fn broken_vms_are_told_by_their_names() {
    let dir = tempfile::tempdir().unwrap();
    let real = Real::start(dir.path()).await;
    let publisher = real.member(Role::Publisher, "ci").await;
    let generation = publisher.reserve_generation(&commit('a'), "").await.unwrap();
    let mut broken = publication(generation, &["db", "fine", "web"]);
    broken.intent_hash = Digest([7; 32]);
    broken.specs.push(Arc::clone(&broken.specs[1]));
    let db = Arc::make_mut(&mut broken.specs[0]);
    (db.resources.mem_mib, db.replicas) = (0, 20_000);
    Arc::make_mut(&mut broken.specs[2]).singleton = true;
    for spec in &mut broken.specs[2..] {
        Arc::make_mut(spec).runtime.env.insert("LARGE".to_owned(), "x".repeat(600 << 10));
    }
    let verdict = publisher.publish(broken, "").await.unwrap();
    assert_eq!((verdict.outcome, verdict.active, verdict.highest), (Outcome::Invalid, 0, 0));
    let told: Vec<(&str, &str)> =
        verdict.problems.iter().map(|found| (found.code.as_str(), found.subject.as_str())).collect();
    let expected = [
        ("duplicate-id", "fine.id"),
        ("fleet/conflict", "web.singleton"),
        ("fleet/out-of-range", "db.replicas"),
        ("fleet/out-of-range", "db.resources.memMiB"),
        ("intent-hash", "default"),
        ("too-large", "fine"),
        ("too-large", "web"),
    ];
    assert_eq!(told, expected, "{verdict:?}");

    let good = publisher.publish(publication(generation, &["db", "web"]), "").await.unwrap();
    assert_eq!(good.outcome, Outcome::Accepted, "{good:?}");
    real.stop().await;
    let lines = read(&dir.path().join("events")).unwrap().into_iter();
    let refused: Vec<_> = lines.filter(|line| line.ev == Ev::Refused).map(|line| line.fields).collect();
    assert!(refused.iter().all(|fields| fields.by == "ci" && fields.commit == Some(commit('a'))));
    let refused: Vec<(&str, &str)> = refused
        .iter()
        .map(|fields| (fields.code.as_str(), fields.reason.split(": ").next().unwrap()))
        .collect();
    assert_eq!(refused, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_real_master_is_served() {
    let dir = tempfile::tempdir().unwrap();
    let real = Real::start(dir.path()).await;
    let worker = real.member(Role::Worker, "w1").await;
    let mut report = heartbeat("w1", 1, 1);
    (report.full, report.seen_generation, report.seen_revision) = (true, 0, 0);
    report.facts = Some(WorkerFacts {
        capacity: Allocatable { cpu_milli: 8_000, mem_mib: 8_192, disk_mib: None },
        used: Resources::default(),
        drivers: [Driver::Sandbox].into(),
        labels: Default::default(),
        arch: Default::default(),
        os: "linux".to_owned(),
        spec_version: 1,
        disk_pressure: false,
        nix_version: None,
        notes: Vec::new(),
        foreign: Default::default(),
        mapped: Default::default(),
    });
    worker.report(report).await.unwrap();
    let publisher = real.member(Role::Publisher, "ci").await;
    let generation = publisher.reserve_generation(&commit('a'), "").await.unwrap();
    let verdict = publisher.publish(publication(generation, &["db", "web"]), "").await.unwrap();
    assert_eq!(verdict.outcome, Outcome::Accepted, "{verdict:?}");
    let again = publisher.publish(publication(generation, &["db", "web"]), "").await.unwrap();
    assert_eq!(again.outcome, Outcome::Duplicate, "{again:?}");
    let name = WorkerName::parse("w1").unwrap();
    let mut applied = Applied::default();
    let start = Instant::now();
    loop {
        let found = worker.assignment(&name, applied, Duration::from_secs(5)).await.unwrap();
        let found = found.expect("something is to run");
        if found.instances.len() == 4 {
            assert_eq!(found.specs, publication(generation, &["db", "web"]).specs);
            break;
        }
        applied = Applied { generation: found.generation, revision: found.revision };
        assert!(start.elapsed() < Duration::from_secs(60), "{found:?}");
    }
    let observer = real.member(Role::Observer, "page").await;
    let (status, _) = observer.status(0, Duration::ZERO, &StatusFilter::default()).await.unwrap();
    assert!(status.0.contains("web/1"), "{}", status.0);
    real.stop().await;
}

/// Section 12: a connection that has been idle for 15 seconds is asked whether it is there, and stays.
#[tokio::test(flavor = "multi_thread")]
async fn an_idle_connection_is_asked_for() {
    let running = Running::start().await;
    let worker = running.client(Role::Worker, "w1").await;
    let name = WorkerName::parse("w1").unwrap();
    // A wait is idle too: nothing comes while it lasts.
    let wait = Duration::from_secs(22);
    let applied = Applied::default();
    assert_eq!(worker.assignment(&name, applied, wait).await.unwrap(), None);
    // An answer that comes late is asked for again.
    assert!(running.master.hellos.load(Ordering::SeqCst) >= 2, "one to begin with, one in between");
    running.stop().await;
}

/// Section 12: a group beyond 64 MiB is refused before it is sent, by name, and the connection goes on.
#[tokio::test(flavor = "multi_thread")]
async fn a_group_beyond_the_largest_message_is_not_sent() {
    let running = Running::start().await;
    let publisher = running.client(Role::Publisher, "ci").await;
    let mut large = publication(1, &["web"]);
    let mut spec = (*large.specs[0]).clone();
    spec.runtime.env.insert("LARGE".to_owned(), "x".repeat(1 << 20));
    large.specs = std::iter::repeat_n(Arc::new(spec), 64).collect();
    let refused = publisher.publish(large, "ci").await.unwrap_err().to_string();
    assert!(refused.contains("group default takes") && refused.contains("further groups"), "{refused}");
    assert!(publisher.reserve_generation(&commit('a'), "ci").await.is_ok());
    running.stop().await;
}
