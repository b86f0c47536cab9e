//! A fresh copy of the example, with an empty home and a log of what its scripts did.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::process::Signal;
use serde_json::Value;

use crate::cases_17_32::journal_rules;
use crate::cases_17_32::lab::{Ended, kill, wait_until, when_quiet};

/// The apply order.
pub(crate) const APPLY: [&str; 6] = [
    "15_verify_cluster_access.sh",
    "94_verify_config_inputs.sh",
    "install-flux.sh",
    "sync-runtime-inputs.sh",
    "32_reconcile_flux_stack.sh",
    "91_verify_platform_state.sh",
];

/// A copy of the example.
pub(crate) struct Homelab {
    dir: tempfile::TempDir,
}

impl Homelab {
    pub(crate) fn new() -> Self {
        let lab = Self::empty();
        let example = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/homelab/.");
        let copied = Command::new("cp").args(["-a", example]).arg(lab.root()).status().unwrap();
        assert!(copied.success());
        lab
    }

    /// Returns a place without the example.
    pub(crate) fn empty() -> Self {
        let lab = Self { dir: tempfile::tempdir().unwrap() };
        fs::create_dir(lab.root()).unwrap();
        fs::create_dir(lab.home()).unwrap();
        lab
    }

    /// Returns a place with one catalogue.
    pub(crate) fn with(catalogue: &str) -> Self {
        let lab = Self::empty();
        lab.write("steps.yaml", catalogue);
        lab
    }

    pub(crate) fn root(&self) -> PathBuf {
        self.dir.path().join("lab")
    }

    pub(crate) fn home(&self) -> PathBuf {
        self.dir.path().join("home")
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.root().join(name)
    }

    pub(crate) fn write(&self, name: &str, content: impl AsRef<[u8]>) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    /// Writes an executable script.
    pub(crate) fn script(&self, name: &str, content: &str) {
        self.write(name, format!("#!/bin/sh\n{content}"));
        fs::set_permissions(self.path(name), fs::Permissions::from_mode(0o755)).unwrap();
    }

    pub(crate) fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    /// Replaces a part of a file that must be there.
    #[track_caller]
    pub(crate) fn replace(&self, name: &str, from: &str, to: &str) {
        let text = self.read(name);
        assert!(text.contains(from), "no `{from}` in {name}");
        fs::write(self.path(name), text.replace(from, to)).unwrap();
    }

    /// Adds a line at the end of a file.
    pub(crate) fn append(&self, name: &str, line: &str) {
        let text = self.read(name);
        self.write(name, format!("{text}{line}\n"));
    }

    /// Returns what the scripts have logged.
    pub(crate) fn log(&self) -> Vec<String> {
        let log = fs::read_to_string(self.dir.path().join("log")).unwrap_or_default();
        log.lines().map(str::to_owned).collect()
    }

    /// Returns a command in this place: no variable of the test's own, an empty home, no kubeconfig.
    pub(crate) fn command(&self, program: impl AsRef<Path>, args: &[&str]) -> Command {
        let mut command = Command::new(program.as_ref());
        command.env_clear().env("PATH", "/usr/local/bin:/usr/bin:/bin").env("HOME", self.home());
        command.env("LAB_LOG", self.dir.path().join("log")).env("KUBECONFIG", self.dir.path().join("none"));
        command.env("STEAD_BIN", env!("CARGO_BIN_EXE_stead")).env("STEAD_LAB", self.dir.path());
        command.args(args).current_dir(self.root()).stdin(Stdio::null());
        command
    }

    pub(crate) fn stead(&self, args: &[&str]) -> Ended {
        self.command(env!("CARGO_BIN_EXE_stead"), args).output().unwrap().into()
    }

    /// Runs `./run.sh`.
    pub(crate) fn run(&self, args: &[&str]) -> Ended {
        self.run_with(&[], args)
    }

    /// Runs `./run.sh` with variables.
    pub(crate) fn run_with(&self, env: &[(&str, &str)], args: &[&str]) -> Ended {
        let mut command = self.command(self.path("run.sh"), args);
        command.envs(env.iter().copied()).output().unwrap().into()
    }

    /// Runs `./run.sh --json` and returns its document.
    #[track_caller]
    pub(crate) fn json(&self, args: &[&str], code: i32) -> Value {
        let args: Vec<&str> = args.iter().copied().chain(["--json"]).collect();
        self.run(&args).exits(code).document()
    }

    /// Returns the directories of all runs, oldest first.
    pub(crate) fn bundles(&self) -> Vec<PathBuf> {
        let runs = fs::read_dir(self.path(".stead/runs")).into_iter().flatten().flatten();
        let mut runs: Vec<PathBuf> = runs.map(|entry| entry.path()).collect();
        runs.sort();
        runs
    }

    /// Returns live processes that were started here.
    pub(crate) fn processes(&self) -> Vec<(u32, String)> {
        let mark = [b"STEAD_LAB=", self.dir.path().as_os_str().as_encoded_bytes()].concat();
        let mut found = Vec::new();
        for entry in fs::read_dir("/proc").unwrap().flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
            let environ = fs::read(entry.path().join("environ")).unwrap_or_default();
            if environ.split(|byte| *byte == 0).any(|variable| variable == mark) {
                let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
                found.push((pid, String::from_utf8_lossy(&line).replace('\0', " ")));
            }
        }
        found
    }
}

impl Homelab {
    /// Ends what a killed run has left.
    pub(crate) fn end_processes(&self) {
        for (pid, _) in self.processes() {
            kill(pid, Signal::KILL);
        }
        wait_until("nothing is left", || self.processes().is_empty());
    }
}

impl Drop for Homelab {
    fn drop(&mut self) {
        let left = when_quiet(|| self.processes());
        for (pid, _) in &left {
            kill(*pid, Signal::KILL);
        }
        if !std::thread::panicking() {
            assert!(left.is_empty(), "left running: {left:?}");
            self.bundles().iter().for_each(|run| journal_rules::check(run));
        }
    }
}

/// Returns the steps of a plan text: what follows `  - `.
pub(crate) fn steps_in(stdout: &str) -> Vec<&str> {
    stdout.lines().filter_map(|line| line.strip_prefix("  - ")).collect()
}

/// Returns `basename:status` of every task, in plan order.
pub(crate) fn statuses(report: &Value) -> Vec<String> {
    let rows = report["tasks"].as_array().unwrap().iter();
    rows.map(|row| {
        format!("{}:{}", row["step"]["basename"].as_str().unwrap(), row["status"].as_str().unwrap())
    })
    .collect()
}

/// Returns the codes of the errors in a document of problems.
pub(crate) fn codes(document: &Value) -> Vec<String> {
    let found =
        document["diagnostics"].as_array().unwrap().iter().filter(|problem| problem["severity"] == "error");
    found.map(|problem| problem["code"].as_str().unwrap().to_owned()).collect()
}
