//! The program that runs containers, by its command line: `create`, `start`, `state`, `kill`, `delete --force`.
//!
//! runc, crun and youki take the same words. They are started where `/sys/fs/cgroup` shows one sort of control groups
//! only: crun refuses both at once.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde::Deserialize;
use stead_runner::machine::MachineError;

use super::keeper::Order;
use super::{mounts, rootless};
use crate::command::program;
use crate::machine::home::Home;
use crate::machine::local::{LOOK_AGAIN, SYSTEM_PATH};

/// Runtimes in the order in which they are looked for.
pub(super) const KNOWN: [&str; 3] = ["runc", "crun", "youki"];
/// How long one call may take.
const PATIENCE: Duration = Duration::from_secs(60);
/// What the runtime keeps of a machine.
pub(super) const STATE: &str = "runtime";
/// What it says.
pub(super) const LOG: &str = "runtime.log";
/// Which runtime a machine was started by.
const CHOSEN: &str = "runtime.path";
/// The socket on which it hands over the terminal. Relative: the path of a socket has little room.
pub(super) const CONSOLE_SOCKET: &str = "console.sock";
/// The number of the machine's first process.
pub(super) const PID_FILE: &str = "init.pid";
/// What runc writes it as, and refuses to find there.
pub(super) const HALF_PID_FILE: &str = ".init.pid";

/// What `runtime` says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum RuntimeChoice {
    /// The first that is there of runc, crun and youki.
    #[default]
    Auto,
    /// This one: a name, or a path.
    Named(String),
}

impl RuntimeChoice {
    /// Returns the choice that `text` says.
    pub fn parse(text: &str) -> Self {
        match text {
            "auto" => Self::Auto,
            other => Self::Named(other.to_owned()),
        }
    }

    /// Returns the program.
    pub(super) fn find(&self) -> Result<PathBuf, MachineError> {
        let find = |name: &str| program::find(name, Path::new("/"), Some(OsStr::new(SYSTEM_PATH))).ok();
        let missing = |what: String| MachineError::Unavailable(what);
        match self {
            Self::Auto => KNOWN.into_iter().find_map(find).ok_or_else(|| {
                missing(format!("none of {} is installed (package runc or crun)", KNOWN.join(", ")))
            }),
            Self::Named(name) => {
                find(name).ok_or_else(|| missing(format!("the runtime {name} is not installed")))
            }
        }
    }
}

/// The runtime of one machine.
#[derive(Clone, Debug)]
pub(super) struct Runtime {
    program: PathBuf,
    home: PathBuf,
    id: String,
    /// By which program and process it has to be entered to run where the container is; none: from where this one is.
    entrance: Option<(PathBuf, u32)>,
}

/// What `state` says, as far as it is read.
#[derive(Debug, Deserialize)]
struct State {
    status: String,
}

impl Runtime {
    pub(super) fn new(program: PathBuf, home: &Home, id: &str) -> Self {
        Self { program, home: home.directory().to_owned(), id: id.to_owned(), entrance: None }
    }

    /// Returns the runtime that the machine was last started by; none if it never was.
    ///
    /// That of an ordinary account works in the namespaces of its keeper: it has a runtime while that lives.
    pub(super) fn of(home: &Home, id: &str) -> Option<Self> {
        let program = fs::read_to_string(home.file(CHOSEN)).ok()?;
        let mut runtime = Self::new(PathBuf::from(program.trim()), home, id);
        if rootless::is_rootless() {
            let (keeper, _) = home.pid().filter(|(mark, _)| mark.open().is_some())?;
            runtime.entrance = Some((Order::of(home)?.program, keeper.pid));
        }
        Some(runtime)
    }

    /// Keeps which runtime this is, before it has anything to take back.
    pub(super) fn remember(&self) -> io::Result<()> {
        let text = self.program.display().to_string();
        crate::machine::home::write_text(&self.home.join(CHOSEN), &text, 0o600)
    }

    pub(super) fn name(&self) -> String {
        self.program.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// Whether it knows of the machine.
    fn has_state(&self) -> bool {
        self.home.join(STATE).join(&self.id).exists()
    }

    /// Makes the container, without starting its program, and returns the number of its first process. Without `output`
    /// it has a terminal.
    pub(super) fn create(&self, output: Option<File>) -> Result<u32, MachineError> {
        let mut arguments: Vec<OsString> = vec!["create".into(), "--bundle".into()];
        arguments.push(self.home.clone().into());
        arguments.extend(["--pid-file".into(), self.home.join(PID_FILE).into()]);
        if output.is_none() {
            arguments.extend(["--console-socket".into(), CONSOLE_SOCKET.into()]);
        }
        arguments.push(self.id.clone().into());
        self.run(&arguments, output)?;
        let pid = fs::read_to_string(self.home.join(PID_FILE)).ok().and_then(|text| text.trim().parse().ok());
        pid.ok_or_else(|| MachineError::failed(format!("{} did not say which process it made", self.name())))
    }

    /// Starts the container's program.
    pub(super) fn start(&self) -> Result<(), MachineError> {
        self.run(&["start".into(), self.id.clone().into()], None).map(drop)
    }

    /// Sends a signal to the container's first process.
    pub(super) fn kill(&self, signal: &str) -> Result<(), MachineError> {
        self.run(&["kill".into(), self.id.clone().into(), signal.into()], None).map(drop)
    }

    /// Returns what the container is doing, for messages: `created`, `running`, `stopped`, `gone`, or why nobody knows.
    pub(super) fn state(&self) -> String {
        if !self.has_state() {
            return "gone".to_owned();
        }
        told(&self.name(), self.run(&["state".into(), self.id.clone().into()], None))
    }

    /// Removes the container, by force; one that is not there is removed.
    pub(super) fn delete(&self) -> Result<(), MachineError> {
        if !self.has_state() {
            return Ok(());
        }
        self.run(&["delete".into(), "--force".into(), self.id.clone().into()], None).map(drop)
    }

    /// Returns the command that runs a program in the container, and writes its number and what is wrong with it.
    pub(super) fn exec(&self, argv: &[String], pid_file: &Path, log: &Path) -> Command {
        let mut command = self.command();
        command.arg("--log").arg(log).args(["exec", "--cwd", "/", "--pid-file"]).arg(pid_file);
        command.arg(&self.id).args(argv);
        command
    }

    /// Returns the command of the runtime, without a word of what it is to do.
    fn command(&self) -> Command {
        let mut command = match &self.entrance {
            Some((program, keeper)) => rootless::through(program, Some(*keeper), &self.program, &self.home),
            None => Command::new(&self.program),
        };
        command.arg("--root").arg(self.home.join(STATE));
        command.current_dir(&self.home).stdin(Stdio::null());
        command.env_clear().env("PATH", SYSTEM_PATH).env(super::MARK, &self.home);
        // Where it copies itself to: killed meanwhile it leaves a file there.
        command.env("_LIBCONTAINER_STATEDIR", &self.home);
        command
    }

    /// Runs `work`, which starts the runtime, where that has mounts of its own.
    pub(super) fn apart<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, MachineError> {
        match self.entrance {
            // Its keeper's are entered.
            Some(_) => Ok(work()),
            None => mounts::apart(work),
        }
    }

    /// Runs the runtime to its end and returns what it said. What it complains of is in [`LOG`].
    fn run(&self, arguments: &[OsString], output: Option<File>) -> Result<String, MachineError> {
        let verb = arguments.first().map(|word| word.to_string_lossy().into_owned()).unwrap_or_default();
        let failed = |error: io::Error| {
            MachineError::failed(format!("`{} {verb}` cannot be started: {error}", self.program.display()))
        };
        let mut log =
            File::options().create(true).append(true).read(true).open(self.home.join(LOG)).map_err(failed)?;
        let from = log.seek(SeekFrom::End(0)).map_err(failed)?;
        let mut command = self.command();
        command.args(arguments);
        // A container without a terminal writes where its runtime does.
        let output = output.map_or_else(|| log.try_clone(), Ok).map_err(failed)?;
        command.stdout(output.try_clone().map_err(failed)?).stderr(output);
        let status = self.apart(|| wait(&mut command))?.map_err(failed)?;
        // Whoever reads that output sees its end with the container.
        drop(command);
        let mut said = Vec::new();
        log.seek(SeekFrom::Start(from)).and_then(|_| log.read_to_end(&mut said)).map_err(failed)?;
        let said = String::from_utf8_lossy(&said).into_owned();
        match status {
            Some(status) if status.success() => Ok(said),
            Some(status) => Err(MachineError::Failed {
                what: format!("`{} {verb}` failed ({status})", self.name()),
                last_lines: stead_model::tail::last_words(&said).into_iter().map(str::to_owned).collect(),
            }),
            None => Err(MachineError::Timeout(format!(
                "`{} {verb}` did not end within {} s",
                self.name(),
                PATIENCE.as_secs()
            ))),
        }
    }
}

/// Returns the state that `runtime` said, or why it is not known: that it does not say does not mean that there is none.
fn told(runtime: &str, said: Result<String, MachineError>) -> String {
    let read = |said: String| match serde_json::from_str::<State>(&said) {
        Ok(state) => state.status,
        Err(error) => format!("not known: `{runtime} state` says no state: {error}"),
    };
    said.map_or_else(|error| format!("not known: {error}"), read)
}

/// Runs a command to its end; none if that takes too long.
fn wait(command: &mut Command) -> io::Result<Option<std::process::ExitStatus>> {
    let mut child = command.spawn()?;
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if Instant::now() > deadline {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        std::thread::sleep(LOOK_AGAIN);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_runtime_that_is_not_there_is_named() {
        let missing = RuntimeChoice::parse("no-such-runtime").find().unwrap_err();
        assert_eq!(missing.to_string(), "the runtime no-such-runtime is not installed");
        assert_eq!(RuntimeChoice::parse("auto"), RuntimeChoice::Auto);
    }

    #[test]
    fn a_state_that_nobody_tells_is_not_known() {
        assert_eq!(told("runc", Ok("{\"status\": \"created\", \"pid\": 7}".to_owned())), "created");
        let odd = told("runc", Ok("nonsense".to_owned()));
        assert!(odd.starts_with("not known: `runc state` says no state: "), "{odd}");
        let last_lines = vec!["no such file".to_owned()];
        let failed = MachineError::Failed { what: "`runc state` failed".to_owned(), last_lines };
        let failed = told("runc", Err(failed));
        assert!(failed.starts_with("not known: `runc state` failed"), "{failed}");
        assert!(failed.ends_with("no such file"), "{failed}");
    }
}
