//! Virtual machines by Cloud Hypervisor, against its stand-in; against itself where it is installed and guests run.

use std::fs::{self, File};
use std::os::unix::net::UnixListener;
use std::time::Duration;

use rustix::fs::FlockOperation;
use serde_json::json;
use stead_drivers::machine::cloud_hypervisor::{CloudHypervisorDriver, CloudHypervisorSettings};
use stead_model::machine::{Boot, MachineSpec, MachineState};
use stead_runner::machine::{Changed, MachineDriver, MachineError, Need, Stopped};
use stead_testkit::cloud_hypervisor;
use stead_testkit::machine_contract::{self, Yard, large_console};
use stead_testkit::micro_vm::MicroLinux;

use super::yard::{Place, Runs, is_alive, node, signal, start, until};

const GRACE: Duration = Duration::from_secs(20);

fn place() -> Place {
    Place::new(Runs::CloudHypervisor)
}

/// Case 26: the contract of machine drivers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cloud_hypervisor_keeps_the_machine_contract() {
    machine_contract::verify(&place()).await;
}

/// Section 9: the console of a machine that nobody looks at is bounded.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_console_is_bounded() {
    let place = place();
    let driver = place.driver();
    let machine = start(&*driver, &place.spec(node("talks"))).await;
    let home = place.home(&machine.owner);
    fs::write(home.join("talk.new"), large_console::MUCH.to_string()).unwrap();
    fs::rename(home.join("talk.new"), home.join(cloud_hypervisor::TALK)).unwrap();
    large_console::verify_large_console(&*driver, &machine.id, &home).await;
    driver.destroy(&machine.id).await.unwrap();
    assert_eq!(place.left(), Vec::<String>::new());
}

/// Case 28: an answer that is lost is no failure, neither on the way up nor while the process ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_answers_are_asked_for_again() {
    let place = place();
    place.set_faults(
        &json!({ "lose": ["vm.create", "vm.boot", "vm.power-button"], "pending": 2, "delay_ms": 5 }),
    );
    let driver = place.driver();
    let machine = start(&*driver, &place.spec(node("lost"))).await;
    assert_eq!(driver.stop(&machine.id, GRACE).await, Ok(Stopped { changed: true, forced: false }));
    let exit = driver.wait(&machine.id).await.unwrap();
    assert_eq!((exit.code, exit.reason.as_str()), (Some(0), "the guest powered off"));
    driver.destroy(&machine.id).await.unwrap();
    assert_eq!(place.left(), Vec::<String>::new());
}

/// Case 28: "not created" is said with 404, and with 500 by older ones.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_ways_to_say_not_created_are_understood() {
    let place = place();
    for status in [404, 500] {
        place.set_faults(&json!({ "not_created": status }));
        let driver = place.driver();
        let machine = start(&*driver, &place.spec(node(&format!("status-{status}")))).await;
        driver.destroy(&machine.id).await.unwrap();
    }
    assert_eq!(place.left(), Vec::<String>::new());
}

/// Case 28: a socket that nobody listens on is removed before the start.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stale_socket_is_removed() {
    let place = place();
    let driver = place.driver();
    let spec = place.spec(node("stale"));
    let made = driver.ensure_created(&spec).await.unwrap();
    drop(UnixListener::bind(place.home(&spec.owner).join("api.sock")).unwrap());
    assert_eq!(driver.start(&made.machine.id).await, Ok(Changed::Yes));
    let machine = driver.inspect(&made.machine.id).await.unwrap().unwrap();
    let pid = machine.pid.unwrap();
    signal(pid, rustix::process::Signal::KILL);
    until("its process is gone", || !is_alive(pid));
    assert!(place.home(&spec.owner).join("api.sock").exists(), "a killed process leaves its socket");
    assert_eq!(driver.start(&made.machine.id).await, Ok(Changed::Yes));
    driver.destroy(&made.machine.id).await.unwrap();
    assert_eq!(place.left(), Vec::<String>::new());
}

/// Case 28: a process that ignores the power button is told to quit after the grace, and killed if it hangs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_ignores_the_power_button_is_forced() {
    let place = place();
    let driver = place.driver();
    let machine = start(&*driver, &place.spec(node("deaf"))).await;
    place.deafen(&machine);
    let forced = Ok(Stopped { changed: true, forced: true });
    assert_eq!(driver.stop(&machine.id, Duration::from_millis(200)).await, forced);
    driver.start(&machine.id).await.unwrap();
    let again = driver.inspect(&machine.id).await.unwrap().unwrap();
    signal(again.pid.unwrap(), rustix::process::Signal::STOP);
    assert_eq!(driver.stop(&machine.id, Duration::from_millis(200)).await, forced);
    assert_eq!(driver.inspect(&machine.id).await.unwrap().unwrap().state, MachineState::Stopped);
    driver.destroy(&machine.id).await.unwrap();
    assert_eq!(place.left(), Vec::<String>::new());
}

/// Section 10: a locked disk is a conflict that names its path.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_locked_disk_is_a_conflict() {
    let place = place();
    let driver = place.driver();
    let spec = place.spec(node("locked"));
    let made = driver.ensure_created(&spec).await.unwrap();
    let path = place.home(&spec.owner).join("disk.raw");
    let disk = File::open(&path).unwrap();
    rustix::fs::flock(&disk, FlockOperation::LockExclusive).unwrap();
    match driver.start(&made.machine.id).await {
        Err(MachineError::Conflict { changes, .. }) => {
            assert_eq!(changes[0].field, path.display().to_string())
        }
        other => panic!("{other:?}"),
    }
    drop(disk);
    assert_eq!(driver.start(&made.machine.id).await, Ok(Changed::Yes));
    assert_eq!(fs::metadata(&path).unwrap().len(), 1 << 30, "as large as asked for");
    driver.destroy(&made.machine.id).await.unwrap();
    assert_eq!(place.left(), Vec::<String>::new());
}

#[tokio::test]
async fn what_cannot_be_booted_is_refused_and_needs_are_named() {
    let place = place();
    let driver = CloudHypervisorDriver::new(CloudHypervisorSettings::new(place.root_dir(), place.program()));
    assert!(driver.capabilities().needs.contains(&Need::Kvm("/dev/kvm".into())));
    let image = Boot::Image(place.path("guest.img").display().to_string());
    let spec = MachineSpec { boot: Some(image), ..place.spec(node("image")) };
    let refused = driver.ensure_created(&spec).await.unwrap_err();
    assert!(refused.to_string().contains("firmware"), "{refused}");
    assert_eq!(place.left(), Vec::<String>::new());
}

/// Section 10: the program itself, where it is installed and the processor runs guests.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_real_program_boots_a_linux() {
    if std::process::Command::new("cloud-hypervisor").arg("--version").output().is_err() {
        println!("skipped: cloud-hypervisor is not installed");
        return;
    }
    let guest = match MicroLinux::build(std::path::Path::new(env!("CARGO_TARGET_TMPDIR"))) {
        Ok(guest) => guest,
        Err(missing) => return println!("skipped: {missing}"),
    };
    let place = place();
    let driver = CloudHypervisorDriver::new(CloudHypervisorSettings::new(place.root_dir(), place.program()));
    let boot = Boot::Kernel {
        kernel: guest.kernel.display().to_string(),
        initrd: Some(guest.initrd.display().to_string()),
        cmdline: "console=ttyS0".to_owned(),
    };
    let spec = MachineSpec { boot: Some(boot), memory_mb: Some(256), ..place.spec(node("real")) };
    let made = driver.ensure_created(&spec).await.unwrap();
    if !std::path::Path::new("/dev/kvm").exists() {
        println!("skipped: there is no /dev/kvm");
    } else {
        driver.start(&made.machine.id).await.unwrap();
        let up = async {
            while !place.console(&spec.owner).contains("micro guest is up") {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        match tokio::time::timeout(Duration::from_secs(10), up).await {
            Ok(()) => drop(driver.stop(&made.machine.id, GRACE).await.unwrap()),
            Err(_) => println!("skipped: /dev/kvm is there and runs no guests"),
        }
    }
    driver.destroy(&made.machine.id).await.unwrap();
    assert_eq!(place.left(), Vec::<String>::new());
}
