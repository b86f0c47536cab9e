//! Faults at every point of a push: the connection is cut after N bytes, for N over the whole conversation, for a
//! moment or for good; the driver is killed there; the session is killed after every operation; the server is killed.
//! Each time nothing is left running or half written, the report is true, and a resume completes the run with nothing
//! done twice.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use serde_json::json;
use stead_drivers::Drivers;
use stead_drivers::transport::{Notices, Surroundings, Transports};
use stead_model::inventory::{ExecutorMode, Host, Inventory};
use stead_model::transport::{SshSpec, TransportSpec};
use stead_model::{ErrorClass, ExitCode, HostName, Report, RunId, Status, TaskName};
use stead_runner::author::Plan;
use stead_runner::remote::Reach;
use stead_runner::{CheckedPlan, ResumeOptions, Runner};
use stead_testkit::sshd::{self, Sshd};

use super::direct::{Place, op, processes_with, stead};
use super::over_ssh::Driver;

/// Short, so that a host that stays away is given up soon.
const LEASE: Duration = Duration::from_secs(2);
/// For what is to succeed.
const PATIENT: Duration = Duration::from_secs(15);

/// Carries connections to a server and counts their bytes, until it is told to cut them.
struct Proxy {
    port: u16,
    way: Arc<Way>,
}

struct Way {
    to: u16,
    passed: AtomicU64,
    /// After this many bytes everything is cut; for ever, if it stays away.
    cut_at: AtomicU64,
    stays_away: AtomicBool,
    is_away: AtomicBool,
    /// Instead of cutting, nothing passes from there on until the connection is gone.
    stalls: AtomicBool,
    is_stalled: AtomicBool,
    is_over: AtomicBool,
}

impl Proxy {
    fn to(port: u16) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let own = listener.local_addr().unwrap().port();
        let way = Arc::new(Way {
            to: port,
            passed: AtomicU64::new(0),
            cut_at: AtomicU64::new(u64::MAX),
            stays_away: AtomicBool::new(false),
            is_away: AtomicBool::new(false),
            stalls: AtomicBool::new(false),
            is_stalled: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
        });
        let accepting = Arc::clone(&way);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if accepting.is_over.load(Ordering::SeqCst) {
                    return;
                }
                // Dropped without a word while it is away.
                if !accepting.is_away.load(Ordering::SeqCst) {
                    accepting.carry(&stream);
                }
            }
        });
        Self { port: own, way }
    }

    /// Cuts after `bytes` from now on.
    fn cut_after(&self, bytes: u64, stays_away: bool) {
        self.way.is_away.store(false, Ordering::SeqCst);
        self.way.stays_away.store(stays_away, Ordering::SeqCst);
        self.way.passed.store(0, Ordering::SeqCst);
        self.way.cut_at.store(bytes, Ordering::SeqCst);
    }

    /// Lets nothing pass after `bytes` from now on.
    fn stall_after(&self, bytes: u64) {
        self.way.is_stalled.store(false, Ordering::SeqCst);
        self.way.stalls.store(true, Ordering::SeqCst);
        self.cut_after(bytes, false);
    }

    fn is_stalled(&self) -> bool {
        self.way.is_stalled.load(Ordering::SeqCst)
    }

    fn heal(&self) {
        self.way.stalls.store(false, Ordering::SeqCst);
        self.cut_after(u64::MAX, false);
    }

    fn passed(&self) -> u64 {
        self.way.passed.load(Ordering::SeqCst)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.way.is_over.store(true, Ordering::SeqCst);
        drop(TcpStream::connect(("127.0.0.1", self.port)));
    }
}

impl Way {
    /// Holds what came until it is healed.
    fn stall(&self) {
        self.is_stalled.fetch_or(self.stalls.load(Ordering::SeqCst), Ordering::SeqCst);
        while self.stalls.load(Ordering::SeqCst) && !self.is_over.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn carry(self: &Arc<Self>, client: &TcpStream) {
        let Ok(server) = TcpStream::connect(("127.0.0.1", self.to)) else { return };
        for (from, to) in [(client, &server), (&server, client)] {
            let (mut from, mut to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
            let way = Arc::clone(self);
            std::thread::spawn(move || {
                let mut buffer = [0; 1024];
                while let Ok(count @ 1..) = from.read(&mut buffer) {
                    let before = way.passed.fetch_add(count as u64, Ordering::SeqCst);
                    let left = way.cut_at.load(Ordering::SeqCst).saturating_sub(before);
                    let count = count.min(usize::try_from(left).unwrap_or(usize::MAX));
                    let sent = to.write_all(&buffer[..count]).is_ok();
                    if !sent || count as u64 == left {
                        way.is_away.fetch_or(sent && way.stays_away.load(Ordering::SeqCst), Ordering::SeqCst);
                        way.cut_at.store(u64::MAX, Ordering::SeqCst);
                        way.stall();
                        break;
                    }
                }
                drop((from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both)));
            });
        }
    }
}

/// A target behind SSH, and what is done to it. Every push has a directory of its own there.
struct Pushes {
    dir: tempfile::TempDir,
    /// A killed writer leaves its temporary file to the next one of the same path.
    kills_writers: bool,
}

impl Pushes {
    fn new() -> Self {
        let pushes = Self { dir: tempfile::tempdir().unwrap(), kills_writers: false };
        let source: Vec<u8> = (0..24_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        fs::write(pushes.path("source"), source).unwrap();
        fs::create_dir(pushes.path("base")).unwrap();
        pushes
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn runner(&self, spec: SshSpec, lease: Duration) -> Runner {
        let host = Host {
            workdir: Some(self.path("base").display().to_string()),
            executor: ExecutorMode::Always,
            ..Host::reached_by(TransportSpec::Ssh(Box::new(spec)))
        };
        let mut inventory = Inventory::default();
        inventory.hosts.insert(HostName::parse("web1").unwrap(), host);
        let transports = Transports::new(Surroundings::default(), Notices::ignored());
        let mut reach = Reach::new(Arc::new(transports), stead());
        reach.lease = lease;
        Runner::new(Drivers::standard())
            .inventory(inventory)
            .reach(reach)
            .record_in(self.path("state"))
            .environment(BTreeMap::new())
    }

    /// Six operations, one after the other; the fourth must not be repeated unless somebody says so.
    fn plan(&self, name: &str) -> CheckedPlan {
        let place = self.path(name);
        fs::create_dir_all(&place).unwrap();
        let file = |name: &str| place.join(name).display().to_string();
        let mut plan = Plan::builder("push");
        plan.operations(&Drivers::standard()).grace(Duration::from_millis(300));
        let script = format!("echo line; echo x >> {}; sleep 0.05", file("count"));
        let steps = [
            ("first", "file.present", json!({"path": file("first"), "content": "first\n"})),
            ("large", "file.present", json!({"path": file("large"), "source": "source", "mode": "0640"})),
            ("line", "file.line", json!({"path": file("first"), "line": "second"})),
            ("once", "command.shell", json!({"script": script})),
            ("link", "file.symlink", json!({"path": file("link"), "to": "first"})),
            ("last", "file.directory", json!({"path": file("last"), "mode": "0711"})),
        ];
        let mut before = None;
        for (name, operation, params) in steps {
            let mut task = plan.op(name, op(operation, params)).on("web1");
            if let Some(before) = before {
                task = task.after(before);
            }
            before = Some(task.handle());
        }
        plan.build().unwrap().with_base_dir(self.dir.path().to_owned())
    }

    /// The same six operations for the command, which has a state directory of its own.
    fn drive(&self, push: &str) -> Command {
        let place = self.path(push);
        fs::create_dir_all(&place).unwrap();
        let text = "api_version: v1\nname: push\ngrace: 300ms\ndefaults: {target: web1}\ntasks:\n\
             \x20 - {name: first, op: file.present, params: {path: @/first, content: \"first\\n\"}}\n\
             \x20 - {name: large, depends_on: first, op: file.present, params: {path: @/large, source: source, mode: '0640'}}\n\
             \x20 - {name: line, depends_on: large, op: file.line, params: {path: @/first, line: second}}\n\
             \x20 - {name: once, depends_on: line, shell: 'echo line; echo x >> @/count; sleep 0.05'}\n\
             \x20 - {name: link, depends_on: once, op: file.symlink, params: {path: @/link, to: first}}\n\
             \x20 - {name: last, depends_on: link, op: file.directory, params: {path: @/last, mode: '0711'}}\n";
        fs::write(self.path("push.yaml"), text.replace('@', &place.display().to_string())).unwrap();
        self.command(&["plan", "run", "push.yaml", "--run-id", push])
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(stead());
        command.args(args).current_dir(self.dir.path()).stdin(Stdio::null());
        command.env_remove("STEAD_DIR").env("HOME", self.path("driver-home"));
        command
    }

    fn resume(&self, push: &str, more: &[&str]) -> Report {
        let output = self.command(&[&["resume", push, "--json"], more].concat()).output().unwrap();
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| {
            panic!("{push}: {error}: {}", String::from_utf8_lossy(&output.stderr));
        })
    }

    /// The server's key is known under another port than the proxy's.
    fn write_inventory(&self, sshd: &Sshd, port: u16) {
        let spec = through(sshd, port);
        let text = format!(
            "api_version: v1\nhosts:\n  web1: {{transport: \"{spec}\", workdir: {}, executor: always}}\n",
            self.path("base").display()
        );
        fs::write(self.path("inventory.yaml"), text).unwrap();
    }

    /// Whether a task's effect is there, whole.
    fn is_done(&self, push: &str, task: &str) -> bool {
        let place = self.path(push);
        let read = |name: &str| fs::read(place.join(name)).unwrap_or_default();
        match task {
            "first" => read("first").starts_with(b"first\n"),
            "large" => read("large") == fs::read(self.path("source")).unwrap(),
            "line" => read("first") == b"first\nsecond\n",
            "once" => read("count") == b"x\n",
            "link" => fs::read_link(place.join("link")).is_ok_and(|to| to == Path::new("first")),
            "last" => place.join("last").is_dir(),
            other => panic!("no task {other}"),
        }
    }

    /// Returns the directories of sessions: one that was killed leaves its own to the next that comes.
    fn sessions(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.path("base/run")).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect()
    }

    /// Nothing runs on the target, nothing there is half written, and what the report says is so.
    fn check(&self, push: &str, report: &Report) {
        Place::until("no session lives", || {
            self.sessions()
                .iter()
                .all(|path| processes_with(&format!("STEAD_EXECUTOR={}", path.display())).is_empty())
        });
        let mark = format!("STEAD_RUN_ID={push}");
        Place::until("no process is left", || processes_with(&mark).is_empty());
        let known = ["first", "large", "count", "link", "last"];
        for entry in fs::read_dir(self.path(push)).unwrap().flatten() {
            let name = entry.file_name().into_string().unwrap();
            let may_be_left =
                self.kills_writers && report.exit_code != ExitCode::Success && name.ends_with(".stead-tmp");
            assert!(may_be_left || known.contains(&name.as_str()), "{push}: `{name}` was left: {report:#?}");
        }
        let large = self.path(push).join("large");
        assert!(!large.exists() || self.is_done(push, "large"), "{push}: half of a file: {report:#?}");
        let count = fs::read(self.path(push).join("count")).unwrap_or_default();
        assert!(count.len() <= 2, "{push}: done twice: {report:#?}");
        for row in &report.tasks {
            let is_done = self.is_done(push, row.name.as_str());
            match row.status {
                Status::Changed | Status::Unchanged => assert!(is_done, "{push}: {row:#?}"),
                Status::NotRun => assert!(!is_done, "{push}: {row:#?}"),
                // Lost before it began, or nobody can know.
                Status::Failed | Status::Cancelled => assert!(
                    matches!(
                        row.class,
                        Some(ErrorClass::Unreachable | ErrorClass::Interrupted | ErrorClass::Operation)
                    ),
                    "{push}: {row:#?}"
                ),
                Status::Skipped | Status::Unknown => panic!("{push}: {row:#?}"),
            }
        }
    }

    /// Completes the run, deciding about a command of which nobody knows as a person would who looks.
    async fn complete(&self, push: &str, plan: CheckedPlan, spec: SshSpec, report: Report) {
        self.check(push, &report);
        if report.exit_code == ExitCode::Success {
            return;
        }
        let once = report.tasks.iter().find(|row| row.name.as_str() == "once").unwrap();
        let mut options = ResumeOptions::default();
        if once.class == Some(ErrorClass::Interrupted) {
            let decided =
                if self.is_done(push, "once") { &mut options.assume_done } else { &mut options.rerun };
            decided.push(TaskName::parse("once").unwrap());
        }
        let bundle = PathBuf::from(report.bundle.clone().unwrap());
        let resumed = self.runner(spec, PATIENT).resume_at(&bundle, plan, options).await;
        let resumed = resumed.unwrap_or_else(|error| panic!("{push}: {error}: {report:#?}"));
        assert_eq!(resumed.exit_code, ExitCode::Success, "{push}: {resumed:#?}");
        for row in &resumed.tasks {
            assert!(self.is_done(push, row.name.as_str()), "{push}: {row:#?}");
        }
        self.check(push, &resumed);
    }
}

/// The way through the proxy; the server's key is known under another port.
fn through(sshd: &Sshd, port: u16) -> SshSpec {
    SshSpec {
        port: Some(port),
        insecure: true,
        known_hosts: None,
        connect_timeout: Some(PATIENT),
        ..sshd.spec()
    }
}

fn run_id(push: &str) -> RunId {
    RunId::parse(push).unwrap()
}

async fn sweep(points: u64, stays_away: bool) {
    if !sshd::available() {
        return;
    }
    let (sshd, pushes) = (Sshd::start(), Pushes::new());
    let proxy = Proxy::to(sshd.port());
    let spec = through(&sshd, proxy.port);
    // The first brings the program; the second shows how long a conversation is.
    for push in ["warm", "whole"] {
        proxy.heal();
        let report = pushes.runner(spec.clone(), PATIENT).run_id(run_id(push)).run(pushes.plan(push)).await;
        assert_eq!(report.exit_code, ExitCode::Success, "{report:#?}");
        pushes.check(push, &report);
    }
    let whole = proxy.passed();
    for point in 1..=points {
        let push = format!("cut-{point}");
        proxy.cut_after(whole * point / (points + 1), stays_away);
        let plan = pushes.plan(&push);
        let hasty = SshSpec { connect_timeout: Some(Duration::from_secs(3)), ..spec.clone() };
        let report = pushes.runner(hasty, LEASE).run_id(run_id(&push)).run(plan).await;
        proxy.heal();
        pushes.complete(&push, pushes.plan(&push), spec.clone(), report).await;
        Place::until("the session has gone", || pushes.sessions().is_empty());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_is_cut_anywhere_loses_nothing() {
    sweep(24, false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_goes_away_anywhere_is_completed_by_a_resume() {
    sweep(20, true).await;
}

/// The session there is killed after each operation, and the whole server once.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_is_killed_after_any_operation_is_completed_by_a_resume() {
    if !sshd::available() {
        return;
    }
    let (mut sshd, pushes) = (Sshd::start(), Pushes { kills_writers: true, ..Pushes::new() });
    let names = ["first", "large", "line", "once", "link"];
    for (number, task) in names.into_iter().enumerate().chain([(9, "large")]) {
        let push = format!("killed-{number}");
        let spec = SshSpec { connect_timeout: Some(Duration::from_secs(3)), ..sshd.spec() };
        let running = pushes.runner(spec.clone(), LEASE).run_id(run_id(&push)).run(pushes.plan(&push));
        let is_server = number == 9;
        let killing = async {
            while !pushes.is_done(&push, task) {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            if is_server {
                sshd.drop_connections();
                kill(sshd.pid());
            }
            let sessions =
                processes_with(&format!("STEAD_EXECUTOR={}", pushes.path("base/run").join(&push).display()));
            sessions.into_iter().filter(|pid| !is_server && is_session(*pid)).for_each(kill);
            std::future::pending::<()>().await
        };
        let report = tokio::select! { report = running => report, () = killing => unreachable!() };
        if is_server {
            sshd = Sshd::start();
        }
        let spec = sshd.spec();
        pushes.complete(&push, pushes.plan(&push), spec, report).await;
    }
}

/// The driver is killed wherever the conversation is; what it left there is ended by the resume that comes at once.
#[test]
fn a_driver_that_is_killed_anywhere_is_completed_by_a_resume() {
    if !sshd::available() {
        return;
    }
    let (sshd, pushes) = (Sshd::start(), Pushes::new());
    let proxy = Proxy::to(sshd.port());
    pushes.write_inventory(&sshd, proxy.port);
    for push in ["warm", "whole"] {
        proxy.heal();
        assert!(pushes.drive(push).output().unwrap().status.success(), "{push}");
    }
    let (whole, points) = (proxy.passed(), 16);
    for point in 1..=points {
        let push = format!("driver-{point}");
        proxy.stall_after(whole * point / (points + 1));
        let mut driver =
            Driver(pushes.drive(&push).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
        Place::until("the conversation is there", || proxy.is_stalled());
        driver.0.kill().unwrap();
        driver.0.wait().unwrap();
        proxy.heal();
        let mut report = pushes.resume(&push, &[]);
        pushes.check(&push, &report);
        if report.exit_code != ExitCode::Success {
            // As a person would decide who looks.
            let decided = if pushes.is_done(&push, "once") { "--assume-done" } else { "--rerun" };
            report = pushes.resume(&push, &[decided, "once"]);
            pushes.check(&push, &report);
        }
        assert_eq!(report.exit_code, ExitCode::Success, "{push}: {report:#?}");
        assert!(
            report.tasks.iter().all(|row| pushes.is_done(&push, row.name.as_str())),
            "{push}: {report:#?}"
        );
    }
}

fn is_session(pid: u32) -> bool {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&line).contains("--session")
}

/// One that has ended by itself is as good.
fn kill(pid: u32) {
    let pid = rustix::process::Pid::from_raw(pid as i32).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap_or(());
}
