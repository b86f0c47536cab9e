//! The rounds: what is done, and how it is disturbed.

use std::error::Error;
use std::fmt;
use std::fs;
use std::path::Path;
use std::process::Child;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::census::processes_of;
use super::world::World;

/// How often a state is looked at.
const LOOK: Duration = Duration::from_millis(5);
/// For what has to happen.
const PATIENCE: Duration = Duration::from_secs(120);

/// One kind of round.
#[derive(Clone, Copy, Debug)]
pub(super) enum Round {
    Push,
    DriverKilled,
    ConnectionCut,
    ExecutorKilled,
    SandboxesMade,
    SandboxesInterrupted,
    ServerKilled,
    AgentsAsked,
}

impl fmt::Display for Round {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Push => "push to two hosts",
            Self::DriverKilled => "push whose driver is killed, and its resume",
            Self::ConnectionCut => "push whose connections are cut, and its resume",
            Self::ExecutorKilled => "push whose executor is killed, and its resume",
            Self::SandboxesMade => "create and destroy of three nodes",
            Self::SandboxesInterrupted => "create that is killed, and its destroy",
            Self::ServerKilled => "server that is killed and started again",
            Self::AgentsAsked => "jobs for agents that stay",
        })
    }
}

impl Round {
    pub(super) const ALL: [Self; 8] = [
        Self::Push,
        Self::DriverKilled,
        Self::ConnectionCut,
        Self::ExecutorKilled,
        Self::SandboxesMade,
        Self::SandboxesInterrupted,
        Self::ServerKilled,
        Self::AgentsAsked,
    ];

    /// Does it once; `number` makes each different from the one before.
    pub(super) fn run(self, world: &World, number: u64) -> Result<(), Box<dyn Error>> {
        let run = format!("{self:?}-{number}").to_lowercase();
        match self {
            Self::Push => {
                world.expect(world.push(&run, number))?;
                check(world, number)
            }
            Self::DriverKilled => {
                let mut child = world.push(&run, number).spawn()?;
                wait_for_events(world, &run, 4 + number % 12, &mut child)?;
                drop((child.kill(), child.wait_with_output()?));
                resume(world, &run)?;
                check(world, number)
            }
            Self::ConnectionCut => {
                for (host, bytes) in world.hosts.iter().zip([number % 17 * 1_000, number % 5 * 7_000]) {
                    host.relay.cut_after(2_000 + bytes);
                }
                drop(world.push(&run, number).output()?);
                for host in &world.hosts {
                    host.relay.spare();
                }
                resume(world, &run)?;
                check(world, number)
            }
            Self::ExecutorKilled => {
                let mut child = world.push(&run, number).spawn()?;
                wait_for_events(world, &run, 6 + number % 8, &mut child)?;
                for host in &world.hosts {
                    kill_all(host.sshd.path(), "stead");
                }
                drop(child.wait_with_output()?);
                resume(world, &run)?;
                check(world, number)
            }
            Self::SandboxesMade => {
                world.expect(world.site("comes", &["create", "-M", "lab", "-H", "local"]))?;
                destroy(world)
            }
            Self::SandboxesInterrupted => {
                let mut child = world.site("comes", &["create", "-M", "lab", "-H", "local"]).spawn()?;
                let state = world.path().join("comes/.stead/runs");
                let runs = count_runs(&state);
                wait_until(&mut child, || count_runs(&state) > runs)?;
                thread::sleep(Duration::from_millis(100 + number % 10 * 150));
                drop((child.kill(), child.wait_with_output()?));
                destroy(world)
            }
            Self::ServerKilled => {
                world.expect(world.site("comes", &["server", "start"]))?;
                let document = world.expect(world.site("comes", &["server", "status", "--json"]))?;
                let document: serde_json::Value = serde_json::from_slice(&document.stdout)?;
                let pid =
                    document["pid"].as_i64().and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw);
                kill_process(pid.ok_or("a server has a process")?, Signal::KILL)?;
                world.expect(world.site("comes", &["server", "start"]))?;
                world.expect(world.site("comes", &["server", "stop"])).map(drop)
            }
            Self::AgentsAsked => {
                for node in ["buoy", "gull"] {
                    let words = ["job", "submit", "--node", node, "--wait", "--", "hostname"];
                    world.expect(world.site("stays", &words))?;
                }
                Ok(())
            }
        }
    }
}

fn destroy(world: &World) -> Result<(), Box<dyn Error>> {
    world.expect(world.site("comes", &["destroy", "-M", "lab", "-H", "local", "--yes"])).map(drop)
}

/// Goes on with a run until it has succeeded; one that has needs nothing.
fn resume(world: &World, run: &str) -> Result<(), Box<dyn Error>> {
    let meta = world.path().join("state/runs").join(run).join("run_meta.json");
    let is_done =
        fs::read(meta).ok().and_then(|bytes| serde_json::from_slice::<serde_json::Value>(&bytes).ok());
    if is_done.is_some_and(|meta| meta["status"] == "success") {
        return Ok(());
    }
    world.expect(world.stead(&["resume", run, "-i", "inventory.yaml"])).map(drop)
}

/// Checks that both hosts are as the plan says.
fn check(world: &World, number: u64) -> Result<(), Box<dyn Error>> {
    for host in ["h0", "h1"] {
        for file in ["one", "three", "five"] {
            let path = world.path().join("out").join(host).join(file);
            let content = fs::read_to_string(&path)?;
            if content != format!("{number}\n") {
                return Err(format!("{} holds {content:?}, not {number}", path.display()).into());
            }
        }
    }
    Ok(())
}

fn wait_for_events(world: &World, run: &str, count: u64, child: &mut Child) -> Result<(), Box<dyn Error>> {
    let events = world.path().join("state/runs").join(run).join("events.jsonl");
    let lines =
        || fs::read(&events).map_or(0, |bytes| bytes.iter().filter(|byte| **byte == b'\n').count() as u64);
    wait_until(child, || lines() >= count)
}

/// Waits until something is so, or the process has ended.
fn wait_until(child: &mut Child, is_so: impl Fn() -> bool) -> Result<(), Box<dyn Error>> {
    let began = Instant::now();
    while !is_so() && child.try_wait()?.is_none() {
        if began.elapsed() > PATIENCE {
            return Err("nothing happens".into());
        }
        thread::sleep(LOOK);
    }
    Ok(())
}

fn count_runs(directory: &Path) -> usize {
    fs::read_dir(directory).map_or(0, Iterator::count)
}

/// Kills the processes called `name` that belong to `place`.
fn kill_all(place: &Path, name: &str) {
    for process in processes_of(place).into_iter().filter(|process| process.name == name) {
        if let Some(pid) = i32::try_from(process.pid).ok().and_then(Pid::from_raw) {
            // One that has ended meanwhile is as good as killed.
            kill_process(pid, Signal::KILL).ok();
        }
    }
}
