//! An agent with a run on it, and roles that are shell scripts.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use stead_drivers::roles::LocalAgent;
use stead_model::RunId;
use stead_model::role::{
    Readiness, ReadyDefaults, RoleEvent, RoleExit, RoleOrder, RunWork, StopRule, StopSignal, WorkTag,
};
use stead_model::run_plan::RoleKind;
use stead_runner::agent::{Agent, RunningRole};

/// Longer than anything here takes.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

/// An agent and one run on it.
pub(super) struct Stage {
    pub(super) agent: Arc<dyn Agent>,
    pub(super) work: RunWork,
    /// A directory of the driver.
    pub(super) dir: Arc<tempfile::TempDir>,
}

/// A role that was started.
pub(super) struct Started {
    pub(super) running: RunningRole,
    pub(super) logs: PathBuf,
    pub(super) pid: u32,
}

/// What is wanted of a role besides its script.
#[derive(Default)]
pub(super) struct Wish {
    pub(super) env: Vec<(&'static str, String)>,
    pub(super) secrets: Vec<String>,
    pub(super) ready: Option<serde_json::Value>,
    pub(super) stop: Option<(StopSignal, u32)>,
    pub(super) kind: RoleKind,
}

impl Wish {
    pub(super) fn ready(value: serde_json::Value) -> Self {
        Self { ready: Some(value), ..Self::default() }
    }

    pub(super) fn grace(seconds: u32) -> Self {
        Self { stop: Some((StopSignal::Term, seconds)), ..Self::default() }
    }
}

pub(super) fn work() -> RunWork {
    let mut tag = [0; 4];
    tag.copy_from_slice(&std::process::id().to_be_bytes());
    RunWork { run: RunId::parse(&format!("run-{}", std::process::id())).unwrap(), tag: WorkTag::new(tag) }
}

impl Stage {
    pub(super) fn local() -> Self {
        let dir = Arc::new(tempfile::tempdir().unwrap());
        let agent = LocalAgent::new(env!("CARGO_BIN_EXE_stead"), vec![dir.path().join("agent")]);
        Self { agent: Arc::new(agent), work: work(), dir }
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Returns the order of a role that runs `argv` in a fresh workdir.
    pub(super) async fn order(&self, role: &str, argv: &[&str], wish: Wish) -> RoleOrder {
        let workdir = self.agent.make_workdir(&self.work, role).await.unwrap();
        let mut env = BTreeMap::from([
            ("STEAD_RUN_ID".to_owned(), self.work.run.to_string()),
            ("STEAD_ROLE".to_owned(), role.to_owned()),
            ("STEAD_WORKDIR".to_owned(), workdir.clone()),
        ]);
        env.extend(wish.env.into_iter().map(|(name, value)| (name.to_owned(), value)));
        let ready = wish.ready.map(|value| Readiness::parse(&value, &ReadyDefaults::default()).unwrap());
        let (signal, grace_seconds) = wish.stop.unwrap_or((StopSignal::Term, 10));
        RoleOrder {
            run: self.work.run.clone(),
            role: role.to_owned(),
            kind: wish.kind,
            argv: argv.iter().map(|word| (*word).to_owned()).collect(),
            program: argv[0].to_owned(),
            env,
            hidden_env: Vec::new(),
            workdir,
            secrets: wish.secrets,
            ready,
            stop: StopRule { signal, grace_seconds },
        }
    }

    /// Starts a role that runs `script`.
    pub(super) async fn start(&self, role: &str, script: &str, wish: Wish) -> Started {
        let order = self.order(role, &["/bin/sh", "-c", script], wish).await;
        self.start_order(order).await
    }

    pub(super) async fn start_order(&self, order: RoleOrder) -> Started {
        let logs = self.path("bundle/roles").join(&order.role);
        std::fs::create_dir_all(&logs).unwrap();
        let mut running = self.agent.start(order, &self.work, &logs).await.unwrap();
        let mut pid = 0;
        while pid == 0 {
            match next(&mut running).await {
                Some(RoleEvent::Started { pid: started, .. }) => pid = started,
                Some(RoleEvent::Warning { .. }) => {}
                other => panic!("it starts: {other:?}"),
            }
        }
        Started { running, logs, pid }
    }

    /// Runs a script to its end.
    pub(super) async fn run(&self, role: &str, script: &str, wish: Wish) -> (RoleExit, PathBuf) {
        let mut started = self.start(role, script, wish).await;
        (started.exit().await, started.logs)
    }

    pub(super) async fn end(&self) {
        self.agent.remove_work(&self.work).await.unwrap();
        self.agent.close().await;
    }
}

pub(super) async fn next(running: &mut RunningRole) -> Option<RoleEvent> {
    tokio::time::timeout(PATIENCE, running.next_event()).await.expect("an event comes in time")
}

impl Started {
    pub(super) async fn next(&mut self) -> Option<RoleEvent> {
        next(&mut self.running).await
    }

    /// Waits for its end.
    pub(super) async fn exit(&mut self) -> RoleExit {
        self.rest().await.1
    }

    /// Returns what it told until its end, without the growth of its logs, and how it ended.
    pub(super) async fn rest(&mut self) -> (Vec<RoleEvent>, RoleExit) {
        let mut events = Vec::new();
        loop {
            match self.next().await {
                Some(RoleEvent::Exited(exit)) => {
                    assert_eq!(self.next().await, None, "nothing follows");
                    return (events, exit);
                }
                Some(RoleEvent::Logged { .. }) => {}
                Some(event) => events.push(event),
                None => panic!("it ends with an event: {events:?}"),
            }
        }
    }

    /// Waits until it says `text` on standard output.
    pub(super) async fn says(&self, text: &str) {
        self.logged(|log| String::from_utf8_lossy(log).contains(text)).await;
    }

    /// Waits until its standard output is as wanted.
    pub(super) async fn logged(&self, fits: impl Fn(&[u8]) -> bool) {
        let path = self.logs.join("stdout.log");
        wait_for(|| fits(&std::fs::read(&path).unwrap_or_default())).await;
    }

    pub(super) fn stdout(&self) -> String {
        read(&self.logs, "stdout.log")
    }
}

pub(super) fn read(logs: &Path, name: &str) -> String {
    String::from_utf8_lossy(&std::fs::read(logs.join(name)).unwrap()).into_owned()
}

/// Waits for a state.
pub(super) async fn wait_for(mut is_so: impl FnMut() -> bool) {
    let waiting = async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, waiting).await.expect("it becomes so in time");
}

/// Returns the live processes that carry the role's mark of this run.
pub(super) fn processes_of(work: &RunWork) -> Vec<(u32, String)> {
    let mark = format!("STEAD_RUN_ID={}", work.run);
    let pids = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| {
        let environ = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environ.split(|byte| *byte == 0).any(|entry| entry == mark.as_bytes())
    })
    .filter(|pid| is_alive(*pid))
    .map(|pid| (pid, std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default()))
    .collect()
}

pub(super) fn is_alive(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    !stat.is_empty() && !stat.contains(") Z ")
}

/// Returns the parent of a process: for a role, its supervisor.
pub(super) fn parent(pid: u32) -> u32 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    stat.rsplit_once(')').unwrap().1.split_ascii_whitespace().nth(1).unwrap().parse().unwrap()
}

pub(super) fn kill(pid: u32) {
    let pid = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
}
