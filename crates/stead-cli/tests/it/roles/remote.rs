//! Another machine keeps what every agent promises, through a real SSH server; and what happens when the connection or
//! somebody on the other side is lost.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Pid, Signal};
use stead_drivers::transport::{Notices, Surroundings, Transports};
use stead_model::HostName;
use stead_model::inventory::Host;
use stead_model::role::{RoleEvent, StopReason};
use stead_model::transport::TransportSpec;
use stead_runner::agent::{Agent, Link};
use stead_runner::operation::OpError;
use stead_runner::remote::{Reach, RemoteAgent, RemoteAgentSettings};
use stead_testkit::sshd::{self, Sshd};

use super::contract;
use super::stage::{PATIENCE, Stage, Wish, is_alive, kill, parent, processes_of, wait_for, work};
use crate::executor::stead;

/// A server and a run on it.
struct Far {
    sshd: Sshd,
    stage: Stage,
}

fn settings(sshd: &Sshd, lease: Duration) -> RemoteAgentSettings {
    let around =
        Surroundings { home: sshd.home(), user: sshd.user().to_owned(), environment: BTreeMap::new() };
    let mut reach = Reach::new(Arc::new(Transports::new(around, Notices::ignored())), stead());
    reach.lease = lease;
    let mut host = Host::reached_by(TransportSpec::Ssh(Box::new(sshd.spec())));
    host.workdir = Some(sshd.workdir().display().to_string());
    RemoteAgentSettings {
        reach,
        host,
        name: HostName::parse("far").unwrap(),
        work: work(),
        environment: BTreeMap::new(),
        base_dir: sshd.home(),
    }
}

async fn connect(sshd: &Sshd, lease: Duration) -> Result<RemoteAgent, OpError> {
    RemoteAgent::connect(settings(sshd, lease)).await
}

impl Far {
    /// Nothing where there is no server to start.
    async fn new(lease: Duration) -> Option<Self> {
        if !sshd::available() {
            return None;
        }
        let sshd = Sshd::start();
        let agent = connect(&sshd, lease).await.unwrap();
        let dir = Arc::new(tempfile::tempdir().unwrap());
        Some(Self { sshd, stage: Stage { agent: Arc::new(agent), work: work(), dir } })
    }

    /// Returns what is in the agent's workdir besides the program.
    fn left(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.sshd.workdir()).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        names.filter(|name| name.starts_with("run-")).collect()
    }

    fn sessions(&self) -> usize {
        std::fs::read_dir(self.sshd.workdir().join("run"))
            .map_or(0, |entries| entries.flatten().filter(|entry| entry.path().is_dir()).count())
    }

    /// Sends a signal to the server and what serves its connections, and to nobody they started.
    fn signal_server(&self, signal: Signal) {
        let serves = |pid: &u32| {
            let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            name.starts_with("sshd") && self.is_below(*pid)
        };
        let pids = std::fs::read_dir("/proc").unwrap().flatten();
        let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        for pid in pids.filter(serves) {
            let pid = Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
            rustix::process::kill_process(pid, signal).unwrap_or(());
        }
    }

    fn is_below(&self, mut pid: u32) -> bool {
        while pid > 1 && pid != self.sshd.pid() {
            if !is_alive(pid) {
                return false;
            }
            pid = parent(pid);
        }
        pid == self.sshd.pid()
    }

    /// Waits until the connection is as wanted.
    async fn link(&self, fits: impl FnMut(&Link) -> bool) {
        let mut link = self.stage.agent.link();
        let state = tokio::time::timeout(PATIENCE, link.wait_for(fits)).await;
        state.expect("it becomes so in time").unwrap();
    }
}

macro_rules! promises {
    ($($name:ident),+ $(,)?) => {$(
        #[tokio::test]
        async fn $name() {
            let Some(far) = Far::new(Duration::from_secs(15)).await else { return };
            contract::$name(&far.stage).await;
            far.stage.end().await;
            assert_eq!(far.left(), Vec::<String>::new(), "nothing stays");
            wait_for(|| far.sessions() == 0).await;
        }
    )+};
}

promises!(
    words_arrive_as_they_are,
    output_is_kept_unchanged,
    secrets_are_masked,
    ends_are_told_truly,
    what_cannot_start_is_told,
    a_role_that_is_asked_stops_by_itself,
    the_stop_signal_is_the_wanted_one,
    a_role_that_does_not_listen_is_killed_with_its_tree,
    killing_does_not_wait_for_the_grace,
    a_service_lives_as_long_as_its_daemon,
    growth_before_a_silence_is_told,
    leftovers_of_a_task_are_ended,
    readiness_is_judged,
    readiness_has_a_time,
    an_end_before_readiness_is_told_at_once,
    an_address_that_is_taken_is_seen,
    files_programs_and_addresses,
    a_flood_is_kept_whole,
);

/// What is known of an agent is measured, not made up; case 22.
#[tokio::test]
async fn an_agent_tells_of_itself() {
    let Some(far) = Far::new(Duration::from_secs(15)).await else { return };
    let about = far.stage.agent.about();
    assert_eq!((about.os.as_str(), about.arch.as_str()), (std::env::consts::OS, std::env::consts::ARCH));
    assert!(about.latency_ms > 0.0 && about.latency_ms < 5_000.0, "{about:?}");
    assert!(about.clock_offset_ms.abs() < 1_000.0, "{about:?}");
    assert!(about.uploaded && !about.host.is_empty(), "{about:?}");
    let again = connect(&far.sshd, Duration::from_secs(15)).await.unwrap();
    assert!(!again.about().uploaded, "once per host, hash and account");
    again.close().await;
    far.stage.agent.close().await;
}

/// When an agent is closed its roles are stopped by their rule, and its session goes.
#[tokio::test]
async fn closing_stops_roles_and_leaves_the_workdir_for_a_resume() {
    let Some(far) = Far::new(Duration::from_secs(15)).await else { return };
    contract::closing_stops_roles(&far.stage).await;
    wait_for(|| far.sessions() == 0).await;
    assert_eq!(far.left().len(), 1);
}

const COUNTING: &str = "i=0; while [ $i -lt 400 ]; do echo line $i of a count that must arrive whole; i=$((i+1)); sleep 0.01; done";

/// Connections that are cut and come back within the lease lose no byte and double none.
#[tokio::test]
async fn cut_connections_lose_nothing() {
    let Some(far) = Far::new(Duration::from_secs(15)).await else { return };
    let mut started = far.stage.start("count", COUNTING, Wish::default()).await;
    let mut link = far.stage.agent.link();
    for round in 0..3 {
        started.says(&format!("line {} ", 50 + round * 60)).await;
        far.sshd.drop_connections();
        tokio::time::timeout(PATIENCE, link.wait_for(|link| matches!(link, Link::Lost(_))))
            .await
            .unwrap()
            .unwrap();
        tokio::time::timeout(PATIENCE, link.wait_for(|link| *link == Link::Up)).await.unwrap().unwrap();
    }
    let (events, exit) = started.rest().await;
    assert_eq!((events, exit.exit_code), (Vec::new(), Some(0)));
    let wanted: String = (0..400).map(|i| format!("line {i} of a count that must arrive whole\n")).collect();
    assert_eq!(started.stdout(), wanted);
    assert_eq!(exit.stdout_bytes, wanted.len() as u64);
    assert!(far.sshd.logins() >= 4);
    far.stage.end().await;
}

/// What is asked while the connection is away is done when it is back.
#[tokio::test]
async fn a_stop_that_is_asked_while_the_connection_is_away_arrives() {
    let Some(far) = Far::new(Duration::from_secs(15)).await else { return };
    let script = "trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.1; done";
    let mut started = far.stage.start("away", script, Wish::default()).await;
    started.says("up").await;
    far.sshd.drop_connections();
    started.running.stop.stop(StopReason::Done, false);
    let exit = started.exit().await;
    assert_eq!((exit.exit_code, started.stdout().as_str()), (Some(0), "up\nbye\n"));
    far.stage.end().await;
}

/// A connection that stays away longer than the lease: the roles are stopped by their rule on the other side, they are
/// lost here, and a later driver finds their logs and workdirs.
#[tokio::test]
async fn a_lease_that_ends_stops_roles_and_leaves_their_logs() {
    let Some(far) = Far::new(Duration::from_secs(6)).await else { return };
    let marker = far.stage.path("marker");
    let script = format!(
        "trap 'echo late words; touch {}; exit 0' TERM; sleep 600 & echo up; while :; do sleep 0.1; done",
        marker.display()
    );
    let mut started = far.stage.start("lost", &script, Wish::default()).await;
    started.says("up").await;
    far.signal_server(Signal::STOP);
    far.link(|link| matches!(link, Link::Gone(_))).await;
    wait_for(|| marker.exists()).await;
    wait_for(|| processes_of(&far.stage.work).is_empty()).await;
    while let Some(event) = started.next().await {
        assert!(!event.is_last(), "{event:?}");
    }
    let error = far.stage.agent.make_workdir(&far.stage.work, "other").await.unwrap_err();
    assert_eq!(error.class, stead_model::ErrorClass::Unreachable);
    wait_for(|| far.sessions() == 0).await;

    far.signal_server(Signal::CONT);
    far.sshd.drop_connections();
    let later = connect(&far.sshd, Duration::from_secs(15)).await.unwrap();
    let left = later.leftovers(&far.stage.work).await.unwrap();
    let role = &left.roles[0];
    assert_eq!((role.role.as_str(), role.exit.as_ref().unwrap().exit_code), ("lost", Some(0)));
    let to = far.stage.path("resumed.log");
    later.fetch(role.stdout.as_ref().unwrap(), &to).await.unwrap();
    assert_eq!(std::fs::read_to_string(&to).unwrap(), "up\nlate words\n");
    later.remove_work(&far.stage.work).await.unwrap();
    assert_eq!(far.left(), Vec::<String>::new());
    later.close().await;
}

/// A supervisor that is killed there: what it left is ended by the session, and the role is lost.
#[tokio::test]
async fn a_supervisor_killed_there_leaves_nothing() {
    let Some(far) = Far::new(Duration::from_secs(15)).await else { return };
    let script = "setsid sh -c 'sleep 600; sleep 600' & echo up; wait";
    let mut started = far.stage.start("orphan", script, Wish::default()).await;
    started.says("up").await;
    kill(parent(started.pid));
    while let Some(event) = started.next().await {
        assert!(!event.is_last(), "{event:?}");
    }
    assert_eq!(processes_of(&far.stage.work), []);
    far.stage.end().await;
}

/// A session that is killed there takes its roles with it.
#[tokio::test]
async fn a_session_killed_there_takes_its_roles_with_it() {
    let Some(far) = Far::new(Duration::from_secs(8)).await else { return };
    let marker = far.stage.path("marker");
    let script = format!(
        "trap 'touch {}; exit 0' TERM; setsid sleep 600 & echo up; while :; do sleep 0.1; done",
        marker.display()
    );
    let mut started = far.stage.start("child", &script, Wish::default()).await;
    started.says("up").await;
    let session = parent(parent(started.pid));
    assert!(is_alive(session));
    kill(session);
    wait_for(|| processes_of(&far.stage.work).is_empty()).await;
    assert!(marker.exists());
    let lost = async { while started.next().await.is_some() {} };
    tokio::time::timeout(PATIENCE, lost).await.expect("it is told");
    far.link(|link| matches!(link, Link::Gone(_))).await;
    far.stage.agent.close().await;
}

/// A driver that does not read never makes a role wait.
#[tokio::test]
async fn a_driver_that_is_away_blocks_no_role() {
    let Some(far) = Far::new(Duration::from_secs(60)).await else { return };
    let done = far.stage.path("done");
    let script = format!(
        "echo up; read x < fifo || true; head -c 20000000 /dev/zero | tr '\\0' z; touch {}",
        done.display()
    );
    let order_script = format!("mkfifo fifo; (sleep 1; echo go > fifo) & {script}");
    let mut started = far.stage.start("flood", &order_script, Wish::default()).await;
    started.says("up").await;
    far.signal_server(Signal::STOP);
    wait_for(|| done.exists()).await;
    far.signal_server(Signal::CONT);
    let (_, exit) = started.rest().await;
    assert_eq!(exit.stdout_bytes, 20_000_003);
    assert_eq!(std::fs::metadata(started.logs.join("stdout.log")).unwrap().len(), 20_000_003);
    far.stage.end().await;
}

/// Logs are seen while the role runs.
#[tokio::test]
async fn growth_is_told_after_the_bytes_are_here() {
    let Some(far) = Far::new(Duration::from_secs(15)).await else { return };
    let mut started =
        far.stage.start("talk", "echo one; sleep 0.3; echo two; sleep 60", Wish::default()).await;
    loop {
        let Some(RoleEvent::Logged { stdout_bytes, .. }) = started.next().await else { panic!("it talks") };
        let size = std::fs::metadata(started.logs.join("stdout.log")).unwrap().len();
        assert!(size >= stdout_bytes);
        if stdout_bytes == 8 {
            break;
        }
    }
    started.running.stop.stop(StopReason::Done, true);
    started.exit().await;
    far.stage.end().await;
}
