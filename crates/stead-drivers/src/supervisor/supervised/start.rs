//! How a role is started: its address looked at, its logs made, its command built.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::fs::FlockOperation;
use stead_model::executor::ByteText;
use stead_model::role::{ProbeFrom, ReadyMethod, RoleEvent, RoleOrder};
use stead_runner::agent::{taken, taken_fallback};
use stead_runner::clock;
use stead_runner::redact::Redactor;
use tokio::net::unix::pipe;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::roles::{probe, site};
use crate::supervisor::Control;
use crate::supervisor::judge::Judge;
use crate::supervisor::output::Log;

use super::memory::Memory;
use super::{Live, Phase, Refused, Supervised};

/// How long an address may take to refuse before the role is started.
const TAKEN_WAIT: Duration = Duration::from_millis(500);

impl Supervised {
    /// Starts the role.
    pub(super) async fn start(mut self) -> Result<Live, Box<Refused>> {
        let failed = |reason: String, control: Control| Err(Box::new(Refused { reason, control }));
        let redactor = match Redactor::new(&self.order.secrets) {
            Ok(redactor) => redactor,
            Err(error) => return failed(error.to_string(), self.control),
        };
        if let Err(reason) = self.look_before_start().await {
            return failed(reason, self.control);
        }
        let log = |name: &str| {
            let path = Path::new(&self.logs).join(name);
            Log::create(&path, &redactor).map_err(|error| format!("cannot make {}: {error}", path.display()))
        };
        let (stdout, stderr) = match (log("stdout.log"), log("stderr.log")) {
            (Ok(stdout), Ok(stderr)) => (stdout, stderr),
            (Err(reason), _) | (_, Err(reason)) => return failed(reason, self.control),
        };
        let mut command = match self.command() {
            Ok(command) => command,
            Err(reason) => return failed(reason, self.control),
        };
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let (started, at) = (Instant::now(), clock::now());
        let mut child = match command.spawn() {
            Ok(child) => child,
            Err(error) => {
                let reason = not_started(&self.order, &error);
                return failed(reason, self.control);
            }
        };
        let pid = child.id();
        let receiver =
            |pipe: Option<std::os::fd::OwnedFd>| pipe.map(pipe::Receiver::from_owned_fd).transpose();
        let pipes = (
            receiver(child.stdout.take().map(Into::into)).unwrap_or(None),
            receiver(child.stderr.take().map(Into::into)).unwrap_or(None),
        );
        self.control.tell(&RoleEvent::Started { pid, at });
        let judge = self
            .order
            .ready
            .as_ref()
            .map(|ready| Judge::new(ready, &self.order.workdir, at.as_micros(), started));
        Ok(Live {
            order: self.order,
            control: self.control,
            redactor,
            leaves: self.plain.is_some(),
            is_alone: false,
            pid,
            started,
            phase: Phase::Running,
            judge,
            streams: [(pipes.0, stdout), (pipes.1, stderr)],
            looks: JoinSet::new(),
            looking: None,
            memory: Memory::of(pid, Instant::now()),
            told: ([0, 0], started),
            is_log_failure_told: false,
            status: None,
            was_asked: false,
            killed: false,
            left: 0,
        })
    }

    /// Returns what is started.
    fn command(&self) -> Result<Command, String> {
        let Some(plain) = &self.plain else {
            let mut command = command(&self.order, &self.order.program);
            if let Some((name, arguments)) = self.order.argv.split_first() {
                command.arg0(name).args(arguments);
            }
            return Ok(command);
        };
        let word = |word: &ByteText| OsString::from_vec(word.as_bytes().to_vec());
        let mut command = Command::new(&self.order.program);
        if let Some((name, arguments)) = plain.argv.split_first() {
            command.arg0(word(name)).args(arguments.iter().map(word));
        }
        if plain.clear_env {
            command.env_clear();
        }
        command.envs(plain.env.iter().map(|(name, value)| (name, word(value))));
        command.current_dir(&self.order.workdir).process_group(0);
        let stdin = plain.stdin.as_ref().map(File::open).transpose();
        let stdin = stdin.map_err(|error| format!("cannot open its input: {error}"))?;
        command.stdin(stdin.map_or_else(Stdio::null, Stdio::from));
        Ok(command)
    }

    /// Looks whether the address that shows readiness answers already.
    async fn look_before_start(&mut self) -> Result<(), String> {
        let Some(ready) = self.order.ready.as_mut().filter(|ready| ready.from == ProbeFrom::Agent) else {
            return Ok(());
        };
        let Some((address, is_fallback)) = ready.address() else { return Ok(()) };
        let address = address.clone();
        if !probe::tcp(&address, TAKEN_WAIT).await.ok {
            return Ok(());
        }
        if !is_fallback {
            return Err(taken(&address));
        }
        if let ReadyMethod::StructuredStdout { fallback, .. } = &mut ready.method {
            *fallback = None;
        }
        let warning = taken_fallback(&address);
        self.control.tell(&RoleEvent::Warning { code: warning.code, text: warning.text });
        Ok(())
    }
}

/// Makes and takes the lock that says that the role of `note` has a supervisor.
pub(super) fn live_lock(note: &Path) -> io::Result<File> {
    let mut options = File::options();
    let file = options.create(true).truncate(false).write(true).mode(0o600).open(site::live_file(note))?;
    rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)?;
    Ok(file)
}

/// Returns a command in the role's place: workdir, environment, a process group of its own.
pub(super) fn command(order: &RoleOrder, program: &str) -> Command {
    let mut command = Command::new(program);
    for name in &order.hidden_env {
        command.env_remove(name);
    }
    command.envs(&order.env).current_dir(&order.workdir).stdin(Stdio::null()).process_group(0);
    command
}

fn not_started(order: &RoleOrder, error: &io::Error) -> String {
    match Path::new(&order.workdir).is_dir() {
        true => format!("`{}` cannot be started: {error}", order.program),
        false => format!("`{}` cannot be started: its workdir {} is not there", order.program, order.workdir),
    }
}
