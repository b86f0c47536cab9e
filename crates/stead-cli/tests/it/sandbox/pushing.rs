//! Plans that are pushed to a sandbox: the executor and the transport, unchanged.

use std::fs;
use std::os::unix::fs::{MetadataExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use stead_drivers::machine::sandbox::{Names, SandboxDriver};
use stead_model::machine::{Machine, OwnerScope};
use stead_runner::machine::MachineDriver;
use stead_testkit::machine_contract::Yard;

use super::yard::{Place, driver_process, node};

/// A sandbox `n1` with a list of packages and services, and an inventory that names it.
struct Site {
    place: Place,
    machine: Machine,
}

impl Site {
    async fn new() -> Self {
        let place = Place::new();
        let mut settings = place.settings();
        settings.packages = Names::Only(["curl", "htop"].map(str::to_owned).into());
        settings.services = Names::Only(["cron", "ssh"].map(str::to_owned).into());
        let driver = SandboxDriver::new(settings);
        let made = driver.ensure_created(&place.spec(node("n1"))).await.unwrap().machine;
        driver.start(&made.id).await.unwrap();
        let machine = place.up(&made).await;
        Self::with(place, machine)
    }

    fn with(place: Place, machine: Machine) -> Self {
        let site = Self { place, machine };
        let text = format!(
            "api_version: v1\nhosts:\n  n1:\n    transport: \"ssh://stead@127.0.0.1:{}?key={}&known_hosts={}&agent=false&ssh_config=none\"\n    root: @ROOT\n    workdir: @ROOT/var/lib/stead\n",
            site.machine.ssh.as_ref().unwrap().port,
            site.place.path("id").display(),
            site.place.path("known_hosts").display(),
        );
        let text = text.replace("@ROOT", &site.root().display().to_string());
        fs::write(site.place.path("inventory.yaml"), text).unwrap();
        site
    }

    fn root(&self) -> PathBuf {
        self.place.home(&self.machine.owner).join("root")
    }

    /// The account that owns the place, if it is not this one.
    fn account(&self) -> Option<u32> {
        let owner = fs::metadata(self.place.path("")).unwrap().uid();
        (owner != rustix::process::geteuid().as_raw()).then_some(owner)
    }

    fn read(&self, path: &str) -> String {
        fs::read_to_string(self.root().join(path)).unwrap_or_default()
    }

    fn run(&self, tasks: &str, more: &[&str]) -> (i32, Value) {
        let plan = format!("api_version: v1\nname: p\ngrace: 1s\ndefaults: {{target: n1}}\ntasks:\n{tasks}");
        fs::write(self.place.path("p.yaml"), plan).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_stead"));
        command.args(["plan", "run", "p.yaml", "--json"]).args(more).current_dir(self.place.path(""));
        command.env_remove("STEAD_DIR").env("HOME", self.place.path("driver-home"));
        if let Some(account) = self.account() {
            command.uid(account).gid(account);
        }
        let output = command.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        let report = serde_json::from_str(&text)
            .unwrap_or_else(|error| panic!("{error}: {text}{}", String::from_utf8_lossy(&output.stderr)));
        (output.status.code().unwrap(), report)
    }

    async fn end(self) {
        self.place.sandboxes().destroy(&self.machine.id).await.unwrap();
        assert_eq!(self.place.left(), Vec::<String>::new());
    }
}

fn statuses(report: &Value) -> Vec<(&str, &str)> {
    let tasks = report["tasks"].as_array().unwrap();
    tasks.iter().map(|task| (task["name"].as_str().unwrap(), task["status"].as_str().unwrap())).collect()
}

fn uploads(base: &Path) -> usize {
    let entries = fs::read_dir(base.join("bin")).into_iter().flatten().flatten();
    entries.filter(|entry| entry.file_name() != ".lock").count()
}

const TASKS: &str = "  - {name: file, op: file.present, params: {path: /etc/motd, content: hello, owner: ops, mode: \"0640\"}, depends_on: user}
  - {name: group, op: group.present, params: {name: crew, gid: 4000}}
  - {name: user, op: user.present, params: {name: ops, groups: [crew, sudo], comment: Ops, shell: /bin/sh}, depends_on: group}
  - {name: key, op: ssh.authorized_key, params: {user: ops, keys: [\"@KEY\"], exclusive: true}, depends_on: user}
  - {name: packages, op: package.present, params: {names: [curl, htop]}}
  - {name: enabled, op: service.enabled, params: {names: [cron, ssh]}}
  - {name: started, op: service.started, params: {name: cron}, depends_on: enabled}
  - {name: hostname, op: hostname, params: {name: n1, domain: lab.example}}
  - {name: zone, op: timezone, params: {zone: UTC}}
";

/// Section 7 of nodes: operations act under the root, accounts, packages and services are the sandbox's own; a second
/// run changes nothing and uploads nothing.
#[tokio::test]
async fn a_plan_is_pushed_twice_and_changes_once() {
    let mode = || fs::metadata(env!("CARGO_BIN_EXE_stead")).unwrap().mode();
    let before = mode();
    let site = Site::new().await;
    let key = fs::read_to_string(site.place.path("stranger.pub")).unwrap();
    let tasks = TASKS.replace("@KEY", key.trim());
    let (code, report) = site.run(&tasks, &["--dry-run"]);
    assert_eq!(code, 0, "{report:#}");
    assert_eq!(site.read("etc/motd"), "", "a dry run writes nothing");
    let (code, report) = site.run(&tasks, &[]);
    assert_eq!(code, 0, "{report:#}");
    assert!(statuses(&report).iter().all(|(_, status)| *status == "changed"), "{:?}", statuses(&report));
    assert_eq!(uploads(&site.root().join("var/lib/stead")), 1);
    assert_eq!(site.read("etc/motd"), "hello");
    assert!(
        site.read("etc/passwd").contains("ops:x:1001:1001:Ops:/home/ops:/bin/sh\n"),
        "{}",
        site.read("etc/passwd")
    );
    assert!(
        site.read("etc/group").contains("crew:x:4000:ops\n")
            && site.read("etc/group").contains("sudo:x:27:ops\n")
    );
    assert!(
        !fs::read_to_string("/etc/passwd").unwrap().contains("\nops:x:1001:1001:Ops"),
        "nothing of it is here"
    );
    let entered = site.place.ssh(&site.machine, "ops", "stranger").arg("echo in").output().unwrap();
    assert_eq!(entered.stdout, b"in\n", "the new account's key opens it");
    let (code, report) = site.run(&tasks, &[]);
    assert_eq!(code, 0, "{report:#}");
    assert!(statuses(&report).iter().all(|(_, status)| *status == "unchanged"), "{:?}", statuses(&report));
    assert_eq!(uploads(&site.root().join("var/lib/stead")), 1);
    assert_eq!(mode(), before, "the program that a sandbox shares stays everybody's");
    site.end().await;
}

/// Section 7 of nodes: no root. Everything above, by an account that has no rights.
#[tokio::test]
async fn an_account_without_rights_makes_and_configures_a_sandbox() {
    const NOBODY: u32 = 65534;
    let place = Place::new();
    let reachable =
        Command::new(env!("CARGO_BIN_EXE_stead")).arg("--version").uid(NOBODY).gid(NOBODY).output();
    if !rustix::process::geteuid().is_root() || !reachable.is_ok_and(|said| said.status.success()) {
        println!("skipped: this needs root, and the program where every account can start it");
        return;
    }
    for name in ["", "id", "id.pub", "stranger", "stranger.pub"] {
        chown(place.path(name), Some(NOBODY), Some(NOBODY)).unwrap();
    }
    let owner = node("n1");
    let by = |verb: &str| {
        let mut command = driver_process(&place.root_dir(), verb, &owner);
        let said = command.uid(NOBODY).gid(NOBODY).env("HOME", place.path("")).output().unwrap();
        assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stdout));
    };
    by("create");
    by("start");
    let seen = place.sandboxes().list(&OwnerScope::All).await.unwrap().remove(0);
    let machine = place.up(&seen).await;
    let status = fs::read_to_string(format!("/proc/{}/status", machine.pid.unwrap())).unwrap();
    assert!(status.contains("Uid:\t65534\t65534"), "{status}");
    let site = Site::with(place, machine);
    let key = fs::read_to_string(site.place.path("stranger.pub")).unwrap();
    let tasks = TASKS.replace("@KEY", key.trim());
    for wanted in ["changed", "unchanged"] {
        let (code, report) = site.run(&tasks, &[]);
        assert_eq!(code, 0, "{report:#}");
        assert!(statuses(&report).iter().all(|(_, status)| *status == wanted), "{:?}", statuses(&report));
    }
    site.end().await;
}

/// Case 16 of nodes, the sandbox's half: names outside its lists are refused by name.
#[tokio::test]
async fn packages_and_services_outside_the_lists_are_refused() {
    let site = Site::new().await;
    let (code, report) = site.run("  - {name: p, op: package.present, params: {names: [curl, nmap]}}\n", &[]);
    assert_eq!(code, 1, "{report:#}");
    assert!(
        report["tasks"][0]["error"].as_str().unwrap().contains("there is no package `nmap`"),
        "{report:#}"
    );
    let (code, report) = site.run("  - {name: s, op: service.enabled, params: {name: telnetd}}\n", &[]);
    assert_eq!(code, 1, "{report:#}");
    assert!(
        report["tasks"][0]["error"].as_str().unwrap().contains("there is no service `telnetd`"),
        "{report:#}"
    );
    let (code, report) = site.run("  - {name: s, op: service.disabled, params: {name: telnetd}}\n", &[]);
    assert_eq!((code, &report["tasks"][0]["status"]), (0, &json!("unchanged")), "{report:#}");
    site.end().await;
}

/// Inverses bring a sandbox back to what it was.
#[tokio::test]
async fn what_a_plan_did_to_a_sandbox_is_undone() {
    let site = Site::new().await;
    let before = ["etc/passwd", "etc/group", "etc/shadow"].map(|path| site.read(path));
    let tasks = "  - {name: user, op: user.present, params: {name: ops, groups: [sudo]}, undo: auto}
  - {name: packages, op: package.present, params: {names: [curl]}, undo: auto, depends_on: user}
  - {name: service, op: service.enabled, params: {name: cron}, undo: auto, depends_on: packages}
  - {name: fails, shell: exit 1, depends_on: service}
on_failure: rollback
";
    let (code, report) = site.run(tasks, &[]);
    assert_eq!(code, 1, "{report:#}");
    assert_eq!(["etc/passwd", "etc/group", "etc/shadow"].map(|path| site.read(path)), before, "{report:#}");
    let database = fs::read_to_string(site.place.home(&site.machine.owner).join("database.json")).unwrap();
    assert_eq!(database, r#"{"packages":{},"services":{"cron":{"active":false,"enabled":false}}}"#);
    site.end().await;
}

/// Facts of a sandbox are its own where it has its own.
#[tokio::test]
async fn facts_say_that_it_is_a_sandbox() {
    let site = Site::new().await;
    let (code, report) = site.run("  - {name: f, op: facts}\n", &[]);
    assert_eq!(code, 0, "{report:#}");
    let facts = &report["tasks"][0]["data"];
    assert_eq!(facts["package_manager"], "sandbox");
    assert_eq!(facts["service_manager"], "sandbox");
    assert_eq!(facts["virtualization"]["container"], "sandbox");
    assert_eq!(facts["hostname"], "n1");
    let boot = fs::read_to_string(site.place.home(&site.machine.owner).join("boot_id")).unwrap();
    assert_eq!(facts["boot_id"], boot.trim());
    site.end().await;
}

/// Case 24: `reboot` of a sandbox gives a new boot id and the run goes on.
#[tokio::test]
async fn a_restart_begins_another_boot_and_the_run_goes_on() {
    let site = Site::new().await;
    let tasks = "  - {name: on, op: service.enabled, params: {name: cron}}
  - {name: now, op: service.started, params: {name: ssh}, depends_on: on}
  - {name: left, shell: \"setsid sleep 600 >/dev/null 2>&1 & echo $!\", depends_on: now}
  - {name: boot, op: reboot, params: {timeout: 2m}, depends_on: left}
  - {name: after, op: facts, params: {only: [boot_id]}, depends_on: boot}
  - {name: cron, op: service.started, params: {name: cron}, depends_on: after}
  - {name: ssh, op: service.started, params: {name: ssh}, depends_on: after}
";
    let (code, report) = site.run(tasks, &[]);
    assert_eq!(code, 0, "{report:#}");
    let task =
        |name: &str| report["tasks"].as_array().unwrap().iter().find(|task| task["name"] == name).unwrap();
    let boot = &task("boot")["data"];
    assert_ne!(boot["boot_id"], boot["before"]);
    assert_eq!(task("after")["data"]["boot_id"], boot["boot_id"]);
    assert_eq!(task("cron")["status"], "unchanged", "what is enabled starts at boot");
    assert_eq!(task("ssh")["status"], "changed", "what is not does not");
    let seen = site.place.sandboxes().inspect(&site.machine.id).await.unwrap().unwrap();
    assert_eq!((seen.pid, &seen.ssh), (site.machine.pid, &site.machine.ssh), "the same machine");
    site.end().await;
}
