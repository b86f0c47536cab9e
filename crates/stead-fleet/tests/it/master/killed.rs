//! Case 18, failure F7: a master that is killed at any moment of its publications, in a process of its own.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use stead_fleet::api::{CallError, Master};
use stead_fleet::master::{Settings, start};
use stead_fleet::store::{Embedded, Etcd, FleetStore};
use stead_model::fleet::VmSpec;
use stead_model::fleet::state::{Outcome, Snapshot};

use super::yard::*;

/// What a process of its own is to do.
const ORDER: &str = "STEAD_TEST_MASTER";

/// How many publications there are in all.
const PUBLICATIONS: u64 = 1_000;

/// Returns the VMs of a commit: all of them say which, and how many there are depends on it.
pub(super) fn of_commit(number: u64) -> Vec<Arc<VmSpec>> {
    let label = format!(r#","labels":{{"commit":"{number}"}}"#);
    let count = |at: u64| u32::try_from(1 + (number + at) % 2).unwrap();
    let list: Vec<(String, u32)> = (0..4).map(|at| (format!("vm-{at}"), count(at))).collect();
    let list: Vec<(&str, u32, &str)> =
        list.iter().map(|(id, replicas)| (id.as_str(), *replicas, label.as_str())).collect();
    vms("default", &list)
}

/// A master that publishes one commit after the other and notes which were acknowledged. Does nothing unless it is asked.
#[test]
fn a_master_of_its_own() {
    let Some(order) = std::env::var_os(ORDER) else { return };
    let order: Value = serde_json::from_str(order.to_str().unwrap()).unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async move {
        let store: Arc<dyn FleetStore> = match (order["file"].as_str(), order["etcd"].as_str()) {
            (Some(file), _) => Arc::new(Embedded::open(Path::new(file)).unwrap()),
            (None, Some(etcd)) => Arc::new(Etcd::new(&[etcd.to_owned()], "stead/", None).unwrap()),
            (None, None) => panic!("no store"),
        };
        let name = order["name"].as_str().unwrap().to_owned();
        let running = start(Settings { name, ..settings(store) }).await.unwrap();
        let master = running.handle();
        let mut acks =
            OpenOptions::new().create(true).append(true).open(order["acks"].as_str().unwrap()).unwrap();
        let mut worker = Worker::new("w1");
        let mut number = order["first"].as_u64().unwrap();
        loop {
            // Who leads reports to itself; who does not is told so.
            worker.beat(&*master).await.ok();
            let line = match publish(&*master, number, "default", of_commit(number)).await {
                Ok(verdict) if matches!(verdict.outcome, Outcome::Accepted | Outcome::Duplicate) => {
                    number += 1;
                    format!("{} {}\n", number - 1, verdict.active)
                }
                Ok(verdict) => panic!("{verdict:?}"),
                Err(CallError::NotLeader { .. }) => "not-leader\n".to_owned(),
                Err(CallError::Away(_) | CallError::Refused { .. }) => "away\n".to_owned(),
            };
            acks.write_all(line.as_bytes()).unwrap();
            if line.starts_with(char::is_alphabetic) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    });
}

/// A process of its own, killed with its value.
pub(super) struct Process(pub(super) Child);

impl Process {
    pub(super) fn start(order: &Value) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["master::killed::a_master_of_its_own", "--exact", "--test-threads=1"]);
        command.env(ORDER, order.to_string()).stdin(Stdio::null()).stdout(Stdio::null());
        Self(command.spawn().unwrap())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself.
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// Returns the commits that were acknowledged.
pub(super) fn acknowledged(file: &Path) -> Vec<u64> {
    generations(file).into_iter().map(|(commit, _)| commit).collect()
}

/// Returns the commits that were acknowledged, each with its generation.
pub(super) fn generations(file: &Path) -> Vec<(u64, u64)> {
    let text = fs::read_to_string(file).unwrap_or_default();
    let both = |line: &str| {
        let (commit, generation) = line.split_once(' ')?;
        Some((commit.parse().ok()?, generation.parse().ok()?))
    };
    text.lines().filter_map(both).collect()
}

/// Fails unless what is stored is one commit, whole, and not older than `least`. Returns which.
async fn check_whole(file: &Path, least: u64) -> u64 {
    let store = Embedded::open(file).unwrap();
    let running = start(settings(Arc::new(store))).await.unwrap();
    let text = running.handle().snapshot().await.unwrap();
    let snapshot = Snapshot::read("snapshot", &text.0).unwrap();
    running.stop().await;
    let Some(group) = snapshot.groups.first() else {
        assert_eq!(least, 0, "nothing is there");
        return 0;
    };
    let number = u64::from_str_radix(group.commit.as_str(), 16).unwrap();
    assert!(number >= least, "commit {least} was acknowledged, and {number} is there");
    let wanted: Vec<VmSpec> = of_commit(number).iter().map(|spec| (**spec).clone()).collect();
    assert_eq!(group.specs, wanted, "a mix");
    let instances: u32 = wanted.iter().map(|spec| spec.replicas).sum();
    assert_eq!(snapshot.placements.len(), instances as usize, "placements of commit {number}");
    number
}

/// Case 18: never a mix, never a lost acknowledged one.
#[tokio::test(flavor = "multi_thread")]
async fn a_master_that_is_killed_keeps_what_it_acknowledged() {
    let dir = tempfile::tempdir().unwrap();
    let (file, acks): (PathBuf, PathBuf) = (dir.path().join("master.db"), dir.path().join("acks"));
    let mut dice = 0x9e37_79b9_u64;
    let mut done = 0;
    let mut kills = 0;
    while done < PUBLICATIONS {
        let order = json!({"file": file, "acks": acks, "first": done + 1, "name": "m1"});
        let process = Process::start(&order);
        dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        // Now and then right at the start; else somewhere in a publication.
        let some = if dice >> 62 == 0 { 0 } else { 1 + (dice >> 33) % 60 };
        let end = Instant::now() + Duration::from_secs(60);
        while acknowledged(&acks).last().copied().unwrap_or(0) < done + some {
            assert!(Instant::now() < end, "it publishes");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        tokio::time::sleep(Duration::from_micros((dice >> 40) % 4_000)).await;
        drop(process);
        kills += 1;
        let least = acknowledged(&acks).last().copied().unwrap_or(0);
        done = check_whole(&file, least).await;
    }
    assert!(kills > 10, "{kills} kills");
}
