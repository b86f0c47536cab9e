//! What a container is made from and what it finds.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;
use stead_drivers::machine::oci::StorageChoice;
use stead_model::machine::{
    Boot, HostKey, Machine, MachineProgram, MachineSpec, MachineState, Nic, PlantedFile,
};
use stead_model::site::secrets::Secret;
use stead_runner::machine::{Changed, MachineDriver, MachineError};
use stead_testkit::machine_contract::{Yard, large_console};
use stead_testkit::sshd::{KeyKind, make_key};

use super::yard::{Place, is_skipped, node};

async fn start(driver: &dyn MachineDriver, spec: &MachineSpec) -> Machine {
    let made = driver.ensure_created(spec).await.unwrap();
    driver.start(&made.machine.id).await.unwrap();
    let seen = driver.inspect(&made.machine.id).await.unwrap().unwrap();
    assert_eq!(seen.state, MachineState::Running);
    seen
}

/// Returns the control group of a container, by what limits its memory.
fn memory_limit(id: &str) -> Option<String> {
    let groups = ["/sys/fs/cgroup/memory", "/sys/fs/cgroup"].map(Path::new);
    let found = groups.iter().flat_map(|place| fs::read_dir(place).into_iter().flatten().flatten());
    let own = found.filter(|group| group.file_name().to_string_lossy().starts_with(&format!("stead-{id}")));
    let limits = own.flat_map(|group| {
        ["memory.limit_in_bytes", "memory.max"].map(|name| fs::read_to_string(group.path().join(name)))
    });
    limits.flatten().next().map(|limit| limit.trim().to_owned())
}

/// A container has its own name, keys, files, network, limits and owner, and keeps what was written over a restart.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_container_finds_what_it_was_given() {
    if is_skipped("runc") {
        return;
    }
    let place = Place::new("runc");
    make_key(&place.path("id"), KeyKind::Ed25519);
    make_key(&place.path("host"), KeyKind::Ed25519);
    let public = fs::read_to_string(place.path("host.pub")).unwrap();
    let file = PlantedFile { path: "/etc/stead/note".to_owned(), mode: 0o600, content: b"hello".to_vec() };
    let spec = MachineSpec {
        authorized_keys: vec![fs::read_to_string(place.path("id.pub")).unwrap()],
        host_key: Some(HostKey::new(fs::read_to_string(place.path("host")).unwrap())),
        root_password: Some(Secret::new("$6$salt$hash")),
        files: vec![file],
        ..place.spec(node("given"))
    };
    let driver = place.containers();
    let machine = start(&driver, &spec).await;
    let door = machine.ssh.clone().unwrap();
    assert!(public.starts_with(&door.host_key), "{public} {door:?}");
    assert_eq!(
        place.sh(&machine, "cat /etc/stead/note; stat -c %a /etc/stead/note; hostname"),
        "hello600\ngiven"
    );
    assert!(place.sh(&machine, "grep ^root: /etc/shadow").starts_with("root:$6$salt$hash:"));
    let sharing = memory_limit(&machine.uuid).unwrap();
    assert_eq!(sharing, (512_u64 << 20).to_string());
    let config: Value =
        serde_json::from_slice(&fs::read(place.home(&spec.owner).join("config.json")).unwrap()).unwrap();
    assert_eq!(config["annotations"]["dev.stead.owner"], "lab/test/local/given");
    // Not a file of the machine it runs on, nor of the driver.
    assert_eq!(place.sh(&machine, "ls /tmp; ls /run/stead 2>/dev/null || true"), "");
    place.sh(&machine, "echo kept >/var/kept; echo kept >/var/lib/stead/kept");
    assert!(!Path::new("/var/kept").exists());
    let ssh = |key: &str| {
        let known = format!("{} {}\n", door.host, door.host_key);
        fs::write(place.path("known_hosts"), known).unwrap();
        let mut command = Command::new("ssh");
        command.args([
            "-F",
            "none",
            "-o",
            "BatchMode=yes",
            "-o",
            "IdentitiesOnly=yes",
            "-o",
            "LogLevel=ERROR",
        ]);
        command.arg("-o").arg(format!("UserKnownHostsFile={}", place.path("known_hosts").display()));
        command.arg("-i").arg(place.path(key)).args(["-l", "stead", &door.host, "sudo -n id -u"]);
        String::from_utf8_lossy(&command.output().unwrap().stdout).trim().to_owned()
    };
    super::yard::until("the SSH daemon listens", || ssh("id") == "0");
    make_key(&place.path("stranger"), KeyKind::Ed25519);
    assert_eq!(ssh("stranger"), "");
    assert!(place.console(&spec.owner).contains("Accepted publickey for stead"));

    driver.stop(&machine.id, Duration::from_secs(20)).await.unwrap();
    driver.start(&machine.id).await.unwrap();
    let again = driver.inspect(&machine.id).await.unwrap().unwrap();
    assert_eq!(again.addresses, machine.addresses, "it has its address again");
    assert_eq!(place.sh(&again, "cat /var/kept /var/lib/stead/kept"), "kept\nkept");
    driver.destroy(&machine.id).await.unwrap();
    assert_eq!(place.left(), Vec::<String>::new());
}

/// A template is a directory or a tarball too, as an overlay or as a copy; what it lacks is told before anything runs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn templates_are_directories_and_tarballs_too() {
    if is_skipped("runc") {
        return;
    }
    let place = Place::new("runc");
    small_root(&place.path("images/small"));
    let mut packing = Command::new("tar");
    packing
        .arg("-C")
        .arg(place.path("images/small"))
        .arg("-czf")
        .arg(place.path("images/packed.tar.gz"))
        .arg(".");
    assert!(packing.status().unwrap().success());
    let spec = |name: &str, template: &str| MachineSpec {
        boot: Some(Boot::Template(template.to_owned())),
        ..place.spec(node(name))
    };
    let stored = [
        ("tree", "small", StorageChoice::Overlay),
        ("copy", "small", StorageChoice::Copy),
        ("tar", "packed", StorageChoice::Auto),
    ];
    for (name, template, storage) in stored {
        let driver = place.stored(storage);
        let machine = start(&driver, &spec(name, template)).await;
        assert_eq!(place.sh(&machine, "cat /etc/mark; hostname"), format!("small\n{name}"));
        place.sh(&machine, "echo changed >/etc/mark");
        assert_eq!(fs::read_to_string(place.path("images/small/etc/mark")).unwrap(), "small\n");
        driver.destroy(&machine.id).await.unwrap();
        assert_eq!(place.left(), Vec::<String>::new(), "{name}");
    }
    fs::remove_file(place.path("images/small/usr/sbin/sshd")).unwrap();
    match place.containers().ensure_created(&spec("none", "small")).await {
        Err(MachineError::Invalid(why)) => assert!(why.contains("openssh-server"), "{why}"),
        other => panic!("{other:?}"),
    }
}

/// Makes a runtime that has no terminals.
fn runtime_without_terminals(path: &Path) {
    use std::os::unix::fs::PermissionsExt as _;
    let script = "#!/bin/sh\ncase \"$*\" in *--console-socket*) echo no console here >&2; exit 1;; esac\nexec runc \"$@\"\n";
    fs::write(path, script).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// Section 9 of reach: the console of a container that nobody looks at is bounded, with and without a terminal.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_console_is_bounded() {
    let dir = tempfile::tempdir().unwrap();
    let mute = dir.path().join("runc-without-console");
    runtime_without_terminals(&mute);
    for (installed, runtime) in [("crun", "crun"), ("runc", "runc"), ("runc", mute.to_str().unwrap())] {
        if is_skipped(installed) {
            continue;
        }
        let place = Place::new(runtime);
        let driver = place.containers();
        let argv = ["/bin/sh", "-c", &large_console::script()].map(str::to_owned).to_vec();
        let program = MachineProgram { argv, ..MachineProgram::default() };
        let spec =
            MachineSpec { user: "root".to_owned(), program: Some(program), ..place.spec(node("talks")) };
        let machine = start(&driver, &spec).await;
        large_console::verify_large_console(&driver, &machine.id, &place.home(&spec.owner)).await;
        driver.destroy(&machine.id).await.unwrap();
        assert_eq!(place.left(), Vec::<String>::new());
    }
}

/// A runtime that hands over no terminal is used without one, and this is said.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_container_without_a_terminal_says_so_and_works() {
    if is_skipped("runc") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let runtime = dir.path().join("runc-without-console");
    runtime_without_terminals(&runtime);
    let place = Place::new(runtime.to_str().unwrap());
    let driver = place.containers();
    let spec = place.spec(node("mute"));
    let machine = start(&driver, &spec).await;
    let said = place.console(&spec.owner);
    assert!(said.contains("it has no terminal") && said.contains(" up"), "{said}");
    let stopped = driver.stop(&machine.id, Duration::from_secs(20)).await.unwrap();
    assert!(!stopped.forced);
    driver.destroy(&machine.id).await.unwrap();
    assert_eq!(place.left(), Vec::<String>::new());
}

/// Makes a root that has just enough of the running one: programs, and the libraries they need.
fn small_root(root: &Path) {
    let copy = |path: &str| {
        let to = root.join(path.trim_start_matches('/'));
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        fs::copy(path, to).unwrap();
    };
    let mut programs = vec!["/bin/sh", "/bin/cat", "/bin/hostname", "/usr/sbin/sshd", "/usr/bin/sudo"];
    programs.push(env!("CARGO_BIN_EXE_stead"));
    for program in &programs {
        let said = Command::new("ldd").arg(program).output().unwrap();
        for word in
            String::from_utf8_lossy(&said.stdout).split_whitespace().filter(|word| word.starts_with('/'))
        {
            copy(word);
        }
    }
    programs.pop();
    programs.into_iter().for_each(copy);
    fs::create_dir_all(root.join("etc")).unwrap();
    fs::write(
        root.join("etc/passwd"),
        "root:x:0:0:root:/root:/bin/sh\nsshd:x:100:65534::/run/sshd:/bin/false\n",
    )
    .unwrap();
    fs::write(root.join("etc/group"), "root:x:0:\n").unwrap();
    fs::write(root.join("etc/mark"), "small\n").unwrap();
}

/// A container that is given a program ends with it, and as it did; asked to stop, the program is asked.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_program_is_the_life_of_its_container() {
    if is_skipped("runc") {
        return;
    }
    let place = Place::new("runc");
    let driver = place.containers();
    fs::create_dir_all(place.path("data")).unwrap();
    let given = |name: &str, script: &str| {
        let argv = ["/bin/sh", "-c", script].map(str::to_owned).to_vec();
        let env = [("GREETING".to_owned(), "hello".to_owned())].into();
        let program = MachineProgram { argv, env, cwd: Some("/srv/work".to_owned()) };
        let mounts = [("/volumes/data".to_owned(), place.path("data").display().to_string())].into();
        MachineSpec {
            user: "root".to_owned(),
            program: Some(program),
            mounts,
            cpus: None,
            cpu_milli: Some(500),
            ..place.spec(node(name))
        }
    };
    let brief = given("brief", "pwd >/volumes/data/at; echo $GREETING from it; exit 7");
    let id = driver.ensure_created(&brief).await.unwrap().machine.id;
    driver.start(&id).await.unwrap();
    let exit = driver.wait(&id).await.unwrap();
    assert_eq!((exit.code, exit.signal), (Some(7), None), "{exit:?}");
    assert_eq!(fs::read_to_string(place.path("data/at")).unwrap(), "/srv/work\n");
    assert!(place.console(&brief.owner).contains("hello from it"));
    driver.destroy(&id).await.unwrap();

    let long = given("long", "trap 'echo bye >/volumes/data/bye; exit 0' TERM; while :; do sleep 0.1; done");
    let machine = start(&driver, &long).await;
    let stopped = driver.stop(&machine.id, Duration::from_secs(20)).await.unwrap();
    assert!(stopped.changed && !stopped.forced, "{stopped:?}");
    assert_eq!(fs::read_to_string(place.path("data/bye")).unwrap(), "bye\n");
    driver.destroy(&machine.id).await.unwrap();
}

/// A container that powers itself off does not count as one that runs, whatever still runs in it; asked for, it comes back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_container_that_goes_down_comes_back() {
    if is_skipped("runc") {
        return;
    }
    let place = Place::new("runc");
    let driver = place.containers();
    let machine = start(&driver, &place.spec(node("tired"))).await;
    place.deafen(&machine);
    // Whoever says so is asked to go, too.
    let mut asking = place.inside(&machine).args(["/bin/sh", "-c", "kill -TERM 1"]).spawn().unwrap();
    let state = async || driver.inspect(&machine.id).await.unwrap().unwrap().state;
    let deadline = Instant::now() + Duration::from_secs(60);
    while state().await != MachineState::Stopping {
        assert!(Instant::now() < deadline, "{:?}", state().await);
    }
    asking.wait().unwrap();
    // This takes as long as what ignores the signal is given.
    assert_eq!(driver.start(&machine.id).await.unwrap(), Changed::Yes);
    assert_eq!(state().await, MachineState::Running);
    assert_eq!(driver.start(&machine.id).await.unwrap(), Changed::No);
    driver.destroy(&machine.id).await.unwrap();
    assert_eq!(place.left(), Vec::<String>::new());
}

/// A given address is refused if somebody has it or the bridge does not lead to it, and the refusal says who and why.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn given_addresses_are_looked_at() {
    if is_skipped("runc") {
        return;
    }
    let place = Place::new("runc");
    let driver = place.containers();
    let machine = start(&driver, &place.spec(node("first"))).await;
    let network = machine.addresses[0].rsplit_once('.').unwrap().0;
    let given = |address: String| {
        let nic = Nic {
            network: String::new(),
            mac: None,
            address: Some(address),
            gateway: None,
            ports: Vec::new(),
        };
        MachineSpec { nics: vec![nic], ..place.spec(node("second")) }
    };
    for (address, why) in [
        (format!("{}/24", machine.addresses[0]), "taken by lab/test/local/first"),
        (format!("{network}.1/24"), "taken by the bridge"),
        ("192.168.77.5/24".to_owned(), "is not in the network"),
    ] {
        let id = driver.ensure_created(&given(address)).await.unwrap().machine.id;
        match driver.start(&id).await {
            Err(MachineError::Invalid(said)) => assert!(said.contains(why), "{said}"),
            other => panic!("{why}: {other:?}"),
        }
        driver.destroy(&id).await.unwrap();
    }
    let refused = driver.ensure_created(&given("fd00::5/64".to_owned())).await;
    assert!(matches!(refused, Err(MachineError::Unsupported(_))), "{refused:?}");
    let own = start(&driver, &given(format!("{network}.77/24"))).await;
    assert_eq!(own.addresses, [format!("{network}.77")]);
    driver.destroy(&own.id).await.unwrap();
    driver.destroy(&machine.id).await.unwrap();
    assert_eq!(place.left(), Vec::<String>::new());
}

/// A container starts again if it is asked to from inside, in the same place; one that is stopped stays so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_container_restarts_itself() {
    if is_skipped("crun") {
        return;
    }
    let place = Place::new("crun");
    let driver = place.containers();
    let spec = place.spec(node("again"));
    let machine = start(&driver, &spec).await;
    let first = |place: &Place| {
        let door = fs::read(place.home(&spec.owner).join("door.json")).unwrap_or_default();
        serde_json::from_slice::<Value>(&door).map(|door| door["init"].clone()).unwrap_or_default()
    };
    let before = first(&place);
    place.sh(&machine, "echo kept >/var/kept");
    // Whoever says so is asked to go, too.
    let restart = "/var/lib/stead/bin/*/stead container restart";
    place.inside(&machine).args(["/bin/sh", "-c", restart]).output().unwrap();
    super::yard::until("another first process is up", || {
        let now = first(&place);
        !now.is_null() && now != before
    });
    assert_eq!(driver.start(&machine.id).await.unwrap(), Changed::No);
    let again = driver.inspect(&machine.id).await.unwrap().unwrap();
    assert_eq!((again.state, &again.addresses), (MachineState::Running, &machine.addresses));
    assert_eq!(again.pid, machine.pid, "the same keeper");
    assert_eq!(place.sh(&again, "cat /var/kept"), "kept");
    let stopped = driver.stop(&machine.id, Duration::from_secs(20)).await.unwrap();
    assert!(stopped.changed && !stopped.forced);
    assert_eq!(driver.inspect(&machine.id).await.unwrap().unwrap().state, MachineState::Stopped);
    driver.destroy(&machine.id).await.unwrap();
    assert_eq!(place.left(), Vec::<String>::new());
}
