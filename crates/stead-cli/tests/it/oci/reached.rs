//! Containers as they are reached from outside: ports that are passed on, programs that their runtime runs in them.

use std::fs;
use std::io::Read as _;
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use stead_drivers::machine::oci;
use stead_model::machine::{Machine, MachineProgram, MachineSpec, Nic, PassedPort};
use stead_runner::machine::{MachineDriver, MachineError};
use stead_testkit::machine_contract::Yard;

use super::yard::{Place, is_skipped, node, until};

const LONG: Duration = Duration::from_secs(60);

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Returns a container that says `name` to whoever connects to its port 80, reached at `port` here.
pub(super) fn greets(place: &Place, name: &str, port: u16) -> MachineSpec {
    let script = format!("while :; do echo {name} | busybox nc -l -p 80; done");
    let argv = ["/bin/sh", "-c", &script].map(str::to_owned).to_vec();
    let ports = vec![PassedPort { guest: 80, host: port }];
    let nic = Nic { network: String::new(), mac: None, address: None, gateway: None, ports };
    MachineSpec {
        user: "root".to_owned(),
        program: Some(MachineProgram { argv, ..MachineProgram::default() }),
        nics: vec![nic],
        ..place.spec(node(name))
    }
}

/// Returns what is said at a port of this machine; nothing if nobody is there.
pub(super) fn heard(port: u16) -> String {
    let mut said = String::new();
    let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) else { return said };
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    stream.read_to_string(&mut said).ok();
    said
}

/// Section 11: a port of a container is reached at a port of this machine while it lives, also after a restart; one that
/// somebody has is told, and free again it can be had.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ports_are_passed_on_while_the_container_lives() {
    if is_skipped("runc") || !Path::new("/usr/bin/busybox").exists() {
        return;
    }
    let place = Place::new("runc");
    let driver = place.containers();
    let port = free_port();
    let first = driver.ensure_created(&greets(&place, "first", port)).await.unwrap().machine.id;
    driver.start(&first).await.unwrap();
    until("the first one answers", || heard(port) == "first\n");
    let second = driver.ensure_created(&greets(&place, "second", port)).await.unwrap().machine.id;
    match driver.start(&second).await {
        Err(MachineError::Unavailable(why)) => assert!(why.contains(&format!("port {port}")), "{why}"),
        other => panic!("{other:?}"),
    }
    driver.stop(&first, LONG).await.unwrap();
    assert!(TcpStream::connect(("127.0.0.1", port)).is_err(), "closed with its container");
    driver.start(&second).await.unwrap();
    until("the second one answers", || heard(port) == "second\n");
    driver.destroy(&second).await.unwrap();
    driver.start(&first).await.unwrap();
    until("the first one answers again", || heard(port) == "first\n");
    driver.destroy(&first).await.unwrap();
    assert_eq!(place.left(), Vec::<String>::new());
}

/// Section 11: a runtime runs a program in its container; how that ends is told, and what takes too long is killed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_runtime_executes_what_it_is_asked_to() {
    for runtime in ["runc", "crun"] {
        if is_skipped(runtime) {
            continue;
        }
        let place = Place::new(runtime);
        let driver = place.containers();
        let spec = place.spec(node("asked"));
        let id = driver.ensure_created(&spec).await.unwrap().machine.id;
        let go_on = AtomicBool::new(false);
        let execute = |argv: &[&str], patience: Duration, is_over: &AtomicBool| {
            let argv: Vec<String> = argv.iter().map(|word| (*word).to_owned()).collect();
            oci::execute(&place.root_dir(), &id, &argv, patience, is_over)
        };
        assert!(execute(&["/bin/true"], LONG, &go_on).is_err(), "it does not run yet");
        driver.start(&id).await.unwrap();
        let machine = driver.inspect(&id).await.unwrap().unwrap();
        assert_eq!(execute(&["/bin/sh", "-c", "test \"$(hostname)\" = asked"], LONG, &go_on), Ok(()));
        let told = execute(&["/bin/sh", "-c", "exit 7"], LONG, &go_on).unwrap_err();
        assert!(told.contains("exit status: 7"), "{runtime}: {told}");
        let told = execute(&["/no/such/program"], LONG, &go_on).unwrap_err();
        assert!(told.contains("/no/such/program"), "{runtime}: {told}");

        let told = execute(&["/bin/sleep", "7654"], Duration::from_secs(1), &go_on).unwrap_err();
        assert!(told.contains("did not end within 1 s"), "{runtime}: {told}");
        assert_eq!(sleepers(&place, &machine), 0, "{runtime}");
        // Nobody waits any more.
        let began = Instant::now();
        execute(&["/bin/sleep", "7654"], LONG, &AtomicBool::new(true)).unwrap_err();
        until("it is killed", || sleepers(&place, &machine) == 0);
        assert!(began.elapsed() < LONG);
        let left: Vec<String> = fs::read_dir(place.home(&spec.owner))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| name.contains("exec-"))
            .collect();
        assert_eq!(left, Vec::<String>::new(), "{runtime}");
        driver.destroy(&id).await.unwrap();
        assert_eq!(place.left(), Vec::<String>::new());
    }
}

/// Returns how many programs of this test sleep in a container.
fn sleepers(place: &Place, machine: &Machine) -> usize {
    let script = "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' '";
    place.sh(machine, script).matches("/bin/sleep 7654").count()
}
