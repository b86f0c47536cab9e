//! Containers of a fleet: readiness that is asked for inside, ports that are passed on, with real processes.

use std::fs;
use std::io::Read as _;
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use super::daemons::{Daemons, has_nix};
use super::silent::until;
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
      volumes = [ { name = "data"; sizeMiB = 1; } ];
      runtime = {
        driver = "oci"; rootfs = "${root}/root.tar";
        argv = [ "/bin/busybox" "sh" "-c" "while :; do echo hello | busybox nc -l -p 80; done" ];
        nets = [ { ports = [ { guest = 80; host = PORT; } ]; } ];
      };
      ready = { kind = "exec"; argv = [ "/bin/busybox" "test" "-e" "/volumes/data/ready" ]; intervalSeconds = 1; };
    };
    orchestrator.vmImages = { inherit root; };
  };
}
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
    let flake = FLAKE.replace("PORT", &port.to_string());
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
