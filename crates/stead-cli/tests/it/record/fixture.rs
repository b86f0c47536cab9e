//! Bundles of runs with a server and a client, written file by file.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use stead_model::event::{EventKind, encode};
use stead_model::plan::Digest;
use stead_model::time::Timestamp;

use crate::process::stead;

/// Runs the command; returns exit code, standard output and standard error.
pub(super) fn run(dir: &Path, args: &[&str]) -> (i32, String, String) {
    let output = stead(dir).args(args).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

/// Runs a command that has to succeed and print JSON.
pub(super) fn json_of(dir: &Path, args: &[&str]) -> Value {
    let (code, stdout, stderr) = run(dir, args);
    assert_eq!(code, 0, "{args:?}: {stdout}{stderr}");
    serde_json::from_str(&stdout).unwrap()
}

/// A role to write.
#[derive(Clone, Debug, Default)]
pub(super) struct Role {
    pub(super) name: &'static str,
    pub(super) kind: &'static str,
    pub(super) status: &'static str,
    pub(super) exit_code: Option<i32>,
    pub(super) stdout: String,
    pub(super) stderr: String,
    /// Name and content.
    pub(super) artifacts: Vec<(&'static str, Vec<u8>)>,
}

impl Role {
    pub(super) fn server() -> Self {
        let stdout = "{\"event\":\"server_ready\"}\nserved 1\nserved 2\n".to_owned();
        Self {
            name: "server",
            kind: "service",
            status: "success",
            exit_code: Some(0),
            stdout,
            ..Self::default()
        }
    }

    pub(super) fn client() -> Self {
        let (stdout, stderr) = ("asked 1\nasked 2".to_owned(), "slow\n".to_owned());
        Self {
            name: "client",
            kind: "task",
            status: "success",
            exit_code: Some(0),
            stdout,
            stderr,
            ..Self::default()
        }
    }

    pub(super) fn with(mut self, name: &'static str, content: impl Into<Vec<u8>>) -> Self {
        self.artifacts.push((name, content.into()));
        self
    }

    fn write(&self, bundle: &Path) {
        let directory = bundle.join("roles").join(self.name);
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join("stdout.log"), &self.stdout).unwrap();
        fs::write(directory.join("stderr.log"), &self.stderr).unwrap();
        for (name, content) in &self.artifacts {
            fs::write(directory.join(name), content).unwrap();
        }
        let artifacts: Vec<Value> = self
            .artifacts
            .iter()
            .map(|(name, content)| json!({"path": name, "bytes": content.len(), "sha256": Digest::of(content)}))
            .collect();
        let captures: Vec<_> =
            self.artifacts.iter().map(|(name, _)| *name).filter(|name| name.ends_with(".pcap")).collect();
        let started = self.status != "not_started";
        let time = |second: u32| started.then(|| format!("2026-01-02T03:04:{second:02}.000000Z"));
        let meta = json!({
            "role": self.name, "kind": self.kind, "agent_id": "local", "transport": "local",
            "argv": [self.name, "--go"], "env_names": [], "workdir": "/w", "status": self.status, "pid": 7,
            "started_at": time(6), "finished_at": time(9), "exit_code": self.exit_code,
            "stdout_bytes": self.stdout.len(), "stderr_bytes": self.stderr.len(), "pcap_files": captures,
            "artifacts": artifacts, "max_rss_bytes": 1, "cpu_ms": 1,
        });
        fs::write(directory.join("role_meta.json"), pretty(&meta)).unwrap();
    }
}

pub(super) fn pretty(value: &Value) -> String {
    format!("{}\n", serde_json::to_string_pretty(value).unwrap())
}

/// Writes a sealed bundle of kind `run` to `dir/id`.
pub(super) fn write_run(dir: &Path, id: &str, status: &str, roles: &[Role]) -> PathBuf {
    let bundle = dir.join(id);
    fs::create_dir_all(&bundle).unwrap();
    for role in roles {
        role.write(&bundle);
    }
    let failed = status != "success";
    let phase = |name: &str, status: &str, from: u32, to: u32| {
        json!({
            "name": name, "status": status,
            "started_at": format!("2026-01-02T03:04:{from:02}.000000Z"),
            "finished_at": format!("2026-01-02T03:04:{to:02}.500000Z"),
        })
    };
    let mut phases = vec![phase("init", "done", 5, 5), phase("stage", "done", 5, 5)];
    for role in roles {
        let done = if role.exit_code == Some(0) { "done" } else { "failed" };
        phases.push(phase(&format!("{}_start", role.name), "done", 6, 6));
        let last = if role.kind == "service" { "ready" } else { "done" };
        phases.push(phase(&format!("{}_{last}", role.name), done, 6, 9));
    }
    phases.push(json!({"name": "analyze", "status": "skipped"}));
    let mut meta = json!({
        "schema": 1, "kind": "run", "run_id": id, "status": status, "exit_code": i32::from(failed),
        "started_at": "2026-01-02T03:04:05.000000Z", "finished_at": "2026-01-02T03:04:10.000000Z",
        "duration_seconds": 5.0, "ended_by": if failed { "failure" } else { "tasks" }, "driver_host": "here",
        "plan_hash": Digest::of(b"{}\n"), "seed": 0, "phases_completed": ["init", "stage"], "phases": phases,
        "warnings": [{"code": "run/role-killed", "text": "it had to be killed", "role": "server"}],
    });
    if failed {
        meta["failed_phase"] = "client_done".into();
        meta["error"] = "client exited with 42".into();
    }
    fs::write(bundle.join("run_meta.json"), pretty(&meta)).unwrap();
    for name in ["plan.json", "report.json", "versions.json"] {
        fs::write(bundle.join(name), "{}\n").unwrap();
    }
    fs::write(bundle.join("manifest.yaml"), "api_version: v1\n").unwrap();
    let resolved = "manifest: {network: {data_plane: {target_port: 44818}}}\n";
    fs::write(bundle.join("manifest_resolved.yaml"), resolved).unwrap();
    write_events(&bundle, id, roles);
    stead_bundle::seal(&bundle).unwrap();
    bundle
}

/// Writes the journal: each role is started, says everything in two pieces per stream, and ends.
fn write_events(bundle: &Path, id: &str, roles: &[Role]) {
    let mut lines = Vec::new();
    let (mut seq, mut micros) = (0, Timestamp::parse("2026-01-02T03:04:05Z").unwrap().as_micros());
    let mut add = |event: Value| {
        seq += 1;
        micros += 100_000;
        let kind: EventKind = serde_json::from_value(event).unwrap();
        encode(seq, Timestamp::from_micros(micros), &kind, &mut lines);
    };
    add(json!({
        "ev": "run_started", "run_id": id, "kind": "run", "plan": "run", "plan_hash": Digest::of(b"{}\n"),
        "schema": 1, "stead_version": "0.1.0", "mode": "run", "tasks": 5,
    }));
    add(json!({"ev": "task_started", "task": "init"}));
    for role in roles {
        add(json!({"ev": "task_started", "task": format!("{}_start", role.name)}));
        add(
            json!({"ev": "role_started", "role": role.name, "agent": "local", "pid": 7, "argv": [role.name]}),
        );
        for (stream, text) in [("stdout", &role.stdout), ("stderr", &role.stderr)] {
            let cut = text.len() / 2;
            for (offset, len) in [(0, cut), (cut, text.len() - cut)] {
                if len > 0 {
                    add(json!({
                        "ev": "log", "task": role.name, "host": "local", "attempt": 1, "stream": stream,
                        "file": format!("roles/{}/{stream}.log", role.name), "offset": offset, "len": len,
                    }));
                }
            }
        }
        add(json!({"ev": "role_exited", "role": role.name, "exit_code": role.exit_code, "duration_ms": 300}));
    }
    fs::write(bundle.join("events.jsonl"), lines).unwrap();
}
