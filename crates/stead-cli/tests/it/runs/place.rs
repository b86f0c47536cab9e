//! A place for runs of one test: manifests, programs, bundles, and where roles work.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

use crate::cases_17_32::journal_rules;
use crate::cases_17_32::lab::{Ended, Lab, Running, wait_until};

pub(crate) struct Place {
    pub(crate) lab: Lab,
}

/// A service that says it is ready, and notes that it was asked to stop.
pub(crate) const SERVER: &str = r#"{kind: service, files: [server.sh], command: [./server.sh], ready: {method: structured_stdout, timeout_seconds: 20}, artifacts: [marker]}"#;

const SERVER_SCRIPT: &str = r#"#!/bin/sh
trap 'echo stopped > marker; exit 0' TERM
echo '{"event": "server_ready", "listen": "here:1"}'
while :; do sleep 0.02; done
"#;

impl Place {
    /// Returns a place with the roles of `roles` (lines below `roles:`) in `m.yaml`.
    pub(crate) fn new(roles: &str) -> Self {
        Self::of(&format!("api_version: v1\nrun_id: r\nroles:\n{roles}"))
    }

    /// Returns a place with `manifest` in `m.yaml`.
    pub(crate) fn of(manifest: &str) -> Self {
        let place = Self { lab: Lab::new("api_version: v1\nname: none\ntasks: []\n") };
        place.lab.write("m.yaml", manifest);
        place.program("server.sh", SERVER_SCRIPT);
        place
    }

    /// Writes a program.
    pub(crate) fn program(&self, name: &str, script: &str) {
        self.lab.write(name, script);
        fs::set_permissions(self.lab.path(name), fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// Returns `stead` with programs of `bin` before the others, and a cache of its own.
    pub(crate) fn stead<'a>(&self, args: impl IntoIterator<Item = &'a str>) -> Command {
        let mut command = self.lab.stead(args);
        command.env("XDG_CACHE_HOME", self.lab.path("cache"));
        command.env("PATH", format!("{}:/usr/bin:/bin", self.lab.path("bin").display()));
        command
    }

    pub(crate) fn run(&self, args: &[&str]) -> Ended {
        self.stead(["run", "manifest", "m.yaml"].into_iter().chain(args.iter().copied()))
            .output()
            .unwrap()
            .into()
    }

    /// Runs `m.yaml` and returns its document.
    #[track_caller]
    pub(crate) fn json(&self, args: &[&str], code: i32) -> Value {
        let args: Vec<&str> = ["--json"].into_iter().chain(args.iter().copied()).collect();
        self.run(&args).exits(code).document()
    }

    pub(crate) fn start(&self, args: &[&str]) -> Running {
        let args: Vec<&str> = ["run", "manifest", "m.yaml"].into_iter().chain(args.iter().copied()).collect();
        let mut command = self.stead(args);
        command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
        Running::of(command.spawn().unwrap())
    }

    pub(crate) fn bundle(&self) -> PathBuf {
        self.lab.path("runs/r")
    }

    pub(crate) fn read(&self, name: &str) -> String {
        fs::read_to_string(self.bundle().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    pub(crate) fn meta(&self) -> Value {
        serde_json::from_str(&self.read("run_meta.json")).unwrap()
    }

    pub(crate) fn role(&self, role: &str) -> Value {
        serde_json::from_str(&self.read(&format!("roles/{role}/role_meta.json"))).unwrap()
    }

    pub(crate) fn events(&self) -> Vec<Value> {
        let text = fs::read_to_string(self.bundle().join("events.jsonl")).unwrap_or_default();
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        whole.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Returns `ev:role` of the events of kind `kinds`, in order.
    pub(crate) fn told(&self, kinds: &[&str]) -> Vec<String> {
        let told = self.events().into_iter().filter_map(|event| {
            let ev = event["ev"].as_str().unwrap();
            kinds.contains(&ev).then(|| format!("{ev}:{}", event["role"].as_str().unwrap_or_default()))
        });
        told.collect()
    }

    /// Returns `name:status` of every phase, in order.
    pub(crate) fn phases(&self) -> Vec<String> {
        let meta = self.meta();
        let phases = meta["phases"].as_array().unwrap().iter();
        phases
            .map(|phase| format!("{}:{}", phase["name"].as_str().unwrap(), phase["status"].as_str().unwrap()))
            .collect()
    }

    #[track_caller]
    pub(crate) fn wait_for_event(&self, ev: &str, role: &str) {
        wait_until(&format!("{ev} of {role}"), || {
            self.events().iter().any(|event| event["ev"] == ev && event["role"] == role)
        });
    }

    #[track_caller]
    pub(crate) fn wait_for_phase(&self, phase: &str) {
        wait_until(phase, || {
            self.events().iter().any(|event| event["ev"] == "task_started" && event["task"] == phase)
        });
    }

    /// Nothing runs, nothing is left where roles worked, the journal keeps its rules and the bundle is whole.
    #[track_caller]
    pub(crate) fn is_clean(&self) {
        self.lab.nothing_runs();
        self.verifies();
        journal_rules::check(&self.bundle());
        let left: Vec<_> = fs::read_dir(self.lab.path("cache/stead"))
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.file_name())
            .filter(|name| name.to_string_lossy().starts_with("run-"))
            .collect();
        assert!(left.is_empty(), "workdirs left: {left:?}");
    }

    #[track_caller]
    pub(crate) fn verifies(&self) {
        let checked = self.stead(["bundle", "verify", "runs/r", "--json"]).output().unwrap();
        let found: Value = serde_json::from_slice(&checked.stdout).unwrap();
        assert_eq!((&found["valid"], &found["errors"]), (&true.into(), &serde_json::json!([])), "{found}");
        let mut sums = Command::new("sha256sum");
        sums.args(["--check", "--quiet", "hashes.txt"]).current_dir(self.bundle());
        assert!(sums.status().unwrap().success());
    }

    /// Returns the codes of the run's warnings.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let meta = self.meta();
        meta["warnings"].as_array().unwrap().iter().map(|w| w["code"].as_str().unwrap().to_owned()).collect()
    }
}
