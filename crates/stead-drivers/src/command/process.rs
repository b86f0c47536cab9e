//! One child process and everything it starts: spawned in a group of its own, its output streamed, ended as a group.
//!
//! ```text
//!   spawn ──▶ stream stdout, stderr ──▶ leader exits ──▶ drain what is left (≤ 1 s) ──▶ Ended
//!                   │ Stop::Ask                             │ a background child may keep the pipe: detached
//!                   ▼                                       │
//!             TERM to the group ── all of it gone, grace or Stop::Kill ──▶ KILL to the group (always)
//! ```
//!
//! Dropping the future kills the group. No thread per child and no `pre_exec`: the standard library then uses
//! `posix_spawn`, and waiting is a pidfd in the runtime's poll set.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use stead_model::event::Stream;
use stead_runner::operation::{Cancel, Stop};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, ChildStdin};
use tokio::time::Instant;

use super::group;

/// How long output of background children is waited for after the command itself has exited.
const DRAIN: Duration = Duration::from_secs(1);
/// How often the leader of a cancelled command is looked at.
const LOOK_AGAIN: Duration = Duration::from_millis(5);
/// How often those it left behind are looked at, which costs more.
const LOOK_AGAIN_AT_GROUP: Duration = Duration::from_millis(25);
/// Reads start small, since most commands say little, and grow to what a pipe holds.
const SMALLEST_READ: usize = 4 << 10;
const LARGEST_READ: usize = 64 << 10;

/// What to start.
pub(crate) struct Start {
    /// The program's file.
    pub(crate) program: PathBuf,
    /// What the program is told it is called.
    pub(crate) name: String,
    /// Its arguments.
    pub(crate) args: Vec<OsString>,
    /// Where it starts.
    pub(crate) cwd: PathBuf,
    /// Inherited variables it does not get.
    pub(crate) hidden_env: Vec<String>,
    /// Variables it gets besides the inherited ones.
    pub(crate) env: BTreeMap<String, String>,
    /// What it reads; none: nothing.
    pub(crate) stdin: Option<Vec<u8>>,
    /// Whether its output is wanted at all.
    pub(crate) capture: Capture,
}

/// Whether a process's output is wanted.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Capture {
    /// Given to the sink, piece by piece.
    Stream,
    /// Dropped.
    Discard,
}

/// How a process ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ended {
    pub(crate) exit_code: Option<i32>,
    pub(crate) signal: Option<i32>,
    /// It was asked to stop.
    pub(crate) stopped: bool,
}

impl Ended {
    fn new(status: ExitStatus, stopped: bool) -> Self {
        Self { exit_code: status.code(), signal: status.signal(), stopped }
    }

    /// Returns `exit code N` or `signal N (NAME)`.
    pub(crate) fn describe(&self) -> String {
        match (self.exit_code, self.signal) {
            (Some(code), _) => format!("exit code {code}"),
            (None, Some(signal)) => format!("signal {signal} ({})", signal_name(signal)),
            (None, None) => "ended in an unknown way".to_owned(),
        }
    }
}

/// Kills a process group when dropped, unless released.
struct Group(Option<Pid>);

impl Group {
    fn signal(&self, signal: Signal) {
        if let Some(group) = self.0 {
            // The only expected failure is that the group is gone already, which is what was wanted.
            kill_process_group(group, signal).unwrap_or(());
        }
    }

    fn release(&mut self) {
        self.0 = None;
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
    }
}

/// Runs a process to its end.
///
/// Every piece of output goes to `sink` as it comes. Dropping the future kills the process group.
///
/// # Errors
/// If it cannot be started or waited for.
pub(crate) async fn run(
    start: Start,
    cancel: &Cancel,
    grace: Duration,
    sink: &mut (dyn FnMut(Stream, &[u8]) + Send),
) -> io::Result<Ended> {
    let mut child = spawn(&start)?;
    let pid = child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
    let mut group = Group(pid);
    let mut stdin = child.stdin.take();
    let mut pending_input = start.stdin.unwrap_or_default();
    let mut written = 0;
    let mut stdout = Reader::new(child.stdout.take());
    let mut stderr = Reader::new(child.stderr.take());

    let mut phase = Phase::Running;
    // One future for the whole loop: output that keeps coming must not begin the look anew each time.
    let mut gone = std::pin::pin!(group_exit(pid));
    let status = loop {
        tokio::select! {
            status = child.wait(), if matches!(phase, Phase::Running) => break status?,
            // Once stopping, the leader is watched without reaping it: while its zombie holds the number, the
            // group of that number is surely ours to kill.
            () = &mut gone, if phase.is_stopping() => {
                group.signal(Signal::KILL);
                break child.wait().await?;
            }
            () = cancel.at_least(Stop::Ask), if matches!(phase, Phase::Running) => {
                group.signal(Signal::TERM);
                phase = Phase::Stopping { deadline: Instant::now() + grace };
            }
            () = kill_time(phase, cancel), if phase.is_stopping() => {
                group.signal(Signal::KILL);
                break child.wait().await?;
            }
            n = stdout.read(), if stdout.is_open() => if n > 0 { sink(Stream::Stdout, stdout.bytes(n)); },
            n = stderr.read(), if stderr.is_open() => if n > 0 { sink(Stream::Stderr, stderr.bytes(n)); },
            more = write(&mut stdin, &pending_input, written), if stdin.is_some() => match more {
                Some(n) => written += n,
                None => { stdin = None; pending_input = Vec::new(); }
            },
        }
    };
    let mut stopped = phase.is_stopping();

    let drained = tokio::time::sleep(DRAIN);
    tokio::pin!(drained);
    while stdout.is_open() || stderr.is_open() {
        tokio::select! {
            n = stdout.read(), if stdout.is_open() => if n > 0 { sink(Stream::Stdout, stdout.bytes(n)); },
            n = stderr.read(), if stderr.is_open() => if n > 0 { sink(Stream::Stderr, stderr.bytes(n)); },
            () = cancel.at_least(Stop::Ask), if !stopped => { stopped = true; group.signal(Signal::KILL); }
            () = &mut drained => break,
        }
    }
    // A command that ended by itself may leave a daemon behind; a cancelled one may not.
    if stopped {
        group.signal(Signal::KILL);
    }
    group.release();
    // What had exited when the request came has ended by itself.
    Ok(Ended::new(status, phase.is_stopping()))
}

/// Where the life of a process is.
#[derive(Clone, Copy)]
enum Phase {
    Running,
    Stopping { deadline: Instant },
}

impl Phase {
    fn is_stopping(self) -> bool {
        matches!(self, Self::Stopping { .. })
    }
}

/// Resolves when the leader has exited, without reaping it, and nobody it started is left: the grace period is theirs
/// too. Only cancelled commands are watched this way, so looking again and again costs nothing that matters.
async fn group_exit(leader: Option<Pid>) {
    let Some(leader) = leader else { return std::future::pending().await };
    let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    while let Ok(None) = waitid(WaitId::Pid(leader), look) {
        tokio::time::sleep(LOOK_AGAIN).await;
    }
    while group::is_alive(leader).await {
        tokio::time::sleep(LOOK_AGAIN_AT_GROUP).await;
    }
}

async fn kill_time(phase: Phase, cancel: &Cancel) {
    match phase {
        Phase::Stopping { deadline } => tokio::select! {
            () = tokio::time::sleep_until(deadline) => {}
            () = cancel.at_least(Stop::Kill) => {}
        },
        Phase::Running => std::future::pending().await,
    }
}

fn spawn(start: &Start) -> io::Result<Child> {
    let mut command = std::process::Command::new(&start.program);
    command.arg0(&start.name).args(&start.args).current_dir(&start.cwd).process_group(0);
    for name in &start.hidden_env {
        command.env_remove(name);
    }
    command.envs(&start.env);
    let output = || match start.capture {
        Capture::Stream => Stdio::piped(),
        Capture::Discard => Stdio::null(),
    };
    command.stdin(if start.stdin.is_some() { Stdio::piped() } else { Stdio::null() });
    command.stdout(output()).stderr(output());
    tokio::process::Command::from(command).spawn()
}

/// Writes a piece of what the child reads; nothing: it is all written, or the child does not want more.
async fn write(stdin: &mut Option<ChildStdin>, input: &[u8], written: usize) -> Option<usize> {
    let rest = &input[written..];
    match stdin {
        Some(pipe) if !rest.is_empty() => pipe.write(rest).await.ok(),
        Some(_) | None => None,
    }
}

/// One output pipe of the child.
struct Reader<R> {
    pipe: Option<R>,
    buffer: Vec<u8>,
}

impl<R: AsyncRead + Unpin> Reader<R> {
    fn new(pipe: Option<R>) -> Self {
        Self { pipe, buffer: Vec::new() }
    }

    fn is_open(&self) -> bool {
        self.pipe.is_some()
    }

    /// Reads what is there; 0: the end, or it cannot be read any more. Cancel safe.
    async fn read(&mut self) -> usize {
        let Some(pipe) = &mut self.pipe else { return 0 };
        if self.buffer.is_empty() {
            self.buffer.resize(SMALLEST_READ, 0);
        }
        let n = pipe.read(&mut self.buffer).await.unwrap_or(0);
        if n == 0 {
            self.pipe = None;
        }
        n
    }

    /// Returns the `n` bytes just read, and makes room for more if there was not enough.
    fn bytes(&mut self, n: usize) -> &[u8] {
        if n == self.buffer.len() && n < LARGEST_READ {
            self.buffer.resize(n * 4, 0);
        }
        &self.buffer[..n]
    }
}

/// Returns the name of a signal, for messages.
fn signal_name(number: i32) -> &'static str {
    const NAMES: [&str; 32] = [
        "0",
        "SIGHUP",
        "SIGINT",
        "SIGQUIT",
        "SIGILL",
        "SIGTRAP",
        "SIGABRT",
        "SIGBUS",
        "SIGFPE",
        "SIGKILL",
        "SIGUSR1",
        "SIGSEGV",
        "SIGUSR2",
        "SIGPIPE",
        "SIGALRM",
        "SIGTERM",
        "SIGSTKFLT",
        "SIGCHLD",
        "SIGCONT",
        "SIGSTOP",
        "SIGTSTP",
        "SIGTTIN",
        "SIGTTOU",
        "SIGURG",
        "SIGXCPU",
        "SIGXFSZ",
        "SIGVTALRM",
        "SIGPROF",
        "SIGWINCH",
        "SIGIO",
        "SIGPWR",
        "SIGSYS",
    ];
    usize::try_from(number).ok().and_then(|number| NAMES.get(number)).copied().unwrap_or("real-time")
}
