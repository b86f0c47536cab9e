//! The agent is killed at each of its steps: the next one loses nothing and does nothing twice, and the same is true of what
//! is written down.

use std::collections::BTreeSet;
use std::fs;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use stead_fleet::events::{Ev, Events};
use stead_fleet::worker;
use tokio_util::sync::CancellationToken;

use super::yard::{Stage, Yard, assignment, vm, worker_file};
use stead_fleet::worker::Settings;

/// Holds what a process that is to be an agent does.
const AGENT: &str = "STEAD_TEST_FLEET_AGENT";

/// Is an agent, if this process was started to be one: until everything is as assigned, or until a step kills it.
#[test]
fn an_agent_of_its_own() {
    let Some(order) = std::env::var_os(AGENT) else { return };
    let order: Value = serde_json::from_str(order.to_str().unwrap()).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(be_agent(&order));
}

async fn be_agent(order: &Value) {
    let dir = std::path::PathBuf::from(order["dir"].as_str().unwrap());
    let (die_at, steps) = (order["die_at"].as_str().unwrap_or_default().to_owned(), dir.join("steps"));
    let mut settings = Settings::new(dir.join("state"), worker_file(), dir.join("stead"));
    settings.events = Some(Arc::new(Events::open(&dir.join("state/fleet/events")).unwrap()));
    let seen: Mutex<BTreeSet<String>> = Mutex::default();
    settings.watch = Arc::new(move |step| {
        if seen.lock().unwrap().insert(step.to_owned()) {
            let text = fs::read_to_string(&steps).unwrap_or_default();
            fs::write(&steps, format!("{text}{step}\n")).unwrap();
        }
        if step == die_at {
            rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL).unwrap();
        }
    });
    let stage = Arc::new(Stage::default());
    let specs = order["specs"].as_array().unwrap();
    let specs: Vec<_> = specs.iter().map(|spec| vm("web", spec.clone())).collect();
    let instances: Vec<_> = specs.iter().map(|spec| ("web/0", spec)).collect();
    let wanted = assignment(order["generation"].as_u64().unwrap(), &instances);
    stage.change(|state| state.assignment = Some(wanted.clone()));
    let stop = CancellationToken::new();
    let is_done = async {
        loop {
            tokio::time::sleep(Duration::from_millis(20)).await;
            let state = stage.state();
            let told = state.beats.last().is_some_and(|beat| beat.seen_generation == wanted.generation);
            let fits = |assigned: &stead_model::fleet::state::Assigned| {
                state
                    .seen
                    .get(&assigned.instance)
                    .is_some_and(|seen| seen.ready && seen.vm_hash == Some(assigned.vm_hash))
            };
            let is_empty = wanted.instances.is_empty()
                && fs::read_dir(dir.join("state/fleet/instances")).unwrap().next().is_none();
            if told && (is_empty || (!wanted.instances.is_empty() && wanted.instances.iter().all(fits))) {
                return;
            }
        }
    };
    let running = worker::run(settings, stage.clone(), stop.clone());
    tokio::select! {
        ended = running => ended.unwrap(),
        () = is_done => {}
    }
}

/// Runs an agent in a process of its own; returns whether it lived to see everything as assigned.
fn agent(yard: &Yard, generation: u64, specs: &[&Value], die_at: &str) -> bool {
    let order = json!({"dir": yard.dir.path(), "generation": generation, "specs": specs, "die_at": die_at});
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["worker::killed::an_agent_of_its_own", "--exact", "--nocapture", "--quiet"]);
    let log = fs::File::create(yard.path("agent.log")).unwrap();
    command.env(AGENT, order.to_string()).stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
    let mut child = command.spawn().unwrap();
    let begun = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if begun.elapsed() > Duration::from_secs(60) {
            child.kill().unwrap();
            child.wait().unwrap();
            panic!("{die_at}: {}", fs::read_to_string(yard.path("agent.log")).unwrap());
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    let text = || fs::read_to_string(yard.path("agent.log")).unwrap();
    assert!(status.success() || !die_at.is_empty(), "{}", text());
    status.success()
}

/// Returns the steps that an agent takes on its way to these specs, from what `before` makes.
fn steps(before: &dyn Fn(&Yard), generation: u64, specs: &dyn Fn(&Yard) -> Vec<Value>) -> Vec<String> {
    let yard = Yard::new();
    before(&yard);
    fs::remove_file(yard.path("steps")).ok();
    let specs = specs(&yard);
    assert!(agent(&yard, generation, &specs.iter().collect::<Vec<_>>(), ""));
    let text = fs::read_to_string(yard.path("steps")).unwrap();
    let found: Vec<String> = text.lines().map(str::to_owned).collect();
    assert!(found.len() >= 3, "{found:?}");
    found
}

/// Does something for each step in a place of its own, several at a time: most of it is waiting until an instance counts as
/// started.
fn for_each(steps: &[String], each: impl Fn(&str, &Yard) + Sync) {
    for some in steps.chunks(4) {
        // Made before anything is started: a process that begins meanwhile could hold a program that is being written.
        let yards: Vec<Yard> = some.iter().map(|_| Yard::new()).collect();
        std::thread::scope(|scope| {
            for (step, yard) in some.iter().zip(&yards) {
                scope.spawn(|| each(step, yard));
            }
        });
    }
}

fn old(yard: &Yard) -> Value {
    json!({"runtime": yard.sleeper("web", "old"), "stopSeconds": 1})
}

fn new(yard: &Yard) -> Value {
    json!({"runtime": yard.sleeper("web", "new"), "stopSeconds": 1})
}

/// Returns what is written down of the acts on the instance, by all its agents.
fn told(yard: &Yard) -> Vec<Ev> {
    let mut told = yard.happened("web/0");
    told.retain(|ev| !matches!(ev, Ev::Fetched | Ev::Adopted));
    told
}

/// F1, section 10: a start that was cut off is gone on with, and there is never a second process.
#[test]
fn a_start_survives_every_death() {
    for_each(&steps(&|_| {}, 1, &|yard| vec![old(yard)]), |step, yard| {
        assert!(!agent(yard, 1, &[&old(yard)], step), "{step}");
        assert!(agent(yard, 1, &[&old(yard)], ""), "{step}");
        assert_eq!(yard.starts("web"), ["old"], "{step}");
        let pid = yard.pid("web/0");
        assert!(agent(yard, 1, &[&old(yard)], ""), "{step}");
        assert_eq!(yard.pid("web/0"), pid, "{step}");
        assert_eq!(told(yard), [Ev::Started, Ev::Ready], "{step}");
    });
}

/// Sections 10, 15: an end that was seen by an agent that died is counted and written down once.
#[test]
fn an_end_survives_every_death() {
    let ends_once = |yard: &Yard| {
        // Not before an agent knows that it runs: of what nobody saw nothing is told.
        let script = format!(
            "cd '{}'; [ -e once ] && touch up && exec sleep 1000
            until grep -q '\"pid\":[0-9]' state/fleet/instances/web.0/record.json; do sleep 0.1; done
            touch once; exit 3",
            yard.dir.path().display()
        );
        let restart = json!({"backoffSeconds": 1, "maxBackoffSeconds": 1});
        // Only the second run is ever ready, however long the first one lasts.
        let ready = json!({"kind": "exec", "argv": ["/usr/bin/test", "-e", yard.path("up")]});
        json!({"runtime": {"argv": ["/bin/sh", "-c", script]}, "restart": restart, "ready": ready, "stopSeconds": 1})
    };
    for_each(&steps(&|_| {}, 1, &|yard| vec![ends_once(yard)]), |step, yard| {
        assert!(!agent(yard, 1, &[&ends_once(yard)], step), "{step}");
        assert!(agent(yard, 1, &[&ends_once(yard)], ""), "{step}");
        assert_eq!(yard.record("web/0").unwrap()["attempts"], 1, "{step}");
        assert_eq!(told(yard), [Ev::Started, Ev::Exited, Ev::Started, Ev::Ready], "{step}");
    });
}

/// Section 10: a replacement that was cut off is gone on with; the old one is gone, the new one there once.
#[test]
fn a_replacement_survives_every_death() {
    let before = |yard: &Yard| assert!(agent(yard, 1, &[&old(yard)], ""));
    for_each(&steps(&before, 2, &|yard| vec![new(yard)]), |step, yard| {
        before(yard);
        assert!(!agent(yard, 2, &[&new(yard)], step), "{step}");
        assert!(agent(yard, 2, &[&new(yard)], ""), "{step}");
        assert_eq!(yard.starts("web"), ["old", "new"], "{step}");
        assert_eq!(yard.processes().len(), 2, "{step}: a supervisor and its program");
        assert_eq!(told(yard), [Ev::Started, Ev::Ready, Ev::Stopped, Ev::Started, Ev::Ready], "{step}");
    });
}

/// Section 10: a removal that was cut off is gone on with, until nothing is left.
#[test]
fn a_removal_survives_every_death() {
    let before = |yard: &Yard| assert!(agent(yard, 1, &[&old(yard)], ""));
    for_each(&steps(&before, 2, &|_| Vec::new()), |step, yard| {
        before(yard);
        assert!(!agent(yard, 2, &[], step), "{step}");
        assert!(agent(yard, 2, &[], ""), "{step}");
        yard.assert_clean();
        assert_eq!(told(yard), [Ev::Started, Ev::Ready, Ev::Stopped, Ev::Removed], "{step}");
    });
}
