//! Programs a driver runs without an operation. They have a supervisor, as roles do, so that their output is kept, their
//! tree can be stopped and what they used is known; but what they leave running on purpose stays.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{CWD, FileType, Mode, mknodat};
use stead_model::ErrorClass;
use stead_model::executor::{ExecRequest, OpResult, Pipe, Reply};
use stead_model::report::Warning;
use stead_model::role::{PlainCommand, RoleEvent, RoleExit, RoleOrder, StopRule};
use stead_model::run_plan::RoleKind;
use stead_runner::operation::OpError;
use tokio::io::AsyncWriteExt;
use tokio::net::unix::pipe;
use tokio::sync::{oneshot, watch};

use crate::command::program;
use crate::executor::home::private_directory;
use crate::roles::held::Start;

use super::{Event, HostSession};

/// How much of the input that waits on the disk is in memory at a time.
const PIECE: usize = 64 * 1024;

/// A program under way. Its directory goes with it.
pub(super) struct ExecWork {
    directory: PathBuf,
    pid: Option<u32>,
    stdin: Option<Input>,
    /// Told when the program has its end of the pipe.
    opened: Option<oneshot::Sender<()>>,
    warnings: Vec<Warning>,
}

/// Input that a program has not read yet. It waits in a file without a name: nobody tells a driver to send slower, and a
/// program need not read at all.
struct Input {
    file: Arc<File>,
    /// How much of it there is; whoever writes it to the program hears of more, and of the end when this goes.
    length: watch::Sender<u64>,
}

impl Input {
    fn push(&self, bytes: &[u8]) -> std::io::Result<()> {
        let length = *self.length.borrow();
        self.file.write_all_at(bytes, length)?;
        self.length.send_replace(length + bytes.len() as u64);
        Ok(())
    }
}

impl Drop for ExecWork {
    fn drop(&mut self) {
        // What stays goes with the session's directory.
        std::fs::remove_dir_all(&self.directory).unwrap_or(());
    }
}

impl ExecWork {
    /// Returns what is said again to a driver that connects anew.
    pub(super) fn started(&self) -> Option<Reply> {
        self.pid.map(|pid| Reply::Started { pid })
    }
}

impl HostSession {
    /// Runs a program.
    pub(super) fn begin_exec(&mut self, id: u32, request: ExecRequest) {
        if self.works.contains_key(&id) {
            return;
        }
        self.new_work(id, None);
        let reply = match self.try_exec(id, request) {
            Ok(None) => return,
            Ok(Some(exit)) => Reply::Result(Box::new(OpResult::exited(&exit, Vec::new()))),
            Err(error) => Reply::Error { message: error.message, class: Some(error.class) },
        };
        self.take(Event::Answered(id, reply));
    }

    /// Starts it; returns how it ended if there is nothing to start.
    fn try_exec(&mut self, id: u32, request: ExecRequest) -> Result<Option<RoleExit>, OpError> {
        let words = request.argv.iter().chain(request.env.values()).map(|word| word.as_bytes());
        if words.chain(request.env.keys().map(String::as_bytes)).any(|word| word.contains(&0)) {
            return Err(OpError::invalid("a NUL cannot be in a word or variable"));
        }
        if request.tty {
            return Err(OpError::invalid("an executor has no terminal to give"));
        }
        let Some(name) = request.argv.first() else {
            return Err(OpError::invalid("`argv` names no program"));
        };
        let name = std::str::from_utf8(name.as_bytes())
            .map_err(|_| OpError::invalid("the name of a program must be text"))?;
        let home = self.shared.account_home.clone();
        let cwd = request.cwd.as_ref().map_or_else(|| home.clone(), |cwd| home.join(cwd));
        let path = match request.env.get("PATH") {
            Some(path) => Some(OsStr::from_bytes(path.as_bytes()).to_owned()),
            None if request.clear_env => None,
            None => std::env::var_os("PATH"),
        };
        let program = match program::find(name, &cwd, path.as_deref()) {
            Ok(program) => program,
            Err(refused) => {
                if let Some(work) = self.works.get(&id) {
                    work.output.push(Pipe::Stderr, format!("{}\n", refused.message).as_bytes());
                }
                return Ok(Some(RoleExit { exit_code: Some(refused.code), ..RoleExit::default() }));
            }
        };
        let directory = self.shared.home.directory.join(format!("exec-{}-{id}", self.host));
        let failed = |error: std::io::Error| OpError::io("cannot keep the program's output", &error);
        private_directory(&directory).map_err(failed)?;
        let mut exec = ExecWork {
            directory: directory.clone(),
            pid: None,
            stdin: None,
            opened: None,
            warnings: Vec::new(),
        };
        let stdin = match request.stdin {
            true => Some(self.pipe(&mut exec).map_err(failed)?),
            false => None,
        };
        let plain =
            PlainCommand { argv: request.argv, env: request.env, clear_env: request.clear_env, stdin };
        let order = RoleOrder {
            run: self.shared.run.clone(),
            role: format!("exec-{id}"),
            kind: RoleKind::Task,
            argv: Vec::new(),
            program: program.to_string_lossy().into_owned(),
            env: BTreeMap::new(),
            hidden_env: Vec::new(),
            workdir: cwd.to_string_lossy().into_owned(),
            secrets: Vec::new(),
            ready: None,
            stop: StopRule::default(),
        };
        let executable =
            std::env::current_exe().map_err(|error| OpError::io("cannot find this program", &error))?;
        if let Some(work) = self.works.get_mut(&id) {
            work.exec = Some(exec);
        }
        self.hold(id, Start { executable, order, logs: directory, note: None, plain: Some(plain) });
        Ok(None)
    }

    /// Makes the pipe a program reads; returns its name.
    fn pipe(&mut self, exec: &mut ExecWork) -> std::io::Result<String> {
        let path = exec.directory.join("stdin");
        mknodat(CWD, &path, FileType::Fifo, Mode::from_raw_mode(0o600), 0)?;
        // Open for both until the program has its end: nobody waits for anybody.
        let held = pipe::OpenOptions::new().read_write(true).open_sender(&path)?;
        let waiting = exec.directory.join("input");
        let file = File::options().create_new(true).read(true).write(true).mode(0o600).open(&waiting)?;
        std::fs::remove_file(&waiting)?;
        let file = Arc::new(file);
        let (length, grown) = watch::channel(0);
        let (opened, is_open) = oneshot::channel();
        (exec.stdin, exec.opened) = (Some(Input { file: Arc::clone(&file), length }), Some(opened));
        let name = path.to_string_lossy().into_owned();
        self.tasks.spawn(async move {
            // A program that reads no more needs no more.
            drop(feed(&path, held, is_open, &file, grown).await);
        });
        Ok(name)
    }

    /// Takes input of a program; returns whether it is one that takes input.
    pub(super) fn take_input(&mut self, id: u32, bytes: &[u8]) -> bool {
        let Some(exec) = self.works.get_mut(&id).and_then(|work| work.exec.as_mut()) else { return false };
        if let Some(Err(error)) = exec.stdin.as_ref().map(|stdin| stdin.push(bytes)) {
            exec.stdin = None;
            let text = format!("its input could not be kept until it was read, and was cut: {error}");
            exec.warnings.push(Warning::new("reach/input-cut", text));
        }
        true
    }

    /// No more input comes.
    pub(super) fn end_input(&mut self, id: u32) {
        if let Some(exec) = self.works.get_mut(&id).and_then(|work| work.exec.as_mut()) {
            exec.stdin = None;
        }
    }

    pub(super) fn take_exec_event(&mut self, id: u32, event: RoleEvent) {
        let Some(work) = self.works.get_mut(&id) else { return };
        let (Some(exec), Some(role)) = (&mut work.exec, &mut work.role) else { return };
        match event {
            RoleEvent::Started { pid, .. } => {
                exec.pid = Some(pid);
                if let Some(opened) = exec.opened.take() {
                    // Nobody feeds it any more: then it reads the end.
                    opened.send(()).unwrap_or(());
                }
                if self.connection.is_some() {
                    self.say(id, &Reply::Started { pid });
                }
            }
            RoleEvent::Logged { stdout_bytes, stderr_bytes } => role.note_growth(stdout_bytes, stderr_bytes),
            RoleEvent::Warning { code, text } => exec.warnings.push(Warning::new(code, text)),
            RoleEvent::Exited(exit) => {
                role.note_growth(exit.stdout_bytes, exit.stderr_bytes);
                exec.stdin = None;
                let warnings = std::mem::take(&mut exec.warnings);
                work.answer = Some((Reply::Result(Box::new(OpResult::exited(&exit, warnings))), false));
            }
            RoleEvent::NotStarted { reason } => {
                exec.stdin = None;
                work.answer =
                    Some((Reply::Error { message: reason, class: Some(ErrorClass::Operation) }, false));
            }
            // Nobody asked for these.
            RoleEvent::Ready { .. } | RoleEvent::NotReady { .. } | RoleEvent::Stopping { .. } => {}
        }
    }
}

/// Writes input into a pipe until it ends, once the program has opened its end.
async fn feed(
    path: &Path,
    held: pipe::Sender,
    is_open: oneshot::Receiver<()>,
    input: &File,
    mut grown: watch::Receiver<u64>,
) -> std::io::Result<()> {
    if is_open.await.is_err() {
        return Ok(());
    }
    // From here on only writing: a program that closes its end is noticed.
    let mut sender = pipe::OpenOptions::new().open_sender(path)?;
    drop(held);
    let (mut piece, mut at) = (vec![0; PIECE], 0);
    loop {
        let length = *grown.borrow_and_update();
        while at < length {
            let read = input.read_at(&mut piece, at)?;
            sender.write_all(&piece[..read]).await?;
            at += read as u64;
        }
        // What came last is heard of before the end is.
        if grown.changed().await.is_err() {
            return Ok(());
        }
    }
}
