//! A directory with a plan in it, the binary run there, and what it told: report, events, files.
//!
//! Nothing here waits for a time. [`eventually`] waits for a state and has a bound only so that a test that would
//! hang forever fails instead.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::process::stead;

/// When waiting for a state is given up: far more than any machine needs.
const HANG: Duration = Duration::from_secs(100);

/// Waits until `look` finds something.
pub(super) fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(began.elapsed() < HANG, "gave up waiting for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Whether the process `pid` still does anything; one that only waits to be buried does not.
pub(super) fn is_alive(pid: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
    // The name before the state is in brackets and may itself hold any character.
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

/// Waits until a process has ended: what was killed may be a moment on its way out.
pub(super) fn wait_for_end(pid: &str) {
    eventually(&format!("the end of {pid}"), || (!is_alive(pid)).then_some(()));
}

/// A directory with a plan in it.
pub(super) struct Stage {
    dir: tempfile::TempDir,
}

impl Stage {
    pub(super) fn new(plan: &str) -> Self {
        let stage = Self { dir: tempfile::tempdir().unwrap() };
        stage.plan(plan);
        stage
    }

    /// Returns the stage of a plan of these tasks.
    pub(super) fn of(tasks: &str) -> Self {
        Self::new(&format!("api_version: v1\nname: p\ntasks:\n{tasks}"))
    }

    /// Replaces the plan.
    pub(super) fn plan(&self, text: &str) {
        std::fs::write(self.path("p.yaml"), text).unwrap();
    }

    /// Adds an inventory of hosts that are all this machine.
    pub(super) fn with_hosts(self, names: &[&str]) -> Self {
        let mut inventory = "api_version: v1\nhosts:\n".to_owned();
        for name in names {
            let zone = if *name == "h1" { "a" } else { "b" };
            inventory
                .push_str(&format!("  {name}: {{transport: local, labels: {{role: web, zone: {zone}}}}}\n"));
        }
        std::fs::write(self.path("inventory.yaml"), inventory).unwrap();
        self
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Returns a file's text, or nothing if it is not there.
    pub(super) fn text(&self, name: &str) -> Option<String> {
        std::fs::read_to_string(self.path(name)).ok()
    }

    /// Returns a file's lines; it may be missing.
    pub(super) fn lines(&self, name: &str) -> Vec<String> {
        self.text(name).unwrap_or_default().lines().map(str::to_owned).collect()
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.path(name).exists()
    }

    pub(super) fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path(name), text).unwrap();
    }

    /// Returns the command, to be run with any arguments.
    pub(super) fn stead(&self, args: &[&str]) -> Command {
        let mut command = stead(self.dir.path());
        command.args(args).args(["--state-dir", "state"]);
        command
    }

    /// Runs the plan to its end.
    pub(super) fn run(&self, args: &[&str]) -> Outcome {
        self.start(args).finish()
    }

    /// Starts the plan. Files stand in for pipes, so that nothing has to read along.
    pub(super) fn start(&self, args: &[&str]) -> Running<'_> {
        let mut command = self.stead(&["plan", "run", "p.yaml"]);
        command.args(["--json", "--events", "events.jsonl"]).args(args);
        if !args.contains(&"--run-id") {
            command.args(["--run-id", "r"]);
        }
        self.spawn(command)
    }

    /// Goes on with the run.
    pub(super) fn resume(&self, args: &[&str]) -> Outcome {
        let mut command = self.stead(&["resume", "r", "--json", "--events", "events.jsonl"]);
        command.args(args);
        self.spawn(command).finish()
    }

    fn spawn(&self, mut command: Command) -> Running<'_> {
        // Events of a run before this one must not be taken for events of this one.
        std::fs::remove_file(self.path("events.jsonl")).unwrap_or(());
        let file = |name: &str| Stdio::from(File::create(self.path(name)).unwrap());
        let child = command.stdout(file("stdout")).stderr(file("stderr")).spawn().unwrap();
        Running { stage: self, child }
    }
}

/// A run that goes on.
pub(super) struct Running<'a> {
    stage: &'a Stage,
    child: Child,
}

impl Running<'_> {
    /// Waits until a task has made a file.
    pub(super) fn wait_for_file(&self, name: &str) -> String {
        eventually(name, || self.stage.text(name).filter(|text| text.ends_with('\n')))
    }

    /// Waits until an event of this kind, about this task if one is named, was told.
    pub(super) fn wait_for_event(&self, kind: &str, task: Option<&str>) -> Value {
        eventually(kind, || {
            let about = |event: &Value| event["ev"] == kind && task.is_none_or(|task| event["task"] == task);
            events_in(&self.stage.path("events.jsonl")).into_iter().find(about)
        })
    }

    pub(super) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    pub(super) fn finish(mut self) -> Outcome {
        let status = eventually("the end of the run", || self.child.try_wait().unwrap());
        let stdout = self.stage.text("stdout").unwrap();
        let stderr = self.stage.text("stderr").unwrap();
        Outcome {
            code: status.code(),
            report: serde_json::from_str(&stdout).unwrap_or(Value::Null),
            events: events_in(&self.stage.path("events.jsonl")),
            stderr,
        }
    }
}

impl Drop for Running<'_> {
    /// A test that failed leaves nothing running: the second signal has everything killed.
    fn drop(&mut self) {
        for _ in 0..2 {
            if let Ok(None) = self.child.try_wait() {
                kill_process(Pid::from_child(&self.child), Signal::TERM).unwrap_or(());
                std::thread::sleep(Duration::from_millis(200));
            }
        }
        if let Ok(None) = self.child.try_wait() {
            std::thread::sleep(Duration::from_secs(2));
            self.child.kill().unwrap_or(());
        }
        self.child.wait().map(drop).unwrap_or(());
    }
}

/// Whole lines only: the last one may still be being written.
fn events_in(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.split_inclusive('\n')
        .filter(|line| line.ends_with('\n'))
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// What a run did.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) code: Option<i32>,
    pub(super) report: Value,
    pub(super) events: Vec<Value>,
    pub(super) stderr: String,
}

impl Outcome {
    /// Checks the exit code; what the run said is shown if it is another.
    #[track_caller]
    pub(super) fn exits(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "{}\n{:#}", self.stderr, self.report);
        if !self.report.is_null() {
            assert_eq!(self.report["exit_code"], code);
        }
        self
    }

    /// Returns every task with its status, in the order of the report.
    pub(super) fn statuses(&self) -> String {
        let rows = self.report["tasks"].as_array().unwrap_or_else(|| panic!("no report: {}", self.stderr));
        let shown: Vec<String> =
            rows.iter().map(|row| format!("{}={}", word(row, "name"), word(row, "status"))).collect();
        shown.join(" ")
    }

    #[track_caller]
    pub(super) fn task(&self, name: &str) -> &Value {
        let mut rows = self.report["tasks"].as_array().unwrap().iter();
        rows.find(|row| row["name"] == name).unwrap_or_else(|| panic!("no row of {name}"))
    }

    /// Returns a member of a task's row as text; empty if it has none.
    #[track_caller]
    pub(super) fn get(&self, task: &str, member: &str) -> String {
        word(self.task(task), member)
    }

    /// Returns `cause: reason` of a skipped task.
    #[track_caller]
    pub(super) fn skipped(&self, task: &str) -> String {
        assert_eq!(self.get(task, "status"), "skipped", "{:#}", self.task(task));
        format!("{}: {}", self.get(task, "cause"), self.get(task, "reason"))
    }

    /// Returns every host of a task with its status, in the order of the report.
    pub(super) fn hosts(&self, task: &str) -> String {
        let rows = self.task(task)["hosts"].as_array().unwrap();
        let shown: Vec<String> =
            rows.iter().map(|row| format!("{}={}", word(row, "host"), word(row, "status"))).collect();
        shown.join(" ")
    }

    #[track_caller]
    pub(super) fn host(&self, task: &str, host: &str) -> &Value {
        let mut rows = self.task(task)["hosts"].as_array().unwrap().iter();
        rows.find(|row| row["host"] == host).unwrap_or_else(|| panic!("no row of {task}@{host}"))
    }

    /// Returns the events of a kind.
    pub(super) fn of(&self, kind: &str) -> Vec<&Value> {
        self.events.iter().filter(|event| event["ev"] == kind).collect()
    }

    /// Returns the events of a kind about a task.
    pub(super) fn about(&self, kind: &str, task: &str) -> Vec<&Value> {
        self.of(kind).into_iter().filter(|event| event["task"] == task).collect()
    }

    /// Returns where in the event log the first event of a kind about a task is.
    #[track_caller]
    pub(super) fn when(&self, kind: &str, task: &str) -> usize {
        let about = |event: &Value| event["ev"] == kind && event["task"] == task;
        self.events.iter().position(about).unwrap_or_else(|| panic!("no {kind} of {task}"))
    }

    /// Returns how many attempts went on at once at most, counting those that `counts` names.
    pub(super) fn most_at_once(&self, counts: impl Fn(&Value) -> bool) -> usize {
        let (mut now, mut most) = (0_usize, 0);
        for event in self.events.iter().filter(|event| counts(event)) {
            match event["ev"].as_str().unwrap() {
                "attempt_started" => now += 1,
                "attempt_failed" => now -= 1,
                // A row that was decided without an attempt has none to end.
                "host_result" if event["attempt"] != 0 && event["status"] != "not_run" => now -= 1,
                _ => {}
            }
            most = most.max(now);
        }
        most
    }
}

fn word(value: &Value, member: &str) -> String {
    match &value[member] {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other @ (Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_)) => other.to_string(),
    }
}
