//! A site with a server that runs, and a node `edge` of it that is a sandbox; both are gone when it is dropped.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};
use stead_drivers::machine::sandbox::{SandboxDriver, SandboxSettings};
use stead_drivers::server_client::ServerClient;
use stead_model::NodeName;
use stead_model::machine::{MachineKind, MachineSpec, MachineState, Owner, OwnerScope, PlantedFile};
use stead_model::node::wire::{NodeStatus, ReportKind, StoredReport};
use stead_runner::machine::MachineDriver;

use super::{site, write};
use crate::cases_17_32::lab::{Ended, Lab, kill};

const SITE: &str = "defaults: {domain: lab.example, packages: [ca-certificates]}
server: {port: 0, bind: 127.0.0.1}
";

/// A spec that heals every five seconds.
pub(super) const HEALING: &str = "schema_version: 1
access:
  posture: local
  users: [{name: ops, sudo: true}]
platform:
  packages: [htop]
run: {trigger: schedule, interval: 5s}
";

pub(super) struct Pulled {
    pub(super) lab: Lab,
    pub(super) server: Value,
}

impl Pulled {
    /// Makes a site with these files and starts its server.
    pub(super) fn new(files: &[(&str, &str)]) -> Self {
        let lab = site(files);
        if files.iter().all(|(path, _)| *path != "site.yaml") {
            write(&lab, "site.yaml", SITE);
        }
        let mut pulled = Self { lab, server: Value::Null };
        pulled.start_server();
        pulled
    }

    pub(super) fn start_server(&mut self) {
        self.server = self.lab.run(["server", "start", "--json"]).exits(0).document();
    }

    pub(super) fn kill_server(&self) {
        let pid = u32::try_from(self.server["pid"].as_u64().unwrap()).unwrap();
        kill(pid, Signal::KILL);
        wait_for("the server is gone", || !is_alive(pid));
    }

    pub(super) fn url(&self) -> &str {
        self.server["url"].as_str().unwrap()
    }

    pub(super) fn fingerprint(&self) -> &str {
        self.server["fingerprint"].as_str().unwrap()
    }

    pub(super) fn token(&self, args: &[&str]) -> String {
        let mint = ["token", "mint", "--node", "edge", "--spec", "base"];
        let ended = self.lab.run(mint.into_iter().chain(args.iter().copied())).exits(0);
        ended.stdout.trim().to_owned()
    }

    /// What `edge` is told when it is made.
    pub(super) fn bootstrap(&self, mode: &str, token_args: &[&str]) -> String {
        json!({
            "schema": 1,
            "node": "edge",
            "mode": mode,
            "server": self.url(),
            "fingerprints": [self.fingerprint()],
            "token": self.token(token_args),
        })
        .to_string()
    }

    fn driver(&self, faults: &Value) -> SandboxDriver {
        let mut settings = SandboxSettings::new(self.machines(), env!("CARGO_BIN_EXE_stead"));
        settings.faults = serde_json::from_value(faults.clone()).unwrap();
        SandboxDriver::new(settings)
    }

    fn machines(&self) -> PathBuf {
        self.lab.path("machines")
    }

    fn owner() -> Owner {
        Owner::new("lab/m/local", "edge").unwrap()
    }

    fn home(&self) -> PathBuf {
        self.machines().join(Self::owner().uuid())
    }

    pub(super) fn root(&self) -> PathBuf {
        self.home().join("root")
    }

    /// Makes and starts `edge`, with this bootstrap from the beginning, and waits until it is up.
    pub(super) fn make(&self, bootstrap: Option<String>) {
        self.make_suffering(bootstrap, &json!([]));
    }

    pub(super) fn make_suffering(&self, bootstrap: Option<String>, faults: &Value) {
        let planted = bootstrap.map(|text| PlantedFile {
            path: "/etc/stead/bootstrap.json".to_owned(),
            mode: 0o600,
            content: text.into_bytes(),
        });
        let spec = MachineSpec {
            files: planted.into_iter().collect(),
            ..MachineSpec::new(Self::owner(), MachineKind::Vm)
        };
        let driver = self.driver(faults);
        block_on(async {
            let made = driver.ensure_created(&spec).await.unwrap();
            driver.start(&made.machine.id).await.unwrap();
        });
        wait_for("the sandbox is up", || self.state() == MachineState::Running);
    }

    pub(super) fn state(&self) -> MachineState {
        let driver = self.driver(&json!([]));
        let machines = block_on(driver.list(&OwnerScope::All)).unwrap();
        machines.first().unwrap().state
    }

    /// A command on `edge`.
    pub(super) fn on_node(&self, args: &[&str]) -> Command {
        let mut command = self.lab.stead([]);
        command.args(args).env("STEAD_ROOT", self.root());
        command
    }

    pub(super) fn run_on_node(&self, args: &[&str]) -> Ended {
        self.on_node(args).output().unwrap().into()
    }

    /// The process of the one agent that runs here, if it does.
    pub(super) fn agent(&self) -> Option<u32> {
        let mark = self.mark();
        let processes = fs::read_dir("/proc").unwrap().flatten();
        processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok()).find(|pid| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            line.ends_with(b"\0agent\0run\0")
                && environment.split(|byte| *byte == 0).any(|one| one.starts_with(&mark))
        })
    }

    /// By what everything is known that runs in a sandbox here.
    fn mark(&self) -> Vec<u8> {
        [b"STEAD_SANDBOX=", self.lab.root().as_os_str().as_bytes()].concat()
    }

    pub(super) fn client(&self) -> ServerClient {
        ServerClient::socket(self.server["socket"].as_str().unwrap())
    }

    /// What the server knows of `edge`.
    pub(super) fn status(&self) -> Option<NodeStatus> {
        let edge = NodeName::parse("edge").unwrap();
        block_on(self.client().node(&edge, 0, Duration::ZERO)).ok()
    }

    pub(super) fn reports(&self) -> Vec<StoredReport> {
        let reports = self.status().map(|status| status.reports).unwrap_or_default();
        reports.into_iter().filter(|report| report.report.kind != ReportKind::Job).collect()
    }

    /// Waits until the server has so many reports of `edge` that are not of jobs.
    #[track_caller]
    pub(super) fn wait_for_reports(&self, count: usize) -> Vec<StoredReport> {
        wait_for_with("reports", || self.reports().len() >= count, || self.log());
        self.reports()
    }

    /// What the agent said.
    pub(super) fn log(&self) -> String {
        let read = |name: &str| fs::read_to_string(self.home().join(name)).unwrap_or_default();
        format!("{}{}", read("console.log"), read("agent.log"))
    }

    pub(super) fn read(&self, path: &str) -> String {
        fs::read_to_string(self.root().join(path)).unwrap_or_default()
    }
}

impl Drop for Pulled {
    fn drop(&mut self) {
        let mark = self.mark();
        // Until none is left: a supervisor may be about to start an agent.
        loop {
            let mut left = 0;
            for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
                let environment = fs::read(entry.path().join("environ")).unwrap_or_default();
                let pid = entry.file_name().to_str().and_then(|name| name.parse().ok());
                let is_ours = environment.split(|byte| *byte == 0).any(|one| one.starts_with(&mark));
                if let Some(pid) = pid.filter(|_| is_ours) {
                    kill(pid, Signal::KILL);
                    left += 1;
                }
            }
            if left == 0 {
                break;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        if let Some(pid) = self.server["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok()) {
            kill(pid, Signal::KILL);
            while is_alive(pid) {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }
}

pub(super) fn block_on<F: Future>(future: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

pub(super) fn is_alive(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

#[track_caller]
pub(super) fn wait_for(what: &str, is_so: impl FnMut() -> bool) {
    wait_for_with(what, is_so, String::new);
}

#[track_caller]
pub(super) fn wait_for_with(what: &str, mut is_so: impl FnMut() -> bool, log: impl Fn() -> String) {
    let end = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < end, "still not so: {what}\n{}", log());
        std::thread::sleep(Duration::from_millis(20));
    }
}
