//! `stead container init`: the first process in a container. It starts the SSH daemon, and the agent while the machine's
//! bootstrap wants one, and buries whatever ends without a parent.
//!
//! A machine that is given a program has that instead of the SSH daemon, and ends with it.
//!
//! TERM stops the machine: what runs is asked to go and waited for. USR1 has it look at the bootstrap again.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, kill_process, waitpid};
use stead_model::machine::{MachineExit, MachineProgram};
use stead_model::node::{Bootstrap, path};
use stead_model::site::manifest::Mode;
use stead_runner::clock;
use tokio::signal::unix::{Signal as Signals, SignalKind, signal};
use tokio::time::Instant;

use super::bundle::VOLUME;
use super::cgroup;
use crate::machine::FIRST_BOOT;
use crate::machine::home;
use crate::machine::local::LOOK_AGAIN;
use crate::machine::process::{ProcessMark, Stat, all};

/// The SSH daemon.
pub(super) const SSHD: &str = "/usr/sbin/sshd";
/// What the first process of a container calls itself once it can be told something.
pub(super) const NAME: &str = "stead-init";
/// And from when on it goes down, which nothing stops any more.
pub(super) const LAST_NAME: &str = "stead-down";
/// Where the daemon wants an empty directory.
const PRIVILEGE_SEPARATION: &str = "/run/sshd";
/// Where the agent writes.
const AGENT_LOG: &str = "/var/log/stead-agent.log";
/// A log is begun anew at this size; the one before is kept.
const ROTATE: u64 = 16 << 20;
/// How long a program that ended at once stays away; doubles each time.
const SHORTEST: Duration = Duration::from_millis(100);
/// And no longer than this.
const LONGEST: Duration = Duration::from_secs(10);
/// How long what runs beside a program that ended may take.
const GRACE: Duration = Duration::from_secs(2);
/// A program that ran this long is not one that fails at once.
const STEADY: Duration = Duration::from_secs(10);

/// Runs as the first process of a container until it is stopped.
///
/// # Errors
/// If it is not that, or cannot be.
pub fn init() -> io::Result<()> {
    if std::process::id() != 1 {
        return Err(io::Error::other("this is only for the first process of a container"));
    }
    // Whoever keeps the container takes it along when it is killed.
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    if let Err(error) = cgroup::make_room() {
        say(&format!("no control groups for machines in it: {error}"));
    }
    DirBuilder::new().recursive(true).mode(0o755).create(PRIVILEGE_SEPARATION)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async { House::new()?.run().await })
}

/// Whether this machine is a container whose first process is that of [`init`].
fn is_first() -> bool {
    fs::read_to_string("/proc/1/comm").is_ok_and(|name| [NAME, LAST_NAME].contains(&name.trim()))
}

/// Has the first process of the container this process runs in look at the bootstrap again; no if there is none.
pub fn look_again() -> bool {
    tell(Signal::USR1)
}

/// Stops the container this process runs in; no if it runs in none.
pub fn power_off() -> bool {
    tell(Signal::TERM)
}

fn call_itself(name: &str) -> io::Result<()> {
    Ok(rustix::thread::set_name(&std::ffi::CString::new(name)?)?)
}

fn tell(signal: Signal) -> bool {
    is_first() && kill_process(Pid::INIT, signal).is_ok()
}

/// Writes a line to the console. One that cannot be written is no reason to stop.
fn say(line: &str) {
    let mut console = io::stdout().lock();
    console.write_all(format!("{} {line}\n", clock::now()).as_bytes()).ok();
    console.flush().ok();
}

/// Stops the container this process runs in, and has it start again.
///
/// # Errors
/// If it runs in none.
pub fn restart() -> io::Result<()> {
    let wish = Path::new(VOLUME).join(RESTART);
    if !is_first() {
        return Err(io::Error::other("this is only for a process in a container"));
    }
    home::write_text(&wish, "", 0o600)?;
    if power_off() {
        return Ok(());
    }
    home::remove(&wish)?;
    Err(io::Error::other("the first process of this container cannot be told"))
}

/// Returns which boot of the container this process runs in it is; none if it runs in none. The kernel's own id is that of
/// the machine around it.
pub(crate) fn boot_id() -> Option<String> {
    if !is_first() {
        return None;
    }
    let mark = ProcessMark::of(1)?;
    Some(format!("{}/{}", mark.boot, mark.start))
}

/// There while the machine is to start again once it is down; in its volume.
const RESTART: &str = "restart";

/// Returns whether the machine with this volume wants to start again, and takes that back.
pub(super) fn takes_back_restart(volume: &Path) -> bool {
    fs::remove_file(volume.join(RESTART)).is_ok()
}

/// What the machine is given to run, and how that ended; both in its volume.
const PROGRAM: &str = "program.json";
const PROGRAM_EXIT: &str = "program-exit.json";
/// What is read of it: the machine writes it.
const LARGEST_EXIT: u64 = 64 << 10;

/// Tells the first process of the machine with this volume what to run.
pub(super) fn give_program(volume: &Path, program: Option<&MachineProgram>) -> io::Result<()> {
    for stale in [PROGRAM, PROGRAM_EXIT] {
        home::remove(&volume.join(stale))?;
    }
    program.map_or(Ok(()), |program| home::write(&volume.join(PROGRAM), program))
}

/// Returns how the program of the machine with this volume ended, if it did by itself.
pub(super) fn program_exit(volume: &Path) -> Option<MachineExit> {
    let text = home::guest_file(volume, PROGRAM_EXIT, LARGEST_EXIT)?;
    serde_json::from_slice(&text).ok()
}

/// Makes the machine what the spec wants that it was given from the beginning, unless it became that already.
fn first_boot() -> Result<(), String> {
    if !Path::new(FIRST_BOOT).exists() || Path::new(path::COMPLETE).exists() {
        return Ok(());
    }
    let applied = std::env::current_exe().and_then(|program| {
        Command::new(program).args(["config", "apply", "--spec", FIRST_BOOT]).stdin(Stdio::null()).status()
    });
    match applied {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("it does not become what its spec wants: {status}")),
        Err(error) => Err(format!("it does not become what its spec wants: {error}")),
    }
}

/// Returns the program that this machine is given.
fn given() -> Option<MachineProgram> {
    home::read(&Path::new(VOLUME).join(PROGRAM)).filter(|program: &MachineProgram| !program.argv.is_empty())
}

/// What the first process keeps running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Program {
    Sshd,
    Agent,
}

impl Program {
    fn name(self) -> &'static str {
        match self {
            Self::Sshd => "SSH daemon",
            Self::Agent => "agent",
        }
    }

    /// Returns the command, if it is wanted.
    fn command(self) -> io::Result<Option<Command>> {
        match self {
            Self::Sshd => {
                let mut command = Command::new(SSHD);
                // The driver's key lies apart, so that no configuration takes it away.
                let keys = stead_engine::compile::config::AUTHORIZED_KEYS;
                command.args(["-D", "-e", "-o", &format!("AuthorizedKeysFile={keys}")]);
                Ok(Some(command))
            }
            Self::Agent => {
                let Some(bootstrap) = bootstrap() else { return Ok(None) };
                let mut command = Command::new(agent_program(bootstrap.binary_sha256.as_deref())?);
                let log = log()?;
                command.args(["agent", "run"]).stdout(log.try_clone()?).stderr(log);
                Ok(Some(command))
            }
        }
    }
}

/// Returns what the machine was told, if its agent is to run by that.
fn bootstrap() -> Option<Bootstrap> {
    let bytes = fs::read(path::BOOTSTRAP).ok()?;
    let bootstrap = Bootstrap::parse(&bytes)
        .inspect_err(|error| say(&format!("no agent: {}: {error}", path::BOOTSTRAP)))
        .ok()?;
    match bootstrap.mode {
        Mode::Pull | Mode::Hybrid => Some(bootstrap),
        Mode::Push => None,
    }
}

/// Returns the program of this hash if it is here, else this one.
fn agent_program(sha256: Option<&str>) -> io::Result<PathBuf> {
    let is_hash = |name: &&str| name.len() == 64 && name.bytes().all(|byte| byte.is_ascii_hexdigit());
    let wanted = sha256.filter(is_hash).map(|sha256| Path::new(path::PROGRAMS).join(sha256).join("stead"));
    match wanted.filter(|program| fs::metadata(program).is_ok_and(|found| found.len() > 0)) {
        Some(program) => Ok(program),
        None => std::env::current_exe(),
    }
}

fn log() -> io::Result<File> {
    if fs::metadata(AGENT_LOG).is_ok_and(|log| log.len() >= ROTATE) {
        fs::rename(AGENT_LOG, format!("{AGENT_LOG}.1"))?;
    }
    File::options().create(true).append(true).open(AGENT_LOG)
}

/// A program that is kept running while it is wanted.
struct Kept {
    program: Program,
    running: Option<(u32, Instant)>,
    /// When the next one is started.
    start_at: Option<Instant>,
    pause: Duration,
}

impl Kept {
    fn new(program: Program) -> Self {
        Self { program, running: None, start_at: Some(Instant::now()), pause: SHORTEST }
    }

    fn start(&mut self) {
        self.start_at = None;
        let started = self.program.command().and_then(|command| {
            let Some(mut command) = command else { return Ok(None) };
            // Known by its own mark is this process alone: what it starts may start machines.
            command.env_remove(super::MARK).stdin(Stdio::null()).current_dir("/").spawn().map(Some)
        });
        match started {
            Ok(Some(child)) => {
                say(&format!("its {} runs", self.program.name()));
                self.running = Some((child.id(), Instant::now()));
            }
            Ok(None) => {}
            Err(error) => {
                say(&format!("its {} cannot be started: {error}", self.program.name()));
                self.start_later();
            }
        }
    }

    fn start_later(&mut self) {
        self.start_at = Some(Instant::now() + self.pause);
        self.pause = (self.pause * 2).min(LONGEST);
    }

    /// Notes the end of a process, if it is this one.
    fn note_end(&mut self, pid: u32, status: WaitStatus) {
        let Some((_, since)) = self.running.take_if(|(running, _)| *running == pid) else { return };
        if since.elapsed() >= STEADY {
            self.pause = SHORTEST;
        }
        say(&format!("its {} ended: {}", self.program.name(), shown(status)));
        // Somebody may have said already when the next one starts.
        if self.start_at.is_none() {
            self.start_later();
        }
    }

    /// Ends it, and starts another at once if one is wanted.
    fn renew(&mut self) {
        if let Some(pid) = self.running.and_then(|(pid, _)| Pid::from_raw(i32::try_from(pid).ok()?)) {
            kill_process(pid, Signal::TERM).ok();
        }
        self.pause = SHORTEST;
        self.start_at = Some(Instant::now());
    }
}

fn shown(status: WaitStatus) -> String {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => "nobody knows how".to_owned(),
    }
}

struct House {
    kept: Vec<Kept>,
    /// The program that the machine is for.
    program: Option<MachineProgram>,
    running: Option<u32>,
    /// How the program ended.
    exit: Option<MachineExit>,
    terminate: Signals,
    look: Signals,
    child: Signals,
}

impl House {
    fn new() -> io::Result<Self> {
        let program = given();
        let sshd = program.is_none().then(|| Kept::new(Program::Sshd));
        Ok(Self {
            kept: sshd.into_iter().chain([Kept::new(Program::Agent)]).collect(),
            program,
            running: None,
            exit: None,
            terminate: signal(SignalKind::terminate())?,
            look: signal(SignalKind::user_defined1())?,
            child: signal(SignalKind::child())?,
        })
    }

    async fn run(mut self) -> io::Result<()> {
        // From here it can be told something: whoever started it waits for this.
        call_itself(NAME)?;
        say("up");
        if let Err(reason) = first_boot() {
            say(&reason);
            self.exit = Some(MachineExit { code: Some(1), signal: None, at: Some(clock::now()), reason });
        } else {
            self.start_program();
        }
        while self.exit.is_none() {
            let next = self.next();
            tokio::select! {
                Some(()) = self.terminate.recv() => break,
                Some(()) = self.look.recv() => self.look_at_agent(),
                Some(()) = self.child.recv() => self.bury(),
                () = until(next) => self.start_due(),
            }
        }
        // Seen from outside, whoever asked for it: a machine that goes down does not count as one that runs.
        call_itself(LAST_NAME)?;
        say("stops");
        if let Some(exit) = &self.exit {
            home::write(&Path::new(VOLUME).join(PROGRAM_EXIT), exit)?;
            // Nobody asked for it, so nobody forces what does not go.
            tokio::time::timeout(GRACE, self.ask_all_to_go()).await.ok();
        } else {
            self.ask_all_to_go().await;
        }
        say("down");
        Ok(())
    }

    /// Starts the program that the machine is for, if there is one. One that cannot be started has ended.
    fn start_program(&mut self) {
        let Some(program) = &self.program else { return };
        let [name, arguments @ ..] = program.argv.as_slice() else { return };
        let directory = program.cwd.as_deref().unwrap_or("/");
        let mut command = Command::new(name);
        command.args(arguments).envs(&program.env).current_dir(directory).stdin(Stdio::null());
        let started = fs::create_dir_all(directory).and_then(|()| command.spawn());
        match started {
            Ok(child) => self.running = Some(child.id()),
            Err(error) => {
                let reason = format!("its program cannot be started: {error}");
                say(&reason);
                self.exit =
                    Some(MachineExit { code: Some(127), signal: None, at: Some(clock::now()), reason });
            }
        }
    }

    /// Notes the end of the program, if it is its.
    fn note_program(&mut self, pid: u32, status: WaitStatus) {
        if self.running != Some(pid) {
            return;
        }
        self.running = None;
        self.exit = Some(MachineExit {
            code: status.exit_status(),
            signal: status.terminating_signal(),
            at: Some(clock::now()),
            reason: format!("its program ended: {}", shown(status)),
        });
    }

    /// Returns when something is to be started next, of what does not run.
    fn next(&self) -> Option<Instant> {
        let waiting = self.kept.iter().filter(|kept| kept.running.is_none());
        waiting.filter_map(|kept| kept.start_at).min()
    }

    fn start_due(&mut self) {
        let now = Instant::now();
        for kept in &mut self.kept {
            if kept.running.is_none() && kept.start_at.is_some_and(|at| at <= now) {
                kept.start();
            }
        }
    }

    fn look_at_agent(&mut self) {
        for kept in self.kept.iter_mut().filter(|kept| kept.program == Program::Agent) {
            kept.renew();
        }
    }

    /// Takes everything that ended out of the list of processes.
    fn bury(&mut self) {
        while let Ok(Some((pid, status))) = waitpid(None, WaitOptions::NOHANG) {
            let pid = u32::try_from(pid.as_raw_pid()).unwrap_or_default();
            for kept in &mut self.kept {
                kept.note_end(pid, status);
            }
            self.note_program(pid, status);
        }
    }

    /// Asks everything that runs to go, and waits: who has no patience kills this process.
    async fn ask_all_to_go(&mut self) {
        let mut asked = std::collections::BTreeSet::new();
        loop {
            self.bury();
            let lives = |pid: &u32| *pid != 1 && Stat::read(*pid).is_some_and(|stat| !stat.is_dead);
            let left: Vec<u32> = all().unwrap_or_default().into_iter().filter(lives).collect();
            if left.is_empty() {
                return;
            }
            for pid in left {
                let process = i32::try_from(pid).ok().and_then(Pid::from_raw);
                if let Some(process) = process.filter(|_| asked.insert(pid)) {
                    kill_process(process, Signal::TERM).ok();
                }
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }
}

async fn until(moment: Option<Instant>) {
    match moment {
        Some(moment) => tokio::time::sleep_until(moment).await,
        None => std::future::pending().await,
    }
}
