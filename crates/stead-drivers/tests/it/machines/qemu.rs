//! Virtual machines by QEMU, emulated: this needs neither root nor `/dev/kvm`.

use std::fs::{self, File};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use stead_drivers::machine::qemu::{Accel, Emulated, QemuDriver, QemuSettings};
use stead_model::machine::{Boot, MachineId, MachineSpec, MachineState, OwnerScope};
use stead_runner::machine::{Changed, MachineDriver, MachineError, Need, Stopped};
use stead_testkit::machine_contract::{self, Yard};
use stead_testkit::micro_vm::MicroLinux;

use super::yard::{Place, Runs, is_alive, leave_out, node, signal, start};

/// Whether what QEMU needs is installed; else says what is missing.
fn is_installed() -> bool {
    let missing: Vec<&str> = [("qemu-system-x86_64", "qemu-system-x86"), ("qemu-img", "qemu-utils")]
        .into_iter()
        .filter(|(program, _)| std::process::Command::new(program).arg("--version").output().is_err())
        .map(|(_, package)| package)
        .collect();
    if !missing.is_empty() {
        leave_out(&format!("not installed: {}", missing.join(", ")));
    }
    missing.is_empty()
}

/// Returns the spec of a Linux guest; else says what is missing.
pub(super) fn linux(place: &Place, name: &str, argument: &str) -> Option<MachineSpec> {
    if !is_installed() {
        return None;
    }
    let guest = MicroLinux::build(std::path::Path::new(env!("CARGO_TARGET_TMPDIR")))
        .inspect_err(|missing| leave_out(missing))
        .ok()?;
    let boot = Boot::Kernel {
        kernel: guest.kernel.display().to_string(),
        initrd: Some(guest.initrd.display().to_string()),
        cmdline: format!("console=ttyS0 panic=-1 quiet loglevel=6 no_timer_check {argument}"),
    };
    Some(MachineSpec { boot: Some(boot), memory_mb: Some(128), ..place.spec(node(name)) })
}

/// Case 26: the contract of machine drivers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn qemu_keeps_the_machine_contract() {
    if is_installed() {
        machine_contract::verify(&Place::new(Runs::Qemu)).await;
    }
}

/// Case 27: the console shows the kernel's lines, the seed is read, SSH's port leads in, and the guest's power-off
/// gives the reason.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_linux_guest_says_what_it_does_and_why_it_ended() {
    let place = Place::new(Runs::Qemu);
    let Some(spec) = linux(&place, "linux", "") else { return };
    let driver = place.driver();
    let machine = start(&*driver, &spec).await;
    place.until_console(&spec.owner, "micro guest is up");
    let console = place.console(&spec.owner);
    assert!(console.contains("Linux version"), "{console}");
    assert!(console.contains(&format!("seed: instance-id: {}", machine.uuid)), "{console}");
    let ssh = machine.ssh.clone().unwrap();
    assert!(ssh.host_key.starts_with("ssh-ed25519 "), "{ssh:?}");
    assert_eq!(greeting(&ssh.host, ssh.port), "hello from the micro guest\n");

    // Driver killed and restarted: the same process is adopted.
    let adopted = place.driver().inspect(&machine.id).await.unwrap().unwrap();
    assert_eq!(adopted, machine);
    let stopped = place.driver().stop(&machine.id, Duration::from_secs(30)).await.unwrap();
    assert_eq!(stopped, Stopped { changed: true, forced: false });
    let exit = driver.wait(&machine.id).await.unwrap();
    assert_eq!((exit.code, exit.reason.as_str()), (Some(0), "the guest powered off, as it was asked to"));
    driver.destroy(&machine.id).await.unwrap();
    assert_eq!(place.left(), Vec::<String>::new());
}

/// Nodes, section 5: the port of this machine leads to where SSH listens in the guest, from now on and after the next start;
/// who is cut off while that is changed leaves it to the next one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_way_in_follows_the_guests_own_port() {
    let place = Place::new(Runs::Qemu);
    let Some(spec) = linux(&place, "moved", "") else { return };
    let driver = place.driver();
    let machine = start(&*driver, &spec).await;
    let ssh = machine.ssh.clone().unwrap();
    let (first, other) = ("hello from the micro guest\n", "hello from its other port\n");
    assert_eq!(greeting(&ssh.host, ssh.port), first);
    assert_eq!(driver.ssh_moved(&machine.id, 22).await, Ok(Changed::No));
    assert_eq!(driver.ssh_moved(&machine.id, 2222).await, Ok(Changed::Yes));
    assert_eq!(driver.ssh_moved(&machine.id, 2222).await, Ok(Changed::No));
    assert_eq!(greeting(&ssh.host, ssh.port), other);
    assert_eq!(driver.inspect(&machine.id).await.unwrap().unwrap(), machine, "it is reached where it was");

    driver.stop(&machine.id, Duration::from_secs(30)).await.unwrap();
    assert_eq!(driver.start(&machine.id).await, Ok(Changed::Yes));
    let again = driver.inspect(&machine.id).await.unwrap().unwrap().ssh.unwrap();
    assert_eq!(greeting(&again.host, again.port), other);

    let sheet = place.home(&spec.owner).join("run.json");
    fs::write(&sheet, format!("{{\"port\": {}, \"guest_port\": 22, \"is_moving\": true}}", again.port))
        .unwrap();
    assert_eq!(driver.start(&machine.id).await, Ok(Changed::No));
    assert_eq!(greeting(&again.host, again.port), first);
    driver.destroy(&machine.id).await.unwrap();
    assert_eq!(driver.ssh_moved(&machine.id, 22).await, Err(MachineError::NotFound(machine.id)));
    assert_eq!(place.left(), Vec::<String>::new());
}

/// Case 27: a guest that powers off by itself, and one that panics, say so to whoever asks later.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn power_off_and_panic_are_told_apart() {
    let place = Place::new(Runs::Qemu);
    for (name, reason, state) in [
        ("off", "the guest powered off", MachineState::Stopped),
        ("panic", "the guest panicked", MachineState::Failed),
    ] {
        let Some(spec) = linux(&place, name, &format!("micro={name}")) else { return };
        let machine = start(&*place.driver(), &spec).await;
        let driver = place.driver();
        let exit = tokio::time::timeout(Duration::from_secs(60), driver.wait(&machine.id));
        let exit = exit.await.unwrap_or_else(|_| panic!("{}", place.console(&spec.owner))).unwrap();
        assert_eq!(exit.reason, reason);
        assert!(exit.at.is_some());
        assert_eq!(place.driver().inspect(&machine.id).await.unwrap().unwrap().state, state);
        place.driver().destroy(&machine.id).await.unwrap();
    }
    assert_eq!(place.left(), Vec::<String>::new());
}

/// Says what a Linux guest says on its port 22.
pub(super) fn greeting(host: &str, port: u16) -> String {
    let mut said = String::new();
    // Whoever passes connections on takes them before anybody listens in the guest.
    super::yard::until("the guest answers", || {
        let connected = std::net::TcpStream::connect((host, port));
        connected.is_ok_and(|mut stream| {
            stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
            std::io::Read::read_to_string(&mut stream, &mut said).is_ok_and(|read| read > 0)
        })
    });
    said
}

/// Section 9: a guest runs in each kind of machine: its disks and cards are found, and it stops when it is asked to.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_linux_guest_runs_in_every_kind_of_machine() {
    for (name, machine) in [("tiny", Emulated::Microvm), ("old", Emulated::Pc), ("usual", Emulated::Q35)] {
        let place = Place::new(Runs::Qemu);
        // The smallest has nothing to measure its processor by that is steady on a busy machine.
        let argument = if machine == Emulated::Microvm { "tsc_early_khz=2000000" } else { "" };
        let Some(spec) = linux(&place, name, argument) else { return };
        let driver = QemuDriver::new(QemuSettings { machine, ..place.qemu_settings() });
        let made = start(&driver, &spec).await;
        place.until_console(&spec.owner, "micro guest is up");
        let console = place.console(&spec.owner);
        assert!(console.contains(&format!("seed: instance-id: {}", made.uuid)), "{name}: {console}");
        let ssh = made.ssh.clone().unwrap();
        assert_eq!(greeting(&ssh.host, ssh.port), "hello from the micro guest\n", "{name}");
        let stopped = driver.stop(&made.id, Duration::from_secs(60)).await.unwrap();
        assert_eq!(
            stopped,
            Stopped { changed: true, forced: false },
            "{name}: {}",
            place.console(&spec.owner)
        );
        driver.destroy(&made.id).await.unwrap();
        assert_eq!(place.left(), Vec::<String>::new());
    }
}

/// Case 27: without `/dev/kvm` machines are emulated, and that is said once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_kvm_machines_are_emulated_and_that_is_said() {
    if !is_installed() {
        return;
    }
    let place = Place::new(Runs::Qemu);
    let settings =
        QemuSettings { accel: Accel::Auto, kvm_device: place.path("no-kvm"), ..place.qemu_settings() };
    let driver = QemuDriver::new(settings);
    assert_eq!(driver.remark(), None, "nobody has looked yet");
    let machine = start(&driver, &place.spec(node("slow"))).await;
    assert_eq!(driver.acceleration().await.word(), "tcg");
    let told = driver.remark().unwrap();
    assert!(told.contains("tcg") && told.contains("no-kvm"), "{told:?}");
    place.until_console(&machine.owner, "up");
    driver.destroy(&machine.id).await.unwrap();
}

/// A process that does not even answer QEMU's protocol is killed, and the next start is a fresh one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_hangs_is_killed() {
    if !is_installed() {
        return;
    }
    let place = Place::new(Runs::Qemu);
    let driver = place.driver();
    let machine = start(&*driver, &place.spec(node("hung"))).await;
    signal(machine.pid.unwrap(), Signal::STOP);
    let stopped = driver.stop(&machine.id, Duration::from_millis(200)).await.unwrap();
    assert_eq!(stopped, Stopped { changed: true, forced: true });
    let seen = driver.inspect(&machine.id).await.unwrap().unwrap();
    assert_eq!((seen.state, seen.exit.unwrap().signal), (MachineState::Stopped, Some(9)));
    assert_eq!(driver.start(&machine.id).await, Ok(Changed::Yes));

    // One whose guest does not listen quits when it is told to, which is no signal.
    let machine = driver.inspect(&machine.id).await.unwrap().unwrap();
    place.deafen(&machine);
    let began = Instant::now();
    let stopped = driver.stop(&machine.id, Duration::ZERO).await.unwrap();
    assert_eq!(stopped, Stopped { changed: true, forced: true });
    let exit = driver.wait(&machine.id).await.unwrap();
    // On a machine that is too busy for that it may have been killed all the same.
    assert!(exit.signal.is_none() || began.elapsed() > Duration::from_secs(2), "{exit:?}");
    driver.destroy(&machine.id).await.unwrap();
    assert_eq!(place.left(), Vec::<String>::new());
}

/// Makes a QEMU that fails once each time the file `fail` is there.
fn faulty_binary(place: &Place) -> std::path::PathBuf {
    use std::os::unix::fs::PermissionsExt as _;
    let (binary, fail) = (place.path("faulty-qemu"), place.path("fail"));
    let fail = fail.display();
    let script = format!(
        "#!/bin/sh\nif rm '{fail}' 2>/dev/null; then echo 'on purpose' >&2; exit 3; fi\nexec qemu-system-x86_64 \"$@\"\n"
    );
    fs::write(&binary, script).unwrap();
    fs::set_permissions(&binary, fs::Permissions::from_mode(0o755)).unwrap();
    binary
}

/// Section 10: each call may fail, and the next one does what it did not: a disk that cannot be made, a process that dies at once,
/// a monitor that is not there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_call_may_fail_once() {
    if !is_installed() {
        return;
    }
    let place = Place::new(Runs::Qemu);
    let settings = QemuSettings { binary: faulty_binary(&place), ..place.qemu_settings() };
    let driver = QemuDriver::new(settings);
    let image = place.path("guest.qcow2");
    fs::write(&image, b"QFI\xfb and no more").unwrap();
    let boot = Some(Boot::Image(image.display().to_string()));
    let spec = MachineSpec { boot, ..place.spec(node("faulty")) };
    let refused = driver.ensure_created(&spec).await;
    assert!(refused.is_err(), "{refused:?}");
    let mut convert = std::process::Command::new("qemu-img");
    convert.args(["convert", "-f", "raw", "-O", "qcow2"]).arg(place.path("guest.img")).arg(&image);
    assert!(convert.status().unwrap().success());
    let id = driver.ensure_created(&spec).await.unwrap().machine.id;

    fs::write(place.path("fail"), "").unwrap();
    match driver.start(&id).await {
        Err(MachineError::Failed { last_lines, .. }) => {
            assert!(last_lines.iter().any(|line| line == "on purpose"), "{last_lines:?}");
        }
        other => panic!("{other:?}"),
    }
    let seen = driver.inspect(&id).await.unwrap().unwrap();
    assert_eq!((seen.state, seen.exit.unwrap().code), (MachineState::Failed, Some(3)));
    assert_eq!(driver.start(&id).await, Ok(Changed::Yes));
    place.until_console(&spec.owner, "up\r\n");

    // Nobody can tell it anything any more: it is forced.
    fs::remove_file(place.home(&spec.owner).join("qmp.sock")).unwrap();
    let stopped = driver.stop(&id, Duration::from_millis(100)).await.unwrap();
    assert_eq!(stopped, Stopped { changed: true, forced: true });
    assert_eq!(driver.start(&id).await, Ok(Changed::Yes));
    fs::remove_file(place.home(&spec.owner).join("qmp.sock")).unwrap();
    assert_eq!(driver.destroy(&id).await, Ok(Changed::Yes));
    assert_eq!(place.left(), Vec::<String>::new());
}

/// Section 9: the console of a machine that nobody looks at is begun anew at 16 MiB, and nothing is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_large_console_is_begun_anew() {
    if !is_installed() {
        return;
    }
    let place = Place::new(Runs::Qemu);
    let driver = place.driver();
    let machine = start(&*driver, &place.spec(node("talks"))).await;
    place.until_console(&machine.owner, "up\r\n");
    let home = place.home(&machine.owner);
    let console = home.join("console.log");
    // As if it had said that much: this guest is slow.
    File::options().write(true).open(&console).unwrap().set_len(16 << 20).unwrap();
    place.deafen(&machine);
    assert_eq!(fs::metadata(home.join("console.log.0")).unwrap().len(), 16 << 20);
    // A key that is pressed is let go, too.
    assert!(place.console(&machine.owner).starts_with("deaf\r\n"), "the new one holds only what came later");
    driver.stop(&machine.id, Duration::ZERO).await.unwrap();
    for (from, is_first) in [(0, false), (16 << 20, true)] {
        let mut stream = driver.console(&machine.id, from).await.unwrap();
        let mut said = String::new();
        tokio::io::AsyncReadExt::read_to_string(&mut stream.bytes, &mut said).await.unwrap();
        assert_eq!(stream.start, from);
        assert_eq!(said.find("deaf\r\n"), Some((16 << 20) - usize::try_from(from).unwrap()));
        assert_eq!(!said.contains("up\r\n"), is_first);
    }
    driver.destroy(&machine.id).await.unwrap();
    assert_eq!(place.left(), Vec::<String>::new());
}

/// Whoever keeps a console and is killed has somebody in its place as soon as a driver looks; the machine runs on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_console_that_lost_its_keeper_gets_another() {
    if !is_installed() {
        return;
    }
    let place = Place::new(Runs::Qemu);
    let driver = place.driver();
    let machine = start(&*driver, &place.spec(node("kept"))).await;
    place.until_console(&machine.owner, "up\r\n");
    let keepers = place.keepers(&machine.owner);
    assert_eq!(keepers.len(), 1);
    signal(keepers[0], Signal::KILL);
    // Threads of what was killed may hold the pipe a moment longer than it counts as alive: then it is looked at again.
    let end = Instant::now() + Duration::from_secs(60);
    while place.keepers(&machine.owner).iter().all(|keeper| *keeper == keepers[0]) {
        assert!(Instant::now() < end, "nobody took its place");
        assert_eq!(driver.inspect(&machine.id).await.unwrap().unwrap().pid, machine.pid);
    }
    place.deafen(&machine);
    assert_eq!(place.keepers(&machine.owner).len(), 1);
    // Killed with nobody to look: its machine still ends as it is told to.
    signal(place.keepers(&machine.owner)[0], Signal::KILL);
    driver.destroy(&machine.id).await.unwrap();
    assert_eq!(place.left(), Vec::<String>::new());
}

/// The first disk is an overlay that names the format of what lies below, and is as large as asked for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn disks_are_overlays_of_the_size_asked_for() {
    if !is_installed() {
        return;
    }
    let place = Place::new(Runs::Qemu);
    let driver = place.driver();
    let spec = MachineSpec { disk_gb: Some(3), ..place.spec(node("disk")) };
    let made = driver.ensure_created(&spec).await.unwrap();
    let disk = place.home(&spec.owner).join("disk.qcow2");
    let info =
        std::process::Command::new("qemu-img").args(["info", "--output=json"]).arg(disk).output().unwrap();
    let info: serde_json::Value = serde_json::from_slice(&info.stdout).unwrap();
    assert_eq!(info["virtual-size"], 3_u64 << 30);
    assert_eq!(info["backing-filename-format"], "raw");
    driver.destroy(&made.machine.id).await.unwrap();

    let missing = MachineSpec { boot: Some(Boot::Image("debian".to_owned())), ..spec.clone() };
    assert!(matches!(driver.ensure_created(&missing).await, Err(MachineError::Invalid(_))));
    let template = MachineSpec { boot: Some(Boot::Template("host".to_owned())), ..spec };
    assert!(matches!(driver.ensure_created(&template).await, Err(MachineError::Unsupported(_))));
    assert_eq!(place.left(), Vec::<String>::new());
}

#[tokio::test]
async fn a_program_that_is_not_there_is_named() {
    if !is_installed() {
        return;
    }
    let place = Place::new(Runs::Qemu);
    let driver = QemuDriver::new(QemuSettings { binary: place.path("no-qemu"), ..place.qemu_settings() });
    let made = driver.ensure_created(&place.spec(node("none"))).await.unwrap();
    let refused = driver.start(&made.machine.id).await;
    assert!(
        matches!(&refused, Err(MachineError::Unavailable(why)) if why.contains("no-qemu")),
        "{refused:?}"
    );
    driver.destroy(&made.machine.id).await.unwrap();
    assert_eq!(place.left(), Vec::<String>::new());
}

#[test]
fn needs_are_named() {
    let place = Place::new(Runs::Qemu);
    let needs = |settings: QemuSettings| QemuDriver::new(settings).capabilities().needs;
    assert!(needs(place.qemu_settings()).contains(&Need::Program("qemu-img".to_owned())));
    let settings =
        QemuSettings { accel: Accel::Kvm, bridge: Some("br0".to_owned()), ..place.qemu_settings() };
    let needs = needs(settings);
    assert!(needs.contains(&Need::Kvm("/dev/kvm".into())) && needs.contains(&Need::Root), "{needs:?}");
}

/// A process that nobody knows the number of is ended by a stop, too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_ends_what_a_killed_driver_started() {
    let place = Place::new(Runs::Qemu);
    let driver = QemuDriver::new(place.qemu_settings());
    let machine = start(&driver, &place.spec(node("unknown"))).await;
    fs::remove_file(place.home(&machine.owner).join("pid")).unwrap();
    let stopped = driver.stop(&machine.id, Duration::from_secs(1)).await.unwrap();
    assert!(!stopped.changed, "it was not known to run");
    assert!(!is_alive(machine.pid.unwrap()));
    driver.destroy(&machine.id).await.unwrap();
    assert_eq!(place.left(), Vec::<String>::new());
}

/// A machine that cannot be looked at for now is neither gone nor nobody's: whoever asks is told so.
#[tokio::test]
async fn what_cannot_be_looked_at_is_not_gone() {
    let place = Place::new(Runs::Qemu);
    let driver = QemuDriver::new(place.qemu_settings());
    let owner = node("unreadable");
    fs::create_dir_all(place.home(&owner).join("machine.json")).unwrap();
    fs::create_dir_all(place.root_dir().join("lost+found/machine.json")).unwrap();
    let listed = driver.list(&OwnerScope::All).await;
    assert!(matches!(listed, Err(MachineError::Unavailable(_))), "{listed:?}");
    let seen = driver.inspect(&MachineId::new(owner.uuid())).await;
    assert!(matches!(seen, Err(MachineError::Unavailable(_))), "{seen:?}");
    fs::remove_dir_all(place.home(&owner)).unwrap();
    assert_eq!(driver.list(&OwnerScope::All).await.unwrap(), []);
}
