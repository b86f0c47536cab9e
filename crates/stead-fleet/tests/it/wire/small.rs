//! A small master, and how tests reach it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use stead_engine::fleet::canon::{intent_hash, specs_hash, vm_hash};
use stead_fleet::api::{
    Applied, Beat, CallError, HoldOrder, Json, Leader, Master, PipelineReport, StatusFilter,
};
use stead_fleet::identity::{Authority, Identity, Ledger, MemoryLedger};
use stead_fleet::wire::{Carrier, Client, Room, serve_in};
use stead_model::diagnostic::{Diagnostics, Source};
use stead_model::fleet::peer::Role;
use stead_model::fleet::state::{Assigned, Assignment, Heartbeat, Outcome, Publication, Verdict};
use stead_model::fleet::vm::read_specs;
use stead_model::fleet::{CommitId, InstanceKey, VmSpec};
use stead_model::{GroupName, WorkerName};
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// Accepts everything, gives every worker one instance of every VM, remembers what it was told.
#[derive(Debug)]
pub(super) struct Small {
    pub(super) assignment: watch::Sender<Assignment>,
    pub(super) published: Mutex<Vec<(Publication, String)>>,
    pub(super) heard: Mutex<Vec<Heartbeat>>,
    pub(super) holds: Mutex<Vec<(HoldOrder, String)>>,
    pub(super) reports: Mutex<Vec<PipelineReport>>,
    pub(super) commits: Mutex<BTreeMap<CommitId, u64>>,
    /// Where the leader is, if this one does not lead.
    pub(super) leader: Mutex<Option<String>>,
    /// What the status says.
    pub(super) status: Mutex<String>,
    pub(super) statuses: AtomicUsize,
    /// How often somebody asked who leads: every hello does.
    pub(super) hellos: AtomicUsize,
}

impl Default for Small {
    fn default() -> Self {
        Self {
            assignment: watch::Sender::new(Assignment::default()),
            published: Mutex::default(),
            heard: Mutex::default(),
            holds: Mutex::default(),
            reports: Mutex::default(),
            commits: Mutex::default(),
            leader: Mutex::default(),
            status: Mutex::new("{}".to_owned()),
            statuses: AtomicUsize::new(0),
            hellos: AtomicUsize::new(0),
        }
    }
}

impl Small {
    fn check_leads(&self) -> Result<(), CallError> {
        match self.leader.lock().unwrap().clone() {
            Some(leader) => Err(CallError::NotLeader { leader }),
            None => Ok(()),
        }
    }
}

#[async_trait]
impl Master for Small {
    async fn leader(&self) -> Leader {
        self.hellos.fetch_add(1, Ordering::SeqCst);
        Leader { address: self.leader.lock().unwrap().clone().unwrap_or_default(), epoch: 7 }
    }

    async fn reserve_generation(&self, commit: &CommitId, _publisher: &str) -> Result<u64, CallError> {
        self.check_leads()?;
        let mut commits = self.commits.lock().unwrap();
        let next = commits.len() as u64 + 1;
        Ok(*commits.entry(commit.clone()).or_insert(next))
    }

    async fn publish(&self, publication: Publication, publisher: &str) -> Result<Verdict, CallError> {
        self.check_leads()?;
        let generation = publication.generation;
        let instances = (0..).zip(&publication.specs).map(|(at, spec)| Assigned {
            instance: InstanceKey::new(&spec.id, 0),
            generation,
            vm_hash: vm_hash(spec),
            spec: at,
            leaving: at % 2 == 1,
            frozen: false,
        });
        let instances = instances.collect();
        self.assignment.send_modify(|assignment| {
            let revision = assignment.revision + 1;
            *assignment =
                Assignment { generation, revision, epoch: 7, specs: publication.specs.clone(), instances };
        });
        self.published.lock().unwrap().push((publication, publisher.to_owned()));
        Ok(Verdict { outcome: Outcome::Accepted, problems: vec![], active: generation, highest: generation })
    }

    async fn assignment(
        &self,
        _worker: &WorkerName,
        applied: Applied,
        wait: Duration,
    ) -> Result<Option<Assignment>, CallError> {
        let mut current = self.assignment.subscribe();
        let is_new =
            |found: &Assignment| (found.generation, found.revision) != (applied.generation, applied.revision);
        let found = tokio::time::timeout(wait, current.wait_for(is_new)).await;
        Ok(found.ok().and_then(Result::ok).map(|found| found.clone()))
    }

    async fn report(&self, heartbeat: Heartbeat) -> Result<Beat, CallError> {
        self.check_leads()?;
        self.heard.lock().unwrap().push(heartbeat);
        Ok(Beat { lease: Some(120_000), interval: 5_000, needs_full: true, leader: "here:1".to_owned() })
    }

    async fn status(
        &self,
        after: u64,
        wait: Duration,
        _filter: &StatusFilter,
    ) -> Result<(Json, u64), CallError> {
        self.statuses.fetch_add(1, Ordering::SeqCst);
        if after == u64::MAX {
            tokio::time::sleep(wait).await;
        }
        Ok((Json(self.status.lock().unwrap().clone()), 3))
    }

    async fn explain(&self, instance: &InstanceKey) -> Result<Json, CallError> {
        if instance.ordinal == 99 {
            return Err(CallError::Refused {
                code: "unknown".to_owned(),
                message: "nearest: web/0".to_owned(),
            });
        }
        Ok(Json(format!("{{\"instance\":\"{instance}\"}}")))
    }

    async fn snapshot(&self) -> Result<Json, CallError> {
        Ok(Json("{\"schema\":1}".to_owned()))
    }

    async fn report_pipeline(&self, report: PipelineReport) -> Result<(), CallError> {
        self.reports.lock().unwrap().push(report);
        Ok(())
    }

    async fn set_hold(&self, order: HoldOrder, by: &str) -> Result<String, CallError> {
        self.holds.lock().unwrap().push((order, by.to_owned()));
        Ok("hold-1".to_owned())
    }
}

/// A master that serves.
pub(super) struct Running {
    pub(super) master: Arc<Small>,
    pub(super) authority: Arc<Authority>,
    pub(super) address: String,
    pub(super) shutdown: CancellationToken,
    task: JoinHandle<()>,
}

impl Running {
    pub(super) async fn start() -> Self {
        Self::with(Arc::new(MemoryLedger::default()), "127.0.0.1:0").await
    }

    pub(super) async fn with(ledger: Arc<dyn Ledger>, address: &str) -> Self {
        Self::with_room(Room::default(), ledger, address).await
    }

    pub(super) async fn with_room(room: Room, ledger: Arc<dyn Ledger>, address: &str) -> Self {
        let authority = Authority::open(ledger, "m1").await.unwrap();
        let listener = TcpListener::bind(address).await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (master, shutdown) = (Arc::new(Small::default()), CancellationToken::new());
        let served = Arc::clone(&master) as Arc<dyn Master>;
        let served = serve_in(room, listener, served, Arc::clone(&authority), shutdown.clone());
        let task = Handle::current().spawn(async move { served.await.unwrap() });
        Self { master, authority, address, shutdown, task }
    }

    pub(super) async fn identity(&self, role: Role, name: &str) -> Identity {
        let mut identity = self.authority.enrol(role, name).await.unwrap();
        identity.masters = vec![self.address.clone()];
        identity
    }

    pub(super) async fn client(&self, role: Role, name: &str) -> Arc<Client> {
        client(self.identity(role, name).await)
    }

    pub(super) async fn stop(self) {
        self.shutdown.cancel();
        self.task.await.unwrap();
    }
}

pub(super) fn client(identity: Identity) -> Arc<Client> {
    Client::new(Carrier::start().unwrap(), identity).unwrap()
}

pub(super) fn specs(names: &[&str]) -> Vec<Arc<VmSpec>> {
    let list: Vec<String> = names
        .iter()
        .map(|name| {
            format!(
                "{{\"id\":\"{name}\",\"replicas\":2,\"labels\":{{\"tier\":\"é\"}},\
                 \"resources\":{{\"cpuMilli\":1000,\"memMiB\":512}},\"runtime\":{{\"driver\":\"sandbox\"}}}}"
            )
        })
        .collect();
    let source = Source { name: "specs".into(), text: format!("[{}]", list.join(",")).into() };
    let mut diagnostics = Diagnostics::default();
    let specs = read_specs(&source, &mut diagnostics);
    assert!(!diagnostics.has_errors(), "{diagnostics:?}");
    specs.into_iter().map(Arc::new).collect()
}

pub(super) fn commit(digit: char) -> CommitId {
    CommitId::parse(&digit.to_string().repeat(40)).unwrap()
}

pub(super) fn publication(generation: u64, names: &[&str]) -> Publication {
    let (commit, group, specs) = (commit('a'), GroupName::default_group(), specs(names));
    let specs_hash = specs_hash(specs.iter().map(AsRef::as_ref));
    Publication {
        intent_hash: intent_hash(&commit, &group, &specs_hash),
        group,
        commit,
        generation,
        specs_hash,
        specs,
        policy: None,
        broken: Vec::new(),
    }
}

pub(super) fn heartbeat(worker: &str, session: u64, seq: u64) -> Heartbeat {
    Heartbeat {
        worker: WorkerName::parse(worker).unwrap(),
        boot_id: "boot".to_owned(),
        session,
        process: String::new(),
        seq,
        seen_generation: 1,
        seen_revision: 2,
        full: false,
        instances: vec![],
        facts: None,
    }
}

pub(super) fn code<T: std::fmt::Debug>(result: Result<T, CallError>) -> String {
    match result.unwrap_err() {
        CallError::Refused { code, .. } => code,
        other @ (CallError::Away(_) | CallError::NotLeader { .. }) => panic!("not refused: {other}"),
    }
}
