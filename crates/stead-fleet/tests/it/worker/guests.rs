//! Virtual machines under a worker: QEMU itself, and a stand-in for Cloud Hypervisor that goes wrong as it is told.

use std::fs;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};
use stead_model::fleet::vm::{DiskFormat, Driver};
use stead_model::fleet::{Code, VmSpec};
use stead_model::plan::Digest;
use stead_model::site::Host;
use stead_runner::socket::SocketPath;
use stead_testkit::{cloud_hypervisor, micro_vm};

use super::yard::{Yard, is_alive, vm};

/// Is the stand-in, if this process was started to be one.
#[test]
fn a_cloud_hypervisor_of_its_own() {
    cloud_hypervisor::run();
}

/// Puts bytes where blobs are; returns the artifact.
fn put(yard: &Yard, name: &str, bytes: &[u8]) -> Value {
    let directory = yard.path("artifacts/sha256");
    fs::create_dir_all(&directory).unwrap();
    let sha256 = Digest::of(bytes);
    fs::write(directory.join(sha256.to_string()), bytes).unwrap();
    json!({"sha256": sha256.to_string(), "size": bytes.len(), "name": name})
}

fn yard(driver: Driver, settings: Value) -> Yard {
    let mut yard = Yard::new();
    let host = Host {
        driver: Some(driver.kind()),
        driver_settings: serde_json::from_value(settings).unwrap(),
        ..Host::default()
    };
    yard.file.drivers = [(driver, host)].into();
    yard.file.artifacts = Some(yard.path("artifacts").display().to_string());
    yard
}

/// Returns a place for guests of QEMU, and the firmware they boot with; none if there is none here.
#[expect(clippy::print_stderr, reason = "what is left out says why")]
pub(super) fn qemu_yard() -> Option<(Yard, Value)> {
    let firmware = ["/usr/share/seabios/bios-256k.bin", "/usr/share/qemu/bios-256k.bin"];
    let Some(firmware) = firmware.into_iter().map(Path::new).find(|path| path.exists()) else {
        assert!(std::env::var_os("STEAD_CI").is_none(), "there is no firmware of QEMU");
        eprintln!("left out: there is no firmware of QEMU (package seabios)");
        return None;
    };
    let yard = yard(Driver::Qemu, json!({"accel": "tcg"}));
    let firmware = put(&yard, "bios", &fs::read(firmware).unwrap());
    Some((yard, firmware))
}

/// A guest of QEMU with a volume, whose disk has `text` on it.
pub(super) fn qemu_guest(yard: &Yard, firmware: &Value, text: &str, more: &Value) -> Arc<VmSpec> {
    let mut disk = micro_vm::boot_disk();
    disk[4096..4096 + text.len()].copy_from_slice(text.as_bytes());
    let image = put(yard, "disk", &disk);
    let mut spec = json!({
        "resources": {"cpuMilli": 500, "memMiB": 32},
        "runtime": {
            "driver": "qemu", "firmware": firmware,
            "disks": [{"image": image}, {"volume": "data"}],
        },
        "volumes": [{"name": "data", "sizeMiB": 1}],
        "ready": {"kind": "serial", "match": "up\r\n"}, "stopSeconds": 20,
    });
    spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    vm("guest", spec)
}

/// Case 25, the worker's side: guests of QEMU are ready by their console, replaced and back without download.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn guests_of_qemu_are_ready_replaced_and_back() {
    let Some((yard, firmware)) = qemu_yard() else { return };
    let guest = |text: &str| qemu_guest(&yard, &firmware, text, &json!({}));
    let (first, mut second) = (guest("first"), guest("second"));
    // Its volume has another format.
    Arc::make_mut(&mut second).runtime.disks[1].format = DiskFormat::Qcow2;
    let agent = yard.begin();
    yard.assign(1, &[("guest/0", &first), ("guest/1", &first)]);
    yard.until_ready("guest/0", &first).await;
    yard.until_ready("guest/1", &first).await;
    let pids = (yard.pid("guest/0"), yard.pid("guest/1"));
    assert!(yard.machine("guest/0").join("layer-0.qcow2").exists());
    yard.assign(2, &[("guest/0", &second), ("guest/1", &first)]);
    yard.until_ready("guest/0", &second).await;
    assert!(!is_alive(pids.0) && is_alive(pids.1));
    let volumes = fs::read_dir(yard.path("state/fleet/volumes/guest.0")).unwrap();
    let volumes: Vec<_> = volumes.map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(volumes, ["data.qcow2"]);
    fs::remove_dir_all(yard.path("artifacts")).unwrap();
    yard.assign(3, &[("guest/0", &first), ("guest/1", &first)]);
    yard.until_ready("guest/0", &first).await;
    assert_eq!(yard.pid("guest/1"), pids.1);
    assert_eq!(fs::metadata(yard.path("state/fleet/volumes/guest.0/data.raw")).unwrap().len(), 1 << 20);

    // F1: another agent finds them by their processes and consoles.
    let pids = (yard.pid("guest/0"), yard.pid("guest/1"));
    agent.end().await.unwrap();
    yard.stage.change(|state| state.seen.clear());
    let agent = yard.begin();
    yard.until_ready("guest/0", &first).await;
    yard.until_ready("guest/1", &first).await;
    assert_eq!((yard.pid("guest/0"), yard.pid("guest/1")), pids);
    yard.assign(4, &[]);
    yard.until_gone("guest/0").await;
    yard.until_gone("guest/1").await;
    yard.assert_clean();
    agent.end().await.unwrap();
}

pub(super) fn cloud_yard() -> Yard {
    let mut yard = yard(Driver::CloudHypervisor, json!({}));
    cloud_hypervisor::install(yard.dir.path(), "worker::guests::a_cloud_hypervisor_of_its_own");
    let binary = yard.path("cloud-hypervisor").display().to_string();
    if let Some(host) = yard.file.drivers.get_mut(&Driver::CloudHypervisor) {
        host.driver_settings.insert("binary".to_owned(), json!(binary));
    }
    yard
}

pub(super) fn cloud_guest(yard: &Yard, id: &str, more: Value) -> Arc<VmSpec> {
    let kernel = put(yard, "vmlinux", cloud_hypervisor::KERNEL);
    let image = put(yard, "disk", &[0; 4096]);
    let mut spec = json!({
        "runtime": {"driver": "cloud-hypervisor", "kernel": kernel, "disks": [{"image": image}]},
        "ready": {"kind": "serial", "match": "up"}, "stopSeconds": 2,
    });
    for (key, value) in more.as_object().unwrap() {
        spec[key] = value.clone();
    }
    vm(id, spec)
}

/// Section 3: an image that is written to is a layer over it, and no copy, which would take long while nothing runs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guest_of_cloud_hypervisor_writes_to_a_layer() {
    let yard = cloud_yard();
    let kernel = put(&yard, "vmlinux", cloud_hypervisor::KERNEL);
    let image = put(&yard, "disk", &[7; 4 << 20]);
    let blob = image["sha256"].as_str().unwrap().to_owned();
    let runtime = json!({"driver": "cloud-hypervisor", "kernel": kernel, "disks": [{"image": image}]});
    let guest = cloud_guest(&yard, "guest", json!({"runtime": runtime}));
    let agent = yard.begin();
    yard.assign(1, &[("guest/0", &guest)]);
    yard.until_ready("guest/0", &guest).await;
    let layer = fs::read(yard.machine("guest/0").join("layer-0.qcow2")).unwrap();
    assert!(layer.len() < 1 << 20, "{} bytes", layer.len());
    assert!(layer.windows(blob.len()).any(|name| name == blob.as_bytes()), "it names what is below it");
    yard.assign(2, &[]);
    yard.until_gone("guest/0").await;
    yard.assert_clean();
    agent.end().await.unwrap();
}

/// Case 14: whatever goes wrong at any call, it is tried again, and nothing is left over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_goes_wrong_at_any_call_is_tried_again() {
    let yard = cloud_yard();
    let guest = cloud_guest(&yard, "guest", json!({}));
    let agent = yard.begin();
    let mut generation = 0;
    for call in ["vmm.ping", "vm.info", "vm.create", "vm.boot"] {
        for fault in [
            json!({"refuse": {call: [500]}}),
            json!({"refuse": {call: [404]}}),
            json!({"refuse": {call: [409]}}),
            json!({"refuse": {call: [429]}}),
            json!({"lose": [call]}),
        ] {
            fs::write(yard.path("faults.json"), fault.to_string()).unwrap();
            generation += 1;
            yard.assign(generation, &[("guest/0", &guest)]);
            yard.until_ready("guest/0", &guest).await;
            assert_eq!(yard.processes().len(), 2, "{fault}: the guest, and who keeps its console");
            generation += 1;
            yard.assign(generation, &[]);
            yard.until_gone("guest/0").await;
            yard.assert_clean();
        }
    }
    // What can never work is said and left.
    fs::write(yard.path("faults.json"), json!({"refuse": {"vm.create": [400]}}).to_string()).unwrap();
    yard.assign(generation + 1, &[("guest/0", &guest)]);
    let seen = yard.until("guest/0", |seen| seen.code == Some(Code::DriverError)).await;
    assert!(seen.detail.contains("refuses the machine") && seen.attempts == 0, "{seen:?}");
    assert!(yard.processes().is_empty());
    agent.end().await.unwrap();
}

/// Case 14: whatever goes wrong at any call of the way down, a guest that does not hear is gone, and nothing is left over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_goes_wrong_on_the_way_down_leaves_nothing() {
    let yard = cloud_yard();
    let guest = cloud_guest(&yard, "guest", json!({"stopSeconds": 1}));
    let agent = yard.begin();
    let mut generation = 0;
    for call in ["vm.power-button", "vm.shutdown", "vmm.shutdown"] {
        for fault in
            [json!({"refuse": {call: [500]}}), json!({"refuse": {call: [404]}}), json!({"lose": [call]})]
        {
            fs::write(yard.path("faults.json"), "{}").unwrap();
            generation += 1;
            yard.assign(generation, &[("guest/0", &guest)]);
            yard.until_ready("guest/0", &guest).await;
            let deaf = yard.machine("guest/0").join(cloud_hypervisor::DEAF);
            fs::write(&deaf, "").unwrap();
            yard.wait("a deaf guest", || !deaf.exists()).await;
            fs::write(yard.path("faults.json"), fault.to_string()).unwrap();
            generation += 1;
            yard.assign(generation, &[]);
            yard.until_gone("guest/0").await;
            yard.assert_clean();
        }
    }
    agent.end().await.unwrap();
}

/// Starts a guest that is deaf and stops it again; `call` is answered later than anybody waits for it.
async fn with_a_late_answer(call: &str) {
    let yard = cloud_yard();
    let guest = cloud_guest(&yard, "guest", json!({"stopSeconds": 1}));
    fs::write(yard.path("faults.json"), json!({"late": [call]}).to_string()).unwrap();
    let agent = yard.begin();
    yard.assign(1, &[("guest/0", &guest)]);
    yard.until_ready("guest/0", &guest).await;
    let deaf = yard.machine("guest/0").join(cloud_hypervisor::DEAF);
    fs::write(&deaf, "").unwrap();
    yard.wait("a deaf guest", || !deaf.exists()).await;
    yard.assign(2, &[]);
    yard.until_gone("guest/0").await;
    yard.assert_clean();
    agent.end().await.unwrap();
    assert_eq!(fs::read_to_string(yard.path("faults.json")).unwrap(), r#"{"late":[]}"#, "{call}");
}

/// Case 14: an answer that does not come in time, at any call of the way up or down: it is tried again, or done by force, and
/// nothing is left over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_that_come_too_late_leave_nothing() {
    tokio::join!(
        with_a_late_answer("vmm.ping"),
        with_a_late_answer("vm.info"),
        with_a_late_answer("vm.create"),
        with_a_late_answer("vm.boot"),
        with_a_late_answer("vm.power-button"),
        with_a_late_answer("vm.shutdown"),
        with_a_late_answer("vmm.shutdown"),
    );
}

/// Case 14: a guest that powers off is started again, or not, as its policy says.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guest_that_powers_off_is_treated_as_its_policy_says() {
    let yard = cloud_yard();
    let agent = yard.begin();
    let guest = |policy: &str| {
        cloud_guest(&yard, policy, json!({"restart": {"policy": policy, "backoffSeconds": 1}}))
    };
    let (always, failure, never) = (guest("always"), guest("on-failure"), guest("never"));
    let all = [("always/0", &always), ("on-failure/0", &failure), ("never/0", &never)];
    yard.assign(1, &all);
    for (key, spec) in all {
        yard.until_ready(key, spec).await;
        let socket = SocketPath::new(&yard.machine(key).join("api.sock")).unwrap();
        let mut stream = UnixStream::connect(socket.path()).unwrap();
        stream.write_all(b"PUT /api/v1/vm.power-button HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    }
    for key in ["on-failure/0", "never/0"] {
        yard.until(key, |seen| seen.code == Some(Code::Exited)).await;
    }
    yard.until("always/0", |seen| seen.attempts == 1 && seen.ready).await;
    assert_eq!(yard.record("never/0").unwrap()["attempts"], 0);
    yard.assign(2, &[]);
    for (key, _) in all {
        yard.until_gone(key).await;
    }
    yard.assert_clean();
    agent.end().await.unwrap();
}
