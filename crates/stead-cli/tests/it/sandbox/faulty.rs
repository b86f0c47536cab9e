//! Faults on purpose, machines in machines, and what a start keeps.

use std::fs;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::json;
use stead_drivers::machine::sandbox::{Names, SandboxDriver};
use stead_model::machine::{MachineExit, MachineProgram, MachineSpec, MachineState, OwnerScope, PlantedFile};
use stead_runner::machine::{Changed, MachineDriver, MachineError};
use stead_testkit::machine_contract::{Yard, large_console};

use super::yard::{Place, is_alive, node, signal, until};

#[tokio::test]
async fn a_create_that_fails_twice_succeeds_the_third_time() {
    let place =
        Place::with_faults(&[json!({"node": "n*", "phase": "create", "times": 2, "error": "no room"})]);
    let driver = place.sandboxes();
    let spec = place.spec(node("n1"));
    for _ in 0..2 {
        // A new driver counts on.
        let failed = place.sandboxes().ensure_created(&spec).await.unwrap_err();
        assert_eq!(failed, MachineError::failed("no room"));
        let seen = driver.list(&OwnerScope::All).await.unwrap();
        assert_eq!(seen[0].state, MachineState::Creating, "it is found half made");
    }
    assert!(driver.ensure_created(&spec).await.unwrap().changed);
    let other = driver.ensure_created(&place.spec(node("m1"))).await.unwrap();
    assert!(other.changed, "the glob does not mean this one");
    for owner in [node("n1"), node("m1")] {
        let id = stead_model::machine::MachineId::new(owner.uuid());
        assert_eq!(driver.destroy(&id).await, Ok(Changed::Yes));
    }
    assert_eq!(place.left(), Vec::<String>::new());
}

#[tokio::test]
async fn faults_of_boot_address_and_removal_strike_where_they_say() {
    let place = Place::with_faults(&[
        json!({"node": "crash", "phase": "boot", "times": 1, "crash": true}),
        json!({"node": "mute", "phase": "address", "error": "no lease"}),
        json!({"node": "slow", "phase": "address", "delay_ms": 400}),
        json!({"node": "stuck", "phase": "destroy", "times": 1, "error": "busy"}),
    ]);
    let driver = place.sandboxes();
    let make = async |name: &str| driver.ensure_created(&place.spec(node(name))).await.unwrap().machine;

    let crash = make("crash").await;
    assert!(matches!(driver.start(&crash.id).await, Err(MachineError::Failed { .. })));
    assert_eq!(driver.start(&crash.id).await, Ok(Changed::Yes), "once only");

    let mute = make("mute").await;
    driver.start(&mute.id).await.unwrap();
    let console = place.home(&mute.owner).join("console.log");
    until("it says that it has no address", || {
        fs::read_to_string(&console).unwrap_or_default().contains("no address: no lease")
    });
    let seen = driver.inspect(&mute.id).await.unwrap().unwrap();
    assert_eq!((seen.state, seen.ssh), (MachineState::Starting, None));

    let begun = Instant::now();
    let slow = make("slow").await;
    driver.start(&slow.id).await.unwrap();
    place.up(&slow).await;
    assert!(begun.elapsed() >= Duration::from_millis(400));

    let stuck = make("stuck").await;
    assert_eq!(driver.destroy(&stuck.id).await, Err(MachineError::failed("busy")));
    for machine in [crash, mute, slow, stuck] {
        assert_eq!(driver.destroy(&machine.id).await, Ok(Changed::Yes), "{}", machine.owner);
    }
    assert_eq!(place.left(), Vec::<String>::new());
}

#[tokio::test]
async fn connections_are_refused_as_often_as_the_fault_says() {
    let place = Place::with_faults(&[json!({"node": "*", "phase": "ssh", "times": 2, "error": "not now"})]);
    let machine = place.start("shy").await;
    let codes: Vec<bool> = (0..4).map(|_| place.run(&machine, "true").status.success()).collect();
    assert_eq!(codes, [false, false, true, true]);
    place.sandboxes().destroy(&machine.id).await.unwrap();
}

/// Section 9 of reach: the console of a sandbox that nobody looks at is bounded.
#[tokio::test]
async fn a_console_is_bounded() {
    let place = Place::new();
    let driver = place.sandboxes();
    let argv = ["/bin/sh", "-c", &large_console::script()].map(str::to_owned).to_vec();
    let program = MachineProgram { argv, ..MachineProgram::default() };
    let spec = MachineSpec { program: Some(program), ..place.spec(node("talks")) };
    let machine = driver.ensure_created(&spec).await.unwrap().machine;
    driver.start(&machine.id).await.unwrap();
    large_console::verify_large_console(&driver, &machine.id, &place.home(&spec.owner)).await;
    driver.destroy(&machine.id).await.unwrap();
    assert_eq!(place.left(), Vec::<String>::new());
}

/// Section 7 of nodes: a start takes as long as the host says, whoever waits for it.
#[tokio::test]
async fn a_boot_takes_its_time_and_several_overlap() {
    let place = Place::new();
    let mut settings = place.settings();
    // Long, for a machine that takes its time to start and to look.
    let delay = Duration::from_secs(5);
    settings.boot_delay = delay;
    let driver = SandboxDriver::new(settings);
    let begun = Instant::now();
    let mut machines = Vec::new();
    for name in ["a", "b", "c"] {
        let made = driver.ensure_created(&place.spec(node(name))).await.unwrap().machine;
        driver.start(&made.id).await.unwrap();
        assert_eq!(driver.inspect(&made.id).await.unwrap().unwrap().state, MachineState::Starting);
        machines.push(made);
    }
    for machine in &machines {
        place.up(machine).await;
    }
    let took = begun.elapsed();
    assert!(took >= delay && took < delay * 3, "{took:?}");
    for machine in machines {
        driver.destroy(&machine.id).await.unwrap();
    }
}

/// Case 29 of nodes, the driver's half: what runs in a sandbox ends with it, however that ends.
#[tokio::test]
async fn a_sandbox_in_a_sandbox_does_not_outlive_it() {
    let place = Place::new();
    let outer = place.start("outer").await;
    let mut settings = place.settings();
    settings.root_dir = place.home(&outer.owner).join("root/var/lib/stead/machines");
    settings.parent = Some(place.home(&outer.owner));
    let inside = SandboxDriver::new(settings);
    let inner = inside.ensure_created(&place.spec(node("inner"))).await.unwrap().machine;
    inside.start(&inner.id).await.unwrap();
    let pid = inside.inspect(&inner.id).await.unwrap().unwrap().pid.unwrap();
    signal(outer.pid.unwrap(), Signal::KILL);
    until("the inner one ends", || !is_alive(pid));
    let exit = inside.wait(&inner.id).await.unwrap();
    assert_eq!(exit.reason, "the sandbox it ran in ended");
    assert!(
        matches!(inside.start(&inner.id).await, Err(MachineError::Failed { .. })),
        "not while that is down"
    );
    place.sandboxes().start(&outer.id).await.unwrap();
    assert_eq!(inside.start(&inner.id).await, Ok(Changed::Yes));
    place.sandboxes().destroy(&outer.id).await.unwrap();
    assert_eq!(place.left(), Vec::<String>::new());
}

/// The machine this one runs on was restarted: the process is another's, the boot too.
#[tokio::test]
async fn after_a_restart_of_the_host_machines_are_stopped() {
    let place = Place::new();
    let machine = place.start("before").await;
    let pid = machine.pid.unwrap();
    signal(pid, Signal::KILL);
    until("it is gone", || !is_alive(pid));
    let file = place.home(&machine.owner).join("pid");
    let text = fs::read_to_string(&file).unwrap();
    let words: Vec<&str> = text.split_whitespace().collect();
    fs::write(&file, format!("{} {} another-boot\n", std::process::id(), words[1])).unwrap();
    let seen = place.sandboxes().inspect(&machine.id).await.unwrap().unwrap();
    assert_eq!(seen.state, MachineState::Stopped);
    let reason = "the machine it ran on was restarted".to_owned();
    assert_eq!(seen.exit, Some(MachineExit { code: Some(0), signal: None, at: None, reason }));
    assert_eq!(place.sandboxes().start(&machine.id).await, Ok(Changed::Yes));
    place.sandboxes().destroy(&machine.id).await.unwrap();
}

#[tokio::test]
async fn a_stop_and_a_start_keep_port_key_and_files() {
    let place = Place::new();
    let machine = place.start("again").await;
    assert!(place.run(&machine, "echo kept >kept").status.success());
    place.sandboxes().stop(&machine.id, Duration::from_secs(20)).await.unwrap();
    place.sandboxes().start(&machine.id).await.unwrap();
    let again = place.up(&machine).await;
    assert_eq!(again.ssh, machine.ssh);
    assert_ne!(again.pid, machine.pid);
    assert_eq!(place.run(&again, "cat kept").stdout, b"kept\n");
    place.sandboxes().destroy(&machine.id).await.unwrap();
}

#[tokio::test]
async fn what_a_sandbox_has_not_is_refused_and_makes_nothing() {
    let place = Place::new();
    let driver = place.sandboxes();
    let spec = place.spec(node("odd"));
    let file = |path: &str| vec![PlantedFile { path: path.to_owned(), mode: 0o600, content: Vec::new() }];
    let kernel =
        stead_model::machine::Boot::Kernel { kernel: "/k".to_owned(), initrd: None, cmdline: String::new() };
    for bad in [
        MachineSpec { boot: Some(kernel), ..spec.clone() },
        MachineSpec { seed: Some(Default::default()), ..spec.clone() },
        MachineSpec { user: "../x".to_owned(), ..spec.clone() },
        MachineSpec { files: file("/etc/../../x"), ..spec.clone() },
    ] {
        let error = driver.ensure_created(&bad).await.unwrap_err();
        assert!(matches!(error, MachineError::Unsupported(_) | MachineError::Invalid(_)), "{error}");
    }
    assert_eq!(place.left(), Vec::<String>::new());
    let planted = MachineSpec { files: file("/etc/stead/bootstrap.json"), ..spec };
    let made = driver.ensure_created(&planted).await.unwrap().machine;
    let path = place.home(&made.owner).join("root/etc/stead/bootstrap.json");
    let mode = std::os::unix::fs::PermissionsExt::mode(&fs::metadata(path).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600);
    driver.destroy(&made.id).await.unwrap();
}

/// What the host says of its sandboxes reaches those that are there already.
#[tokio::test]
async fn another_list_of_packages_reaches_a_machine_that_is_there() {
    let place = Place::new();
    let made = place.sandboxes().ensure_created(&place.spec(node("lists"))).await.unwrap().machine;
    let mut settings = place.settings();
    settings.packages = Names::Only(["curl".to_owned()].into());
    let again = SandboxDriver::new(settings).ensure_created(&place.spec(node("lists"))).await.unwrap();
    assert!(!again.changed);
    let sheet = fs::read_to_string(place.home(&made.owner).join("sandbox.json")).unwrap();
    assert!(sheet.contains(r#""packages":["curl"],"services":"any""#), "{sheet}");
    place.sandboxes().destroy(&made.id).await.unwrap();
}

/// A start that is dropped half-way keeps the machine to itself until its work is over.
#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_start_lets_go_of_the_machine_only_when_its_work_is_over() {
    let place = Place::new();
    let (reached, is_there) = std::sync::mpsc::channel();
    let (go_on, gate) = std::sync::mpsc::channel::<()>();
    let (reached, gate) = (std::sync::Mutex::new(reached), std::sync::Mutex::new(gate));
    let watch = move |step: &str| {
        if step == "quiet" {
            reached.lock().unwrap().send(()).unwrap();
            // Until the test lets it go on, or is over.
            gate.lock().unwrap().recv().ok();
        }
    };
    let slow = place.sandboxes().watched(std::sync::Arc::new(watch));
    let machine = place.sandboxes().ensure_created(&place.spec(node("dropped"))).await.unwrap().machine;
    let id = machine.id.clone();
    let mut starting = tokio::task::JoinSet::new();
    starting.spawn(async move { slow.start(&id).await });
    tokio::task::spawn_blocking(move || is_there.recv().unwrap()).await.unwrap();
    starting.abort_all();
    assert!(starting.join_next().await.unwrap().unwrap_err().is_cancelled());
    let (driver, id) = (place.sandboxes(), machine.id.clone());
    let mut next = tokio::task::JoinSet::new();
    next.spawn(async move { driver.start(&id).await });
    let early = tokio::time::timeout(Duration::from_millis(300), next.join_next()).await;
    assert!(early.is_err(), "it waits for the lock: {early:?}");
    go_on.send(()).unwrap();
    assert_eq!(next.join_next().await.unwrap().unwrap(), Ok(Changed::Yes));
    place.up(&machine).await;
    assert_eq!(place.sandboxes().destroy(&machine.id).await, Ok(Changed::Yes));
    assert_eq!(place.left(), Vec::<String>::new());
}

/// What has emptied its environment is found by where it is, when the supervisor cannot tell any more.
#[tokio::test]
async fn what_hides_from_its_mark_goes_with_the_machine() {
    let place = Place::new();
    let machine = place.start("hiding").await;
    let home = place.home(&machine.owner);
    let hidden = place.run(&machine, "env -i setsid sleep 7771 >/dev/null 2>&1 & sleep 0.2");
    assert!(hidden.status.success(), "{hidden:?}");
    let inside = || {
        let all = fs::read_dir("/proc").unwrap().flatten();
        let is_in = |path: std::path::PathBuf| {
            fs::read_link(path.join("cwd")).is_ok_and(|cwd| cwd.starts_with(&home))
        };
        all.filter(|entry| is_in(entry.path())).count()
    };
    assert!(inside() > 0, "it runs in the machine");
    signal(machine.pid.unwrap(), Signal::KILL);
    assert_eq!(place.sandboxes().destroy(&machine.id).await, Ok(Changed::Yes));
    assert_eq!(inside(), 0);
    assert_eq!(place.left(), Vec::<String>::new());
}

/// Those who never log in are turned away once there are many, and the others get in again when they have gone.
#[tokio::test]
async fn silent_connections_are_limited() {
    use std::io::Read as _;
    let place = Place::new();
    let machine = place.start("besieged").await;
    let ssh = machine.ssh.clone().unwrap();
    let connect = || std::net::TcpStream::connect((ssh.host.as_str(), ssh.port)).unwrap();
    let mut silent: Vec<std::net::TcpStream> = (0..64).map(|_| connect()).collect();
    // All of them are at the door when the last one has been greeted.
    let mut greeting = [0; 4];
    silent.iter_mut().for_each(|stream| stream.read_exact(&mut greeting).unwrap());
    let mut late = connect();
    late.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    assert_eq!(late.read(&mut greeting).unwrap(), 0, "it is turned away");
    drop(silent);
    until("others get in again", || place.run(&machine, "true").status.success());
    assert_eq!(place.sandboxes().destroy(&machine.id).await, Ok(Changed::Yes));
}
