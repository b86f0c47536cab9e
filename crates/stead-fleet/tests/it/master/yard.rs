//! What tests of masters share: publications, and workers that do as they are told.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::Value;
use stead_engine::fleet::canon::{intent_hash, policy_hash, specs_hash};
use stead_fleet::api::{Applied, Beat, CallError, Master, StatusFilter};
use stead_fleet::events::Events;
use stead_fleet::master::{Running, Settings, start};
use stead_fleet::store::{Embedded, FleetStore};
use stead_model::diagnostic::{Diagnostics, Source};
use stead_model::fleet::state::{
    Allocatable, Assignment, Heartbeat, InstanceState, Outcome, Publication, Seen, Verdict, WorkerFacts,
};
use stead_model::fleet::vm::{Driver, Resources, read_specs};
use stead_model::fleet::{CommitId, FleetFile, InstanceKey, VmSpec};
use stead_model::plan::Digest;
use stead_model::{GroupName, WorkerName};

pub(super) fn settings(store: Arc<dyn FleetStore>) -> Settings {
    Settings {
        name: "m1".to_owned(),
        address: "127.0.0.1:1".to_owned(),
        store,
        history: 100,
        events: None,
        peers: None,
        rebuild: None,
    }
}

/// A master with a store in a directory.
pub(super) async fn master(dir: &Path) -> Running {
    let store = Embedded::open(&dir.join("master.db")).unwrap();
    let events = Some(Arc::new(Events::open(&dir.join("events")).unwrap()));
    start(Settings { events, ..settings(Arc::new(store)) }).await.unwrap()
}

pub(super) fn commit(number: u64) -> CommitId {
    CommitId::parse(&format!("{number:040x}")).unwrap()
}

pub(super) fn worker_name(text: &str) -> WorkerName {
    WorkerName::parse(text).unwrap()
}

/// Returns VMs: each with its id, its count and further fields in JSON.
pub(super) fn vms(group: &str, list: &[(&str, u32, &str)]) -> Vec<Arc<VmSpec>> {
    let mut specs = Vec::new();
    for (id, replicas, more) in list {
        let text = format!(
            r#"[{{"id":"{id}","replicas":{replicas},"resources":{{"cpuMilli":500,"memMiB":256}},"runtime":{{"driver":"sandbox"}}{more}}}]"#
        );
        let mut problems = Diagnostics::default();
        let source = Source { name: "spec".into(), text: text.into() };
        let mut read = read_specs(&source, &mut problems);
        assert!(!problems.has_errors(), "{problems:?}");
        read.iter_mut().for_each(|spec| spec.group = GroupName::parse(group).unwrap());
        specs.extend(read.into_iter().map(Arc::new));
    }
    specs
}

/// Returns a publication with the hashes it should have.
pub(super) fn publication(group: &str, number: u64, generation: u64, specs: Vec<Arc<VmSpec>>) -> Publication {
    let group = GroupName::parse(group).unwrap();
    let specs_hash = specs_hash(specs.iter().map(AsRef::as_ref));
    Publication {
        intent_hash: intent_hash(&commit(number), &group, &specs_hash),
        group,
        commit: commit(number),
        generation,
        specs_hash,
        specs,
        policy: None,
        broken: Vec::new(),
    }
}

/// Publishes a commit's VMs as a publisher does.
pub(super) async fn publish(
    master: &dyn Master,
    number: u64,
    group: &str,
    specs: Vec<Arc<VmSpec>>,
) -> Result<Verdict, CallError> {
    let generation = master.reserve_generation(&commit(number), "p").await?;
    master.publish(publication(group, number, generation, specs), "p").await
}

/// Publishes a commit's `fleet.yaml`.
pub(super) async fn publish_policy(master: &dyn Master, number: u64, text: &str) -> Verdict {
    let mut problems = Diagnostics::default();
    let source = Source { name: "fleet.yaml".into(), text: format!("api_version: v1\n{text}").into() };
    let fleet = FleetFile::read(&source, &mut problems);
    assert!(!problems.has_errors(), "{problems:?}");
    let group = GroupName::fleet();
    let specs_hash = policy_hash(&fleet);
    let publication = Publication {
        intent_hash: intent_hash(&commit(number), &group, &specs_hash),
        group,
        commit: commit(number),
        generation: master.reserve_generation(&commit(number), "p").await.unwrap(),
        specs_hash,
        specs: vec![],
        policy: Some(Arc::new(fleet)),
        broken: Vec::new(),
    };
    master.publish(publication, "p").await.unwrap()
}

pub(super) async fn accepted(master: &dyn Master, number: u64, group: &str, specs: Vec<Arc<VmSpec>>) {
    let verdict = publish(master, number, group, specs).await.unwrap();
    assert_eq!(verdict.outcome, Outcome::Accepted, "{verdict:?}");
}

/// A worker that does as it is told.
pub(super) struct Worker {
    pub(super) name: WorkerName,
    pub(super) labels: BTreeMap<String, String>,
    pub(super) session: u64,
    pub(super) seq: u64,
    pub(super) applied: Applied,
    pub(super) epoch: u64,
    pub(super) runs: BTreeMap<InstanceKey, Digest>,
    /// The groups of what it was told to run.
    pub(super) groups: BTreeMap<InstanceKey, GroupName>,
    /// Starts and stops, in order.
    pub(super) acts: Vec<String>,
    pub(super) is_sick: bool,
}

impl Worker {
    pub(super) fn new(name: &str) -> Self {
        Self {
            name: worker_name(name),
            labels: BTreeMap::new(),
            session: 1,
            seq: 0,
            applied: Applied::default(),
            epoch: 0,
            runs: BTreeMap::new(),
            groups: BTreeMap::new(),
            acts: Vec::new(),
            is_sick: false,
        }
    }

    pub(super) fn heartbeat(&mut self) -> Heartbeat {
        self.seq += 1;
        let instances = self.runs.iter().map(|(key, hash)| Seen {
            key: key.clone(),
            vm_hash: Some(*hash),
            state: InstanceState::Running,
            ready: !self.is_sick,
            uptime_ms: 60_000,
            attempts: 0,
            code: None,
            detail: String::new(),
            group: self.groups.get(key).cloned(),
            takes: Resources { cpu_milli: 500, mem_mib: 256, disk_mib: 0 },
        });
        Heartbeat {
            worker: self.name.clone(),
            boot_id: "b".to_owned(),
            session: self.session,
            process: String::new(),
            seq: self.seq,
            seen_generation: self.applied.generation,
            seen_revision: self.applied.revision,
            full: true,
            instances: instances.collect(),
            facts: Some(WorkerFacts {
                capacity: Allocatable { cpu_milli: 4000, mem_mib: 4096, disk_mib: None },
                used: Default::default(),
                drivers: [Driver::Sandbox].into(),
                labels: self.labels.clone(),
                arch: Default::default(),
                os: "linux".to_owned(),
                spec_version: 1,
                disk_pressure: false,
                nix_version: None,
                notes: Vec::new(),
                foreign: Default::default(),
                mapped: Default::default(),
            }),
        }
    }

    pub(super) async fn beat(&mut self, master: &dyn Master) -> Result<Beat, CallError> {
        master.report(self.heartbeat()).await
    }

    /// Asks for its assignment and does what it says.
    pub(super) async fn obey(&mut self, master: &dyn Master, wait: Duration) -> Result<bool, CallError> {
        let Some(assignment) = master.assignment(&self.name, self.applied, wait).await? else {
            return Ok(false);
        };
        self.apply(&assignment);
        Ok(true)
    }

    fn apply(&mut self, assignment: &Assignment) {
        if (assignment.epoch, assignment.generation) < (self.epoch, self.applied.generation) {
            return;
        }
        let wanted: BTreeMap<InstanceKey, Digest> =
            assignment.instances.iter().map(|one| (one.instance.clone(), one.vm_hash)).collect();
        for one in &assignment.instances {
            if let Some(spec) = usize::try_from(one.spec).ok().and_then(|at| assignment.specs.get(at)) {
                self.groups.insert(one.instance.clone(), spec.group.clone());
            }
        }
        for (key, hash) in &self.runs {
            if wanted.get(key) != Some(hash) {
                self.acts.push(format!("stop {key}"));
            }
        }
        for (key, hash) in &wanted {
            if self.runs.get(key) != Some(hash) {
                self.acts.push(format!("start {key}"));
            }
        }
        self.runs = wanted;
        self.epoch = assignment.epoch;
        self.applied = Applied { generation: assignment.generation, revision: assignment.revision };
    }
}

/// Lets workers report and obey until the status says so.
pub(super) async fn settle(
    master: &dyn Master,
    workers: &mut [Worker],
    is_so: impl Fn(&Value) -> bool,
) -> Value {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        for worker in workers.iter_mut() {
            worker.beat(master).await.unwrap();
            worker.obey(master, Duration::from_millis(30)).await.unwrap();
        }
        let shown = status(master).await;
        if is_so(&shown) {
            return shown;
        }
        assert!(Instant::now() < end, "still not so: {shown:#}");
    }
}

pub(super) async fn status(master: &dyn Master) -> Value {
    let (text, _) = master.status(0, Duration::ZERO, &StatusFilter::default()).await.unwrap();
    let shown: Value = serde_json::from_str(&text.0).unwrap();
    check(&shown);
    shown
}

/// Case 23: a status is what its schema says, and nothing that is not converged lacks a code.
pub(super) fn check(shown: &Value) {
    let schema = stead_model::schema::fleet_status_schema();
    let validator = jsonschema::validator_for(&schema).unwrap();
    let problems: Vec<String> = validator.iter_errors(shown).map(|error| error.to_string()).collect();
    assert!(problems.is_empty(), "{problems:?}\n{shown:#}");
    for instance in shown["instances"].as_array().unwrap() {
        let is_right = instance["desired_hash"] == instance["observed_hash"] && instance["ready"] == true;
        let says =
            instance["code"].is_string() && instance["message"].as_str().is_some_and(|text| text.len() > 20);
        assert!(is_right || says || instance["leaving"] == true, "{instance:#}");
    }
}

pub(super) fn is_converged(shown: &Value) -> bool {
    shown["state"] == "converged"
}

/// Returns which worker has what, by a status.
pub(super) fn places(shown: &Value) -> BTreeMap<String, String> {
    let instances = shown["instances"].as_array().unwrap();
    let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
    instances.iter().map(|one| (text(&one["key"]), text(&one["worker"]))).collect()
}
