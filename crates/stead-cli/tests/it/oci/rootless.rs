//! Containers of an ordinary account, without root.

use std::fs;
use std::io::Write as _;
use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use serde_json::Value;
use stead_drivers::machine::oci::{self, StorageChoice};
use stead_model::machine::{Boot, MachineKind, MachineSpec, Nic, PassedPort};
use stead_runner::machine::{MachineDriver, MachineError};
use stead_testkit::machine_contract::{self, Yard};
use stead_testkit::sshd::{KeyKind, make_key};

use super::account::{Account, own_template};
use super::reached::{greets, heard};
use super::yard::{Place, node, residue, until};
use crate::cases_17_32::lab::Ended;

fn block_on(body: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(body);
}

/// Runs the body of the test `name` as an ordinary account; nothing if there can be none.
fn as_account(name: &str, body: impl Future<Output = ()>) {
    if own_template().is_some() {
        return block_on(body);
    }
    if let Some(account) = Account::new() {
        account.run_test(&format!("oci::rootless::{name}"));
    }
}

/// Case 26: the contract of machine drivers, by runc, without root.
#[test]
fn containers_without_root_keep_the_machine_contract() {
    as_account("containers_without_root_keep_the_machine_contract", async {
        machine_contract::verify(&Place::new("runc")).await;
    });
}

/// Section 9 of reach: every runtime and every storage will do. What cannot be had is refused before anything is made.
#[test]
fn containers_without_root_are_made_by_every_runtime_on_every_storage() {
    as_account("containers_without_root_are_made_by_every_runtime_on_every_storage", async {
        for (runtime, storage) in [("runc", StorageChoice::Copy), ("crun", StorageChoice::Overlay)] {
            let place = Place::new(runtime);
            let driver = place.stored(storage);
            let spec = place.spec(node("made"));
            let id = driver.ensure_created(&spec).await.unwrap().machine.id;
            assert!(
                driver.remark().unwrap().contains("no limits"),
                "its memory is not limited, and that is said"
            );
            driver.start(&id).await.unwrap();
            let machine = driver.inspect(&id).await.unwrap().unwrap();
            let door = machine.ssh.clone().unwrap();
            assert_eq!((machine.addresses[0].as_str(), door.host.as_str()), ("127.0.0.1", "127.0.0.1"));
            let script =
                "id -u; stat -c %u /etc /usr/bin/sudo; cat /etc/hostname; echo x >/etc/own; rm /etc/group";
            assert_eq!(place.sh(&machine, script), "0\n0\n0\nmade", "{runtime}");
            driver.stop(&id, Duration::from_secs(20)).await.unwrap();
            driver.start(&id).await.unwrap();
            let again = driver.inspect(&id).await.unwrap().unwrap();
            assert_eq!(again.ssh.unwrap().port, door.port, "the same port over a restart");
            let machine = driver.inspect(&id).await.unwrap().unwrap();
            assert_eq!(place.sh(&machine, "cat /etc/own; test ! -e /etc/group"), "x", "{runtime}");
            driver.destroy(&id).await.unwrap();
            assert_eq!(place.left(), Vec::<String>::new());
        }
        refused_without_root(&Place::new("runc")).await;
    });
}

async fn refused_without_root(place: &Place) {
    let driver = place.containers();
    let plain = || place.spec(node("refused"));
    let card = |network: &str| Nic {
        network: network.to_owned(),
        mac: None,
        address: None,
        gateway: None,
        ports: Vec::new(),
    };
    let low = Nic { ports: vec![PassedPort { guest: 80, host: 1 }], ..card("") };
    let host = Some(Boot::Template("host".to_owned()));
    // The tree is this account's own, but its files are root's.
    let tree = Some(Boot::Template("/".to_owned()));
    for (spec, why) in [
        (MachineSpec { boot: host, ..plain() }, "the template `host` is for root alone"),
        (MachineSpec { boot: tree, ..plain() }, "belongs to another account"),
        (MachineSpec { hosts: true, ..plain() }, "only root's containers can make machines"),
        (MachineSpec { nics: vec![card("br7")], ..plain() }, "leave out the bridge br7"),
        (MachineSpec { nics: vec![card(""), card("")], ..plain() }, "one network card"),
        (MachineSpec { kind: MachineKind::Vm, ..plain() }, "not virtual machines"),
    ] {
        match driver.ensure_created(&spec).await {
            Err(MachineError::Unsupported(told)) => assert!(told.contains(why), "{told}"),
            other => panic!("{why}: {other:?}"),
        }
    }
    let id = driver.ensure_created(&MachineSpec { nics: vec![low], ..plain() }).await;
    let id = match id {
        // The half made one of before is finished.
        Ok(made) => made.machine.id,
        Err(error) => panic!("{error}"),
    };
    match driver.start(&id).await {
        Err(MachineError::Unsupported(told)) => assert!(told.contains("only root passes port 1"), "{told}"),
        other => panic!("{other:?}"),
    }
    driver.destroy(&id).await.unwrap();
    assert_eq!(place.left(), Vec::<String>::new());
}

/// Section 11: a container that is for a program passes its ports on, and its runtime runs a program in it.
#[test]
fn a_program_without_root_is_reached_and_looked_at() {
    as_account("a_program_without_root_is_reached_and_looked_at", async {
        for runtime in ["runc", "crun"] {
            let place = Place::new(runtime);
            let driver = place.containers();
            let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
            let spec = greets(&place, "first", port);
            let id = driver.ensure_created(&spec).await.unwrap().machine.id;
            driver.start(&id).await.unwrap();
            until("it answers", || heard(port) == "first\n");
            let execute = |argv: &[&str]| {
                let argv: Vec<String> = argv.iter().map(|word| (*word).to_owned()).collect();
                oci::execute(&place.root_dir(), &id, &argv, Duration::from_secs(60), &AtomicBool::new(false))
            };
            assert_eq!(execute(&["/bin/sh", "-c", "test \"$(hostname)\" = first"]), Ok(()), "{runtime}");
            let told = execute(&["/bin/sh", "-c", "exit 7"]).unwrap_err();
            assert!(told.contains("exit status: 7"), "{runtime}: {told}");
            driver.destroy(&id).await.unwrap();
            assert!(execute(&["/bin/true"]).is_err());
            assert_eq!(place.left(), Vec::<String>::new());
        }
    });
}

/// A site of an ordinary account, whose node is a container of its own.
struct Cottage {
    account: Account,
}

impl Cottage {
    fn new(mode: &str) -> Option<Self> {
        let cottage = Self { account: Account::new()? };
        let account = &cottage.account;
        make_key(&account.path("id"), KeyKind::Ed25519);
        let key = fs::read_to_string(account.path("id.pub")).unwrap();
        let key = key.split_whitespace().take(2).collect::<Vec<_>>().join(" ");
        let secrets =
            format!("ssh_keys:\n  ann@desk: {key} ann@desk\nauth:\n  signing_key: '{}'\n", "ab".repeat(32));
        let template = account.template();
        let host = "driver: oci\ntimeouts: {ssh: 60, config: 120}\n";
        let nodes = format!(
            "schema_version: 2\nname: m\nnodes:\n  - {{name: a, type: ct, template: {}, preset: small, spec: base{mode}}}\n",
            template.display()
        );
        for (name, text) in [
            ("site.yaml", "server: {port: 0}\ndefaults: {domain: lab.example, packages: []}\n"),
            ("secrets.yaml", &secrets),
            ("postures/local.yaml", crate::nodes::LOCAL),
            ("presets/small.yaml", "{cores: 1, memory: 512, disk: 1}\n"),
            (
                "specs/base.yaml",
                "schema_version: 1\naccess: {posture: local, users: [{name: ops, sudo: true}]}\n",
            ),
            ("hosts/box.yaml", host),
            ("manifests/m.yaml", &nodes),
        ] {
            account.write(&format!("site-config/{name}"), text);
        }
        Some(cottage)
    }

    fn run(&self, args: &[&str]) -> Ended {
        self.account.command("stead").args(["--state-dir", "state"]).args(args).output().unwrap().into()
    }

    #[track_caller]
    fn on_node(&self, script: &str) -> String {
        let words = ["exec", "-M", "m", "-H", "box", "--json", "a", "--", "sh", "-c", script];
        let ended = self.run(&words).exits(0).document();
        ended["results"][0]["stdout"].as_str().unwrap_or_else(|| panic!("{ended}")).trim().to_owned()
    }

    fn machines(&self) -> PathBuf {
        self.account.path("home").canonicalize().unwrap().join("state/machines")
    }

    /// Removes everything and sees that nothing is left.
    #[track_caller]
    fn clear(&self) {
        self.run(&["destroy", "-M", "m", "-H", "box", "--json", "--yes"]).exits(0);
        assert_eq!(residue(&self.machines(), "no-such-bridge"), Vec::<String>::new());
        assert!(!self.machines().exists());
    }
}

impl Drop for Cottage {
    fn drop(&mut self) {
        if self.machines().exists() {
            // A test that failed must not leave machines running.
            drop(self.run(&["destroy", "-M", "m", "-H", "box", "--yes"]));
        }
    }
}

fn warnings(document: &Value) -> String {
    document["diagnostics"].to_string()
}

/// Section 7: an ordinary account makes a container, has it configured by push, reaches it and is reached by it, and
/// removes it.
#[test]
fn an_ordinary_account_pushes_to_a_container_of_its_own() {
    let Some(cottage) = Cottage::new("") else { return };
    let doctor = cottage.run(&["doctor", "--driver", "oci", "--json"]).exits(0).document();
    let checks = doctor["checks"].as_array().unwrap();
    assert!(checks.iter().any(|check| check["name"] == "rootless" && check["status"] == "pass"), "{doctor}");
    let made = cottage.run(&["create", "-M", "m", "-H", "box", "--json", "--yes"]);
    assert_eq!(made.code, 0, "{}\n{}", made.stdout, made.stderr);
    let made = made.document();
    assert!(warnings(&made).contains("have no limits"), "{made}");
    assert_eq!(cottage.on_node("hostname; sudo -n id -u; id -u ops >/dev/null && echo known"), "a\n0\nknown");
    // This machine is where QEMU's own network has it.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let greets = std::thread::spawn(move || listener.accept().unwrap().0.write_all(b"hello").unwrap());
    assert_eq!(cottage.on_node(&format!("nc 10.0.2.2 {port} </dev/null")), "hello");
    greets.join().unwrap();
    let again = cottage.run(&["create", "-M", "m", "-H", "box", "--json", "--yes"]).exits(0).document();
    assert_eq!(again["nodes"][0]["changed"], false, "{again}");
    cottage.clear();
}

/// Section 7: its node fetches what it is to be from the server of this machine, by its way out.
#[test]
fn a_container_of_an_ordinary_account_pulls_from_its_server() {
    let Some(cottage) = Cottage::new(", execution: {mode: pull}") else { return };
    let made = cottage.run(&["create", "-M", "m", "-H", "box", "--json", "--yes"]);
    assert_eq!(made.code, 0, "{}\n{}", made.stdout, made.stderr);
    let status = cottage.run(&["status", "-M", "m", "-H", "box", "--json"]).exits(0).document();
    assert!(status.to_string().contains("converged"), "{status}");
    cottage.clear();
}

/// Section 7: where the kernel gives an account no user namespace, that is said before anything is made, and by who makes
/// it.
#[test]
fn who_may_have_no_user_namespace_is_told_so() {
    let Some(cottage) = Cottage::new("") else { return };
    let run = |args: &[&str]| -> Ended {
        let mut command = cottage.account.confined("stead");
        command.args(["--state-dir", "state"]).args(args).output().unwrap().into()
    };
    let doctor = run(&["doctor", "--driver", "oci", "--json"]).exits(1).document();
    let checks = doctor["checks"].as_array().unwrap();
    let failed =
        checks.iter().find(|check| check["name"] == "user namespaces").unwrap_or_else(|| panic!("{doctor}"));
    assert!(failed["detail"].as_str().unwrap().contains("the kernel gives it no user namespace"), "{failed}");
    assert!(failed["fix"].as_str().unwrap().contains("user.max_user_namespaces"), "{failed}");
    let create = ["create", "-M", "m", "-H", "box", "--json", "--yes"];
    run(&create).exits(1).says("this account cannot have namespaces of its own");
    assert!(!cottage.machines().exists());
    let failed = run(&[&create[..], &["--skip-preflight"]].concat()).exits(1).document();
    let error = failed["nodes"][0]["error"].to_string();
    assert!(
        error.contains("only root has containers here") && error.contains("no user namespace"),
        "{error}"
    );
    cottage.clear();
}
