//! Singletons whose lease is over: they end, whatever the agent knows of them and whatever it is doing.

use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use stead_fleet::events::Ev;
use stead_fleet::worker::{self, WorkerError};
use stead_model::WorkerName;
use stead_model::fleet::VmSpec;
use stead_model::plan::Digest;

use super::guests::{cloud_guest, cloud_yard, qemu_guest, qemu_yard};
use super::yard::{Yard, is_alive, vm};

async fn until_dead(pid: u32) {
    let begun = Instant::now();
    while is_alive(pid) {
        assert!(begun.elapsed() < Duration::from_secs(60), "{pid} runs on without a lease");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Has the lease be over.
fn end_lease(yard: &Yard) {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    fs::write(yard.path("state/fleet/worker.lease"), format!("1 {boot}")).unwrap();
}

/// Starts a singleton, ends its agent and its lease, and returns the process; no master is heard from then on.
async fn without_lease(yard: &Yard) -> u32 {
    let one = vm("one", json!({"runtime": yard.sleeper("one", "x"), "singleton": true}));
    yard.stage.change(|state| state.lease = Some(600_000));
    let agent = yard.begin();
    yard.assign(1, &[("one/0", &one)]);
    yard.until_ready("one/0", &one).await;
    agent.end().await.unwrap();
    yard.stage.change(|state| state.is_away = true);
    // What keeps the machine would end it too.
    for machine in fs::read_dir(yard.path("state/fleet/machines")).unwrap().flatten() {
        fs::remove_file(machine.path().join("fence")).unwrap();
    }
    fs::remove_file(yard.path("state/fleet/worker.lease")).unwrap();
    yard.pid("one/0")
}

/// Section 9, F5: an agent that is dead fences nobody; what keeps the machine of a singleton does. Others run on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_singleton_ends_with_its_lease_though_its_agent_is_dead() {
    let yard = Yard::new();
    let one = vm("one", json!({"runtime": yard.sleeper("one", "x"), "singleton": true}));
    let web = vm("web", json!({"runtime": yard.sleeper("web", "x")}));
    // It becomes one while it runs.
    let late =
        |singleton: bool| vm("late", json!({"runtime": yard.sleeper("late", "x"), "singleton": singleton}));
    yard.stage.change(|state| state.lease = Some(600_000));
    let agent = yard.begin();
    yard.assign(1, &[("one/0", &one), ("web/0", &web), ("late/0", &late(false))]);
    for (key, spec) in [("one/0", &one), ("web/0", &web), ("late/0", &late(false))] {
        yard.until_ready(key, spec).await;
    }
    yard.assign(2, &[("one/0", &one), ("web/0", &web), ("late/0", &late(true))]);
    let begun = Instant::now();
    while yard.record("late/0").unwrap()["spec"]["singleton"] != true {
        assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", yard.record("late/0"));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    agent.end().await.unwrap();
    let pids = ["one/0", "late/0", "web/0"].map(|key| yard.pid(key));
    assert!(pids.iter().all(|pid| is_alive(*pid)), "nothing ends with the agent");
    end_lease(&yard);
    until_dead(pids[0]).await;
    until_dead(pids[1]).await;
    assert!(is_alive(pids[2]), "what may run twice runs on");
    worker::stop_all(yard.settings()).await.unwrap();
}

/// Starts a guest that must not run twice, ends its agent and then its lease: the guest ends, and an agent that begins anew
/// says how, and starts another one.
async fn a_guest_ends_with_its_lease(yard: &Yard, guest: &Arc<VmSpec>) {
    yard.stage.change(|state| state.lease = Some(600_000));
    let agent = yard.begin();
    yard.assign(1, &[("guest/0", guest)]);
    yard.until_ready("guest/0", guest).await;
    agent.end().await.unwrap();
    let pid = yard.pid("guest/0");
    assert!(is_alive(pid), "nothing ends with the agent");
    end_lease(yard);
    until_dead(pid).await;
    yard.stage.change(|state| state.seen.clear());
    let agent = yard.begin();
    yard.until("guest/0", |seen| seen.ready && yard.pid("guest/0") != pid).await;
    let lines = stead_fleet::events::read(&yard.path("state/fleet/events")).unwrap();
    let told: Vec<_> =
        lines.into_iter().filter(|line| line.ev == Ev::Exited).map(|line| line.fields.reason).collect();
    assert_eq!(told, ["its lease is over"]);
    yard.assign(2, &[]);
    yard.until_gone("guest/0").await;
    agent.end().await.unwrap();
}

/// Section 9, F5: a guest of QEMU that must not run twice ends with its lease though its agent is dead.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guest_of_qemu_ends_with_its_lease_though_its_agent_is_dead() {
    let Some((yard, firmware)) = qemu_yard() else { return };
    let guest = qemu_guest(&yard, &firmware, "x", &json!({"singleton": true}));
    a_guest_ends_with_its_lease(&yard, &guest).await;
}

/// Section 9, F5: so does one of Cloud Hypervisor.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guest_of_cloud_hypervisor_ends_with_its_lease_though_its_agent_is_dead() {
    let yard = cloud_yard();
    let guest = cloud_guest(&yard, "guest", json!({"singleton": true}));
    a_guest_ends_with_its_lease(&yard, &guest).await;
}

/// Section 9: an agent that died in a start left a machine that its record does not know.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_just_started_is_fenced() {
    let yard = Yard::new();
    let pid = without_lease(&yard).await;
    let path = yard.path("state/fleet/instances/one.0/record.json");
    let mut record: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    (record["pid"], record["pidStart"], record["since"]) = (Value::Null, Value::Null, 0.into());
    fs::write(&path, record.to_string()).unwrap();
    let agent = yard.begin();
    until_dead(pid).await;
    agent.end().await.unwrap();
}

/// Section 9: an agent that cannot read what it was assigned still knows by its records what must not run twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_only_in_the_records_is_fenced() {
    let yard = Yard::new();
    let pid = without_lease(&yard).await;
    let path = yard.path("state/fleet/assignment.json");
    let text = fs::read_to_string(&path).unwrap().replacen("\"id\"", "\"ofTheFuture\":1,\"id\"", 1);
    fs::write(&path, text).unwrap();
    let agent = yard.begin();
    until_dead(pid).await;
    agent.end().await.unwrap();
}

/// Section 9: a stop that takes its time takes no longer than the lease; a spec that became a singleton's is one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_stop_ends_with_the_lease() {
    let yard = Yard::new();
    let script = "trap '' TERM; while true; do sleep 0.1; done";
    let runtime = json!({"argv": ["/bin/sh", "-c", script]});
    let spec = |more: Value| {
        let mut spec = json!({"runtime": runtime, "stopSeconds": 3600});
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        vm("one", spec)
    };
    let (plain, single) = (spec(json!({})), spec(json!({"singleton": true})));
    let agent = yard.begin();
    yard.stage.change(|state| state.lease = Some(8_000));
    yard.assign(1, &[("one/0", &plain)]);
    yard.until_ready("one/0", &plain).await;
    let pid = yard.pid("one/0");
    yard.assign(2, &[("one/0", &single)]);
    let begun = Instant::now();
    while yard.record("one/0").unwrap()["spec"]["singleton"] != true {
        assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", yard.record("one/0"));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(yard.pid("one/0"), pid, "that is no other machine");
    yard.assign(3, &[]);
    yard.until("one/0", |seen| seen.state == stead_model::fleet::state::InstanceState::Stopping).await;
    yard.stage.change(|state| state.is_away = true);
    until_dead(pid).await;
    agent.end().await.unwrap();
}

/// Machines are known by the worker's name: another name is refused, and what stops everything needs none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_state_directory_is_of_one_worker() {
    let mut yard = Yard::new();
    let web = vm("web", json!({"runtime": yard.sleeper("web", "x")}));
    let agent = yard.begin();
    yard.assign(1, &[("web/0", &web)]);
    yard.until_ready("web/0", &web).await;
    let pid = yard.pid("web/0");
    agent.end().await.unwrap();
    yard.file.name = Some(WorkerName::parse("other").unwrap());
    let refused = yard.begin().ended().await.unwrap_err();
    assert!(matches!(&refused, WorkerError::Renamed { known, .. } if known == "w1"), "{refused}");
    assert!(is_alive(pid));
    yard.file.name = None;
    worker::stop_all(yard.settings()).await.unwrap();
    assert!(!is_alive(pid));
}

/// F15: going back makes a closure the newest again, so that it outlives those that ran before it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_ran_last_is_kept_longest() {
    let mut yard = Yard::new();
    let store = yard.path("artifacts/sha256");
    fs::create_dir_all(&store).unwrap();
    yard.file.artifacts = Some(yard.path("artifacts").display().to_string());
    yard.file.keep_previous = 1;
    let version = |yard: &Yard, text: &str| {
        let sha256 = Digest::of(text.as_bytes());
        fs::write(store.join(sha256.to_string()), text).unwrap();
        let mut runtime = yard.sleeper("web", text);
        runtime["artifacts"] = json!([{"sha256": sha256.to_string(), "size": text.len(), "name": "image"}]);
        vm("web", json!({"runtime": runtime}))
    };
    let [a, b, c] = ["a", "b", "c"].map(|text| version(&yard, text));
    let agent = yard.begin();
    for (generation, spec) in [&a, &b, &a, &c].into_iter().enumerate() {
        yard.assign(generation as u64 + 1, &[("web/0", spec)]);
        yard.until_ready("web/0", spec).await;
    }
    // There is no way to fetch anything any more.
    fs::remove_dir_all(yard.path("artifacts")).unwrap();
    yard.assign(5, &[("web/0", &a)]);
    yard.until_ready("web/0", &a).await;
    assert_eq!(yard.starts("web"), ["a", "b", "a", "c", "a"]);
    agent.end().await.unwrap();
}
