//! The program that a sandbox is for: what it says goes to the console, and its end is the sandbox's.

use std::fs;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use stead_model::machine::{MachineExit, MachineProgram};
use stead_runner::clock;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::{Child, Command};
use tokio::task::JoinSet;

use super::door::{Guest, Waiting};
use super::home::Home;
use crate::disk::Disk;
use crate::machine::home::Found;

/// How long what a program said last may take to be read once it has ended: others may hold its pipes.
const LAST_WORDS: Duration = Duration::from_millis(200);
/// What is read at once.
const PIECE: usize = 8 << 10;
/// As shells say that there is no such program.
const NOT_FOUND: i32 = 127;

/// The program of one boot.
pub(super) struct Program {
    guest: Arc<Guest>,
    wanted: MachineProgram,
    running: Option<Running>,
    /// How it ended, if it could not even begin.
    stillborn: Option<MachineExit>,
}

struct Running {
    child: Child,
    said: JoinSet<()>,
    _awaited: Waiting,
}

impl Program {
    /// Returns the program that the machine is given, if it is.
    pub(super) fn of(guest: &Arc<Guest>) -> Option<Self> {
        let Found::Ours(record) = guest.home.find() else { return None };
        let wanted = record.spec.program.filter(|program| !program.argv.is_empty())?;
        Some(Self { guest: Arc::clone(guest), wanted, running: None, stillborn: None })
    }

    /// Starts it. One that cannot be started has ended.
    pub(super) fn start(&mut self) {
        match self.spawn() {
            Ok(running) => self.running = Some(running),
            Err(error) => {
                let reason = format!("its program cannot be started: {error}");
                self.stillborn =
                    Some(MachineExit { code: Some(NOT_FOUND), signal: None, at: Some(clock::now()), reason });
            }
        }
    }

    /// Waits until it has ended and returns how. Cancel safe.
    pub(super) async fn ended(&mut self) -> MachineExit {
        if let Some(exit) = &self.stillborn {
            return exit.clone();
        }
        let Some(running) = &mut self.running else { return std::future::pending().await };
        let ended = running.child.wait().await;
        let drained = async { while running.said.join_next().await.is_some() {} };
        // Somebody it started may go on holding its output.
        tokio::time::timeout(LAST_WORDS, drained).await.ok();
        exit_of(ended)
    }

    fn spawn(&self) -> io::Result<Running> {
        let mut command = command(&self.guest, &self.wanted)?;
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // Known as awaited before anybody can find it ended.
        let mut awaited = self.guest.awaited.lock().unwrap_or_else(PoisonError::into_inner);
        let mut child = command.spawn()?;
        let pid = child.id().unwrap_or_default();
        awaited.insert(pid);
        drop(awaited);
        let mut said = JoinSet::new();
        if let Some(output) = child.stdout.take() {
            said.spawn(hear(Arc::clone(&self.guest), output));
        }
        if let Some(output) = child.stderr.take() {
            said.spawn(hear(Arc::clone(&self.guest), output));
        }
        let guard = Waiting { pid, awaited: Arc::clone(&self.guest.awaited) };
        Ok(Running { child, said, _awaited: guard })
    }
}

/// Returns the command of a program of the machine, with what it finds around it.
pub(super) fn command(guest: &Guest, program: &MachineProgram) -> io::Result<Command> {
    let [name, arguments @ ..] = program.argv.as_slice() else {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "there is no program to start"));
    };
    let mut command = Command::new(name);
    command.args(arguments).env_clear().envs(guest.variables("root")).envs(&program.env);
    command.current_dir(directory(&guest.home, program.cwd.as_deref())?).process_group(0);
    Ok(command)
}

/// Returns where a program starts: in a directory of the machine, which is made if it has none.
fn directory(home: &Home, given: Option<&str>) -> io::Result<PathBuf> {
    let root = home.root();
    let Some(given) = given else { return Ok(root) };
    let place = Disk::at(&root)
        .and_then(|disk| disk.real_path(&Path::new("/").join(given)))
        .map_err(|error| io::Error::other(error.message))?;
    if !place.starts_with(&root) {
        return Err(io::Error::other(format!("`{given}` is not in the machine")));
    }
    fs::create_dir_all(&place)?;
    Ok(place)
}

/// Writes what a program says to the console.
async fn hear(guest: Arc<Guest>, mut output: impl AsyncRead + Unpin) {
    let mut piece = vec![0; PIECE];
    while let Ok(read @ 1..) = output.read(&mut piece).await {
        guest.console.write(piece.get(..read).unwrap_or_default());
    }
}

fn exit_of(ended: io::Result<ExitStatus>) -> MachineExit {
    let (code, signal, reason) = match ended {
        Ok(status) => (status.code(), status.signal(), format!("its program ended: {status}")),
        Err(error) => (None, None, format!("its program is lost: {error}")),
    };
    MachineExit { code, signal, at: Some(clock::now()), reason }
}
