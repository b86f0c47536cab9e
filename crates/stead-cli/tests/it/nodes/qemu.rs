//! Nodes that are real virtual machines, by QEMU: a distribution's kernel, OpenSSH's daemon, and this program in them.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use serde_json::{Value, json};
use stead_testkit::micro_node::MicroNode;

use super::{BASE, LOCAL, site, write};
use crate::cases_17_32::lab::{Ended, Lab};

const SITE: &str = "server: {port: 0, bind: 127.0.0.1}
defaults: {domain: lab.example, packages: [ca-certificates], vm_user: root}
";

/// Wants what is not to be had.
const ODD: &str = "schema_version: 1\naccess: {posture: local}\nplatform: {packages: [no-such-package]}\n";

/// Returns the guest; else says what is missing.
#[expect(clippy::print_stderr, reason = "a test that is left out is said")]
fn guest() -> Option<MicroNode> {
    static FOUND: OnceLock<Option<MicroNode>> = OnceLock::new();
    let find = || {
        let programs = [("qemu-system-x86_64", "qemu-system-x86"), ("ssh", "openssh-client")];
        let missing = programs.into_iter().find(|(name, _)| !Path::new("/usr/bin").join(name).exists());
        if let Some((name, package)) = missing {
            return Err(format!("no {name} (package {package})"));
        }
        MicroNode::build(Path::new(env!("CARGO_TARGET_TMPDIR")), Path::new(env!("CARGO_BIN_EXE_stead")))
    };
    let found = FOUND.get_or_init(|| {
        let missing = find().map_err(|missing| {
            assert!(std::env::var_os("STEAD_CI").is_none(), "{missing}");
            eprintln!("skipped: {missing}");
        });
        missing.ok()
    });
    found.clone()
}

/// A site whose host `vm` makes virtual machines; they go when the test ends, however it ends.
struct Vms {
    lab: Lab,
    guest: MicroNode,
}

impl Vms {
    fn new(guest: &MicroNode, nodes: &str) -> Self {
        let world = Self { lab: site(&[]), guest: guest.clone() };
        world.write("site.yaml", SITE);
        let (kernel, initrd) = (guest.kernel.display(), guest.initrd.display());
        let host = format!(
            "driver: qemu\naccel: tcg\nkernel: {kernel}\ninitrd: {initrd}\ncmdline: console=ttyS0 quiet panic=-1 no_timer_check\n"
        );
        world.write("hosts/vm.yaml", &host);
        world.nodes(nodes);
        world
    }

    fn write(&self, path: &str, text: &str) {
        write(&self.lab, path, text);
    }

    fn nodes(&self, nodes: &str) {
        self.write("manifests/m.yaml", &format!("schema_version: 2\nname: m\nnodes:\n{nodes}"));
    }

    fn run(&self, args: &[&str]) -> Ended {
        // The program that is in the guest already.
        let mut command = Command::new(&self.guest.program);
        command.env_clear().env("PATH", "/usr/bin:/bin").current_dir(self.lab.root()).stdin(Stdio::null());
        command.arg("--state-dir").arg(self.lab.path("state")).args(args).output().unwrap().into()
    }

    fn verb(&self, verb: &str, more: &[&str]) -> Ended {
        self.run(&[&[verb, "-M", "m", "-H", "vm", "--json"], more].concat())
    }

    #[track_caller]
    fn create(&self, more: &[&str]) -> Value {
        let ended = self.verb("create", more);
        assert_eq!(ended.code, 0, "{} {}\n{}", ended.stdout, ended.stderr, self.consoles());
        ended.document()
    }

    fn destroy(&self) -> Ended {
        self.verb("destroy", &["--yes"])
    }

    fn machines(&self) -> PathBuf {
        self.lab.path("state").join("machines")
    }

    fn machine_ids(&self) -> Vec<String> {
        let entries = fs::read_dir(self.machines()).into_iter().flatten().flatten();
        let mut ids: Vec<String> = entries.map(|entry| entry.file_name().into_string().unwrap()).collect();
        ids.sort_unstable();
        ids
    }

    fn consoles(&self) -> String {
        let console = |id: String| {
            let bytes = fs::read(self.machines().join(id).join("console.log")).unwrap_or_default();
            String::from_utf8_lossy(&bytes).into_owned()
        };
        self.machine_ids().into_iter().map(console).collect()
    }

    fn state(&self) -> Value {
        serde_json::from_slice(&fs::read(self.state_path()).unwrap()).unwrap()
    }

    fn state_path(&self) -> PathBuf {
        self.lab.path("state/nodes/vm/m/state.json")
    }

    /// Returns the processes of machines of this site.
    fn processes(&self) -> Vec<u32> {
        let machines = self.machines();
        let entries = fs::read_dir("/proc").unwrap().flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let is_ours = |pid: &u32| {
            fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|place| place.starts_with(&machines))
        };
        pids.filter(is_ours).collect()
    }

    /// Whether a private key opens an account of the only node.
    fn opens(&self, key: &str, account: &str) -> bool {
        let entry = &self.state()["nodes"]["edge"];
        let mut ssh = Command::new("ssh");
        ssh.args([
            "-F",
            "none",
            "-o",
            "BatchMode=yes",
            "-o",
            "IdentitiesOnly=yes",
            "-o",
            "IdentityAgent=none",
        ]);
        let known = self.lab.path("known_hosts");
        fs::write(
            &known,
            format!("[127.0.0.1]:{} {}\n", entry["ssh_port"], entry["host_key"].as_str().unwrap()),
        )
        .unwrap();
        ssh.arg("-o").arg(format!("UserKnownHostsFile={}", known.display()));
        ssh.arg("-i").arg(self.lab.path(key)).arg("-p").arg(entry["ssh_port"].to_string());
        ssh.arg(format!("{account}@127.0.0.1")).args(["test", "-x", "/usr/bin/htop"]);
        ssh.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap().success()
    }

    fn make_key(&self, name: &str) -> String {
        let mut keygen = Command::new("ssh-keygen");
        keygen.args(["-q", "-t", "ed25519", "-N", "", "-C", name, "-f"]).arg(self.lab.path(name));
        assert!(keygen.status().unwrap().success());
        fs::read_to_string(self.lab.path(&format!("{name}.pub"))).unwrap().trim().to_owned()
    }

    fn log_of_server(&self) -> String {
        let directory = self.lab.path("state/server");
        let entries = fs::read_dir(directory).into_iter().flatten().flatten();
        let logs =
            entries.map(|entry| entry.path()).filter(|path| path.extension().is_some_and(|e| e == "log"));
        logs.map(|log| fs::read_to_string(log).unwrap()).collect()
    }

    #[track_caller]
    fn leaves_nothing(&self) {
        assert_eq!(self.machine_ids(), Vec::<String>::new());
        assert_eq!(self.processes(), Vec::<u32>::new());
        assert!(!self.state_path().exists(), "{:?}", self.state());
        let server = self.run(&["server", "status", "--json", "--site", "site-config"]);
        assert_eq!(server.document()["running"], json!(false));
    }
}

impl Drop for Vms {
    fn drop(&mut self) {
        if !self.machine_ids().is_empty() {
            self.destroy();
        }
        for pid in self.processes() {
            let pid = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw);
            pid.map(|pid| rustix::process::kill_process(pid, rustix::process::Signal::KILL).ok());
        }
        self.run(&["server", "stop", "--site", "site-config"]);
    }
}

fn edge(guest: &MicroNode, mode: &str) -> Vms {
    let world =
        Vms::new(guest, &format!("- {{name: edge, type: vm, spec: base, execution: {{mode: {mode}}}}}\n"));
    // Not what is asked for by the token, whatever it is called.
    world.write("specs/edge.yaml", ODD);
    world
}

fn taps() -> BTreeSet<String> {
    let entries = fs::read_dir("/sys/class/net").unwrap().flatten();
    entries
        .map(|entry| entry.file_name().into_string().unwrap())
        .filter(|name| name.starts_with("st"))
        .collect()
}

/// ST-1 and ST-2 in real virtual machines: one digest by push, pull and hybrid; pull needs no SSH, push no server.
#[test]
fn a_virtual_machine_becomes_its_spec_whoever_does_it() {
    let Some(guest) = guest() else { return };
    let before = taps();
    let [pull, push, hybrid] = ["pull", "push", "hybrid"].map(|mode| edge(&guest, mode));
    let (good, bad) = (pull.make_key("good"), pull.make_key("bad"));
    assert_ne!(good, bad);
    let secrets = format!("ssh_keys:\n  ann@desk: {good}\nauth:\n  signing_key: '{}'\n", "ab".repeat(32));
    let nodes: Vec<Value> = std::thread::scope(|scope| {
        let started = [&pull, &push, &hybrid].map(|world| {
            world.write("secrets.yaml", &secrets);
            scope.spawn(move || world.create(&[])["nodes"][0].clone())
        });
        started.map(|made| made.join().unwrap()).to_vec()
    });
    for node in &nodes {
        assert_eq!(node["status"], json!("completed"), "{node}");
        assert_eq!(node["state_digest"], nodes[0]["state_digest"]);
        assert_eq!(node["spec_digest"], nodes[0]["spec_digest"]);
    }

    let logins = |world: &Vms| world.consoles().matches("Accepted publickey").count();
    assert_eq!(logins(&pull), 0, "create waited for the report: {}", pull.consoles());
    assert_eq!(logins(&push), 1, "one connection: {}", push.consoles());
    assert!(!push.lab.path("state/server").exists(), "push starts no server");
    let jti = pull.state()["nodes"]["edge"]["jti"].as_str().unwrap().to_owned();
    let log = pull.log_of_server();
    let lines = log.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let is_fetch = |line: &Value| line["route"] == "spec" && line["jti"] == jti.as_str();
    assert_eq!(
        lines.filter(is_fetch).map(|line| line["spec"].clone()).collect::<Vec<_>>(),
        ["base"],
        "{log}"
    );

    assert!(pull.opens("good", "ops"), "{}", pull.consoles());
    assert!(!pull.opens("bad", "ops"));
    let files = "cat /var/lib/stead/config/spec.yaml; stat -c %a /etc/stead/bootstrap.json";
    let said = pull.verb("exec", &["edge", "--", "sh", "-c", files]);
    let said = said.document()["results"][0]["stdout"].as_str().unwrap().to_owned();
    assert!(said.contains("spec: base") && said.contains("htop") && said.ends_with("600\n"), "{said}");
    assert_eq!(pull.verb("status", &[]).code, 0);
    assert_eq!(pull.verb("drift", &[]).document()["drift"], json!([]));
    let spoiled = pull.verb("exec", &["edge", "--", "sh", "-c", "echo >/home/ops/.ssh/authorized_keys"]);
    assert_eq!(spoiled.code, 0, "{}", spoiled.stdout);
    assert_eq!(pull.verb("drift", &[]).code, 4);

    for world in [&pull, &push, &hybrid] {
        let seed = fs::metadata(world.machines().join(&world.machine_ids()[0]).join("seed.iso")).unwrap();
        assert_eq!(seed.permissions().mode() & 0o777, 0o600, "a token is in it");
        let gone = world.destroy();
        assert_eq!(gone.code, 0, "{}", gone.stdout);
        world.leaves_nothing();
    }
    assert_eq!(taps(), before);
}

/// Nodes, section 5: the port that a posture sets is where the machine's own forwarding leads from then on. The port of this
/// machine stays, so that state does.
#[test]
fn a_virtual_machine_is_reached_at_the_port_its_posture_sets() {
    let Some(guest) = guest() else { return };
    let world = Vms::new(&guest, "- {name: edge, type: vm, spec: base}\n");
    world.create(&[]);
    let port = world.state()["nodes"]["edge"]["ssh_port"].clone();
    let home = world.machines().join(&world.machine_ids()[0]);
    for guest_port in [2222, 2022] {
        world.write(
            "postures/local.yaml",
            &LOCAL.replacen("ssh: {", &format!("ssh: {{port: {guest_port}, "), 1),
        );
        let made = world.create(&[]);
        assert_eq!(made["nodes"][0]["changed"], json!(true), "{made}");
        assert_eq!(world.state()["nodes"]["edge"]["ssh_port"], port);
        let sheet: Value = serde_json::from_slice(&fs::read(home.join("run.json")).unwrap()).unwrap();
        assert_eq!(sheet, json!({"port": port, "guest_port": guest_port}));
        let said = world.verb("exec", &["edge", "--", "sh", "-c", "echo $SSH_CONNECTION"]).document();
        let said = said["results"][0]["stdout"].as_str().unwrap().trim().to_owned();
        assert!(said.ends_with(&format!(" {guest_port}")), "{said}");
        let again = world.create(&[]);
        assert_eq!(again["nodes"][0]["changed"], json!(false), "{again}");
    }
    // Whoever began to lead there did not come to it: the next one does.
    let sheet = json!({"port": port, "guest_port": 2022, "is_moving": true});
    fs::write(home.join("run.json"), sheet.to_string()).unwrap();
    assert_eq!(world.create(&[])["nodes"][0]["changed"], json!(false));
    assert_eq!(world.verb("exec", &["edge", "--", "true"]).code, 0);
    assert_eq!(world.destroy().code, 0);
    world.leaves_nothing();
}

/// Case 24 of reach: `reboot` in a virtual machine gives a new boot id and the run goes on. How machines are run is said if it is
/// not as it should be.
#[test]
fn a_virtual_machine_restarts_and_the_run_goes_on() {
    let Some(guest) = guest() else { return };
    let world = Vms::new(&guest, "- {name: edge, type: vm}\n");
    let host = world.lab.read("site-config/hosts/vm.yaml").replace("accel: tcg\n", "machine: q35\n");
    world.write("hosts/vm.yaml", &host);
    let made = world.create(&[]);
    let home = world.machines().join(&world.machine_ids()[0]);
    let is_emulated = fs::read_to_string(home.join("vm.log")).unwrap().contains("-accel tcg");
    let told = made["diagnostics"].as_array().unwrap().iter().find(|row| row["code"] == "node/driver");
    let told = told.map(|row| row["message"].as_str().unwrap());
    assert_eq!(told.is_some_and(|message| message.contains("emulated (tcg)")), is_emulated, "{made}");

    world.lab.write(
        "again.yaml",
        "api_version: v1\nname: again\ntasks:
  - {name: left, target: edge, shell: 'echo here >/tmp/left'}
  - {name: boot, target: edge, op: reboot, params: {timeout: 5m}, depends_on: left}
  - {name: after, target: edge, op: facts, params: {only: [boot_id]}, depends_on: boot}
  - {name: gone, target: edge, exec: [test, '!', -e, /tmp/left], depends_on: after}
",
    );
    let ended = world.run(&["plan", "run", "again.yaml", "-M", "m", "-H", "vm", "--json"]);
    assert_eq!(ended.code, 0, "{}\n{}", ended.stdout, world.consoles());
    let report = ended.document();
    let data = |task: usize| &report["tasks"][task]["hosts"][0]["data"];
    assert_ne!(data(1)["boot_id"], data(1)["before"], "{report}");
    assert_eq!(data(2)["boot_id"], data(1)["boot_id"], "{report}");
    assert_eq!(world.consoles().matches("micro node is up").count(), 2, "{}", world.consoles());
    assert_eq!(world.destroy().code, 0);
    world.leaves_nothing();
}

/// Section 7: with `STEAD_TEST_IMAGE` a distribution's own cloud image becomes its spec, by push and by pull.
#[test]
fn a_cloud_image_becomes_its_spec() {
    let Some(image) = std::env::var_os("STEAD_TEST_IMAGE") else {
        eprintln!("skipped: STEAD_TEST_IMAGE names no cloud image");
        return;
    };
    let program = PathBuf::from(env!("CARGO_BIN_EXE_stead"));
    let guest = MicroNode { kernel: PathBuf::new(), initrd: PathBuf::new(), program };
    let image = PathBuf::from(image);
    for mode in ["push", "pull"] {
        let world = Vms { lab: site(&[]), guest: guest.clone() };
        world.write("site.yaml", "server: {port: 0, bind: 127.0.0.1}\ndefaults: {domain: lab.example}\n");
        world.write(
            "hosts/vm.yaml",
            "driver: qemu\nmachine: q35\ntimeouts: {address: 600, ssh: 900, config: 900}\n",
        );
        world.write(
            "specs/plain.yaml",
            "schema_version: 1\naccess: {posture: local, users: [{name: ops, sudo: true}]}\n",
        );
        world.write("presets/cloud.yaml", "cores: 2\nmemory: 1024\ndisk: 8\n");
        let node = json!({"name": "edge", "type": "vm", "spec": "plain", "preset": "cloud", "image": image,
            "execution": {"mode": mode}});
        world.nodes(&format!("- {node}\n"));
        let made = world.create(&[]);
        assert_eq!(made["nodes"][0]["status"], json!("completed"), "{mode}: {made}");
        let said = world.verb("exec", &["edge", "--", "id", "-un", "ops"]).document();
        assert_eq!(said["results"][0]["stdout"], json!("ops\n"), "{mode}: {said}");
        assert_eq!(world.verb("status", &[]).code, 0, "{mode}");
        assert_eq!(world.destroy().code, 0);
        world.leaves_nothing();
    }
}

/// ST-6 and ST-8 in real virtual machines: peers are made at once, one that fails leaves the others; what is there is
/// found again, also without its state; destroy twice.
#[test]
fn virtual_machines_are_made_at_once_and_found_again() {
    let Some(guest) = guest() else { return };
    let world = Vms::new(
        &guest,
        "- {name: a, type: vm, spec: base}\n- {name: b, type: vm, spec: base}\n- {name: c, type: vm, spec: odd}\n",
    );
    world.write("specs/odd.yaml", ODD);
    let events = world.lab.path("events");
    let first = world.verb("create", &["--on-error", "continue", "--events", events.to_str().unwrap()]);
    assert_eq!(first.code, 1, "{} {}", first.stdout, first.stderr);
    let document = first.document();
    let statuses: Vec<&Value> =
        document["nodes"].as_array().unwrap().iter().map(|node| &node["status"]).collect();
    assert_eq!(statuses, [&json!("completed"), &json!("completed"), &json!("failed")], "{document}");
    assert!(document["nodes"][2]["error"].to_string().contains("no-such-package"), "{document}");
    let text = fs::read_to_string(events).unwrap();
    let rows = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let made: Vec<String> = rows
        .filter(|row| row["task"].as_str().is_some_and(|task| task.ends_with(".create")))
        .filter_map(|row| match row["ev"].as_str()? {
            "task_started" => Some("start".to_owned()),
            "task_finished" => Some("end".to_owned()),
            _ => None,
        })
        .collect();
    assert_eq!(made, ["start", "start", "start", "end", "end", "end"], "no machine waits for another");

    world.write("specs/odd.yaml", BASE);
    let second = world.create(&[]);
    assert_eq!(second["nodes"][2]["status"], json!("completed"), "{second}");
    let (ids, state) = (world.machine_ids(), fs::read(world.state_path()).unwrap());
    let third = world.create(&[]);
    let changed = |document: &Value| {
        document["nodes"].as_array().unwrap().iter().map(|node| node["changed"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(changed(&third), [json!(false), json!(false), json!(false)], "{third}");
    assert_eq!(fs::read(world.state_path()).unwrap(), state);
    fs::remove_file(world.state_path()).unwrap();
    let adopted = world.create(&[]);
    assert_eq!(adopted["success"], json!(true), "{adopted}");
    assert_eq!(world.machine_ids(), ids);

    assert_eq!(world.destroy().code, 0);
    world.leaves_nothing();
    assert_eq!(world.destroy().code, 0, "nothing to do");
}

/// ST-3 in a real virtual machine: what it makes comes after it is ready and goes before it; commands reach it through it.
#[test]
fn a_virtual_machine_holds_machines() {
    let Some(guest) = guest() else { return };
    let world = Vms::new(
        &guest,
        "- {name: quay, type: vm, spec: base, preset: wide, hosting: {driver: sandbox}}\n\
         - {name: crane, type: vm, spec: base, parent: quay}\n",
    );
    // Its files are in its memory.
    world.write("presets/wide.yaml", "cores: 1\nmemory: 1024\ndisk: 1\n");
    let statuses = |document: &Value| -> Vec<(String, String)> {
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let rows = document["nodes"].as_array().unwrap();
        rows.iter().map(|row| (text(&row["name"]), text(&row["status"]))).collect()
    };
    let pairs = |pairs: [(&str, &str); 2]| pairs.map(|(name, status)| (name.to_owned(), status.to_owned()));
    let place = |events: &[Value], ev: &str, task: &str| {
        let is = |event: &Value| event["ev"] == ev && event["task"] == task;
        let found = events.iter().position(|event| is(event) || is(&event["event"]));
        found.unwrap_or_else(|| panic!("no {ev} of {task}"))
    };
    let made = world.create(&[]);
    assert_eq!(statuses(&made), pairs([("quay", "completed"), ("crane", "completed")]));
    let events = world.lab.events(made["run"].as_str().unwrap());
    assert!(place(&events, "task_finished", "quay.hosting") < place(&events, "task_started", "crane.create"));
    // The shell of this guest has a `hostname` of its own.
    let said = world.verb("exec", &["crane", "--", "sh", "-c", "echo $STEAD_NODE"]).document();
    assert_eq!(said["results"][0]["stdout"], json!("crane\n"), "{said}");
    assert_eq!(world.verb("status", &[]).code, 0);
    let gone = world.destroy();
    assert_eq!(gone.code, 0, "{} {}", gone.stdout, gone.stderr);
    let gone = gone.document();
    assert_eq!(statuses(&gone), pairs([("crane", "destroyed"), ("quay", "destroyed")]));
    let events = world.lab.events(gone["run"].as_str().unwrap());
    assert!(
        place(&events, "task_finished", "crane.destroy") < place(&events, "task_started", "quay.destroy")
    );
    world.leaves_nothing();
}
