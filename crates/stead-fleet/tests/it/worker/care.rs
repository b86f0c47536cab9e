//! Readiness, leases, strangers, full disks, configuration: what a worker minds.

use std::fs;
use std::time::Duration;

use serde_json::{Value, json};
use stead_model::fleet::Code;
use stead_model::fleet::state::InstanceState;
use stead_model::fleet::vm::Driver;
use stead_model::plan::Digest;
use stead_testkit::sshd::free_port;

use super::yard::{Yard, is_alive, vm};

/// Has a page at `/` and no other.
const SERVER: &str = r#"
my $server = IO::Socket::INET->new(LocalAddr => "127.0.0.1", LocalPort => $ARGV[0], Listen => 5, ReuseAddr => 1) or die;
while (my $client = $server->accept) {
    my $line = <$client>;
    my $status = defined $line && $line =~ m{^GET / } ? "200 OK" : "404 Not Found";
    print $client "HTTP/1.1 $status\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    close $client;
}
"#;

/// Section 3: ready is what `ready` says, and is looked at again and again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_kind_of_readiness_is_seen() {
    let yard = Yard::new();
    let (tcp, http) = (free_port(), free_port());
    let sign = yard.path("sign");
    let quick = |kind: Value| {
        let mut kind = kind;
        kind["intervalSeconds"] = json!(1);
        kind
    };
    let serve = |port: u16| json!({"argv": ["perl", "-MIO::Socket::INET", "-e", SERVER, port.to_string()]});
    let on_port =
        vm("tcp", json!({"runtime": serve(tcp), "ready": quick(json!({"kind": "tcp", "port": tcp}))}));
    let on_page = vm(
        "http",
        json!({"runtime": serve(http), "ready": quick(json!({"kind": "http", "port": http, "path": "/"}))}),
    );
    let no_page = vm(
        "none",
        json!({"runtime": yard.sleeper("none", "x"), "ready": quick(json!({"kind": "http", "port": http, "path": "/missing"}))}),
    );
    let on_line = vm(
        "serial",
        json!({"runtime": {"argv": ["/bin/sh", "-c", "sleep 0.3; echo now it is up; exec sleep 1000"]}, "ready": {"kind": "serial", "match": "now it is up"}}),
    );
    let on_sign = vm(
        "exec",
        json!({"runtime": yard.sleeper("exec", "x"), "ready": quick(json!({"kind": "exec", "argv": ["/usr/bin/test", "-e", sign]}))}),
    );
    let agent = yard.begin();
    yard.assign(
        1,
        &[
            ("tcp/0", &on_port),
            ("http/0", &on_page),
            ("none/0", &no_page),
            ("serial/0", &on_line),
            ("exec/0", &on_sign),
        ],
    );
    yard.until_ready("tcp/0", &on_port).await;
    yard.until_ready("http/0", &on_page).await;
    yard.until_ready("serial/0", &on_line).await;
    let seen = yard.until("none/0", |seen| seen.detail.contains("404")).await;
    assert!(!seen.ready && seen.code == Some(Code::NotReady), "{seen:?}");
    yard.until("exec/0", |seen| seen.state == InstanceState::Running && !seen.ready).await;
    fs::write(&sign, "").unwrap();
    yard.until_ready("exec/0", &on_sign).await;
    fs::remove_file(&sign).unwrap();
    yard.until("exec/0", |seen| !seen.ready && seen.code == Some(Code::NotReady)).await;
    agent.end().await.unwrap();
}

/// Section 9: without a lease no singleton starts; at its end it is killed, and comes back with the next one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn singletons_run_only_with_a_lease() {
    let yard = Yard::new();
    let one = vm("one", json!({"runtime": yard.sleeper("one", "x"), "singleton": true, "stopSeconds": 60}));
    let many = vm("many", json!({"runtime": yard.sleeper("many", "x")}));
    let agent = yard.begin();
    yard.assign(1, &[("one/0", &one), ("many/0", &many)]);
    yard.until_ready("many/0", &many).await;
    assert_eq!(yard.starts("one"), Vec::<String>::new());
    yard.stage.change(|state| state.lease = Some(8_000));
    yard.until_ready("one/0", &one).await;
    let (pid, other) = (yard.pid("one/0"), yard.pid("many/0"));

    // An agent that ends takes the lease with it no more than the machine.
    agent.end().await.unwrap();
    let agent = yard.begin();
    yard.until_ready("one/0", &one).await;
    assert_eq!(yard.pid("one/0"), pid);

    yard.stage.change(|state| state.is_away = true);
    let begun = std::time::Instant::now();
    while is_alive(pid) {
        assert!(begun.elapsed() < Duration::from_secs(60), "it runs on without a lease");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(begun.elapsed() > Duration::from_millis(1_500), "the lease was its to the end");
    assert!(is_alive(other), "others need no lease");
    yard.stage.change(|state| {
        state.is_away = false;
        state.lease = None;
    });
    yard.until("one/0", |seen| seen.code == Some(Code::Fenced)).await;
    yard.stage.change(|state| state.lease = Some(60_000));
    yard.until_ready("one/0", &one).await;
    assert_eq!(yard.record("one/0").unwrap()["attempts"], 0, "a fence is no end of its own");
    agent.end().await.unwrap();
}

/// F22: machines without our mark are left alone, also where ours should be.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strangers_are_left_alone() {
    use stead_drivers::machine::sandbox::{SandboxDriver, SandboxSettings};
    use stead_model::machine::{MachineKind, MachineSpec, Owner};
    use stead_runner::machine::MachineDriver as _;

    let yard = Yard::new();
    let root_dir = yard.path("state/fleet/machines");
    let driver = SandboxDriver::new(SandboxSettings::new(&root_dir, yard.path("stead")));
    let mut pids = Vec::new();
    // One of somebody else, and one that looks like ours but that no record knows.
    for (scope, name) in [("lab/other/local", "web-0"), ("fleet/w1", "taken-0")] {
        let spec = MachineSpec::new(Owner::new(scope, name).unwrap(), MachineKind::Vm);
        let made = driver.ensure_created(&spec).await.unwrap().machine;
        driver.start(&made.id).await.unwrap();
        pids.push(driver.inspect(&made.id).await.unwrap().unwrap().pid.unwrap());
    }
    // A directory without any mark, where an instance's machine would be.
    let blocked = yard.machine("blocked/0");
    fs::create_dir_all(&blocked).unwrap();
    fs::write(blocked.join("precious"), "data").unwrap();

    let spec = |id: &str| vm(id, json!({"runtime": yard.sleeper(id, "x")}));
    let (fine, taken, hindered) = (spec("fine"), spec("taken"), spec("blocked"));
    let agent = yard.begin();
    yard.assign(1, &[("fine/0", &fine), ("taken/0", &taken), ("blocked/0", &hindered)]);
    yard.until_ready("fine/0", &fine).await;
    for key in ["taken/0", "blocked/0"] {
        let seen = yard.until(key, |seen| seen.code == Some(Code::Foreign)).await;
        assert!(!seen.detail.is_empty() && seen.vm_hash.is_none(), "{seen:?}");
        assert!(yard.record(key).is_none(), "nothing of ours is there");
    }
    // They are told of, and what is ours is not among them.
    let foreign =
        || yard.stage.state().beats.iter().rev().find_map(|beat| beat.facts.clone()).unwrap().foreign;
    yard.wait("two strangers", || foreign().len() == 2).await;
    for name in ["lab/other/local", "taken-0"] {
        assert!(foreign().iter().any(|told| told.contains(name)), "{:?}", foreign());
    }
    yard.assign(2, &[]);
    yard.until_gone("fine/0").await;
    assert!(pids.iter().all(|pid| is_alive(*pid)));
    assert_eq!(fs::read_to_string(blocked.join("precious")).unwrap(), "data");
    agent.end().await.unwrap();
}

/// F25: on a full disk nothing is added, and what runs stays.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_takes_nothing_new() {
    let mut yard = Yard::new();
    let (old, new) = (
        vm("web", json!({"runtime": yard.sleeper("web", "old")})),
        vm("web", json!({"runtime": yard.sleeper("web", "new")})),
    );
    let agent = yard.begin();
    yard.assign(1, &[("web/0", &old)]);
    yard.until_ready("web/0", &old).await;
    let pid = yard.pid("web/0");
    agent.end().await.unwrap();
    // No disk is free to more than this.
    yard.file.min_free_disk_percent = 99;
    let agent = yard.begin();
    yard.assign(2, &[("web/0", &new)]);
    let seen = yard.until("web/0", |seen| seen.code == Some(Code::DiskPressure)).await;
    assert!(seen.ready && is_alive(pid), "{seen:?}");
    let beats = |yard: &Yard| yard.stage.state().beats.clone();
    let facts = beats(&yard).into_iter().rev().find_map(|beat| beat.facts).unwrap();
    assert!(facts.disk_pressure);
    agent.end().await.unwrap();
}

/// Sections 3 and 10: a site's spec is applied at the first boot, with the name of the instance.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_config_makes_the_node_what_its_spec_wants() {
    let mut yard = Yard::new();
    let config = json!({"access": {"posture": "local", "security": {"fail2ban": {"enabled": false},
        "ssh": {"password_authentication": "no", "permit_root_login": "prohibit-password", "port": 22},
        "sudo": {"nopasswd": true}}, "users": [{"name": "ops", "ssh_keys": [], "sudo": true}]},
        "config": {"timezone": "UTC"}, "identity": {"domain": "lab.example"},
        "platform": {"packages": ["htop"], "services": {"disable": [], "enable": []}},
        "run": {"trigger": "manual"}, "schema_version": 1, "spec": "base"});
    let text = config.to_string();
    let sha256 = Digest::of(text.as_bytes());
    let store = yard.path("artifacts/sha256");
    fs::create_dir_all(&store).unwrap();
    fs::write(store.join(sha256.to_string()), &text).unwrap();
    yard.file.artifacts = Some(yard.path("artifacts").display().to_string());
    let blob = json!({"sha256": sha256.to_string(), "size": text.len(), "name": "base.json"});
    let spec = vm("edge", json!({"runtime": {"config": blob}}));
    let agent = yard.begin();
    yard.assign(1, &[("edge/0", &spec), ("edge/1", &spec)]);
    for (key, name) in [("edge/0", "edge-0"), ("edge/1", "edge-1")] {
        yard.until_ready(key, &spec).await;
        let root = yard.machine(key).join("root");
        let read = |path: &str| fs::read_to_string(root.join(path)).unwrap();
        assert_eq!(read("etc/hostname").trim(), name);
        assert!(read("etc/passwd").contains("\nops:") && read("etc/hosts").contains("lab.example"));
        assert!(
            root.join("var/lib/stead/config/config-complete.json").exists()
                || read("etc/passwd").contains("ops")
        );
    }
    agent.end().await.unwrap();
}

/// Section 11: a machine without the real driver stands in, with an idle process where there is no `argv`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_driver_stands_in() {
    let mut yard = Yard::new();
    yard.file.map_driver = [(Driver::CloudHypervisor, Driver::Sandbox)].into();
    let kernel = "image";
    let sha256 = Digest::of(kernel.as_bytes());
    let store = yard.path("artifacts/sha256");
    fs::create_dir_all(&store).unwrap();
    fs::write(store.join(sha256.to_string()), kernel).unwrap();
    yard.file.artifacts = Some(yard.path("artifacts").display().to_string());
    let blob = json!({"sha256": sha256.to_string(), "size": kernel.len(), "name": "vmlinux"});
    let spec = vm("vm", json!({"runtime": {"driver": "cloud-hypervisor", "kernel": blob}}));
    let agent = yard.begin();
    yard.assign(1, &[("vm/0", &spec)]);
    yard.until_ready("vm/0", &spec).await;
    assert_eq!(yard.record("vm/0").unwrap()["driver"], "sandbox");
    let facts = yard.stage.state().beats.iter().find_map(|beat| beat.facts.clone()).unwrap();
    assert!(facts.drivers.contains(&Driver::CloudHypervisor), "{facts:?}");
    assert_eq!(facts.mapped, [(Driver::CloudHypervisor, Driver::Sandbox)].into());
    agent.end().await.unwrap();
}

/// Section 10: what keeps ending is a crash loop, and volumes stay or go as they say.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn volumes_outlive_ends_and_go_as_they_say() {
    let yard = Yard::new();
    let script = "date >>\"$STEAD_VOLUMES/kept/starts\"; date >\"$STEAD_VOLUMES/gone/x\"; exit 1";
    let spec = vm(
        "data",
        json!({
            "runtime": {"argv": ["/bin/sh", "-c", script]},
            "volumes": [{"name": "kept", "sizeMiB": 1}, {"name": "gone", "sizeMiB": 1, "retain": "delete"}],
        }),
    );
    let agent = yard.begin();
    yard.assign(1, &[("data/0", &spec)]);
    let seen = yard.until("data/0", |seen| seen.code == Some(Code::CrashLoop)).await;
    let words = format!("{} ends, the last: ", seen.attempts);
    assert!(seen.attempts >= 3 && seen.detail.starts_with(&words), "{seen:?}");
    assert!(seen.detail.ends_with("exit status: 1"), "{seen:?}");
    let volumes = yard.path("state/fleet/volumes/data.0");
    assert!(volumes.join("gone/x").exists());
    yard.assign(2, &[]);
    yard.until_gone("data/0").await;
    assert!(!volumes.join("gone").exists());
    assert!(fs::read_to_string(volumes.join("kept/starts")).unwrap().lines().count() >= 3);
    yard.assert_clean();
    agent.end().await.unwrap();
}

/// Section 10: what leaves stays until nobody names it, and an assignment that is older changes nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_leaves_or_is_frozen_stays_as_it_is() {
    let yard = Yard::new();
    let (old, new) = (
        vm("web", json!({"runtime": yard.sleeper("web", "old")})),
        vm("web", json!({"runtime": yard.sleeper("web", "new")})),
    );
    let agent = yard.begin();
    yard.assign(5, &[("web/0", &old)]);
    yard.until_ready("web/0", &old).await;
    let pid = yard.pid("web/0");
    let mut leaving = super::yard::assignment(6, &[("web/0", &new)]);
    leaving.instances[0].leaving = true;
    yard.stage.change(|state| state.assignment = Some(leaving));
    let seen_six =
        |yard: &Yard| yard.stage.state().beats.last().is_some_and(|beat| beat.seen_generation == 6);
    while !seen_six(&yard) {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // Killed meanwhile, it comes back as what it was.
    super::yard::kill(pid, "-KILL");
    yard.until("web/0", |seen| seen.attempts == 1 && seen.ready).await;
    assert_eq!(yard.starts("web"), ["old", "old"]);
    let pid = yard.pid("web/0");
    yard.assign(4, &[]);
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    assert!(is_alive(pid), "an older assignment is ignored");
    yard.assign(7, &[]);
    yard.until_gone("web/0").await;
    agent.end().await.unwrap();
}
