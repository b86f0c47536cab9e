//! What the wire carries: 5,000 simulated workers over TLS to one master in a process of its own.

use std::io::{BufRead, BufReader};
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use stead_engine::fleet::canon::{intent_hash, specs_hash};
use stead_fleet::api::Applied;
use stead_fleet::identity::{Authority, Identity, client_config};
use stead_fleet::master::{self, Settings};
use stead_fleet::store::{Embedded, StoreLedger};
use stead_fleet::wire::{Answer, Carrier, Client, Link, Mode, Request, Transport, serve};
use stead_model::fleet::CommitId;
use stead_model::fleet::peer::Role;
use stead_model::fleet::state::Publication;
use stead_model::{GroupName, WorkerName};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::{heartbeat, vm};
use crate::sample::memory_of;
use crate::table::{Table, bytes, millis, per_second};
use crate::{Effort, interrupt};

/// How many workers.
const WORKERS: usize = 5_000;
/// How often each reports.
const BEAT: Duration = Duration::from_secs(5);
/// The word that makes this program the master.
const CHILD: &str = "fleet-master";

/// The lines about the wire.
pub(super) fn measure(effort: Effort, table: &mut Table) {
    if !has_files() {
        table.skipped("fleet: 5k workers over TLS", "a process may not open 20,000 files");
        return;
    }
    let runtime = Runtime::new().expect("a runtime");
    let dir = tempfile::tempdir().expect("a directory");
    let store = dir.path().join("master.db");
    let identities = runtime.block_on(enrol(&store));
    let mut running = Running::start(&store);
    let length = match effort {
        Effort::Quick => BEAT * 2,
        Effort::Full => BEAT * 6,
    };
    let seen = runtime.block_on(drive(&running.address, identities, length));
    interrupt::check();
    table.note("fleet: 5k workers connected over TLS", millis(seen.connected.as_secs_f64()));
    let wanted = WORKERS as f64 / BEAT.as_secs_f64();
    table.at_least(
        "fleet: heartbeats answered, 5k workers",
        per_second(seen.beats, "heartbeats"),
        seen.beats,
        per_second(wanted * 0.99, "heartbeats"),
        wanted * 0.99,
    );
    table.note("fleet: a heartbeat's answer, p99", millis(seen.beat_p99.as_secs_f64()));
    let p99 = seen.received_p99.as_secs_f64();
    table.at_most("fleet: publish to assignment, p99 of 5k", millis(p99), p99, "2000 ms".to_owned(), 2.0);
    let resident = memory_of(running.child.id(), "VmHWM:") as f64;
    let bar = f64::from(512 << 20);
    table.at_most("fleet: a master's memory, 5k workers", bytes(resident), resident, bytes(bar), bar);
    running.stop();
}

/// Raises the limit of open files; whether that is enough.
fn has_files() -> bool {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    setrlimit(Resource::Nofile, raised).is_ok() && limit.maximum.is_none_or(|most| most >= 20_000)
}

/// Makes the fleet: an identity for each worker, and one for who publishes.
async fn enrol(store: &Path) -> Vec<Identity> {
    let store = Arc::new(Embedded::open(store).expect("a store"));
    let authority = Authority::open(Arc::new(StoreLedger::new(store)), "m1").await.expect("an authority");
    let mut identities = Vec::with_capacity(WORKERS + 1);
    for index in 0..WORKERS {
        let name = format!("worker-{index}");
        identities.push(authority.enrol(Role::Worker, &name).await.expect("an identity"));
    }
    identities.push(authority.enrol(Role::Publisher, "ci").await.expect("an identity"));
    identities
}

/// The master, in its own process.
struct Running {
    child: Child,
    address: String,
}

impl Running {
    fn start(store: &Path) -> Self {
        let program = std::env::current_exe().expect("this program has a path");
        let mut child = Command::new(program)
            .arg(CHILD)
            .arg(store)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("this program can be started again");
        let mut address = String::new();
        let stdout = child.stdout.take().expect("it is piped");
        BufReader::new(stdout).read_line(&mut address).expect("the master says where it is");
        Self { child, address: address.trim().to_owned() }
    }

    fn stop(&mut self) {
        // The master ends when nobody holds its input any more.
        drop(self.child.stdin.take());
        self.child.wait().ok();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// Whether this program is to be the master; then it is, until its input ends.
pub(crate) fn is_child(words: &[String]) -> bool {
    let [child, store] = words else { return false };
    if child != CHILD {
        return false;
    }
    has_files();
    Runtime::new().expect("a runtime").block_on(be_master(Path::new(store)));
    true
}

#[expect(clippy::print_stdout, reason = "how a child answers its parent")]
async fn be_master(store: &Path) {
    let store = Arc::new(Embedded::open(store).expect("a store"));
    let authority = Authority::open(Arc::new(StoreLedger::new(Arc::clone(&store) as _)), "m1").await;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port");
    let address = listener.local_addr().expect("it is bound").to_string();
    let settings = Settings {
        name: "m1".to_owned(),
        address: address.clone(),
        store,
        history: 100,
        events: None,
        peers: None,
        rebuild: None,
    };
    let master = master::start(settings).await.expect("a master");
    let shutdown = CancellationToken::new();
    println!("{address}");
    let served = serve(listener, master.handle(), authority.expect("an authority"), shutdown.clone());
    let ended = tokio::task::spawn_blocking(move || {
        let mut line = String::new();
        std::io::stdin().read_line(&mut line).ok();
        shutdown.cancel();
    });
    served.await.expect("it serves");
    ended.await.ok();
    master.stop().await;
}

/// What was seen.
struct Seen {
    connected: Duration,
    /// Each second.
    beats: f64,
    beat_p99: Duration,
    received_p99: Duration,
}

async fn connect(carrier: &Carrier, address: &str, identity: &Identity) -> Arc<dyn Link> {
    let tls = Arc::new(client_config(identity).expect("an identity"));
    let mode = Mode::Member { tls, fleet: identity.peer().fleet.clone() };
    let mut tries = 0;
    loop {
        // One address may shake only so many hands at once: whoever is turned away comes again, as agents do.
        let tried = carrier.connect(address, &mode).await;
        if tried.is_ok() || tries == 200 {
            return tried.expect("a connection");
        }
        tries += 1;
        tokio::time::sleep(Duration::from_millis(250)).await;
    }
}

async fn drive(address: &str, mut identities: Vec<Identity>, length: Duration) -> Seen {
    let carrier = Carrier::start().expect("a thread");
    let mut publisher = identities.pop().expect("who publishes");
    publisher.masters = vec![address.to_owned()];
    let start = Instant::now();
    let mut connecting = JoinSet::new();
    for (index, identity) in identities.into_iter().enumerate() {
        let (carrier, address) = (Arc::clone(&carrier), address.to_owned());
        connecting.spawn(async move { (index, connect(&carrier, &address, &identity).await) });
    }
    let mut links = connecting.join_all().await;
    let connected = start.elapsed();
    links.sort_by_key(|(index, _)| *index);
    let answered = Arc::new(AtomicU64::new(0));
    let (mut beats, mut waits) = (JoinSet::new(), JoinSet::new());
    let began = Instant::now();
    for (index, link) in &links {
        let (link, index, answered) = (Arc::clone(link), *index, Arc::clone(&answered));
        beats.spawn(async move { beat(&link, index, began, length, &answered).await });
    }
    tokio::time::sleep(length / 2).await;
    for (index, link) in links {
        waits.spawn(async move { receive(&link, index).await });
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    let client = Client::new(carrier, publisher).expect("who publishes");
    let published = Instant::now();
    publish(&client).await;
    let mut received: Vec<Duration> =
        waits.join_all().await.into_iter().map(|at| at.duration_since(published)).collect();
    let mut latencies: Vec<Duration> = beats.join_all().await.into_iter().flatten().collect();
    let beats = answered.load(Ordering::Relaxed) as f64 / began.elapsed().as_secs_f64();
    Seen { connected, beats, beat_p99: p99(&mut latencies), received_p99: p99(&mut received) }
}

fn p99(values: &mut [Duration]) -> Duration {
    values.sort_unstable();
    values.get(values.len() * 99 / 100).copied().unwrap_or_default()
}

/// Reports for one worker until `length` is over; returns how long answers took.
async fn beat(
    link: &Arc<dyn Link>,
    index: usize,
    began: Instant,
    length: Duration,
    answered: &AtomicU64,
) -> Vec<Duration> {
    let name = WorkerName::parse(&format!("worker-{index}")).expect("a name");
    let mut latencies = Vec::new();
    // Spread over the interval, as workers that started at different times are.
    let mut next = BEAT.mul_f64(index as f64 / WORKERS as f64);
    let mut seq = 0;
    while next < length {
        tokio::time::sleep_until((began + next).into()).await;
        seq += 1;
        let mut report = heartbeat(&name, index);
        report.seq = seq;
        if seq > 1 {
            report.full = false;
            report.facts = None;
        }
        let sent = Instant::now();
        link.call(Request::Report(Arc::new(report))).await.expect("an answer");
        latencies.push(sent.elapsed());
        answered.fetch_add(1, Ordering::Relaxed);
        next += BEAT;
    }
    latencies
}

/// Returns when a worker has what it is to run.
async fn receive(link: &Arc<dyn Link>, index: usize) -> Instant {
    let worker = WorkerName::parse(&format!("worker-{index}")).expect("a name");
    let mut applied = Applied::default();
    loop {
        let request = Request::Assignment { worker: worker.clone(), applied, wait: Duration::from_secs(50) };
        let Answer::Assignment(found) = link.call(request).await.expect("an answer") else {
            panic!("an assignment was asked for");
        };
        if let Some(sent) = found {
            applied = sent.applied();
            if applied.generation > 0 {
                return Instant::now();
            }
        }
    }
}

async fn publish(client: &Client) {
    use stead_fleet::api::Master;

    let (commit, group) = (CommitId::parse(&"a".repeat(40)).expect("a commit"), GroupName::default_group());
    let specs: Vec<_> = (0..WORKERS / 4).map(|index| Arc::new(vm(index))).collect();
    let specs_hash = specs_hash(specs.iter().map(AsRef::as_ref));
    let generation = client.reserve_generation(&commit, "ci").await.expect("a number");
    let intent_hash = intent_hash(&commit, &group, &specs_hash);
    let publication = Publication {
        group,
        commit,
        generation,
        intent_hash,
        specs_hash,
        specs,
        policy: None,
        broken: Vec::new(),
    };
    let verdict = client.publish(publication, "ci").await.expect("a verdict");
    assert_eq!(verdict.outcome, stead_model::fleet::state::Outcome::Accepted, "{verdict:?}");
}
