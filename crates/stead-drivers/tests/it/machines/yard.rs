//! A place of its own for virtual machines, and what the contract needs to look at it and to disturb it.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt as _, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde::Deserialize as _;
use serde_json::{Value, json};
use stead_drivers::machine::StepWatch;
use stead_drivers::machine::cloud_hypervisor::{CloudHypervisorDriver, CloudHypervisorSettings};
use stead_drivers::machine::qemu::{Accel, QemuDriver, QemuSettings};
use stead_model::machine::{Boot, Machine, MachineId, MachineKind, MachineSpec, MachineState, Owner};
use stead_runner::machine::MachineDriver;
use stead_runner::socket::SocketPath;
use stead_testkit::cloud_hypervisor;
use stead_testkit::machine_contract::{self, Yard};
use stead_testkit::micro_vm::{self, MicroLinux};

/// Says in which process a driver is: what it does, where and for whom.
const DRIVER: &str = "STEAD_TEST_MACHINE_DRIVER";

/// Holds the machine whose console a process keeps.
const CONSOLE: &str = "STEAD_TEST_CONSOLE";
/// The program that keeps consoles.
const PROGRAM: &str = "stead";

/// Cloud Hypervisor itself, with a word in its log that it does not say by itself when it cannot boot.
const REAL: &str = "real-cloud-hypervisor";

/// Says why a test shows nothing, where that may be.
#[expect(clippy::print_stderr, reason = "a test that is left out is said")]
pub(super) fn leave_out(why: &str) {
    assert!(std::env::var_os("STEAD_CI").is_none(), "{why}");
    eprintln!("left out: {why}");
}

/// What runs the machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Runs {
    Qemu,
    /// A stand-in for it.
    CloudHypervisor,
    /// The program itself, and in it a Linux.
    RealCloudHypervisor,
}

impl Runs {
    /// Returns what it is called; the program of Cloud Hypervisor, too.
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Qemu => "qemu",
            Self::CloudHypervisor => "cloud-hypervisor",
            Self::RealCloudHypervisor => REAL,
        }
    }

    fn of(word: &str) -> Self {
        let all = [Self::Qemu, Self::CloudHypervisor, Self::RealCloudHypervisor];
        all.into_iter().find(|runs| runs.word() == word).unwrap()
    }
}

pub(super) struct Place {
    pub(super) runs: Runs,
    dir: tempfile::TempDir,
}

impl Place {
    pub(super) fn new(runs: Runs) -> Self {
        let place = Self { runs, dir: tempfile::tempdir().unwrap() };
        fs::write(place.path("guest.img"), micro_vm::boot_disk()).unwrap();
        // A program is no kernel: QEMU says so and ends.
        fs::copy("/bin/true", place.path("doomed")).unwrap();
        fs::write(place.path("kernel"), cloud_hypervisor::KERNEL).unwrap();
        cloud_hypervisor::install(place.dir.path(), "machines::yard::a_cloud_hypervisor_of_its_own");
        install_program(&place.path(PROGRAM));
        install(
            &place.path(REAL),
            "#!/bin/sh\necho 'doomed without a kernel' >&2\nexec cloud-hypervisor \"$@\"\n",
        );
        place
    }

    /// Makes the stand-in for Cloud Hypervisor go wrong.
    pub(super) fn set_faults(&self, faults: &Value) {
        fs::write(self.path("faults.json"), faults.to_string()).unwrap();
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(super) fn root_dir(&self) -> PathBuf {
        self.path("machines")
    }

    pub(super) fn home(&self, owner: &Owner) -> PathBuf {
        self.root_dir().join(owner.uuid())
    }

    /// Returns a program that keeps consoles as `stead` does.
    pub(super) fn program(&self) -> PathBuf {
        self.path(PROGRAM)
    }

    pub(super) fn qemu_settings(&self) -> QemuSettings {
        qemu_settings(self.dir.path())
    }

    fn watched(&self, watch: StepWatch) -> Arc<dyn MachineDriver> {
        driver(self.runs, self.dir.path(), watch)
    }

    pub(super) fn console(&self, owner: &Owner) -> String {
        String::from_utf8_lossy(&fs::read(self.home(owner).join("console.log")).unwrap_or_default())
            .into_owned()
    }

    /// Returns the processes that keep the machine's console.
    pub(super) fn keepers(&self, owner: &Owner) -> Vec<u32> {
        marked_by(&[[b"STEAD_CONSOLE=", self.home(owner).as_os_str().as_bytes()].concat()])
    }

    /// Waits until the machine's console says something.
    #[track_caller]
    pub(super) fn until_console(&self, owner: &Owner, text: &str) {
        let end = Instant::now() + Duration::from_secs(60);
        while !self.console(owner).contains(text) {
            let console = self.console(owner);
            assert!(Instant::now() < end, "the console does not say {text:?}: {console}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

fn qemu_settings(dir: &Path) -> QemuSettings {
    QemuSettings { accel: Accel::Tcg, ..QemuSettings::new(dir.join("machines"), dir.join(PROGRAM)) }
}

fn driver(runs: Runs, dir: &Path, watch: StepWatch) -> Arc<dyn MachineDriver> {
    match runs {
        Runs::Qemu => Arc::new(QemuDriver::new(qemu_settings(dir)).watched(watch)),
        Runs::CloudHypervisor | Runs::RealCloudHypervisor => {
            let mut settings = CloudHypervisorSettings::new(dir.join("machines"), dir.join(PROGRAM));
            settings.binary = dir.join(runs.word());
            Arc::new(CloudHypervisorDriver::new(settings).watched(watch))
        }
    }
}

fn spec(runs: Runs, dir: &Path, owner: Owner) -> MachineSpec {
    let path = |name: &str| dir.join(name).display().to_string();
    let spec = MachineSpec { memory_mb: Some(32), ..MachineSpec::new(owner, MachineKind::Vm) };
    match runs {
        Runs::Qemu => MachineSpec { boot: Some(Boot::Image(path("guest.img"))), ..spec },
        Runs::CloudHypervisor => {
            let boot = Boot::Kernel { kernel: path("kernel"), initrd: None, cmdline: String::new() };
            MachineSpec { boot: Some(boot), disk_gb: Some(1), ..spec }
        }
        Runs::RealCloudHypervisor => {
            let guest = MicroLinux::build(Path::new(env!("CARGO_TARGET_TMPDIR"))).unwrap();
            let boot = Boot::Kernel {
                kernel: guest.kernel.display().to_string(),
                initrd: Some(guest.initrd.display().to_string()),
                cmdline: "console=ttyS0 panic=-1".to_owned(),
            };
            MachineSpec { boot: Some(boot), memory_mb: Some(256), disk_gb: Some(1), ..spec }
        }
    }
}

pub(super) fn node(name: &str) -> Owner {
    Owner::new("lab/test/local", name).unwrap()
}

pub(super) fn signal(pid: u32, signal: Signal) {
    kill_process(Pid::from_raw(i32::try_from(pid).unwrap()).unwrap(), signal).unwrap();
}

pub(super) fn is_alive(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

#[track_caller]
pub(super) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < end, "still not so: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Makes and starts a machine and waits until its process is up.
pub(super) async fn start(driver: &dyn MachineDriver, spec: &MachineSpec) -> Machine {
    let made = driver.ensure_created(spec).await.unwrap();
    driver.start(&made.machine.id).await.unwrap();
    let seen = driver.inspect(&made.machine.id).await.unwrap().unwrap();
    assert_eq!(seen.state, MachineState::Running);
    seen
}

/// Is a driver, if this process was started to be one; else it shows nothing.
#[tokio::test]
async fn a_driver_of_its_own() {
    let Some(order) = std::env::var_os(DRIVER) else { return };
    let order: Value = serde_json::from_str(order.to_str().unwrap()).unwrap();
    let owner = Owner::deserialize(&order["owner"]).unwrap();
    let dir = PathBuf::from(order["dir"].as_str().unwrap());
    let runs = Runs::of(order["runs"].as_str().unwrap());
    let driver = driver(runs, &dir, machine_contract::death());
    let id = MachineId::new(owner.uuid());
    match order["verb"].as_str().unwrap() {
        "create" => drop(driver.ensure_created(&spec(runs, &dir, owner)).await.unwrap()),
        verb => machine_contract::drive(&*driver, verb, &id).await,
    }
}

/// Writes a program that is this test binary as the test below.
fn install_program(path: &Path) {
    let binary = std::env::current_exe().unwrap();
    let script = format!(
        "#!/bin/sh\n{CONSOLE}=\"$3\" exec '{}' machines::yard::a_console_of_its_own --exact --quiet\n",
        binary.display()
    );
    install(path, &script);
}

fn install(path: &Path, script: &str) {
    fs::write(path, script).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// Keeps a console, if this process was started to do so; else it shows nothing.
#[test]
fn a_console_of_its_own() {
    if let Some(machine) = std::env::var_os(CONSOLE) {
        stead_drivers::machine::keep_console(Path::new(&machine)).unwrap();
    }
}

/// Is a stand-in for Cloud Hypervisor, if this process was started to be one; else it shows nothing.
#[test]
fn a_cloud_hypervisor_of_its_own() {
    cloud_hypervisor::run();
}

impl Yard for Place {
    fn driver(&self) -> Arc<dyn MachineDriver> {
        self.watched(Arc::new(|_| {}))
    }

    fn spec(&self, owner: Owner) -> MachineSpec {
        spec(self.runs, self.dir.path(), owner)
    }

    fn doomed(&self, owner: Owner) -> MachineSpec {
        let kernel = self.path("doomed").display().to_string();
        let boot = Boot::Kernel { kernel, initrd: None, cmdline: String::new() };
        MachineSpec { boot: Some(boot), ..self.spec(owner) }
    }

    fn half_make(&self, spec: &MachineSpec) {
        let dies = |step: &str| assert_ne!(step, "disk", "on purpose");
        let (driver, spec) = (self.watched(Arc::new(dies)), spec.clone());
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
        match self.runs {
            Runs::Qemu => press_a_key(&self.home(&machine.owner)),
            Runs::CloudHypervisor => {
                fs::write(self.home(&machine.owner).join(cloud_hypervisor::DEAF), "").unwrap();
            }
            Runs::RealCloudHypervisor => {
                let said = |word: &str| self.console(&machine.owner).rfind(word);
                let (up, deaf) = ("micro guest is up", "deaf");
                // The console may have the lines of the run before.
                until("the guest is up", || said(up) > said(deaf));
                let disk = fs::File::options().write(true).open(self.home(&machine.owner).join("disk.raw"));
                disk.unwrap().write_all_at(b"deaf", 0).unwrap();
                until("the guest is deaf", || said(deaf) > said(up));
            }
        }
        self.until_console(&machine.owner, "deaf");
    }

    fn has_addresses(&self) -> bool {
        match self.runs {
            Runs::Qemu => true,
            // Its cards are on bridges, which take root.
            Runs::CloudHypervisor | Runs::RealCloudHypervisor => false,
        }
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
        let processes = processes_of(&home);
        assert!(processes.contains(&machine.pid.unwrap()), "{processes:?}");
        for pid in &processes {
            signal(*pid, Signal::KILL);
        }
        until("its processes are gone", || processes.iter().all(|pid| !is_alive(*pid)));
        machine_contract::begin_boot(&home.join("pid"));
        true
    }

    fn driver_process(&self, verb: &str, owner: &Owner) -> Command {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["machines::yard::a_driver_of_its_own", "--exact", "--test-threads=1"]);
        let order = json!({ "runs": self.runs.word(), "dir": self.dir.path(), "verb": verb, "owner": owner });
        command.env(DRIVER, order.to_string()).stderr(Stdio::null());
        command
    }

    fn left(&self) -> Vec<String> {
        let mut found = Vec::new();
        if let Ok(entries) = fs::read_dir(self.root_dir()) {
            found.push(self.root_dir().display().to_string());
            found.extend(entries.map(|entry| entry.unwrap().path().display().to_string()));
        }
        let lines = processes_of(&self.root_dir()).into_iter().map(|pid| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&line).replace('\0', " ")
        });
        found.extend(lines.filter(|line| !line.is_empty()));
        found
    }
}

/// Presses a key of a guest's keyboard, once the guest is up. The boot sector takes any for a wish not to be disturbed.
fn press_a_key(home: &Path) {
    until("the guest is up", || {
        let console = fs::read(home.join("console.log")).unwrap_or_default();
        let said = String::from_utf8_lossy(&console).trim_end_matches('\0').to_owned();
        said.lines().last().is_some_and(|line| line.contains("up"))
    });
    let mut stream = UnixStream::connect(SocketPath::new(&home.join("qmp.sock")).unwrap().path()).unwrap();
    let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
    lines.next().unwrap().unwrap();
    let key = json!({ "execute": "send-key", "arguments": { "keys": [{ "type": "qcode", "data": "d" }] } });
    for order in [json!({ "execute": "qmp_capabilities" }), key] {
        writeln!(stream, "{order}").unwrap();
        assert!(lines.next().unwrap().unwrap().contains("return"));
    }
}

/// Returns the live processes of machines below `root_dir`.
fn processes_of(root_dir: &Path) -> Vec<u32> {
    let marks = ["STEAD_MACHINE=", "STEAD_CONSOLE="]
        .map(|mark| [mark.as_bytes(), root_dir.as_os_str().as_bytes()].concat());
    marked_by(&marks)
}

/// Returns the live processes that have a variable which begins with one of `marks`.
fn marked_by(marks: &[Vec<u8>]) -> Vec<u32> {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let is_marked = |pid: &u32| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment
            .split(|byte| *byte == 0)
            .any(|variable| marks.iter().any(|mark| variable.starts_with(mark)))
    };
    pids.filter(|pid| is_marked(pid) && is_alive(*pid)).collect()
}

impl Drop for Place {
    fn drop(&mut self) {
        // A test that failed must not leave machines running.
        for pid in processes_of(&self.root_dir()) {
            if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
                kill_process(pid, Signal::KILL).ok();
            }
        }
    }
}
