//! A place of its own for containers, and what the contract needs to look at it and to disturb it.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde::Deserialize as _;
use serde_json::{Value, json};
use stead_drivers::machine::oci::{OciDriver, OciSettings, RuntimeChoice, StorageChoice};
use stead_model::machine::{Boot, Machine, MachineId, MachineKind, MachineSpec, Owner};
use stead_model::plan::Digest;
use stead_model::site::address::Cidr;
use stead_runner::machine::MachineDriver;
use stead_testkit::machine_contract::{self, Yard};

use super::account;

/// Says in which process a driver is: what it does, where and for whom.
const DRIVER: &str = "STEAD_TEST_OCI_DRIVER";

/// Returns why no container can be made here, if so, and says that the test is skipped. On CI it fails.
#[expect(clippy::print_stderr, reason = "a test that is left out says why")]
pub(crate) fn is_skipped(runtime: &str) -> bool {
    let Some(why) = missing(runtime) else { return false };
    assert!(std::env::var_os("STEAD_CI").is_none(), "containers are needed: {why}");
    eprintln!("skipped: containers are needed: {why}");
    true
}

/// The same for a runtime that no distribution here has: where it is not installed, CI goes without it.
#[expect(clippy::print_stderr, reason = "a test that is left out says why")]
pub(crate) fn is_absent(runtime: &str) -> bool {
    let why = missing(runtime);
    if let Some(why) = &why {
        eprintln!("skipped: {why}");
    }
    why.is_some()
}

fn missing(runtime: &str) -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("this account is not root".to_owned());
    }
    let has = |name: &str| {
        ["/usr/sbin", "/usr/bin", "/sbin", "/bin"].iter().any(|place| Path::new(place).join(name).exists())
    };
    let packages = [(runtime, runtime), ("ip", "iproute2"), ("sshd", "openssh-server"), ("sudo", "sudo")];
    let absent = packages.iter().find(|(program, _)| !has(program));
    if let Some((program, package)) = absent {
        return Some(format!("`{program}` is not installed (package {package})"));
    }
    stead_drivers::machine::oci::try_namespaces().err()
}

/// Returns a bridge and a network that nobody else has, neither in this process nor in another one.
pub(crate) fn own_network() -> (String, String) {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let id = std::process::id().wrapping_mul(32).wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
    let bridge = format!("stt{id:x}");
    let subnet = format!("10.{}.{}.0/24", 128 + (id >> 8) % 100, id % 256);
    (bridge.chars().take(15).collect(), subnet)
}

pub(crate) struct Place {
    dir: tempfile::TempDir,
    runtime: String,
    bridge: String,
    subnet: String,
    clients: Mutex<Vec<Child>>,
}

impl Place {
    pub(crate) fn new(runtime: &str) -> Self {
        let (bridge, subnet) = own_network();
        let dir = tempfile::tempdir().unwrap();
        // A root in which nothing can be started.
        for file in ["usr/sbin/sshd", "usr/bin/sudo"] {
            let path = dir.path().join("images/doomed").join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        if let Some(template) = account::own_template() {
            std::os::unix::fs::symlink(template, dir.path().join("images/base.tar.gz")).unwrap();
        }
        Self { dir, runtime: runtime.to_owned(), bridge, subnet, clients: Mutex::default() }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn root_dir(&self) -> PathBuf {
        self.path("machines")
    }

    pub(crate) fn home(&self, owner: &Owner) -> PathBuf {
        self.root_dir().join(owner.uuid())
    }

    /// Whether its bridge is there.
    pub(crate) fn has_bridge(&self) -> bool {
        Path::new("/sys/class/net").join(&self.bridge).exists()
    }

    fn order(&self) -> Value {
        json!({"dir": self.dir.path(), "runtime": self.runtime, "bridge": self.bridge, "subnet": self.subnet})
    }

    pub(crate) fn settings(&self) -> OciSettings {
        settings(&self.order())
    }

    pub(crate) fn containers(&self) -> OciDriver {
        OciDriver::new(self.settings())
    }

    pub(crate) fn stored(&self, storage: StorageChoice) -> OciDriver {
        OciDriver::new(OciSettings { storage, ..self.settings() })
    }

    /// Runs a program in a container, as its root.
    pub(crate) fn inside(&self, machine: &Machine) -> Command {
        let door = fs::read(self.home(&machine.owner).join("door.json")).unwrap();
        let door: Value = serde_json::from_slice(&door).unwrap();
        let mut command = Command::new("nsenter");
        command.args(["--target", &door["init"].to_string(), "--mount", "--pid", "--net", "--uts", "--ipc"]);
        if account::own_template().is_some() {
            command.arg("--user");
        }
        command.stdin(Stdio::null());
        command
    }

    #[track_caller]
    pub(crate) fn sh(&self, machine: &Machine, script: &str) -> String {
        let out = self.inside(machine).args(["/bin/sh", "-ec", script]).output().unwrap();
        assert!(out.status.success(), "{script}: {}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8_lossy(&out.stdout).trim().to_owned()
    }

    pub(crate) fn console(&self, owner: &Owner) -> String {
        String::from_utf8_lossy(&fs::read(self.home(owner).join("console.log")).unwrap_or_default())
            .into_owned()
    }
}

fn settings(order: &Value) -> OciSettings {
    let text = |key: &str| order[key].as_str().unwrap().to_owned();
    let dir = PathBuf::from(text("dir"));
    let mut settings = OciSettings::new(dir.join("machines"), account::program());
    settings.runtime = RuntimeChoice::parse(&text("runtime"));
    settings.bridge = text("bridge");
    settings.subnet = Cidr::parse(&text("subnet")).unwrap();
    settings.image_dir = dir.join("images");
    settings
}

fn spec(owner: Owner) -> MachineSpec {
    // Only root can have the running root.
    let template = if account::own_template().is_some() { "base" } else { "host" };
    let boot = Some(Boot::Template(template.to_owned()));
    MachineSpec { boot, memory_mb: Some(512), cpus: Some(1), ..MachineSpec::new(owner, MachineKind::Ct) }
}

pub(crate) fn node(name: &str) -> Owner {
    Owner::new("lab/test/local", name).unwrap()
}

fn signal(pid: u32, signal: Signal) {
    kill_process(Pid::from_raw(i32::try_from(pid).unwrap()).unwrap(), signal).unwrap();
}

fn is_alive(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

#[track_caller]
pub(crate) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < end, "still not so: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Is a driver, if this process was started to be one; else it shows nothing.
#[tokio::test]
async fn a_driver_of_its_own() {
    let Some(order) = std::env::var_os(DRIVER) else { return };
    let order: Value = serde_json::from_str(order.to_str().unwrap()).unwrap();
    let owner = Owner::deserialize(&order["owner"]).unwrap();
    let driver = OciDriver::new(settings(&order)).watched(machine_contract::death());
    let id = MachineId::new(owner.uuid());
    match order["verb"].as_str().unwrap() {
        "create" => drop(driver.ensure_created(&spec(owner)).await.unwrap()),
        verb => machine_contract::drive(&driver, verb, &id).await,
    }
}

impl Yard for Place {
    fn driver(&self) -> Arc<dyn MachineDriver> {
        Arc::new(self.containers())
    }

    fn spec(&self, owner: Owner) -> MachineSpec {
        spec(owner)
    }

    fn doomed(&self, owner: Owner) -> MachineSpec {
        MachineSpec { boot: Some(Boot::Template("doomed".to_owned())), ..spec(owner) }
    }

    fn half_make(&self, spec: &MachineSpec) {
        let dies = |step: &str| assert_ne!(step, "storage", "on purpose");
        let (driver, spec) = (self.containers().watched(Arc::new(dies)), spec.clone());
        let made = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(driver.ensure_created(&spec))
        });
        assert!(made.join().unwrap().is_err());
    }

    fn plant_foreign(&self, spec: &MachineSpec) {
        fs::create_dir_all(self.home(&spec.owner)).unwrap();
        fs::write(self.home(&spec.owner).join("precious"), "mine").unwrap();
    }

    fn take_foreign(&self, spec: &MachineSpec) {
        let home = self.home(&spec.owner);
        let names: Vec<_> = fs::read_dir(&home).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, ["precious"]);
        assert_eq!(fs::read_to_string(home.join("precious")).unwrap(), "mine");
        fs::remove_dir_all(self.root_dir()).unwrap();
    }

    fn deafen(&self, machine: &Machine) {
        let script = "trap '' TERM; echo deaf; while :; do sleep 1; done";
        let mut command = self.inside(machine);
        let mut client = command.args(["/bin/sh", "-c", script]).stdout(Stdio::piped()).spawn().unwrap();
        let mut said = String::new();
        BufReader::new(client.stdout.as_mut().unwrap()).read_line(&mut said).unwrap();
        assert_eq!(said, "deaf\n");
        self.clients.lock().unwrap().push(client);
    }

    fn kill(&self, machine: &Machine) {
        signal(machine.pid.unwrap(), Signal::KILL);
    }

    fn swap_process(&self, machine: &Machine) {
        let pid = machine.pid.unwrap();
        signal(pid, Signal::KILL);
        until("its process is gone", || !is_alive(pid));
        let file = self.home(&machine.owner).join("pid");
        let text = fs::read_to_string(&file).unwrap();
        let rest = text.strip_prefix(&pid.to_string()).unwrap();
        fs::write(&file, format!("{}{rest}", std::process::id())).unwrap();
    }

    fn restart_host(&self, machine: &Machine) -> bool {
        let home = self.home(&machine.owner);
        let door: Value = serde_json::from_slice(&fs::read(home.join("door.json")).unwrap()).unwrap();
        // First who would write down how the others ended.
        let keeper = machine.pid.unwrap();
        signal(keeper, Signal::KILL);
        until("its keeper is gone", || !is_alive(keeper));
        let mut processes = processes_of(&home);
        processes.extend(door["init"].as_u64().map(|pid| u32::try_from(pid).unwrap()));
        for pid in &processes {
            // What runs in it goes with its first process.
            kill_process(Pid::from_raw(i32::try_from(*pid).unwrap()).unwrap(), Signal::KILL).ok();
        }
        until("its processes are gone", || processes.iter().all(|pid| !is_alive(*pid)));
        // A device that is going may be busy for a moment.
        until("its bridge is gone", || {
            Command::new("ip").args(["link", "delete", &self.bridge]).output().unwrap();
            !Path::new("/sys/class/net").join(&self.bridge).exists()
        });
        until("its control groups are gone", || {
            let groups = groups_of(&self.root_dir());
            groups.iter().for_each(|group| drop(fs::remove_dir(group)));
            groups.is_empty()
        });
        machine_contract::begin_boot(&home.join("pid"));
        true
    }

    fn driver_process(&self, verb: &str, owner: &Owner) -> Command {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["oci::yard::a_driver_of_its_own", "--exact", "--test-threads=1"]);
        let mut order = self.order();
        (order["verb"], order["owner"]) = (json!(verb), json!(owner));
        command.env(DRIVER, order.to_string()).stderr(Stdio::null());
        command
    }

    fn left(&self) -> Vec<String> {
        for mut client in self.clients.lock().unwrap().drain(..) {
            client.wait().unwrap();
        }
        let mut found = Vec::new();
        if let Ok(entries) = fs::read_dir(self.root_dir()) {
            found.push(self.root_dir().display().to_string());
            found.extend(entries.map(|entry| entry.unwrap().path().display().to_string()));
        }
        found.extend(residue(&self.root_dir(), &self.bridge));
        found
    }
}

/// Returns what containers kept below `root_dir` left of this machine: processes, mounts, devices, control groups.
pub(crate) fn residue(root_dir: &Path, bridge: &str) -> Vec<String> {
    let mut found: Vec<String> = processes_of(root_dir)
        .into_iter()
        .filter(|pid| is_alive(*pid))
        .map(|pid| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            format!("process {}", String::from_utf8_lossy(&line).replace('\0', " "))
        })
        .collect();
    found.extend(mounts_of(root_dir));
    if Path::new("/sys/class/net").join(bridge).exists() {
        found.push(format!("bridge {bridge}"));
    }
    found.extend(groups_of(root_dir).iter().map(|group| format!("control group {}", group.display())));
    found
}

/// Returns the control groups of containers below `root_dir`.
pub(crate) fn groups_of(root_dir: &Path) -> Vec<PathBuf> {
    let is_own = |name: &str| {
        let parts: Option<(&str, &str)> = name.strip_prefix("stead-").and_then(|rest| rest.rsplit_once('-'));
        parts.is_some_and(|(uuid, place)| {
            let directory = root_dir.join(uuid);
            // Others have groups called `stead-…` here as well, and end them shorter.
            place.len() == 12 && Digest::of(directory.as_os_str().as_bytes()).to_string().starts_with(place)
        })
    };
    let mut found = Vec::new();
    for group in fs::read_dir("/sys/fs/cgroup").into_iter().flatten().flatten() {
        let inner = fs::read_dir(group.path()).into_iter().flatten().flatten();
        let groups = std::iter::once(group).chain(inner);
        let own = groups.filter(|group| group.file_name().to_str().is_some_and(is_own));
        found.extend(own.map(|group| group.path()));
    }
    found
}

/// Returns what is mounted below `root_dir`, in whichever namespace.
fn mounts_of(root_dir: &Path) -> Vec<String> {
    let root = root_dir.display().to_string();
    let mut seen = std::collections::BTreeSet::new();
    let mut found = Vec::new();
    for process in fs::read_dir("/proc").unwrap().flatten() {
        let Ok(namespace) = fs::read_link(process.path().join("ns/mnt")) else { continue };
        if seen.insert(namespace) {
            let mounts = fs::read_to_string(process.path().join("mountinfo")).unwrap_or_default();
            let below = mounts.lines().filter(|line| line.contains(&root));
            found.extend(below.map(|line| format!("mount {line}")));
        }
    }
    found
}

/// Returns the processes of containers below `root_dir`.
fn processes_of(root_dir: &Path) -> Vec<u32> {
    let mut mark = b"STEAD_MACHINE=".to_vec();
    mark.extend_from_slice(root_dir.as_os_str().as_bytes());
    let pids = fs::read_dir("/proc").unwrap().flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let is_marked = |pid: &u32| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|variable| variable.starts_with(&mark))
    };
    pids.filter(is_marked).collect()
}

impl Drop for Place {
    fn drop(&mut self) {
        // A test that failed must not leave machines running.
        let driver = self.containers();
        let ids: Vec<MachineId> = fs::read_dir(self.root_dir())
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|entry| Some(MachineId::new(entry.file_name().to_str()?)))
            .collect();
        if !ids.is_empty() {
            std::thread::spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                for id in ids {
                    drop(runtime.block_on(driver.destroy(&id)));
                }
            })
            .join()
            .ok();
        }
        for client in self.clients.get_mut().unwrap() {
            client.kill().ok();
            client.wait().ok();
        }
    }
}
