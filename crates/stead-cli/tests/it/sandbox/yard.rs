//! A place of its own for sandboxes, and what the contract needs to look at it and to disturb it.

use std::ffi::OsString;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use stead_drivers::machine::sandbox::{Fault, Phase, SandboxDriver, SandboxSettings};
use stead_drivers::transport::{Notices, Surroundings, Transports};
use stead_model::machine::{Machine, MachineKind, MachineSpec, MachineState, Owner};
use stead_model::transport::{SshSpec, TransportSpec};
use stead_runner::machine::MachineDriver;
use stead_runner::transport::{Connect, Transport};
use stead_testkit::machine_contract::Yard;
use stead_testkit::sshd::{KeyKind, make_key};

/// Says in which process a driver is: what it does, where, for whom, and at which step it dies.
pub(super) const DRIVER: &str = "STEAD_TEST_SANDBOX_DRIVER";

pub(super) struct Place {
    dir: tempfile::TempDir,
    pub(super) faults: Vec<Fault>,
    clients: Mutex<Vec<Child>>,
}

impl Place {
    pub(super) fn new() -> Self {
        let place = Self { dir: tempfile::tempdir().unwrap(), faults: Vec::new(), clients: Mutex::default() };
        make_key(&place.path("id"), KeyKind::Ed25519);
        make_key(&place.path("stranger"), KeyKind::Ed25519);
        place
    }

    pub(super) fn with_faults(faults: &[serde_json::Value]) -> Self {
        let read = |fault: &serde_json::Value| serde_json::from_value(fault.clone()).unwrap();
        let mut place = Self::new();
        place.faults = faults.iter().map(read).collect();
        place
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(super) fn root_dir(&self) -> PathBuf {
        self.path("machines")
    }

    pub(super) fn settings(&self) -> SandboxSettings {
        let mut settings = settings(&self.root_dir());
        settings.faults.extend(self.faults.clone());
        settings
    }

    pub(super) fn sandboxes(&self) -> SandboxDriver {
        SandboxDriver::new(self.settings())
    }

    pub(super) fn home(&self, owner: &Owner) -> PathBuf {
        self.root_dir().join(owner.uuid())
    }

    /// Makes and starts a sandbox and waits until it takes logins.
    pub(super) async fn start(&self, name: &str) -> Machine {
        let driver = self.sandboxes();
        let made = driver.ensure_created(&self.spec(node(name))).await.unwrap();
        driver.start(&made.machine.id).await.unwrap();
        self.up(&made.machine).await
    }

    pub(super) async fn up(&self, machine: &Machine) -> Machine {
        let end = Instant::now() + Duration::from_secs(60);
        loop {
            let seen = self.sandboxes().inspect(&machine.id).await.unwrap().unwrap();
            if seen.state == MachineState::Running {
                self.know(&seen);
                return seen;
            }
            assert!(Instant::now() < end, "{seen:?}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Writes `known_hosts` for the machine.
    fn know(&self, machine: &Machine) {
        let ssh = machine.ssh.as_ref().unwrap();
        let mut text = fs::read_to_string(self.path("known_hosts")).unwrap_or_default();
        let line = format!("[{}]:{} {}\n", ssh.host, ssh.port, ssh.host_key);
        if !text.contains(&line) {
            text.push_str(&line);
            fs::write(self.path("known_hosts"), text).unwrap();
        }
    }

    pub(super) fn spec_of(&self, machine: &Machine) -> SshSpec {
        let ssh = machine.ssh.as_ref().unwrap();
        SshSpec {
            user: Some("stead".to_owned()),
            host: ssh.host.clone(),
            port: Some(ssh.port),
            key: Some(self.path("id").display().to_string()),
            host_key: Some(ssh.host_key.clone()),
            agent: Some(false),
            ssh_config: Some("none".to_owned()),
            ..SshSpec::default()
        }
    }

    pub(super) async fn connect(&self, machine: &Machine) -> Arc<dyn Transport> {
        let around =
            Surroundings { home: self.path("home"), user: "tester".to_owned(), ..Surroundings::default() };
        let transports = Transports::new(around, Notices::ignored());
        transports.connect(&TransportSpec::Ssh(Box::new(self.spec_of(machine)))).await.unwrap()
    }

    /// OpenSSH's own client, with this place's key.
    pub(super) fn ssh(&self, machine: &Machine, user: &str, key: &str) -> Command {
        let ssh = machine.ssh.as_ref().unwrap();
        let mut command = Command::new("ssh");
        command.args([
            "-F",
            "none",
            "-o",
            "BatchMode=yes",
            "-o",
            "IdentitiesOnly=yes",
            "-o",
            "IdentityAgent=none",
        ]);
        command.arg("-o").arg(option("UserKnownHostsFile=", &self.path("known_hosts")));
        command.args([
            "-o",
            "StrictHostKeyChecking=yes",
            "-o",
            "LogLevel=ERROR",
            "-p",
            &ssh.port.to_string(),
        ]);
        command.arg("-i").arg(self.path(key)).arg("-l").arg(user).arg(&ssh.host);
        command.stdin(Stdio::null());
        command
    }

    /// Runs a line by OpenSSH's client.
    #[track_caller]
    pub(super) fn run(&self, machine: &Machine, line: &str) -> Output {
        self.ssh(machine, "stead", "id").arg(line).output().unwrap()
    }
}

fn option(name: &str, path: &Path) -> OsString {
    let mut option = OsString::from(name);
    option.push(path);
    option
}

pub(super) fn settings(root_dir: &Path) -> SandboxSettings {
    let mut settings = SandboxSettings::new(root_dir, env!("CARGO_BIN_EXE_stead"));
    settings.faults = vec![Fault {
        node: "doomed*".to_owned(),
        phase: Phase::Boot,
        times: 0,
        error: Some("doomed".to_owned()),
        delay_ms: 0,
        crash: false,
    }];
    settings
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

/// The program of a driver in a process of its own: this test binary again.
pub(super) fn driver_process(root_dir: &Path, verb: &str, owner: &Owner) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["sandbox::sweep::a_driver_of_its_own", "--exact", "--test-threads=1"]);
    let key = root_dir.parent().and_then(|place| fs::read_to_string(place.join("id.pub")).ok());
    let order = serde_json::json!({
        "root_dir": root_dir, "verb": verb, "owner": owner, "keys": Vec::from_iter(key),
    });
    command.env(DRIVER, order.to_string());
    command
}

impl Yard for Place {
    fn driver(&self) -> Arc<dyn MachineDriver> {
        Arc::new(self.sandboxes())
    }

    fn spec(&self, owner: Owner) -> MachineSpec {
        let key = fs::read_to_string(self.path("id.pub")).unwrap();
        MachineSpec { authorized_keys: vec![key], ..MachineSpec::new(owner, MachineKind::Vm) }
    }

    fn doomed(&self, owner: Owner) -> MachineSpec {
        self.spec(owner)
    }

    fn half_make(&self, spec: &MachineSpec) {
        let dies = |step: &str| assert_ne!(step, "keys", "on purpose");
        let driver = self.sandboxes().watched(Arc::new(dies));
        let spec = spec.clone();
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
        self.know(machine);
        let line = "trap '' TERM; echo deaf; while :; do sleep 1; done";
        let mut client = self.ssh(machine, "stead", "id").arg(line).stdout(Stdio::piped()).spawn().unwrap();
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

    fn driver_process(&self, verb: &str, owner: &Owner) -> Command {
        let mut command = driver_process(&self.root_dir(), verb, owner);
        command.stderr(Stdio::null());
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
        found.extend(processes_of(&self.root_dir()));
        found
    }
}

/// Returns the live processes of sandboxes below `root_dir`.
pub(super) fn processes_of(root_dir: &Path) -> Vec<String> {
    let mut mark = b"STEAD_SANDBOX=".to_vec();
    mark.extend_from_slice(root_dir.as_os_str().as_bytes());
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let environment = fs::read(entry.path().join("environ")).unwrap_or_default();
        let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        if environment.split(|byte| *byte == 0).any(|variable| variable.starts_with(&mark))
            && !line.is_empty()
        {
            found.push(String::from_utf8_lossy(&line).replace('\0', " "));
        }
    }
    found
}

impl Drop for Place {
    fn drop(&mut self) {
        // A test that failed must not leave machines running.
        let mut mark = b"STEAD_SANDBOX=".to_vec();
        mark.extend_from_slice(self.root_dir().as_os_str().as_bytes());
        for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
            let environment = fs::read(entry.path().join("environ")).unwrap_or_default();
            let pid = entry.file_name().to_str().and_then(|name| name.parse().ok()).and_then(Pid::from_raw);
            if let Some(pid) = pid
                .filter(|_| environment.split(|byte| *byte == 0).any(|variable| variable.starts_with(&mark)))
            {
                kill_process(pid, Signal::KILL).ok();
            }
        }
        for client in self.clients.get_mut().unwrap() {
            client.kill().ok();
            client.wait().ok();
        }
    }
}
