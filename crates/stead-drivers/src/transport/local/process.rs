//! A program of this machine, in a process group of its own.

use std::ffi::OsStr;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::pin::Pin;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;

use rustix::process::{Pid, Signal as Number, kill_process_group};
use stead_runner::transport::{
    Command, Exit, Process, Running, Signal, Stdin, TransportError, TransportErrorKind, Writer,
};
use tokio::io::AsyncWriteExt;
use tokio::process::Child;
use tokio::task::JoinSet;

use crate::command::program::{NotStarted, find};
use crate::transport::launch::check;
use crate::transport::{Surroundings, files};

/// Starts `command`; a program that is not there is one that ends with 127 and says so.
pub(super) fn start(around: &Arc<Surroundings>, command: Command) -> Result<Running, TransportError> {
    check(&command)?;
    let cwd = command.cwd.clone().unwrap_or_else(|| around.home.clone());
    if !cwd.is_dir() {
        return Err(files::failed(format!(
            "the working directory {} cannot be entered: it is not there",
            cwd.display()
        )));
    }
    let Some((name, arguments)) = command.argv.split_first() else {
        return Err(TransportError::new(TransportErrorKind::Invalid, "the command names no program"));
    };
    let own = around.environment.get(OsStr::new("PATH")).filter(|_| !command.clear_env);
    let path = command.env.get(OsStr::new("PATH")).or(own);
    let program: PathBuf = match find(&name.to_string_lossy(), &cwd, path.map(AsRef::as_ref)) {
        Ok(program) => program,
        Err(problem) => return Ok(not_started(problem)),
    };
    let mut starting = std::process::Command::new(program);
    std::os::unix::process::CommandExt::arg0(&mut starting, name);
    std::os::unix::process::CommandExt::process_group(&mut starting, 0);
    starting.args(arguments).current_dir(&cwd).env_clear();
    if !command.clear_env {
        starting.envs(&around.environment);
    }
    starting.envs(&command.env);
    let piped = !matches!(command.stdin, Stdin::Empty);
    starting.stdin(if piped { Stdio::piped() } else { Stdio::null() });
    starting.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = tokio::process::Command::from(starting)
        .kill_on_drop(true)
        .spawn()
        .map_err(|error| files::failed(format!("{} cannot be started: {error}", name.display())))?;
    let (Some(stdout), Some(stderr)) = (child.stdout.take(), child.stderr.take()) else {
        return Err(files::failed("the program has no output".to_owned()));
    };
    let mut feeding = JoinSet::new();
    let mut stdin: Option<Writer> = None;
    match (command.stdin, child.stdin.take()) {
        (Stdin::Piped, Some(input)) => stdin = Some(Box::pin(input)),
        (Stdin::Bytes(bytes), Some(mut input)) => {
            feeding.spawn(async move {
                // A program that does not read its input is its own affair.
                input.write_all(&bytes).await.ok();
            });
        }
        (Stdin::Empty | Stdin::Bytes(_) | Stdin::Piped, _) => {}
    }
    let group = child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
    let process = LocalProcess { child, group, ended: None, _feeding: feeding };
    Ok(Running { stdin, stdout: Box::pin(stdout), stderr: Box::pin(stderr), process: Box::new(process) })
}

struct LocalProcess {
    child: Child,
    group: Option<Pid>,
    ended: Option<Exit>,
    _feeding: JoinSet<()>,
}

impl LocalProcess {
    fn send(&self, number: Number) {
        if let Some(group) = self.group.filter(|_| self.ended.is_none()) {
            // Gone already is as good.
            kill_process_group(group, number).ok();
        }
    }
}

#[async_trait::async_trait]
impl Process for LocalProcess {
    async fn signal(&mut self, signal: Signal) -> Result<(), TransportError> {
        self.send(match signal {
            Signal::Interrupt => Number::INT,
            Signal::Terminate => Number::TERM,
            Signal::Kill => Number::KILL,
        });
        Ok(())
    }

    async fn wait(&mut self) -> Result<Exit, TransportError> {
        if let Some(exit) = self.ended {
            return Ok(exit);
        }
        let status = self.child.wait().await;
        let status = status.map_err(|error| files::failed(format!("the program was lost: {error}")))?;
        let exit = exit_of(status);
        self.ended = Some(exit);
        Ok(exit)
    }
}

impl Drop for LocalProcess {
    fn drop(&mut self) {
        // Its number is still taken: nobody has waited for it.
        if self.ended.is_none() && matches!(self.child.try_wait(), Ok(None)) {
            self.send(Number::KILL);
        }
    }
}

fn exit_of(status: ExitStatus) -> Exit {
    match (status.code(), status.signal()) {
        (Some(code), _) => Exit::Code(code),
        (None, Some(signal)) => Exit::Signal(signal),
        (None, None) => Exit::Code(-1),
    }
}

struct NeverStarted(i32);

#[async_trait::async_trait]
impl Process for NeverStarted {
    async fn signal(&mut self, _signal: Signal) -> Result<(), TransportError> {
        Ok(())
    }

    async fn wait(&mut self) -> Result<Exit, TransportError> {
        Ok(Exit::Code(self.0))
    }
}

fn not_started(problem: NotStarted) -> Running {
    let message = std::io::Cursor::new(format!("{}\n", problem.message).into_bytes());
    Running {
        stdin: Some(Box::pin(tokio::io::sink())),
        stdout: Box::pin(tokio::io::empty()),
        stderr: Box::pin(message) as Pin<Box<_>>,
        process: Box::new(NeverStarted(problem.code)),
    }
}
