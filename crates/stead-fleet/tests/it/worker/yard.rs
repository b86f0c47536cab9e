//! A worker's place, the master it hears, and what tests ask of both.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use serde_json::{Value, json};
use stead_engine::fleet::canon::vm_hash;
use stead_fleet::api::{Applied, Beat, CallError, HoldOrder, Json, Master, PipelineReport, StatusFilter};
use stead_fleet::events::{Ev, Events};
use stead_fleet::worker::{self, Settings, WorkerError};
use stead_model::WorkerName;
use stead_model::diagnostic::{Diagnostics, Source};
use stead_model::fleet::services::WorkerFile;
use stead_model::fleet::state::{Assigned, Assignment, Heartbeat, InstanceState, Publication, Seen, Verdict};
use stead_model::fleet::vm::{Driver, read_specs};
use stead_model::fleet::{CommitId, InstanceKey, Millis, VmSpec};
use stead_model::machine::Owner;
use stead_model::site::Host;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// Holds the arguments of a process that is to be beside a machine.
const BESIDE: &str = "STEAD_TEST_FLEET_BESIDE";

/// What a test is patient for.
const PATIENCE: Duration = Duration::from_secs(60);

/// Is the process of a sandbox, or the one that keeps a guest's console, if this process was started to be one.
#[test]
fn a_process_beside_a_machine() {
    let Some(arguments) = std::env::var_os(BESIDE) else { return };
    let arguments = arguments.into_string().unwrap();
    let words: Vec<&str> = arguments.split('\n').collect();
    match words[..] {
        ["sandbox", "--machine", directory, "--ticket", ticket] => {
            stead_drivers::machine::sandbox::supervise(Path::new(directory), ticket).unwrap();
        }
        ["console", "--machine", directory] => {
            stead_drivers::machine::keep_console(Path::new(directory)).unwrap();
        }
        _ => panic!("{words:?}"),
    }
}

/// Writes a program to `directory` that is the processes beside machines, and returns its path.
fn install_program(directory: &Path) -> PathBuf {
    let program = directory.join("stead");
    let binary = std::env::current_exe().unwrap();
    let script = format!(
        "#!/bin/sh\n{BESIDE}=$(printf '%s\\n' \"$@\") exec '{}' worker::yard::a_process_beside_a_machine --exact --nocapture --quiet\n",
        binary.display(),
    );
    fs::write(&program, script).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    program
}

/// A master that says what tests want and keeps what it hears.
#[derive(Debug, Default)]
pub(super) struct Stage {
    state: Mutex<StageState>,
    changed: Notify,
}

#[derive(Debug)]
pub(super) struct StageState {
    pub(super) assignment: Option<Assignment>,
    pub(super) beats: Vec<Heartbeat>,
    pub(super) seen: BTreeMap<InstanceKey, Seen>,
    pub(super) lease: Option<Millis>,
    pub(super) interval: Millis,
    pub(super) is_away: bool,
    pub(super) refusal: Option<CallError>,
}

impl Default for StageState {
    fn default() -> Self {
        Self {
            assignment: None,
            beats: Vec::new(),
            seen: BTreeMap::new(),
            lease: None,
            interval: 200,
            is_away: false,
            refusal: None,
        }
    }
}

impl Stage {
    pub(super) fn state(&self) -> MutexGuard<'_, StageState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn change(&self, change: impl FnOnce(&mut StageState)) {
        change(&mut self.state());
        self.changed.notify_waiters();
    }

    fn answer(&self, worker: &WorkerName, applied: Applied) -> Result<Option<Assignment>, CallError> {
        assert_eq!(worker.as_str(), "w1");
        let state = self.state();
        if state.is_away {
            return Err(CallError::Away("the test says so".to_owned()));
        }
        if let Some(refusal) = &state.refusal {
            return Err(refusal.clone());
        }
        let current = |assignment: &Assignment| Applied {
            generation: assignment.generation,
            revision: assignment.revision,
        };
        Ok(state.assignment.clone().filter(|assignment| current(assignment) != applied))
    }
}

fn not_here<T>() -> Result<T, CallError> {
    Err(CallError::Refused { code: "forbidden".to_owned(), message: "workers do not ask this".to_owned() })
}

#[async_trait]
impl Master for Stage {
    async fn assignment(
        &self,
        worker: &WorkerName,
        applied: Applied,
        wait: Duration,
    ) -> Result<Option<Assignment>, CallError> {
        let changed = self.changed.notified();
        match self.answer(worker, applied)? {
            Some(assignment) => Ok(Some(assignment)),
            None => {
                tokio::time::timeout(wait, changed).await.ok();
                self.answer(worker, applied)
            }
        }
    }

    async fn report(&self, heartbeat: Heartbeat) -> Result<Beat, CallError> {
        let mut state = self.state();
        if state.is_away {
            return Err(CallError::Away("the test says so".to_owned()));
        }
        if let Some(refusal) = &state.refusal {
            return Err(refusal.clone());
        }
        if heartbeat.full {
            state.seen.clear();
        }
        for seen in &heartbeat.instances {
            state.seen.insert(seen.key.clone(), seen.clone());
        }
        state.beats.push(heartbeat);
        let (lease, interval) = (state.lease, state.interval);
        Ok(Beat { lease, interval, needs_full: false, leader: "test".to_owned() })
    }

    async fn reserve_generation(&self, _: &CommitId, _: &str) -> Result<u64, CallError> {
        not_here()
    }

    async fn publish(&self, _: Publication, _: &str) -> Result<Verdict, CallError> {
        not_here()
    }

    async fn status(&self, _: u64, _: Duration, _: &StatusFilter) -> Result<(Json, u64), CallError> {
        not_here()
    }

    async fn explain(&self, _: &InstanceKey) -> Result<Json, CallError> {
        not_here()
    }

    async fn snapshot(&self) -> Result<Json, CallError> {
        not_here()
    }

    async fn report_pipeline(&self, _: PipelineReport) -> Result<(), CallError> {
        not_here()
    }

    async fn set_hold(&self, _: HoldOrder, _: &str) -> Result<String, CallError> {
        not_here()
    }
}

/// The spec of a VM, from what it says beyond its name and size.
pub(super) fn vm(id: &str, more: Value) -> Arc<VmSpec> {
    let mut value = json!({
        "id": id, "group": "default", "resources": {"cpuMilli": 100, "memMiB": 16},
        "runtime": {"driver": "sandbox"}, "stopSeconds": 5,
        "restart": {"backoffSeconds": 1},
    });
    for (key, part) in more.as_object().unwrap() {
        match (value.get_mut(key).and_then(Value::as_object_mut), part) {
            (Some(there), Value::Object(part)) => there.extend(part.clone()),
            _ => value[key] = part.clone(),
        }
    }
    spec_of(&value)
}

fn spec_of(value: &Value) -> Arc<VmSpec> {
    let source = Source { name: "spec".into(), text: format!("[{value}]").into() };
    let mut diagnostics = Diagnostics::default();
    let mut specs = read_specs(&source, &mut diagnostics);
    assert!(!diagnostics.has_errors(), "{diagnostics:?}");
    Arc::new(specs.pop().unwrap())
}

/// The assignment of these instances.
pub(super) fn assignment(generation: u64, instances: &[(&str, &Arc<VmSpec>)]) -> Assignment {
    let mut found = Assignment { generation, revision: generation, epoch: 1, ..Assignment::default() };
    for (key, spec) in instances {
        let instance = key_of(key);
        found.specs.push(Arc::clone(spec));
        found.instances.push(Assigned {
            instance,
            generation,
            vm_hash: vm_hash(spec),
            spec: u32::try_from(found.specs.len() - 1).unwrap(),
            leaving: false,
            frozen: false,
        });
    }
    found
}

pub(super) fn key_of(text: &str) -> InstanceKey {
    InstanceKey::parse(text).unwrap()
}

/// A worker's place.
pub(super) struct Yard {
    pub(super) dir: tempfile::TempDir,
    pub(super) stage: Arc<Stage>,
    pub(super) file: WorkerFile,
}

/// An agent that runs.
pub(super) struct Running {
    stop: CancellationToken,
    task: JoinHandle<Result<(), WorkerError>>,
}

impl Running {
    /// Ends the agent and returns how it ended.
    pub(super) async fn end(self) -> Result<(), WorkerError> {
        self.stop.cancel();
        self.task.await.unwrap()
    }

    /// Waits for its own end.
    pub(super) async fn ended(self) -> Result<(), WorkerError> {
        tokio::time::timeout(PATIENCE, self.task).await.unwrap().unwrap()
    }
}

pub(super) fn worker_file() -> WorkerFile {
    let host = Host { driver: Some(Driver::Sandbox.kind()), ..Host::default() };
    WorkerFile {
        name: Some(WorkerName::parse("w1").unwrap()),
        drivers: [(Driver::Sandbox, host)].into(),
        drift_interval: Duration::from_secs(1),
        min_free_disk_percent: 0,
        ..WorkerFile::default()
    }
}

impl Yard {
    pub(super) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        install_program(dir.path());
        Self { dir, stage: Arc::default(), file: worker_file() }
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(super) fn settings(&self) -> Settings {
        let events = Events::at(&self.path("state/fleet/events"));
        let settings = Settings::new(self.path("state"), self.file.clone(), self.path("stead"));
        Settings { events: Some(Arc::new(events)), ..settings }
    }

    /// Returns what happened to an instance, in order.
    pub(super) fn happened(&self, key: &str) -> Vec<Ev> {
        let lines = stead_fleet::events::read(&self.path("state/fleet/events")).unwrap();
        let own = lines.into_iter().filter(|line| line.fields.instance == Some(key_of(key)));
        own.map(|line| line.ev).collect()
    }

    pub(super) fn begin(&self) -> Running {
        let stop = CancellationToken::new();
        let master: Arc<dyn Master> = Arc::clone(&self.stage) as Arc<dyn Master>;
        let running = worker::run(self.settings(), master, stop.clone());
        #[expect(clippy::disallowed_methods, reason = "the test waits for it")]
        let task = tokio::spawn(running);
        Running { stop, task }
    }

    pub(super) fn assign(&self, generation: u64, instances: &[(&str, &Arc<VmSpec>)]) {
        let assignment = assignment(generation, instances);
        self.stage.change(|state| state.assignment = Some(assignment));
    }

    /// Waits until what was heard of an instance fits, and returns it.
    pub(super) async fn until(&self, key: &str, fits: impl Fn(&Seen) -> bool) -> Seen {
        let key = key_of(key);
        let mut last = None;
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE {
            last = self.stage.state().seen.get(&key).cloned();
            if let Some(seen) = last.as_ref().filter(|seen| fits(seen)) {
                return seen.clone();
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("{key} was last seen as {last:?}");
    }

    /// Waits until an instance is ready with this spec.
    pub(super) async fn until_ready(&self, key: &str, spec: &VmSpec) -> Seen {
        let hash = vm_hash(spec);
        self.until(key, |seen| {
            seen.ready && seen.vm_hash == Some(hash) && seen.state == InstanceState::Running
        })
        .await
    }

    /// Waits until an instance is not there.
    pub(super) async fn until_gone(&self, key: &str) {
        let instance = key_of(key);
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE {
            let seen = self.stage.state().seen.get(&instance).cloned();
            if seen.is_none_or(|seen| seen.state == InstanceState::Absent) && self.record(key).is_none() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("{key} is still there");
    }

    /// Waits until something is so.
    pub(super) async fn wait(&self, what: &str, is_so: impl Fn() -> bool) {
        let begun = Instant::now();
        while !is_so() {
            assert!(begun.elapsed() < PATIENCE, "{what}: not so in time");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    pub(super) fn record(&self, key: &str) -> Option<Value> {
        let path = self.path("state/fleet/instances").join(key_of(key).file_name()).join("record.json");
        serde_json::from_slice(&fs::read(path).ok()?).ok()
    }

    pub(super) fn pid(&self, key: &str) -> u32 {
        u32::try_from(self.record(key).unwrap()["pid"].as_u64().unwrap()).unwrap()
    }

    pub(super) fn machine(&self, key: &str) -> PathBuf {
        let key = key_of(key);
        let owner = Owner::new("fleet/w1", &format!("{}-{}", key.vm, key.ordinal)).unwrap();
        self.path("state/fleet/machines").join(owner.uuid())
    }

    /// Whether nothing of any machine is left: directories, processes.
    #[track_caller]
    pub(super) fn assert_clean(&self) {
        for place in ["instances", "machines"] {
            let path = self.path("state/fleet").join(place);
            let left: Vec<_> = fs::read_dir(path).into_iter().flatten().flatten().map(|e| e.path()).collect();
            assert_eq!(left, Vec::<PathBuf>::new());
        }
        assert_eq!(self.processes(), Vec::<u32>::new());
    }

    /// Returns the processes that belong to machines of this place.
    pub(super) fn processes(&self) -> Vec<u32> {
        let place = self.path("state/fleet/machines");
        let place = place.as_os_str().as_encoded_bytes();
        let all = fs::read_dir("/proc").unwrap().flatten();
        let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        pids.filter(|pid| {
            let environ = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            let is_dead = stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with(['Z', 'X']));
            !is_dead && environ.windows(place.len()).any(|part| part == place)
        })
        .collect()
    }

    /// A program that notes each of its starts in a file of this place, and then sleeps.
    pub(super) fn sleeper(&self, name: &str, text: &str) -> Value {
        let file = self.path(name);
        json!({"argv": ["/bin/sh", "-c", format!("echo {text} $$ >>'{}'; exec sleep 1000", file.display())]})
    }

    /// The starts that a file has.
    pub(super) fn starts(&self, name: &str) -> Vec<String> {
        let text = fs::read_to_string(self.path(name)).unwrap_or_default();
        text.lines().map(|line| line.split(' ').next().unwrap_or_default().to_owned()).collect()
    }
}

impl Drop for Yard {
    fn drop(&mut self) {
        // One that was just started shows only later whose it is.
        let mut quiet = 0;
        while quiet < 3 {
            let left = self.processes();
            quiet = if left.is_empty() { quiet + 1 } else { 0 };
            for pid in left {
                Command::new("kill").arg("-KILL").arg(pid.to_string()).status().ok();
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        // What its machines were limited by goes with their drivers, which are killed here.
        let machines = fs::read_dir(self.path("state/fleet/machines")).into_iter().flatten().flatten();
        for group in machines.filter_map(|machine| fs::read_to_string(machine.path().join("cgroup")).ok()) {
            fs::remove_dir(group).ok();
        }
        // An agent that was ended in the middle of a removal may still be at it, in a thread of its own.
        let begun = Instant::now();
        while fs::remove_dir_all(self.dir.path()).is_err()
            && self.dir.path().exists()
            && begun.elapsed() < PATIENCE
        {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

pub(super) fn is_alive(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

pub(super) fn kill(pid: u32, signal: &str) {
    assert!(Command::new("kill").arg(signal).arg(pid.to_string()).status().unwrap().success());
}
