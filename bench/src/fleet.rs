//! What a fleet's decisions cost: scheduling, a lost worker, the status, a leader that takes over; what
//! the wire carries, and what daemons cost.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use stead_engine::fleet::canon::{intent_hash, specs_hash};
use stead_engine::fleet::cluster::{Cluster, Durable};
use stead_engine::fleet::converge::status;
use stead_engine::fleet::schedule::{SchedulePolicy, Scheduler, Wanted, schedule};
use stead_fleet::api::{Applied, Master as _, StatusFilter};
use stead_fleet::master::{Settings, start};
use stead_fleet::store::Embedded;
use stead_model::fleet::CommitId;
use stead_model::fleet::labels::{Operator, Requirement};
use stead_model::fleet::state::{Allocatable, Heartbeat, Publication, WorkerFacts, WorkerState, WorkerView};
use stead_model::fleet::vm::{
    Driver, OnLost, Ready, Resources, Restart, Rollout, Runtime, SPEC_VERSION, Spread, VmSpec,
};
use stead_model::{GroupName, VmId, WorkerName};

use crate::Effort;
use crate::sample::{median, time};
use crate::table::{Table, micros, millis};

mod daemons;
mod takeover;
pub(crate) mod wire;

/// Instances of each VM, and on each worker.
const SHARE: usize = 20;

/// The lines about fleets.
pub(crate) fn measure(effort: Effort, table: &mut Table) {
    let mut costs = Vec::new();
    for (instances, many) in [(1_000, "1k"), (10_000, "10k"), (100_000, "100k")] {
        let seconds = from_scratch(instances, effort.samples());
        let each = seconds / instances as f64;
        table.note(
            &format!("fleet: per instance from scratch, {many} on {}", instances / SHARE),
            micros(each),
        );
        costs.push(each);
        if instances == 100_000 {
            table.at_most(
                "fleet: 100k instances on 5k workers from scratch",
                millis(seconds),
                seconds,
                "1500 ms".to_owned(),
                1.5,
            );
        }
    }
    let growth = costs[2] / costs[1];
    table.at_most("fleet: growth, 100k over 10k", format!("{growth:.2} ×"), growth, "3 ×".to_owned(), 3.0);
    let lost = after_a_loss(100_000, effort.samples());
    table.at_most("fleet: one of 5k workers lost", millis(lost), lost, "50 ms".to_owned(), 0.05);
    let (shown, resumed) = of_a_master(100_000, effort.samples());
    table.at_most("fleet: status of 100k instances as JSON", millis(shown), shown, "300 ms".to_owned(), 0.3);
    table.at_most(
        "fleet: a leader takes over 100k, first assignment",
        millis(resumed),
        resumed,
        "1000 ms".to_owned(),
        1.0,
    );
    wire::measure(effort, table);
    daemons::measure(effort, table);
    takeover::measure(effort, table);
    for (instances, many) in [(10_000, "10k"), (30_000, "30k")] {
        let shown = of_a_stored_master(instances, effort.samples()).shown;
        table.note(&per_status(many), micros(shown / instances as f64));
    }
    let master = of_a_stored_master(100_000, effort.samples());
    table.note(&per_status("100k"), micros(master.shown / 100_000.0));
    table.note("fleet: 100k instances published, placed and stored", millis(master.published));
    let shown = master.shown;
    table.at_most("fleet: status of 100k from a master", millis(shown), shown, "300 ms".to_owned(), 0.3);
    table.at_most(
        "fleet: a master restarts with 100k, first assignment",
        millis(master.restarted),
        master.restarted,
        "1000 ms".to_owned(),
        1.0,
    );
}

fn per_status(many: &str) -> String {
    format!("fleet: per instance of a new status of {many} from a master")
}

/// What a master with its store takes, in seconds.
struct StoredMaster {
    published: f64,
    shown: f64,
    restarted: f64,
}

/// Returns what a master with a store in a file takes.
fn of_a_stored_master(instances: usize, samples: usize) -> StoredMaster {
    let (vms, workers) = fleet(instances);
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("master.db");
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let begin = || {
        let store = Embedded::open(&path).expect("a store");
        let settings = Settings {
            name: "bench".to_owned(),
            address: String::new(),
            store: Arc::new(store),
            history: 100,
            events: None,
            peers: None,
            rebuild: None,
        };
        runtime.block_on(start(settings)).expect("a master")
    };
    let running = begin();
    let master = running.handle();
    runtime.block_on(async {
        for (index, worker) in workers.iter().enumerate() {
            master.report(heartbeat(&worker.id, index)).await.expect("a beat");
        }
    });
    let message = publication(vms, |commit| {
        runtime.block_on(master.reserve_generation(commit, "bench")).expect("a number")
    });
    let published = time(|| {
        runtime.block_on(master.publish(message, "bench")).expect("a verdict");
    });
    let mut seen = 0;
    let shown = (0..samples).map(|index| {
        let beat = Heartbeat { seq: 2 + index as u64, ..heartbeat(&workers[0].id, 0) };
        runtime.block_on(master.report(beat)).expect("a beat");
        time(|| {
            // A status later than the last one: it is made anew, and none that was made before is shown again.
            let filter = StatusFilter::default();
            let asked = master.status(seen, Duration::from_secs(50), &filter);
            let (text, seq) = runtime.block_on(asked).expect("a status");
            assert!(text.0.len() > instances, "it lists everything");
            assert!(seq > seen, "it is a new one");
            seen = seq;
        })
    });
    let shown = median(shown.collect()).as_secs_f64();
    runtime.block_on(running.stop());
    let restarted = (0..samples).map(|_| {
        let mut running = None;
        let taken = time(|| {
            let next = begin();
            let asked = next.handle();
            let assignment = asked.assignment(&workers[0].id, Applied::default(), Duration::from_secs(50));
            assert!(runtime.block_on(assignment).expect("an answer").is_some(), "it has one");
            running = Some(next);
        });
        runtime.block_on(running.expect("a master").stop());
        taken
    });
    let restarted = median(restarted.collect()).as_secs_f64();
    StoredMaster { published: published.as_secs_f64(), shown, restarted }
}

fn publication(vms: Vec<Arc<VmSpec>>, reserve: impl FnOnce(&CommitId) -> u64) -> Publication {
    let commit = CommitId::parse(&"a".repeat(40)).expect("a commit");
    let group = GroupName::default_group();
    let specs_hash = specs_hash(vms.iter().map(AsRef::as_ref));
    Publication {
        intent_hash: intent_hash(&commit, &group, &specs_hash),
        generation: reserve(&commit),
        group,
        commit,
        specs_hash,
        specs: vms,
        policy: None,
        broken: Vec::new(),
    }
}

fn worker(index: usize) -> WorkerView {
    let name = WorkerName::parse(&format!("worker-{index}")).expect("a name");
    let allocatable = Allocatable { cpu_milli: 32_000, mem_mib: 65_536, disk_mib: None };
    let mut view = WorkerView::new(name, allocatable);
    view.labels = labels(index);
    view
}

fn labels(index: usize) -> BTreeMap<String, String> {
    let disk = if index.is_multiple_of(4) { "hdd" } else { "ssd" };
    [("zone".to_owned(), format!("z{}", index % 3)), ("disk".to_owned(), disk.to_owned())].into()
}

fn vm(index: usize) -> VmSpec {
    let sizes = [(250, 512), (500, 1024), (1000, 2048), (2000, 1024)];
    let (cpu_milli, mem_mib) = sizes[index % sizes.len()];
    let mut spread = Spread::default();
    if index.is_multiple_of(2) {
        spread.key = Some("zone".to_owned());
    }
    let ssd = Requirement { key: "disk".to_owned(), op: Operator::In, values: ["ssd".to_owned()].into() };
    VmSpec {
        id: VmId::parse(&format!("vm-{index}")).expect("an id"),
        group: GroupName::default_group(),
        replicas: SHARE as u32,
        labels: BTreeMap::new(),
        selector: if index % 4 == 1 { vec![ssd] } else { vec![] },
        spread,
        pin: None,
        priority: 0,
        resources: Resources { cpu_milli, mem_mib, disk_mib: 0 },
        restart: Restart::default(),
        ready: Ready::default(),
        rollout: Rollout::default(),
        on_lost: OnLost::Move,
        singleton: false,
        stop_seconds: 30,
        volumes: vec![],
        runtime: Runtime::new(Driver::Sandbox),
    }
}

fn fleet(instances: usize) -> (Vec<Arc<VmSpec>>, Vec<WorkerView>) {
    let count = instances / SHARE;
    ((0..count).map(|index| Arc::new(vm(index))).collect(), (0..count).map(worker).collect())
}

fn from_scratch(instances: usize, samples: usize) -> f64 {
    let (vms, workers) = fleet(instances);
    let previous = BTreeMap::new();
    let taken = (0..samples).map(|_| {
        time(|| {
            let wanted = Wanted {
                vms: &vms,
                workers: &workers,
                previous: &previous,
                policy: SchedulePolicy::default(),
            };
            let found = schedule(&wanted);
            assert_eq!(found.assign.len(), instances, "everything has a place");
        })
    });
    median(taken.collect()).as_secs_f64()
}

fn after_a_loss(instances: usize, samples: usize) -> f64 {
    let (vms, workers) = fleet(instances);
    let mut scheduler = Scheduler::new(SchedulePolicy::default());
    workers.iter().for_each(|worker| scheduler.set_worker(worker.clone()));
    vms.iter().for_each(|vm| scheduler.set_vm(Arc::clone(vm)));
    scheduler.settle();
    let taken = (0..samples).map(|index| {
        let mut lost = workers[index].clone();
        lost.state = WorkerState::Lost;
        time(|| {
            scheduler.set_worker(lost);
            assert!(!scheduler.settle().is_empty(), "what it had went elsewhere");
        })
    });
    median(taken.collect()).as_secs_f64()
}

/// Returns how long a status takes, and how long until a leader that takes over has its first assignment.
fn of_a_master(instances: usize, samples: usize) -> (f64, f64) {
    let (vms, workers) = fleet(instances);
    let mut cluster = Cluster::resume(Durable::default(), 1, 0);
    for (index, worker) in workers.iter().enumerate() {
        cluster.heartbeat(&heartbeat(&worker.id, index), 0);
    }
    let message = publication(vms, |commit| cluster.reserve(commit));
    cluster.publish(&message, 0);
    cluster.tick(0);
    let shown = (0..samples).map(|_| {
        time(|| {
            let text = serde_json::to_string(&status(&cluster, false)).expect("a status is JSON");
            assert!(text.len() > instances, "it lists everything");
        })
    });
    let shown = median(shown.collect()).as_secs_f64();
    let resumed = (0..samples).map(|_| {
        let durable = cluster.durable.clone();
        time(|| {
            let mut next = Cluster::resume(durable, 2, 1_000);
            next.tick(1_000);
            assert!(next.assignment(&workers[0].id).is_some(), "it has an answer");
        })
    });
    (shown, median(resumed.collect()).as_secs_f64())
}

fn heartbeat(worker: &WorkerName, index: usize) -> Heartbeat {
    Heartbeat {
        worker: worker.clone(),
        boot_id: String::new(),
        session: 1,
        process: String::new(),
        seq: 1,
        seen_generation: 0,
        seen_revision: 0,
        full: true,
        instances: vec![],
        facts: Some(WorkerFacts {
            capacity: Allocatable { cpu_milli: 32_000, mem_mib: 65_536, disk_mib: None },
            used: Resources::default(),
            drivers: [Driver::Sandbox].into(),
            labels: labels(index),
            arch: stead_model::fleet::vm::Arch::default(),
            os: "linux".to_owned(),
            spec_version: SPEC_VERSION,
            disk_pressure: false,
            nix_version: None,
            notes: Vec::new(),
            foreign: Default::default(),
            mapped: Default::default(),
        }),
    }
}
