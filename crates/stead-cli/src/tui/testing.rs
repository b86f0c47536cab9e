//! A screen for tests: keys in, intents and drawn text out. No terminal, no clock, no files.

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use serde_json::{Value, json};
use stead_model::event::{Artifact, Counts, Mode};
use stead_model::event::{
    RoleExited, RoleReady, RoleStarted, RoleStop, RunFinished, RunKind, RunStarted, Stream, TaskResult,
};
use stead_model::plan::Digest;
use stead_model::time::Timestamp;
use stead_model::{Event, EventKind, ExitCode, HostName, PlanName, RunId, RunStatus, Status, TaskName};

use super::form::{Manifest, RoleLine};
use super::key::Key;
use super::state::{Intent, Message, State};
use super::theme::Theme;
use super::update::update;
use super::view::view;
use crate::output::Paint;

/// A screen.
pub(super) struct TestScreen {
    pub(super) state: State,
    events: u64,
}

impl TestScreen {
    /// Returns a screen of 80 by 24 that has just begun.
    pub(super) fn new() -> Self {
        Self { state: State::new(Timestamp::from_micros(0), (80, 24)), events: 0 }
    }

    /// Takes a message and returns what it makes the screen want.
    pub(super) fn send(&mut self, message: Message) -> Vec<Intent> {
        update(&mut self.state, message)
    }

    /// Presses keys: one for each character of `text`.
    pub(super) fn type_text(&mut self, text: &str) -> Vec<Intent> {
        text.chars().flat_map(|c| self.press(Key::Char(c))).collect()
    }

    /// Presses a key.
    pub(super) fn press(&mut self, key: Key) -> Vec<Intent> {
        self.send(Message::Key(key))
    }

    /// Lets something happen in the run called `key`, ten milliseconds after the last.
    pub(super) fn happen(&mut self, key: u64, kind: EventKind) -> Vec<Intent> {
        self.events += 1;
        let t = Timestamp::from_micros(i64::try_from(self.events).unwrap() * 10_000);
        self.send(Message::Tick(t));
        self.send(Message::RunEvent { key, event: Box::new(Event { seq: self.events, t, kind }) })
    }

    /// Draws the screen and returns its lines, blanks at their ends cut off.
    pub(super) fn draw(&self) -> String {
        let (columns, rows) = self.state.size;
        let mut terminal = Terminal::new(TestBackend::new(columns, rows)).unwrap();
        terminal.draw(|frame| view(&self.state, Theme::new(Paint::None), frame)).unwrap();
        let buffer = terminal.backend().buffer();
        let line = |y: u16| -> String {
            let cells = (0..columns).map(|x| buffer[(x, y)].symbol());
            cells.collect::<String>().trim_end().to_owned()
        };
        (0..rows).map(line).collect::<Vec<_>>().join("\n")
    }

    /// Whether `text` is on the screen.
    pub(super) fn shows(&self, text: &str) -> bool {
        self.draw().contains(text)
    }

    /// Goes to the Controller with a manifest, starts a run and returns its key.
    pub(super) fn start(&mut self) -> u64 {
        self.press(Key::Char('o'));
        self.state.controller.form.set_manifest("lab.yaml");
        let intents = self.press(Key::Char('r'));
        let [Intent::Run { key, .. }] = intents.as_slice() else { panic!("{intents:?}") };
        let key = *key;
        self.send(Message::RunPlanned { key, manifest: manifest(), runs_dir: "/lab/runs".into() });
        key
    }
}

/// What a master says of a fleet with one instance that does not start, a held generation and a lost worker.
pub(super) fn fleet_status() -> Value {
    let commit = "2fa0982e8386c9a1b2c3d4e5f60718293a4b5c6d";
    json!({
        "schema": 1, "fleet": "lab", "seq": 9, "at": "2026-11-15T10:00:00Z", "state": "degraded",
        "convergence_percent": 50, "generation": 3, "commit": commit,
        "leader": {"name": "m1", "epoch": 1}, "store": {"kind": "file", "state": "ok"},
        "watcher": {"ref": "refs/heads/main", "state": "ok"},
        "groups": [{"group": "lab", "head": commit, "evaluated": null,
            "active": {"generation": 3, "commit": commit, "since": "2026-11-15T09:00:00Z"},
            "held": {"generation": 4, "commit": commit, "code": "too-many-stops",
                "stops": 2, "running": 2, "message": "it would stop 2 of 2", "approve": "sha256:00"},
            "suspended": false, "why": "generation 4 waits"}],
        "counts": {"desired": 2, "converged": 1, "converging": 0, "failed": 1, "unschedulable": 0, "orphans": 0},
        "workers": [
            {"id": "w1", "state": "ready", "instances": 1, "since": "2026-11-15T09:00:00Z", "seen_generation": 3},
            {"id": "w2", "state": "lost", "instances": 1, "code": "lost", "message": "look at the machine"}],
        "instances": [
            {"key": "web/0", "group": "lab", "worker": "w1", "state": "running", "ready": true, "drifted": false},
            {"key": "web/1", "group": "lab", "worker": "w2", "state": "backoff", "ready": false, "attempts": 3,
                "code": "crash-loop", "message": "it ends again and again: read its log"}],
        "rollouts": [
            {"vm": "cache", "state": "done", "updated": 1, "total": 1},
            {"vm": "web", "state": "held", "updated": 1, "total": 2, "code": "crash-loop", "message": "mend it"}],
        "brake": {"active": false}, "holds": [],
    })
}

/// What `stead status` says of a lab with a node in a node, and one that is gone.
pub(super) fn nodes_status() -> Value {
    let digest = format!("sha256:{}", "ab".repeat(32));
    let node = |name: &str, parent: Option<&str>| {
        json!({"name": name, "parent": parent, "on": "local", "manifest": "lab", "status": "completed",
            "type": "vm", "driver": "sandbox", "machine": "running", "agent": "none", "mode": "push",
            "converged": true, "ip": "127.0.0.1", "ssh_port": 40001, "spec": "base", "spec_digest": digest,
            "machine_id": format!("lab-{name}"), "last_seen": null})
    };
    let mut gone = node("gone", None);
    (gone["machine"], gone["converged"]) = (json!("absent"), json!(false));
    (gone["code"], gone["why"]) = (json!("node/gone"), json!("its machine is not there any more"));
    (gone["mode"], gone["agent"], gone["ip"]) = (json!("pull"), json!("stale"), json!(null));
    json!({"nodes": [node("edge", None), node("leaf", Some("edge")), gone], "problems": [], "manifests": ["lab"]})
}

/// A manifest with a server and a client.
pub(super) fn manifest() -> Manifest {
    let role = |name: &str, kind: &str, agent: &str, transport: &str| RoleLine {
        name: name.to_owned(),
        kind: kind.to_owned(),
        agent: agent.to_owned(),
        transport: transport.to_owned(),
    };
    let phases = "init stage server_start server_ready client_start client_done server_stop collect bundle analyze diff";
    Manifest {
        roles: vec![
            role("server", "service", "edge", "ssh://lab@10.20.0.7:2222"),
            role("client", "task", "local", "local"),
        ],
        phases: phases.split(' ').map(str::to_owned).collect(),
        warnings: Vec::new(),
    }
}

pub(super) fn task(name: &str) -> TaskName {
    TaskName::parse(name).unwrap()
}

pub(super) fn run_started(kind: RunKind) -> EventKind {
    EventKind::RunStarted(Box::new(RunStarted {
        run_id: RunId::parse("2026-11-15_10-00-00").unwrap(),
        kind,
        plan: PlanName::parse("lab").unwrap(),
        plan_hash: Digest::of(b"plan"),
        schema: 1,
        stead_version: "0.1.0".to_owned(),
        mode: Mode::Run,
        tasks: 11,
        trigger: None,
    }))
}

pub(super) fn phase_started(name: &str) -> EventKind {
    EventKind::TaskStarted { task: task(name), hosts: Vec::new(), batches: Vec::new() }
}

pub(super) fn phase_ended(name: &str, status: Status, error: Option<&str>) -> EventKind {
    let mut result = TaskResult::new(status);
    (result.duration_ms, result.error) = (1_200, error.map(str::to_owned));
    EventKind::TaskFinished { task: task(name), result: Box::new(result) }
}

pub(super) fn role_started(role: &str, agent: &str) -> EventKind {
    let (role, agent) = (role.to_owned(), agent.to_owned());
    let argv = vec!["x".to_owned()];
    let started =
        RoleStarted { role, agent, pid: 42, argv, workdir: None, program: None, program_sha256: None };
    EventKind::RoleStarted(Box::new(started))
}

pub(super) fn role_ready(role: &str) -> EventKind {
    let by = "tcp_connect".to_owned();
    EventKind::RoleReady(Box::new(RoleReady {
        role: role.to_owned(),
        by,
        values: Default::default(),
        after_ms: 5,
    }))
}

pub(super) fn role_stop(role: &str) -> EventKind {
    let (signal, reason) = ("TERM".to_owned(), "signal".to_owned());
    EventKind::RoleStop(Box::new(RoleStop { role: role.to_owned(), signal, reason }))
}

pub(super) fn role_exited(role: &str, exit_code: Option<i32>, signal: Option<&str>) -> EventKind {
    let signal = signal.map(str::to_owned);
    EventKind::RoleExited(Box::new(RoleExited { role: role.to_owned(), exit_code, signal, duration_ms: 9 }))
}

pub(super) fn artifact(role: &str, path: &str, bytes: u64) -> EventKind {
    let (role, path) = (role.to_owned(), path.to_owned());
    EventKind::Artifact(Box::new(Artifact { role, path, bytes, sha256: Digest::of(b"x") }))
}

pub(super) fn wrote(role: &str, stream: Stream, offset: u64, len: u64) -> EventKind {
    EventKind::Log {
        task: task(role),
        host: Some(HostName::parse("local").unwrap()),
        attempt: 1,
        stream,
        file: format!("roles/{role}/{}.log", stream.as_str()),
        offset,
        len,
    }
}

pub(super) fn run_ended(status: RunStatus) -> EventKind {
    EventKind::RunFinished(Box::new(RunFinished {
        status,
        exit_code: ExitCode::Success,
        counts: Counts::default(),
        duration_ms: 12_345,
        error: None,
    }))
}
