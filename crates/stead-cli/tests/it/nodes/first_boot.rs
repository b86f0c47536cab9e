//! What starts the agent at the first boot of a machine that cloud-init sets up.

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use stead_model::plan::Digest;
use stead_testkit::cloud_init::CloudInit;
use stead_testkit::proxmox::{file_of_seed, machine_of_seed};

use super::cloud_hypervisor::World;
use super::pulled::{Pulled, wait_for};
use super::{KEY, manifest, write};
use crate::cases_17_32::lab::{Ended, program};

/// Keeps what it is told, as `stead agent enable` does.
const STEAD: &str =
    "#!/bin/sh\n[ \"$*\" = 'agent enable' ] && cat >\"$STEAD_ROOT/etc/stead/bootstrap.json\"\n";

fn start_agent(pulled: &Pulled, told: &Value) -> Option<Ended> {
    let python = program("python3")?;
    let root = pulled.lab.path("root");
    fs::create_dir_all(root.join("etc/stead")).unwrap();
    fs::write(root.join("etc/stead/bootstrap.json"), told.to_string()).unwrap();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../stead-drivers/src/nodes/start_agent.py");
    let mut command = Command::new(python);
    command.arg(script).env_clear().env("PATH", "/usr/bin:/bin").env("STEAD_ROOT", &root);
    Some(command.stdin(Stdio::null()).output().unwrap().into())
}

/// Returns what the server was asked for.
fn requests(pulled: &Pulled) -> usize {
    let entries = fs::read_dir(pulled.lab.path("state/server")).unwrap().flatten().map(|entry| entry.path());
    let logs = entries.filter(|path| path.extension().is_some_and(|ending| ending == "log"));
    logs.map(|log| fs::read_to_string(log).unwrap().matches("\"route\":\"artifact\"").count()).sum()
}

/// Section 7: the binary comes from the level's server, whose certificate is pinned, and has the hash that was told.
#[test]
fn the_agent_comes_from_the_pinned_server_with_the_hash_that_was_told() {
    let mut pulled = Pulled::new(&[]);
    pulled.kill_server();
    pulled.lab.write("state/artifacts/stead", STEAD);
    pulled.start_server();
    let sha256 = Digest::of(STEAD.as_bytes()).to_string();
    let mut told: Value = serde_json::from_str(&pulled.bootstrap("pull", &[])).unwrap();
    told["binary_sha256"] = json!(sha256);

    let mut other = told.clone();
    other["fingerprints"] = json!(["AB:CD"]);
    let requests = requests(&pulled);
    let Some(refused) = start_agent(&pulled, &other) else { return };
    assert_eq!(refused.code, 1, "{}", refused.stderr);
    assert!(refused.stderr.contains("E501") && refused.stderr.contains(pulled.fingerprint()));
    assert!(!refused.stderr.contains(told["token"].as_str().unwrap()), "no token is said");
    assert_eq!(self::requests(&pulled), requests, "not a byte of HTTP was sent");

    let place = pulled.lab.path(&format!("root/var/lib/stead/bin/{sha256}/stead"));
    assert!(!place.exists());
    let started = start_agent(&pulled, &told).unwrap();
    assert_eq!(started.code, 0, "{}", started.stderr);
    wait_for("the request is noted", || self::requests(&pulled) == requests + 1);
    assert_eq!(fs::read_to_string(place).unwrap(), STEAD);
    let kept = fs::read_to_string(pulled.lab.path("root/etc/stead/bootstrap.json")).unwrap();
    assert_eq!(serde_json::from_str::<Value>(&kept).unwrap(), told);
    assert!(!pulled.lab.path("root/etc/stead/.bootstrap.json").exists());

    // What comes with another hash is not used, and nothing of it stays. The server takes this for what it has hashed.
    fs::remove_dir_all(pulled.lab.path("root")).unwrap();
    let artifact = pulled.lab.path("state/artifacts/stead");
    let hashed = fs::metadata(&artifact).unwrap().modified().unwrap();
    let mut file = fs::File::options().write(true).open(&artifact).unwrap();
    file.write_all(STEAD.replace("enable", "enablE").as_bytes()).unwrap();
    file.set_modified(hashed).unwrap();
    let refused = start_agent(&pulled, &told).unwrap();
    assert_eq!(refused.code, 1, "{}", refused.stderr);
    assert!(refused.stderr.contains("has another hash"), "{}", refused.stderr);
    let kept = pulled.lab.path(&format!("root/var/lib/stead/bin/{sha256}"));
    assert_eq!(fs::read_dir(kept).unwrap().count(), 0);
    let kept = fs::read_to_string(pulled.lab.path("root/etc/stead/bootstrap.json")).unwrap();
    assert_eq!(kept, told.to_string(), "no agent was started");
}

/// Section 7: what cloud-init of a distribution makes of the seed of a node that pulls: its name, address, account, keys and
/// files, root's password, and an agent that is told what the node was told.
#[test]
fn cloud_init_of_a_distribution_does_what_a_seed_means() {
    let Some(world) = World::new("timeouts: {config: 1}\n") else { return };
    let network = world.guests.network.clone();
    write(
        &world.lab,
        "site.yaml",
        &format!("server: {{port: 0}}\ndefaults: {{gateway: {network}.1, dns_servers: [{network}.6]}}\n"),
    );
    let secrets = format!(
        "passwords: {{vm_root: '$6$salt$hash'}}\nssh_keys:\n  ann@desk: {KEY}\nauth: {{signing_key: '{}'}}\n",
        "ab".repeat(32)
    );
    write(&world.lab, "secrets.yaml", &secrets);
    let node =
        format!("- {{name: edge, type: vm, spec: base, ip: {network}.5/29, execution: {{mode: pull}}}}\n");
    let waits = "settings: {timeout_buffer: 0}\n";
    write(&world.lab, "manifests/m.yaml", &(manifest(&node) + waits));
    // Nobody boots, so nobody reports.
    let address = format!("{network}.1");
    world.verb("create", &[World::regardless(), &["--self-addr", &address]].concat()).exits(8);
    let seed = fs::read(world.machine().unwrap().join("seed.iso")).unwrap();
    let meant = machine_of_seed(&seed, "lab/m/ch");
    let told = &meant.files.iter().find(|file| file.path.ends_with("bootstrap.json")).unwrap().content;
    let told: Value = serde_json::from_slice(told).unwrap();
    let cards: Value = serde_json::from_str(&file_of_seed(&seed, "network-config").unwrap()).unwrap();
    let mac = cards["ethernets"]["nic0"]["match"]["macaddress"].as_str().unwrap();

    let directory = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let Some(machine) = CloudInit::with(directory, &seed, mac) else { return };
    // There is no way to a server from here: the program is there already, and notes what it is told.
    let place = format!("/var/lib/stead/bin/{}", told["binary_sha256"].as_str().unwrap());
    machine.sh(&format!(
        "mkdir -p {place}; printf '#!/bin/sh\\necho \"$*\" >/told; cat >>/told\\n' >{place}/stead; chmod 755 {place}/stead"
    ));
    for (said, is_well) in machine.boot() {
        assert!(is_well, "{said}");
    }
    let log = machine.sh("grep -E 'WARNING|ERROR|Traceback' /var/log/cloud-init.log || true");
    assert_eq!(log, "");
    assert_eq!(machine.sh("hostname"), "edge\n");
    let modes = machine.sh("stat -c '%a %U' /etc/stead/start-agent /etc/stead/keys/stead");
    assert_eq!(modes, "700 root\n644 root\n");
    let driver = world.lab.read("state/ssh/id_ed25519.pub");
    let driver = driver.split_whitespace().take(2).collect::<Vec<_>>().join(" ");
    assert!(machine.sh("cat /home/stead/.ssh/authorized_keys").contains(&driver));
    assert_eq!(machine.sh("runuser -u stead -- sudo -n id -u"), "0\n");
    let state: Value = serde_json::from_str(&world.lab.read("state/nodes/ch/m/state.json")).unwrap();
    let shown = machine.sh("ssh-keygen -y -f /etc/ssh/ssh_host_ed25519_key");
    assert!(shown.starts_with(state["nodes"]["edge"]["host_key"].as_str().unwrap()), "{shown}");
    assert!(machine.sh("grep ^root: /etc/shadow").starts_with("root:$6$salt$hash:"));
    let settings = machine.sh(&format!(
        "cat $(grep -rl '{network}.5/29' /etc/network /etc/netplan /etc/systemd/network 2>/dev/null)"
    ));
    for part in [format!("{network}.1"), format!("{network}.6")] {
        assert!(settings.contains(&part), "{settings}");
    }
    let heard = machine.sh("cat /told");
    let (arguments, input) = heard.split_once('\n').unwrap();
    assert_eq!((arguments, serde_json::from_str(input).ok()), ("agent enable", Some(told)));
}
