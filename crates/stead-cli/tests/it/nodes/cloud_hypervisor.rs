//! A node on a host of Cloud Hypervisor: the program is the stand-in of the testkit, and its guest a sandbox at the address
//! that the machine was given.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::Signal;
use serde_json::{Value, json};
use stead_testkit::cloud_hypervisor as stand_in;
use stead_testkit::proxmox::Guests as _;

use super::guests::{Sandboxes, has_addresses};
use super::{manifest, site, write};
use crate::cases_17_32::lab::{Ended, Lab, kill, wait_until};
use crate::oci::yard::own_network;

/// The number of the guest: its address is the second of its network.
const GUEST: u32 = 101;

/// Is the program, if this process was started to be it; else it shows nothing.
#[test]
fn the_program_itself() {
    stand_in::run();
}

/// A site whose host `ch` runs Cloud Hypervisor. What it has of this machine goes with it.
pub(super) struct World {
    pub(super) lab: Lab,
    pub(super) guests: Sandboxes,
    bridge: String,
}

impl World {
    /// Returns a site with a node `edge` there, and `more` lines in the host's file; nothing if this process may have no
    /// network devices.
    pub(super) fn new(more: &str) -> Option<Self> {
        if !has_addresses() {
            return None;
        }
        let (bridge, _) = own_network();
        let world = Self { lab: site(&[]), guests: Sandboxes::new(), bridge };
        world.lab.write("kernel", stand_in::KERNEL);
        stand_in::install(world.lab.root(), "nodes::cloud_hypervisor::the_program_itself");
        let (place, network, bridge) = (world.lab.root().display(), &world.guests.network, &world.bridge);
        let host = format!(
            "driver: cloud-hypervisor\nbinary: {place}/cloud-hypervisor\nkernel: {place}/kernel\nbridge: {bridge}\nsubnet: {network}.0/29\n{more}"
        );
        write(&world.lab, "hosts/ch.yaml", &host);
        write(
            &world.lab,
            "manifests/m.yaml",
            &manifest("- {name: edge, type: vm, spec: base, preset: vm-small}\n"),
        );
        ip(&["link", "add", "name", bridge, "type", "bridge"]);
        ip(&["address", "add", &format!("{network}.1/29"), "dev", bridge]);
        ip(&["link", "set", bridge, "up"]);
        Some(world)
    }

    /// Returns the arguments by which nodes are made also where the processor runs no guests.
    pub(super) fn regardless() -> &'static [&'static str] {
        match fs::File::options().read(true).write(true).open("/dev/kvm") {
            Ok(_) => &[],
            Err(_) => &["--skip-preflight"],
        }
    }

    fn command(&self, verb: &str, more: &[&str]) -> Command {
        let mut command = self.lab.stead([verb, "-M", "m", "-H", "ch", "--json"]);
        command.args(more);
        command
    }

    pub(super) fn verb(&self, verb: &str, more: &[&str]) -> Ended {
        self.command(verb, more).output().unwrap().into()
    }

    /// Returns the machine's directory, once there is one.
    pub(super) fn machine(&self) -> Option<PathBuf> {
        let mut entries = fs::read_dir(self.lab.path("state/machines")).ok()?.flatten();
        entries.find_map(|entry| entry.path().join("machine.json").exists().then(|| entry.path()))
    }

    /// Returns the process of the machine, if it runs.
    fn process(&self) -> Option<u32> {
        fs::read_to_string(self.machine()?.join("pid")).ok()?.split_whitespace().next()?.parse().ok()
    }

    /// Returns what is plugged into the bridge.
    fn ports(&self) -> Vec<String> {
        let ports = fs::read_dir(Path::new("/sys/class/net").join(&self.bridge).join("brif")).unwrap();
        ports.map(|port| port.unwrap().file_name().into_string().unwrap()).collect()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.verb("destroy", &["--yes"]);
        Command::new("ip").args(["link", "delete", "dev", &self.bridge]).output().ok();
    }
}

fn ip(args: &[&str]) {
    let ended = Command::new("ip").args(args).output().unwrap();
    assert!(ended.status.success(), "{args:?}: {}", String::from_utf8_lossy(&ended.stderr));
}

/// Section 7: create, status, exec, drift, a second create, a program that was killed, destroy.
#[test]
fn a_node_on_cloud_hypervisor_is_made_found_again_and_goes() {
    let Some(world) = World::new("") else { return };
    let defaults = "defaults: {domain: lab.example, packages: [ca-certificates], dns_servers: [9.9.9.9]}\n";
    write(&world.lab, "site.yaml", defaults);
    let more = World::regardless();
    if !more.is_empty() {
        let missing = world.verb("create", &[]).exits(1).document();
        assert!(missing["diagnostics"].to_string().contains("/dev/kvm"), "{missing}");
    }
    let creating = world.command("create", more).stdout(std::process::Stdio::piped()).spawn().unwrap();
    wait_until("its program runs", || world.process().is_some());
    let seed = fs::read(world.machine().unwrap().join("seed.iso")).unwrap();
    // Section 2: no network tells it an address that was chosen for it, nor who to ask for names.
    let names = br#""nameservers":{"addresses":["9.9.9.9"]}"#;
    assert!(seed.windows(names.len()).any(|part| part == names), "{}", String::from_utf8_lossy(&seed));
    let address = world.guests.boot(GUEST, &seed).unwrap();
    let made = Ended::from(creating.wait_with_output().unwrap()).exits(0).document();
    let node = &made["nodes"][0];
    assert_eq!(
        (&node["status"], &node["changed"], &node["ip"]),
        (&json!("completed"), &json!(true), &json!(address))
    );
    assert_eq!(world.ports().len(), 1);

    let state = || fs::read(world.lab.path("state/nodes/ch/m/state.json")).unwrap();
    let before = state();
    let again = world.verb("create", more).exits(0).document();
    assert_eq!((&again["nodes"][0]["changed"], state()), (&json!(false), before), "{again}");
    let seen = world.verb("status", &[]).exits(0).document();
    assert_eq!(seen["nodes"][0]["machine"], "running", "{seen}");
    let said = world.verb("exec", &["edge", "--", "hostname"]).exits(0).document();
    assert_eq!(said["results"][0]["stdout"], "edge\n", "{said}");
    assert_eq!(world.verb("drift", &[]).exits(0).document()["drift"], json!([]));

    let id = |state: &[u8]| -> Value {
        serde_json::from_slice::<Value>(state).unwrap()["nodes"]["edge"]["machine_id"].clone()
    };
    let (killed, first) = (world.process().unwrap(), id(&state()));
    kill(killed, Signal::KILL);
    wait_until("its end is seen", || world.verb("status", &[]).code == 1);
    let back = world.verb("create", more).exits(0).document();
    assert_eq!((&back["nodes"][0]["changed"], id(&state())), (&json!(true), first), "{back}");
    assert_ne!(world.process(), Some(killed));

    let last = PathBuf::from(format!("/proc/{}", world.process().unwrap()));
    world.verb("destroy", &["--yes"]).exits(0);
    assert_eq!((world.machine(), world.ports()), (None, Vec::new()));
    wait_until("its process is gone", || !last.exists());
}
