//! What starts the agent at the first boot of a machine that cloud-init sets up.

use std::fs;
use std::io::Write as _;
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use stead_model::plan::Digest;

use super::pulled::{Pulled, wait_for};
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
