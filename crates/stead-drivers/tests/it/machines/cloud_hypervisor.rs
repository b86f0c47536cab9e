//! Virtual machines by Cloud Hypervisor, against its stand-in; against itself where it is installed and guests run.

use std::fs::{self, File};
use std::os::unix::net::UnixListener;
use std::time::Duration;

use rustix::fs::FlockOperation;
use serde_json::json;
use stead_drivers::machine::cloud_hypervisor::{CloudHypervisorDriver, CloudHypervisorSettings};
use stead_drivers::machine::qemu::{QemuDriver, QemuSettings};
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

/// A boot that fails and whose answer is lost is ordered again, and fails for its own reason: nobody holds its disk.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_boot_that_is_ordered_again_fails_for_its_own_reason() {
    let place = place();
    place.set_faults(&json!({ "lose": ["vm.boot"] }));
    let driver = place.driver();
    let made = driver.ensure_created(&place.doomed(node("doomed"))).await.unwrap();
    match driver.start(&made.machine.id).await {
        Err(MachineError::Failed { what, .. }) => assert!(what.contains("Cannot load the kernel"), "{what}"),
        other => panic!("{other:?}"),
    }
    driver.destroy(&made.machine.id).await.unwrap();
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

/// Returns a guest for the program itself, where it is installed and the processor runs guests; else says why not. No
/// distribution has it, so that CI goes without.
#[expect(clippy::print_stderr, reason = "a test that is left out is said")]
async fn guest_of_the_real_program(place: &Place) -> Option<MicroLinux> {
    if std::process::Command::new("cloud-hypervisor").arg("--version").output().is_err() {
        eprintln!("skipped: cloud-hypervisor is not installed");
        return None;
    }
    // Decided before anything is asked of the program itself: what does not come up then is its fault, or ours.
    let guests = QemuDriver::new(QemuSettings::new(place.root_dir(), place.program()));
    if let Some(why) = &guests.acceleration().await.why {
        eprintln!("skipped: {why}");
        return None;
    }
    let guest = MicroLinux::build(std::path::Path::new(env!("CARGO_TARGET_TMPDIR")));
    guest.inspect_err(|missing| eprintln!("skipped: {missing}")).ok()
}

/// Case 26 with the program itself: the whole contract of machine drivers, each of whose machines is a Linux.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_real_program_keeps_the_machine_contract() {
    let place = Place::new(Runs::RealCloudHypervisor);
    if guest_of_the_real_program(&place).await.is_some() {
        machine_contract::verify(&place).await;
    }
}

/// Section 10: the program itself, where it is installed and the processor runs guests: it comes up, is adopted, and goes
/// when it is asked to.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_real_program_boots_a_linux() {
    let place = place();
    let Some(guest) = guest_of_the_real_program(&place).await else { return };
    let driver =
        || CloudHypervisorDriver::new(CloudHypervisorSettings::new(place.root_dir(), place.program()));
    let boot = Boot::Kernel {
        kernel: guest.kernel.display().to_string(),
        initrd: Some(guest.initrd.display().to_string()),
        cmdline: "console=ttyS0".to_owned(),
    };
    let spec = MachineSpec { boot: Some(boot), memory_mb: Some(256), ..place.spec(node("real")) };
    let machine = start(&driver(), &spec).await;
    place.until_console(&spec.owner, "micro guest is up");
    assert_eq!(driver().inspect(&machine.id).await.unwrap().unwrap(), machine, "a new driver adopts it");
    let stopped = driver().stop(&machine.id, GRACE).await;
    assert_eq!(stopped, Ok(Stopped { changed: true, forced: false }));
    assert_eq!(driver().wait(&machine.id).await.unwrap().code, Some(0));
    assert_eq!(driver().start(&machine.id).await, Ok(Changed::Yes));
    driver().destroy(&machine.id).await.unwrap();
    assert_eq!(place.left(), Vec::<String>::new());
}
