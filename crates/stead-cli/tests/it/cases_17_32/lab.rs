//! A place of its own for one test: a directory, a state directory in it, and every process started there.
//!
//! Tasks inherit the variable `STEAD_LAB`, so whatever a run leaves running is found by it, and ended.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::journal_rules;

/// How long a state may take to come; a test that waits longer has failed.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a command did.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ended {
    #[track_caller]
    pub(crate) fn exits(self, wanted: i32) -> Self {
        assert_eq!(self.code, wanted, "{}\n{}", self.stdout, self.stderr);
        self
    }

    /// Returns standard output as the one JSON document it must be.
    #[track_caller]
    pub(crate) fn document(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    #[track_caller]
    pub(crate) fn says(self, wanted: &str) -> Self {
        assert!(self.stdout.contains(wanted) || self.stderr.contains(wanted), "no `{wanted}` in {self:?}");
        self
    }
}

impl From<Output> for Ended {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

pub(crate) struct Lab {
    dir: tempfile::TempDir,
    /// Whether a test damages journals here on purpose.
    damaged: bool,
}

impl Lab {
    /// Returns a new place with `plan` in `p.yaml`; in plans, `@/` is the place.
    pub(crate) fn new(plan: &str) -> Self {
        let lab = Self { dir: tempfile::tempdir().unwrap(), damaged: false };
        lab.write_plan(plan);
        lab
    }

    pub(crate) fn write_plan(&self, plan: &str) {
        self.write("p.yaml", plan.replace("@/", &format!("{}/", self.root().display())));
    }

    /// As [`new`](Self::new), for tests that write into journals themselves.
    pub(crate) fn for_damage(plan: &str) -> Self {
        let mut lab = Self::new(plan);
        lab.damaged = true;
        lab
    }

    pub(crate) fn root(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, content: impl AsRef<[u8]>) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    /// Returns a file's text; nothing if it does not exist.
    pub(crate) fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    pub(crate) fn bundle(&self, run: &str) -> PathBuf {
        self.path("state/runs").join(run)
    }

    pub(crate) fn report(&self, run: &str) -> Value {
        serde_json::from_slice(&fs::read(self.bundle(run).join("report.json")).unwrap()).unwrap()
    }

    pub(crate) fn events(&self, run: &str) -> Vec<Value> {
        let journal = fs::read_to_string(self.bundle(run).join("events.jsonl")).unwrap_or_default();
        // The last line may be in the middle of being written.
        let whole = journal.rfind('\n').map_or("", |end| &journal[..end]);
        whole.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Returns the command with this lab's state directory and an environment of its own.
    pub(crate) fn stead<'a>(&self, args: impl IntoIterator<Item = &'a str>) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_stead"));
        command.env_clear().env("PATH", "/usr/bin:/bin").env("STEAD_LAB", self.root());
        command.current_dir(self.root()).stdin(Stdio::null());
        command.arg("--state-dir").arg(self.path("state")).args(args);
        command
    }

    pub(crate) fn run<'a>(&self, args: impl IntoIterator<Item = &'a str>) -> Ended {
        self.stead(args).output().unwrap().into()
    }

    /// Runs `p.yaml`.
    pub(crate) fn plan(&self, args: &[&str]) -> Ended {
        self.run(["plan", "run", "p.yaml"].into_iter().chain(args.iter().copied()))
    }

    /// Runs `p.yaml` and returns its report.
    #[track_caller]
    pub(crate) fn plan_report(&self, args: &[&str], code: i32) -> Value {
        let args = ["plan", "run", "p.yaml", "--json"].into_iter().chain(args.iter().copied());
        self.run(args).exits(code).document()
    }

    pub(crate) fn start<'a>(&self, args: impl IntoIterator<Item = &'a str>) -> Running {
        let mut command = self.stead(args);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        Running(Some(command.spawn().unwrap()))
    }

    /// Starts `p.yaml` as the run `run`.
    pub(crate) fn start_plan(&self, run: &str, args: &[&str]) -> Running {
        self.start(["plan", "run", "p.yaml", "--run-id", run].into_iter().chain(args.iter().copied()))
    }

    #[track_caller]
    pub(crate) fn wait_for_file(&self, name: &str) {
        wait_until(name, || self.path(name).exists());
    }

    /// Returns live processes that runs of this lab started, except the command itself.
    pub(crate) fn processes(&self) -> Vec<(u32, String)> {
        let mut mark = b"STEAD_LAB=".to_vec();
        mark.extend_from_slice(self.root().as_os_str().as_encoded_bytes());
        let mut found = Vec::new();
        for entry in fs::read_dir("/proc").unwrap().flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
                continue;
            };
            let environ = fs::read(entry.path().join("environ")).unwrap_or_default();
            if environ.split(|byte| *byte == 0).any(|variable| variable == mark) {
                let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
                found.push((pid, String::from_utf8_lossy(&line).replace('\0', " ")));
            }
        }
        found
    }

    #[track_caller]
    pub(crate) fn nothing_runs(&self) {
        let left = when_quiet(|| self.processes());
        assert!(left.is_empty(), "left running: {left:?}");
    }

    #[track_caller]
    pub(crate) fn verify(&self, run: &str) {
        let bundle = self.bundle(run);
        self.run(["bundle", "verify", bundle.to_str().unwrap()]).exits(0);
    }

    /// Returns every file below `name` with kind, mode, time of change and content.
    pub(crate) fn snapshot(&self, name: &str) -> BTreeMap<PathBuf, String> {
        let mut found = BTreeMap::new();
        let mut todo = vec![self.path(name)];
        while let Some(path) = todo.pop() {
            let Ok(meta) = fs::symlink_metadata(&path) else { continue };
            let content = if meta.is_dir() {
                todo.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
                Vec::new()
            } else if meta.is_symlink() {
                fs::read_link(&path).unwrap().into_os_string().into_encoded_bytes()
            } else {
                fs::read(&path).unwrap()
            };
            let seen = format!(
                "{:o} {} {} {}.{} {:?}",
                meta.mode(),
                meta.uid(),
                meta.ino(),
                meta.mtime(),
                meta.mtime_nsec(),
                String::from_utf8_lossy(&content)
            );
            found.insert(path, seen);
        }
        found
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        let left = when_quiet(|| self.processes());
        for (pid, _) in &left {
            kill(*pid, Signal::KILL);
        }
        if std::thread::panicking() {
            return;
        }
        assert!(left.is_empty(), "left running: {left:?}");
        if !self.damaged {
            for run in fs::read_dir(self.path("state/runs")).into_iter().flatten().flatten() {
                journal_rules::check(&run.path());
            }
        }
    }
}

/// Returns the processes that are left. What was killed may be a moment on its way out.
pub(crate) fn when_quiet(processes: impl Fn() -> Vec<(u32, String)>) -> Vec<(u32, String)> {
    let end = Instant::now() + Duration::from_secs(10);
    loop {
        let left = processes();
        if left.is_empty() || std::thread::panicking() || Instant::now() >= end {
            return left;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

pub(crate) fn kill(pid: u32, signal: Signal) {
    kill_process(Pid::from_raw(i32::try_from(pid).unwrap()).unwrap(), signal).ok();
}

/// A command in progress; killed when dropped.
pub(crate) struct Running(Option<Child>);

impl Running {
    pub(crate) fn of(child: Child) -> Self {
        Self(Some(child))
    }

    pub(crate) fn pid(&self) -> u32 {
        self.0.as_ref().unwrap().id()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(self.pid(), signal);
    }

    pub(crate) fn is_over(&mut self) -> bool {
        self.0.as_mut().unwrap().try_wait().unwrap().is_some()
    }

    /// Kills the driver, and nothing but the driver, with SIGKILL.
    pub(crate) fn kill_hard(mut self) {
        let mut child = self.0.take().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    pub(crate) fn end(mut self) -> Ended {
        self.0.take().unwrap().wait_with_output().unwrap().into()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            child.kill().ok();
            child.wait().ok();
        }
    }
}

/// Looks until `holds`, and fails when it takes too long.
#[track_caller]
pub(crate) fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < end, "never came: {what}");
        std::thread::sleep(Duration::from_millis(3));
    }
}

/// Returns the row of a task.
#[track_caller]
pub(crate) fn task<'a>(report: &'a Value, name: &str) -> &'a Value {
    let rows = report["tasks"].as_array().unwrap();
    rows.iter().find(|row| row["name"] == name).unwrap_or_else(|| panic!("no row `{name}` in {report}"))
}

/// Returns `name:status` of every task, in plan order.
pub(crate) fn statuses(report: &Value) -> Vec<String> {
    let rows = report["tasks"].as_array().unwrap().iter();
    rows.map(|row| format!("{}:{}", row["name"].as_str().unwrap(), row["status"].as_str().unwrap())).collect()
}

/// Returns what a resumed run's report has in common with that of an uninterrupted one.
pub(crate) fn essence(report: &Value) -> Value {
    let pick = |row: &Value, keys: &[&str]| -> Value {
        keys.iter().map(|key| ((*key).to_owned(), row[*key].clone())).collect()
    };
    let tasks = report["tasks"].as_array().unwrap().iter().map(|row| {
        let mut task = pick(
            row,
            &["name", "section", "status", "changed", "partial", "cause", "reason", "class", "error", "data"],
        );
        let hosts = row["hosts"].as_array().unwrap().iter();
        task["hosts"] = hosts
            .map(|row| {
                pick(
                    row,
                    &["host", "status", "changed", "class", "error", "reason", "exit_code", "data", "diff"],
                )
            })
            .collect();
        task
    });
    let mut whole = pick(report, &["status", "exit_code", "counts", "plan", "plan_hash", "errors"]);
    whole["tasks"] = tasks.collect();
    whole
}

/// Returns the path of a program, or says that its check is left out.
#[expect(clippy::print_stderr, reason = "a check that is left out is said")]
pub(crate) fn program(name: &str) -> Option<PathBuf> {
    let found = ["/usr/bin", "/bin", "/usr/local/bin"]
        .iter()
        .map(|dir| Path::new(dir).join(name))
        .find(|path| path.exists());
    if found.is_none() {
        assert!(std::env::var_os("STEAD_CI").is_none(), "{name} is not installed");
        eprintln!("{name} is not installed: its check is left out");
    }
    found
}
