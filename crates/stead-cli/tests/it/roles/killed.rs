//! Somebody in the chain is killed: no process of a role stays.

use std::io::BufRead as _;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use stead_drivers::roles::LocalAgent;
use stead_model::RunId;
use stead_model::role::{RunWork, WorkTag};
use stead_runner::agent::Agent as _;

use super::stage::{Stage, Wish, kill, parent, processes_of, wait_for, work};

const TREE: &str = "setsid sh -c 'sleep 600; sleep 600' & (sh -c 'sleep 600; sleep 600' &) ; echo up; wait";

/// A supervisor that is killed takes nothing with it, so the agent ends what it left.
#[tokio::test]
async fn a_killed_supervisor_leaves_nothing() {
    let stage = Stage::local();
    let mut started = stage.start("orphan", TREE, Wish::default()).await;
    started.says("up").await;
    wait_for(|| processes_of(&stage.work).len() >= 4).await;
    kill(parent(started.pid));
    while let Some(event) = started.next().await {
        assert!(!event.is_last(), "nobody is left to tell how it ended: {event:?}");
    }
    assert_eq!(processes_of(&stage.work), []);
    stage.end().await;
}

const HELPER: &str = "STEAD_TEST_DRIVER_OF_ROLES";

struct Driver(Child);

impl Drop for Driver {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// A driver that is killed takes its local roles with it at once, grandchildren included; a role that traps its stop
/// signal still gets to do what it does for that.
#[tokio::test]
async fn a_killed_driver_takes_its_roles_with_it() {
    if std::env::vars_os().any(|(name, _)| name == HELPER) {
        let stage = Stage::local();
        let script = format!("trap 'echo bye > \"$MARKER\"; exit 0' TERM; {TREE}");
        let marker = std::env::vars().find(|(name, _)| name == HELPER).unwrap().1;
        let wish = Wish { env: vec![("MARKER", marker)], ..Wish::default() };
        let started = stage.start("child", &script, wish).await;
        started.says("up").await;
        println!("\nrole {}", stage.work.run);
        std::future::pending::<()>().await;
    }
    let dir = tempfile::tempdir().unwrap();
    let marker = dir.path().join("marker");
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "roles::killed::a_killed_driver_takes_its_roles_with_it", "--nocapture"]);
    command.env(HELPER, &marker).env("TMPDIR", dir.path()).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut driver = Driver(command.spawn().unwrap());
    let lines = std::io::BufReader::new(driver.0.stdout.take().unwrap()).lines();
    let line = lines.map_while(Result::ok).find(|line| line.starts_with("role ")).unwrap();
    let run = line.split(' ').nth(1).unwrap();
    let mut of_driver = work();
    of_driver.run = stead_model::RunId::parse(run).unwrap();
    // One that has just been started shows only then whose it is.
    wait_for(|| processes_of(&of_driver).len() >= 4).await;
    kill(driver.0.id());
    wait_for(|| processes_of(&of_driver).is_empty()).await;
    assert_eq!(std::fs::read_to_string(&marker).unwrap(), "bye\n");
}

/// What a killed driver's role worked in stays for a resume, which waits for the role's end and hears how it ended.
#[tokio::test]
async fn what_a_killed_driver_left_is_found_when_its_roles_have_ended() {
    if std::env::vars_os().any(|(name, _)| name == HELPER) {
        let stage = Stage::local();
        let script = "trap 'sleep 1; echo late > file; exit 4' TERM; echo up; while :; do sleep 0.1; done";
        let started = stage.start("slow", script, Wish::default()).await;
        started.says("up").await;
        println!("\nrole {} {} {}", stage.work.run, stage.work.tag.as_str(), stage.path("agent").display());
        std::future::pending::<()>().await;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    let name = "roles::killed::what_a_killed_driver_left_is_found_when_its_roles_have_ended";
    command.args(["--exact", name, "--nocapture"]);
    command.env(HELPER, "1").env("TMPDIR", dir.path()).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut driver = Driver(command.spawn().unwrap());
    let lines = std::io::BufReader::new(driver.0.stdout.take().unwrap()).lines();
    let line = lines.map_while(Result::ok).find(|line| line.starts_with("role ")).unwrap();
    let [_, run, tag, agent] = line.split(' ').collect::<Vec<_>>()[..] else { panic!("{line}") };
    let work = RunWork { run: RunId::parse(run).unwrap(), tag: WorkTag::parse(tag).unwrap() };
    kill(driver.0.id());
    let later = LocalAgent::new(env!("CARGO_BIN_EXE_stead"), vec![agent.into()]);
    let left = later.leftovers(&work).await.unwrap();
    assert_eq!(left.roles[0].exit.as_ref().unwrap().exit_code, Some(4));
    let file = format!("{}/file", left.roles[0].workdir.as_ref().unwrap());
    assert_eq!(std::fs::read_to_string(file).unwrap(), "late\n");
    later.remove_work(&work).await.unwrap();
    assert_eq!(std::fs::read_dir(agent).unwrap().count(), 0);
}

/// Driver and supervisor are both killed: a resume ends what they left.
#[tokio::test]
async fn a_resume_ends_what_a_killed_driver_and_supervisor_left() {
    if std::env::vars_os().any(|(name, _)| name == HELPER) {
        let stage = Stage::local();
        let started = stage.start("orphan", TREE, Wish::default()).await;
        started.says("up").await;
        let place = stage.path("agent");
        println!("\nrole {} {} {} {}", stage.work.run, stage.work.tag.as_str(), place.display(), started.pid);
        std::future::pending::<()>().await;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    let name = "roles::killed::a_resume_ends_what_a_killed_driver_and_supervisor_left";
    command.args(["--exact", name, "--nocapture"]);
    command.env(HELPER, "1").env("TMPDIR", dir.path()).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut driver = Driver(command.spawn().unwrap());
    let lines = std::io::BufReader::new(driver.0.stdout.take().unwrap()).lines();
    let line = lines.map_while(Result::ok).find(|line| line.starts_with("role ")).unwrap();
    let [_, run, tag, agent, pid] = line.split(' ').collect::<Vec<_>>()[..] else { panic!("{line}") };
    let work = RunWork { run: RunId::parse(run).unwrap(), tag: WorkTag::parse(tag).unwrap() };
    let supervisor = parent(pid.parse().unwrap());
    let driver_pid = Pid::from_raw(i32::try_from(driver.0.id()).unwrap()).unwrap();
    // So that it cannot notice that the supervisor has gone.
    kill_process(driver_pid, Signal::STOP).unwrap();
    kill(supervisor);
    kill(driver.0.id());
    wait_for(|| processes_of(&work).len() >= 4).await;
    let later = LocalAgent::new(env!("CARGO_BIN_EXE_stead"), vec![agent.into()]);
    let left = later.leftovers(&work).await.unwrap();
    assert_eq!((left.roles[0].role.as_str(), &left.roles[0].exit), ("orphan", &None));
    assert_eq!(processes_of(&work), []);
}
