//! Somebody in the chain is killed: no process of a role stays.

use std::io::BufRead as _;
use std::process::{Child, Command, Stdio};

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
        println!("\nrole {} workdirs {}", stage.work.run, stage.path("agent").display());
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
    assert!(processes_of(&of_driver).len() >= 4);
    kill(driver.0.id());
    wait_for(|| processes_of(&of_driver).is_empty()).await;
    assert_eq!(std::fs::read_to_string(&marker).unwrap(), "bye\n");
    // What it worked in stays for a resume, with how it ended.
    let agent = line.rsplit(' ').next().unwrap();
    let entries: Vec<_> = std::fs::read_dir(agent).unwrap().flatten().map(|entry| entry.path()).collect();
    let note = entries[0].join(".control/child/exit.json");
    wait_for(|| std::fs::read_to_string(&note).is_ok_and(|text| text.contains("\"exit_code\":0"))).await;
}
