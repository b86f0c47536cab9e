//! Containers of a fleet: readiness that is asked for inside, ports that are passed on, leases, with real processes.

use std::fs;
use std::io::Read as _;
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use super::daemons::{Daemons, has_nix, is_alive};
use super::silent::{pid, until};
use crate::cases_17_32::lab::wait_until;
use crate::oci::yard::{is_skipped, own_network};

const FLAKE: &str = r#"{
  outputs = { self }: let
    root = derivation {
      name = "vm-root"; system = "x86_64-linux"; builder = "/bin/sh";
      args = [ "-c" "/bin/mkdir $out; /bin/cp ${./root.tar} $out/root.tar" ];
    };
  in {
    orchestrator.vms.web = {
      resources = { cpuMilli = 500; memMiB = 64; };
VM
    };
    orchestrator.vmImages = { inherit root; };
  };
}
"#;

/// Says `hello` at its port, and is ready once its volume says so.
const SERVER: &str = r#"
      volumes = [ { name = "data"; sizeMiB = 1; } ];
      runtime = {
        driver = "oci"; rootfs = "${root}/root.tar";
        argv = [ "/bin/busybox" "sh" "-c" "while :; do echo hello | busybox nc -l -p 80; done" ];
        nets = [ { ports = [ { guest = 80; host = PORT; } ]; } ];
      };
      ready = { kind = "exec"; argv = [ "/bin/busybox" "test" "-e" "/volumes/data/ready" ]; intervalSeconds = 1; };
"#;

/// Must not run twice.
const SINGLETON: &str = r#"
      singleton = true;
      runtime = {
        driver = "oci"; rootfs = "${root}/root.tar";
        argv = [ "/bin/busybox" "sh" "-c" "trap \"\" TERM; while :; do busybox sleep 1; done" ];
      };
"#;

/// Returns a root with busybox and what this program needs to run in it.
fn root_tar(directory: &Path) -> Vec<u8> {
    let said = Command::new("ldd").arg(env!("CARGO_BIN_EXE_stead")).output().unwrap();
    let said = String::from_utf8(said.stdout).unwrap();
    let libraries = said.split_whitespace().filter(|word| word.starts_with('/'));
    for (from, to) in libraries.map(|path| (path, path)).chain([("/usr/bin/busybox", "/bin/busybox")]) {
        let to = directory.join(to.trim_start_matches('/'));
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        fs::copy(from, to).unwrap();
    }
    std::os::unix::fs::symlink("busybox", directory.join("bin/sh")).unwrap();
    let packed = Command::new("tar").arg("-C").arg(directory).args(["-cf", "-", "."]).output().unwrap();
    assert!(packed.status.success());
    packed.stdout
}

/// Section 11: a container is ready once what its `exec` runs in it says so, and is reached at the port that its spec names.
#[test]
fn a_container_is_asked_inside_and_reached_at_its_port() {
    if is_skipped("runc") || !has_nix() || !Path::new("/usr/bin/busybox").exists() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let root = root_tar(dir.path());
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let flake = FLAKE.replace("VM", &SERVER.replace("PORT", &port.to_string()));
    let (bridge, subnet) = own_network();
    let drivers = format!("{{oci: {{runtime: runc, bridge: {bridge}, subnet: {subnet}}}}}");
    let files: [(&str, &[u8]); 2] = [("flake.nix", flake.as_bytes()), ("root.tar", &root)];
    let daemons = Daemons::start(&["w1"], &drivers, &files);
    let is_waiting = |status: &Value| status["instances"][0]["code"] == "not-ready";
    // Before it was first asked it is not ready either.
    let has_answered = |status: &Value| {
        let message = status["instances"][0]["message"].as_str();
        is_waiting(status) && message.is_some_and(|message| message.contains("exit status: 1"))
    };
    until(&daemons, "running, and what was asked inside said no", has_answered);
    daemons.fleet(&["status"]).exits(10).says("exit status: 1");
    fs::write(daemons.lab.path("w1/fleet/volumes/web.0/data/ready"), "").unwrap();
    daemons.converged(&daemons.git(&["rev-parse", "HEAD"]));
    let heard = || {
        let mut said = String::new();
        if let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) {
            stream.read_to_string(&mut said).ok();
        }
        said
    };
    wait_until("it answers at its port", || heard() == "hello\n");
    // The other way round: what says so no longer is not ready any more.
    fs::remove_file(daemons.lab.path("w1/fleet/volumes/web.0/data/ready")).unwrap();
    until(&daemons, "not ready any more", is_waiting);
}

/// Section 9, F5: a container that must not run twice ends with its lease though its agent was killed. The agent comes back:
/// it tells how that ended, and starts another one.
#[test]
fn a_container_ends_with_its_lease_though_its_agent_was_killed() {
    if is_skipped("runc") || !has_nix() || !Path::new("/usr/bin/busybox").exists() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let root = root_tar(dir.path());
    let flake = FLAKE.replace("VM", SINGLETON);
    let (bridge, subnet) = own_network();
    let drivers = format!("{{oci: {{runtime: runc, bridge: {bridge}, subnet: {subnet}}}}}");
    let files: [(&str, &[u8]); 2] = [("flake.nix", flake.as_bytes()), ("root.tar", &root)];
    let mut daemons = Daemons::start(&["w1"], &drivers, &files);
    let is_up = |status: &Value| {
        (&status["state"], &status["counts"]["converged"]) == (&"converged".into(), &1.into())
    };
    until(&daemons, "there", is_up);
    let guest = pid(&daemons, "w1", "web/0").unwrap();
    daemons.kill("w1");
    assert!(is_alive(guest), "nothing ends with the agent");
    // As if it had last been heard long ago.
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    fs::write(daemons.lab.path("w1/fleet/worker.lease"), format!("1 {boot}")).unwrap();
    wait_until("what keeps it ends it", || !is_alive(guest));
    daemons.work_again("w1", &drivers);
    until(&daemons, "back", |status| is_up(status) && pid(&daemons, "w1", "web/0") != Some(guest));
    let ended = daemons
        .events()
        .into_iter()
        .find(|line| (&line["ev"], &line["instance"]) == (&"exited".into(), &"web/0".into()));
    assert_eq!(ended.expect("it is told why")["reason"], "its lease is over");
}
