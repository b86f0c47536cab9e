//! `stead config apply`, in the root of a sandbox that need not run.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use rustix::process::Signal;
use serde_json::{Value, json};
use stead_drivers::machine::sandbox::{Fault, Names, Phase, SandboxDriver, SandboxSettings};
use stead_model::machine::{MachineKind, MachineSpec, Owner};
use stead_runner::machine::MachineDriver;

use super::{KEY, site, write};
use crate::cases_17_32::lab::{Ended, Lab, Running, wait_until};

const OTHER: &str =
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgIC bob@desk";

/// A sandbox that was made and not started, in a place with a site.
struct Node {
    lab: Lab,
    root: PathBuf,
}

impl Node {
    /// Returns a node called `edge`, whose host has these packages and faults.
    fn new(lab: Lab, packages: Names, faults: Vec<Fault>) -> Self {
        let root = make(&lab, packages, faults);
        Self { lab, root }
    }

    fn of_site(files: &[(&str, &str)]) -> Self {
        Self::new(site(files), Names::Any, Vec::new())
    }

    fn apply(&self, args: &[&str]) -> Ended {
        let words = ["config", "apply", "--json"].into_iter().chain(args.iter().copied());
        let mut command = self.lab.stead(words);
        command.env("STEAD_ROOT", &self.root).env("STEAD_NODE", "edge");
        command.output().unwrap().into()
    }

    fn read(&self, path: &str) -> String {
        fs::read_to_string(self.root.join(path)).unwrap_or_default()
    }

    fn json(&self, name: &str) -> Value {
        serde_json::from_str(&self.read(&format!("var/lib/stead/config/{name}"))).unwrap_or_default()
    }

    fn has(&self, name: &str) -> bool {
        self.root.join("var/lib/stead/config").join(name).exists()
    }

    /// Returns inode and time of every file of the node but its locks: what is touched has others.
    fn touched(&self) -> BTreeMap<PathBuf, (u64, i64, i64)> {
        let mut found = BTreeMap::new();
        let mut open = vec![self.root.parent().unwrap().to_owned()];
        while let Some(directory) = open.pop() {
            for entry in fs::read_dir(&directory).unwrap() {
                let (path, kind) = entry.map(|entry| (entry.path(), entry.file_type().unwrap())).unwrap();
                if kind.is_dir() {
                    open.push(path);
                } else {
                    let meta = fs::symlink_metadata(&path).unwrap();
                    found.insert(path, (meta.ino(), meta.mtime(), meta.mtime_nsec()));
                }
            }
        }
        found
    }
}

fn make(lab: &Lab, packages: Names, faults: Vec<Fault>) -> PathBuf {
    let machines = lab.path("machines");
    let program = Path::new(env!("CARGO_BIN_EXE_stead"));
    let settings = SandboxSettings { packages, faults, ..SandboxSettings::new(&machines, program) };
    let owner = Owner::new("site/m/local", "edge").unwrap();
    let home = machines.join(owner.uuid());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let spec = MachineSpec::new(owner, MachineKind::Vm);
    runtime.block_on(SandboxDriver::new(settings).ensure_created(&spec)).unwrap();
    home.join("root")
}

/// Case 13: the marker has the digest of the vector.
#[test]
fn the_marker_has_the_digest_of_the_vector() {
    let node = Node::of_site(&[]);
    let document = node.apply(&["--spec", "base"]).exits(0).document();
    let digest = "sha256:2c5ccf39e00acf2381d580ca35aff89c135694fced864d0ad0df9792cb9fed2f";
    let marker = node.json("config-complete.json");
    for found in [&document, &marker] {
        assert_eq!(found["spec_digest"], digest);
        assert_eq!((found["packages"].as_u64(), found["users"].as_u64()), (Some(3), Some(1)));
    }
    assert_eq!((document["success"].as_bool(), document["phase"].as_str()), (Some(true), Some("config")));
    assert_eq!(
        (
            marker["node"].as_str(),
            marker["spec"].as_str(),
            marker["mode"].as_str(),
            marker["status"].as_str()
        ),
        (Some("edge"), Some("base"), Some("push"), Some("complete"))
    );
    assert!(node.read("var/lib/stead/config/spec.yaml").starts_with(&format!("# {digest}\n")));
    assert_eq!(node.read("etc/hosts"), "127.0.0.1 localhost\n127.0.1.1\tedge.lab.example edge\n");
    assert_eq!(node.read("etc/sudoers.d/stead-ops"), "ops ALL=(ALL) NOPASSWD: ALL\n");
    let daemon = node.read("etc/ssh/sshd_config.d/10-stead.conf");
    assert!(daemon.contains("AuthorizedKeysFile .ssh/authorized_keys /etc/stead/keys/%u\n"), "{daemon}");
}

/// Case 14: keys omitted, named and `[]` are all, that one and none.
#[test]
fn keys_of_a_user_are_all_those_named_or_none() {
    let node = Node::of_site(&[
        (
            "specs/keys.yaml",
            "schema_version: 1\naccess:\n  posture: local\n  users:\n    - {name: all}\n    - {name: one, ssh_keys: [bob@desk]}\n    - {name: none, ssh_keys: []}\n",
        ),
        ("secrets.yaml", &format!("ssh_keys:\n  ann@desk: {KEY}\n  bob@desk: {OTHER}\n")),
    ]);
    let by_hand = node.root.join("home/none/.ssh");
    fs::create_dir_all(&by_hand).unwrap();
    fs::write(by_hand.join("authorized_keys"), format!("{KEY}\n")).unwrap();
    node.apply(&["--spec", "keys"]).exits(0);
    assert_eq!(node.read("home/all/.ssh/authorized_keys"), format!("{KEY}\n{OTHER}\n"));
    assert_eq!(node.read("home/one/.ssh/authorized_keys"), format!("{OTHER}\n"));
    assert_eq!(node.read("home/none/.ssh/authorized_keys"), "");
    let keys = |name: &str| {
        let users = node.json("state.json")["users"].as_array().unwrap().clone();
        users.iter().find(|user| user["name"] == name).unwrap()["keys"].clone()
    };
    assert_eq!((keys("all"), keys("one"), keys("none")), (json!([KEY, OTHER]), json!([OTHER]), json!([])));
}

const FULL: &str = "schema_version: 1
network: {ip: 10.0.0.5/24, gateway: 10.0.0.1, dns: [10.0.0.2]}
access:
  posture: prod
  users:
    - {name: ann, sudo: true}
    - {name: bob, ssh_keys: []}
    - {name: cat}
platform:
  packages: [htop]
  services: {enable: [cron], disable: [rpcbind]}
config: {timezone: Europe/Vienna, pve: {}, mine: {x: 1}}
";
const PROD: &str =
    "ssh: {port: 2222, permit_root_login: \"no\"}\nfail2ban: {enabled: true}\npackages: [strace]\n";

/// Case 15: everything is in the state; a second apply changes nothing and touches no file.
#[test]
fn a_second_apply_changes_nothing_and_touches_nothing() {
    let node = Node::of_site(&[("specs/full.yaml", FULL), ("postures/prod.yaml", PROD)]);
    let predicted = node.apply(&["--spec", "full", "--dry-run"]).exits(0).document();
    assert!(!node.has("spec.yaml"), "a dry run writes nothing");
    let first = node.apply(&["--spec", "full"]).exits(0).document();
    assert_eq!(predicted["changes"], first["changes"], "a dry run says what the run does");
    let state = node.json("state.json");
    assert_eq!(
        state,
        json!({
            "domain": "lab.example", "hostname": "edge", "timezone": "Europe/Vienna",
            "network": {"dns": ["10.0.0.2"], "gateway": "10.0.0.1", "ip": "10.0.0.5/24"},
            "packages": {"ca-certificates": true, "htop": true, "strace": true},
            "pve": {"remove_subscription_nag": true},
            "security": {"fail2ban": {"enabled": true}, "sudo": {"nopasswd": false},
                "ssh": {"password_authentication": "no", "permit_root_login": "no", "port": 2222}},
            "services": {"cron": {"active": true, "enabled": true}, "rpcbind": {"active": false, "enabled": false}},
            "users": [{"name": "ann", "sudo": true, "keys": [KEY]}, {"name": "bob", "sudo": false, "keys": []},
                {"name": "cat", "sudo": false, "keys": [KEY]}],
        })
    );
    let before = node.touched();
    let second = node.apply(&["--spec", "full"]).exits(0).document();
    assert_eq!((second["changed"].as_u64(), &second["changes"]), (Some(0), &json!([])));
    assert_eq!(second["state_digest"], first["state_digest"]);
    assert_eq!(node.touched(), before);
    // Without --spec it is the one in force.
    assert_eq!(node.apply(&[]).exits(0).document()["spec_digest"], first["spec_digest"]);
    assert_eq!(node.touched(), before);
}

/// Section 5: one spec gives one state digest, however it came.
#[test]
fn every_model_gives_the_same_state_digest() {
    let digests: Vec<Value> = ["push", "pull", "hybrid"]
        .into_iter()
        .map(|mode| {
            let node = Node::of_site(&[("specs/full.yaml", FULL), ("postures/prod.yaml", PROD)]);
            let document = node.apply(&["--spec", "full", "--mode", mode]).exits(0).document();
            assert_eq!(node.json("config-complete.json")["mode"], mode);
            document["state_digest"].clone()
        })
        .collect();
    assert_eq!((&digests[0], &digests[0]), (&digests[1], &digests[2]));
}

/// Case 16: a package that is not there fails the apply by name; when it is there, the failure is gone.
#[test]
fn a_failed_apply_says_so_until_it_is_mended() {
    let lab = site(&[]);
    write(
        &lab,
        "specs/base.yaml",
        "schema_version: 1\naccess: {posture: local}\nplatform: {packages: [nosuch]}\n",
    );
    let names = |names: &[&str]| Names::Only(names.iter().map(|name| (*name).to_owned()).collect());
    let node = Node::new(lab, names(&["ca-certificates"]), Vec::new());
    for attempt in 1..=2 {
        let document = node.apply(&["--spec", "base"]).exits(1).document();
        assert_eq!(
            (document["success"].as_bool(), document["error"]["code"].as_str()),
            (Some(false), Some("packages"))
        );
        assert!(document["error"]["message"].as_str().unwrap().contains("nosuch"), "{document}");
        let failed = node.json("config-failed.json");
        assert_eq!((failed["attempts"].as_u64(), failed["status"].as_str()), (Some(attempt), Some("failed")));
        assert!(failed["message"].as_str().unwrap().contains("nosuch"), "{failed}");
        assert!(!node.has("config-complete.json"));
    }
    make(&node.lab, names(&["ca-certificates", "nosuch"]), Vec::new());
    node.apply(&["--spec", "base"]).exits(0);
    assert!(node.has("config-complete.json") && !node.has("config-failed.json"));
}

/// Section 5: both markers have every key that was promised, and a second failure knows of the first.
#[test]
fn markers_have_the_promised_keys() {
    let keys = |marker: &Value| marker.as_object().unwrap().keys().cloned().collect::<Vec<_>>().join(" ");
    let fault = json!({"node": "edge", "phase": "config", "times": 2, "error": "struck"});
    let node = Node::new(site(&[]), Names::Any, vec![serde_json::from_value(fault).unwrap()]);
    node.apply(&["--spec", "base"]).exits(1);
    let first = node.json("config-failed.json");
    assert_eq!(
        keys(&first),
        "attempts code error first_attempt last_attempt log message node phase server spec spec_digest status"
    );
    assert_eq!((&first["phase"], &first["status"]), (&json!("config"), &json!("failed")));
    assert_eq!(first["first_attempt"], first["last_attempt"]);
    node.apply(&["--spec", "base"]).exits(1);
    let second = node.json("config-failed.json");
    assert_eq!((&second["first_attempt"], &second["attempts"]), (&first["first_attempt"], &json!(2)));
    assert_ne!(second["last_attempt"], first["last_attempt"]);
    node.apply(&["--spec", "base"]).exits(0);
    assert_eq!(
        keys(&node.json("config-complete.json")),
        "changed duration_seconds mode node packages phase services_disabled services_enabled spec spec_digest \
         state_digest status timestamp users"
    );
}

/// Section 5: after a failure no marker stands for the failed digest; the spec before is kept.
#[test]
fn a_marker_goes_when_its_spec_fails_again() {
    let fault = json!({"node": "edge", "phase": "config", "times": 1, "error": "struck"});
    let node = Node::new(site(&[]), Names::Any, vec![serde_json::from_value(fault).unwrap()]);
    let document = node.apply(&["--spec", "base"]).exits(1).document();
    assert_eq!(document["error"], json!({"code": "fault", "message": "struck"}));
    node.apply(&["--spec", "base"]).exits(0);
    let old = node.read("var/lib/stead/config/spec.yaml");
    make(&node.lab, Names::Only(["ca-certificates".to_owned()].into()), Vec::new());
    write(
        &node.lab,
        "specs/base.yaml",
        "schema_version: 1\nplatform: {packages: [nosuch]}\naccess: {posture: local}\n",
    );
    node.apply(&["--spec", "base"]).exits(1);
    assert_eq!(node.read("var/lib/stead/config/spec.yaml.prev"), old);
    assert!(node.has("config-complete.json"), "it says of another spec that it was applied");
}

#[test]
fn a_spec_that_is_missing_or_invalid_exits_3_with_one_document() {
    let node = Node::of_site(&[]);
    for (args, says) in [
        (&[][..], "no resolved spec"),
        (&["--spec", "nosuch"], "specs/nosuch.yaml"),
        (&["--spec", "./nosuch.json"], "nosuch.json"),
        (&["--spec", "site-config/specs/base.yaml"], "not a resolved spec"),
    ] {
        let ended = node.apply(args).exits(3);
        let document = ended.document();
        assert_eq!(
            (document["success"].as_bool(), document["phase"].as_str()),
            (Some(false), Some("config"))
        );
        assert!(document["error"]["message"].as_str().unwrap().contains(says), "{document}");
        assert!(!document["diagnostics"].as_array().unwrap().is_empty());
    }
    assert!(!node.has("spec.yaml") && !node.has("config-failed.json"));
}

/// A spec whose posture runs what it disables fails before it touches anything: each apply would undo half of itself.
#[test]
fn a_spec_that_contradicts_its_posture_changes_nothing() {
    let spec = |disabled: &str| {
        format!(
            "schema_version: 1\naccess: {{posture: prod}}\nplatform: {{services: {{disable: [{disabled}]}}}}\n"
        )
    };
    let node = Node::of_site(&[
        ("specs/base.yaml", &spec("rpcbind")),
        ("postures/prod.yaml", "fail2ban: {enabled: true}\n"),
    ]);
    node.apply(&["--spec", "base"]).exits(0);
    let resolved = node.read("var/lib/stead/config/spec.yaml").replace("rpcbind", "fail2ban");
    node.lab.write("resolved.yaml", resolved);
    let (state, marker) = (node.json("state.json"), node.json("config-complete.json"));
    let refused = node.apply(&["--spec", "./resolved.yaml"]).exits(1).document();
    let message = refused["error"]["message"].as_str().unwrap();
    assert!(message.contains("the posture `prod` runs fail2ban, which the spec disables"), "{refused}");
    assert_eq!((node.json("state.json"), node.json("config-complete.json")), (state, marker));
}

/// Section 5: a relative root is meant from where the command runs; it is never this machine's.
#[test]
fn a_relative_root_is_meant_from_here() {
    let node = Node::of_site(&[]);
    node.apply(&["--spec", "base"]).exits(0);
    // Only looked at: who takes it for `/` does no harm to the machine of the test.
    let mut command = node.lab.stead(["config", "apply", "--json", "--spec", "base", "--dry-run"]);
    command.current_dir(node.root.parent().unwrap()).env("STEAD_SITE", node.lab.path("site-config"));
    command.env("STEAD_ROOT", "./root").env("STEAD_NODE", "edge");
    let seen: Ended = command.output().unwrap().into();
    let seen = seen.exits(0).document();
    assert_eq!(seen["changes"], json!([]), "{seen}");
}

/// A signal ends an apply also while it waits, and says so by its code.
#[test]
fn an_apply_that_waits_is_stopped_by_a_signal() {
    let fault = Fault {
        node: "edge".to_owned(),
        phase: Phase::Config,
        times: 0,
        error: None,
        delay_ms: 600_000,
        crash: false,
    };
    let node = Node::new(site(&[]), Names::Any, vec![fault]);
    let mut command = node.lab.stead(["config", "apply", "--json", "--spec", "base"]);
    command.env("STEAD_ROOT", &node.root).env("STEAD_NODE", "edge");
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let running = Running::of(command.spawn().unwrap());
    wait_until("the spec", || node.has("spec.yaml"));
    running.signal(Signal::INT);
    let document = running.end().exits(130).document();
    assert_eq!((&document["phase"], &document["success"]), (&json!("config"), &json!(false)));
    assert!(!node.has("config-complete.json"));
}

/// Section 11: a host is told over SSH, from where no events come: to ask for them is a mistake.
#[test]
fn a_host_has_no_events() {
    let node = Node::of_site(&[]);
    node.apply(&["-H", "local", "--spec", "base", "--events", "events.jsonl"]).exits(2);
}

/// Section 2: a spec and a marker that an older program left are read where it kept them, and never written there.
#[test]
fn what_an_older_program_left_is_read_and_not_written() {
    let node = Node::of_site(&[]);
    node.apply(&["--spec", "base"]).exits(0);
    let older = node.root.join("usr/local/etc/homestak/state");
    fs::create_dir_all(&older).unwrap();
    let names = ["spec.yaml", "config-complete.json"];
    for name in names {
        fs::rename(node.root.join("var/lib/stead/config").join(name), older.join(name)).unwrap();
    }
    let kept = |name: &str| {
        let meta = fs::metadata(older.join(name)).unwrap();
        (meta.ino(), meta.mtime(), meta.mtime_nsec(), fs::read(older.join(name)).unwrap())
    };
    let before = names.map(kept);
    let mut observe = node.lab.stead(["config", "observe"]);
    let seen: Ended = observe.env("STEAD_ROOT", &node.root).output().unwrap().into();
    let seen = seen.exits(0).document();
    assert_eq!(seen["complete"]["spec"], "base", "its marker is read: {seen}");
    let again = node.apply(&[]).exits(0).document();
    assert_eq!((&again["spec"], &again["changed"]), (&json!("base"), &json!(0)), "its spec is read");
    assert!(names.iter().all(|name| node.has(name)), "ours are written in their own place");
    assert_eq!(names.map(kept), before, "nothing is written where older programs keep theirs");
}

/// Section 2: an older program of an ordinary account kept them in its home.
#[test]
fn what_an_older_program_left_in_a_home_is_read() {
    let node = Node::of_site(&[]);
    node.apply(&["--spec", "base"]).exits(0);
    let older = node.lab.path("home/etc/state");
    fs::create_dir_all(&older).unwrap();
    for name in ["spec.yaml", "config-complete.json"] {
        fs::rename(node.root.join("var/lib/stead/config").join(name), older.join(name)).unwrap();
    }
    let at_home = |words: &[&str]| -> Ended {
        let mut command = node.lab.stead(words.iter().copied());
        command.env("STEAD_ROOT", &node.root).env("HOME", node.lab.path("home")).output().unwrap().into()
    };
    let seen = at_home(&["config", "observe"]).exits(0).document();
    assert_eq!(seen["complete"]["spec"], "base", "its marker is read: {seen}");
    let again = at_home(&["config", "apply", "--json"]).exits(0).document();
    assert_eq!((&again["spec"], &again["changed"]), (&json!("base"), &json!(0)), "its spec is read: {again}");
}

/// Section 5: a driver reads events and what came of it from one stream.
#[test]
fn events_come_first_and_the_document_last() {
    let node = Node::of_site(&[]);
    let mut command = node.lab.stead(["config", "apply", "--spec", "base", "--events", "-"]);
    let ended: Ended =
        command.env("STEAD_ROOT", &node.root).env("STEAD_NODE", "edge").output().unwrap().into();
    let ended = ended.exits(0);
    let lines: Vec<Value> = ended.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let (last, events) = lines.split_last().unwrap();
    assert_eq!((last["phase"].as_str(), last["success"].as_bool()), (Some("config"), Some(true)));
    assert!(events.iter().all(|event| event["ev"].is_string()), "{events:#?}");
    assert!(events.iter().any(|event| event["task"] == "users.ops.keys"));
}

/// Section 11: the document of an apply, key by key.
#[test]
fn the_document_of_an_apply_has_the_promised_keys() {
    let spec = super::BASE.replace("disable: [rpcbind]", "disable: [rpcbind], enable: [cron]");
    let node = Node::of_site(&[("specs/base.yaml", &spec)]);
    let applied = node.apply(&["--spec", "base"]).exits(0).document();
    let keys = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>().join(" ");
    assert_eq!(
        keys(&applied),
        "changed changes dry_run duration_seconds node packages phase schema services_disabled \
         services_enabled spec spec_digest state_digest success users"
    );
    assert_eq!(applied["phase"], "config");
    let count = |key: &str| applied[key].as_u64().unwrap();
    assert_eq!(
        (count("packages"), count("users"), count("services_enabled"), count("services_disabled")),
        (3, 1, 1, 1)
    );
    assert_eq!(applied["changes"].as_array().unwrap().len() as u64, count("changed"));
    let changes = applied["changes"].as_array().unwrap();
    for change in changes {
        assert_eq!(keys(change), "after before path");
    }
    let htop = changes.iter().find(|change| change["path"] == "packages.htop");
    let htop = htop.unwrap_or_else(|| panic!("{applied}"));
    assert_eq!((&htop["before"], &htop["after"]), (&json!(false), &json!(true)));
}
