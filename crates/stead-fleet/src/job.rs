//! One program and everything it starts: in a process group of its own that ends with it, within time, memory and output.
//!
//! Dropping the future kills the group: that is how a newer head ends what an older one started.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Resource, Rlimit, Signal, kill_process_group, prlimit};
use stead_runner::process_table::Process;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};

/// How much of what a program complains of is kept in memory; all of it is in the log.
const COMPLAINT: usize = 64 << 10;

/// The most a program may print.
const MOST_OUTPUT: usize = 64 << 20;

/// What to start.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    program: OsString,
    args: Vec<OsString>,
    env: Vec<(OsString, OsString)>,
    hidden: Vec<&'static str>,
    input: Vec<u8>,
    timeout: Duration,
    memory: Option<u64>,
    log: Option<PathBuf>,
}

/// How it ended.
#[derive(Debug)]
pub(crate) struct Ended {
    /// How.
    pub(crate) status: ExitStatus,
    /// What it printed.
    pub(crate) stdout: Vec<u8>,
    /// The end of what it complained of.
    pub(crate) stderr: String,
}

/// Why there is no end to look at.
#[derive(Debug, thiserror::Error)]
pub(crate) enum JobError {
    /// It cannot be started.
    #[error("{program} cannot be started: {source}")]
    Start {
        /// The program.
        program: String,
        /// Why.
        source: io::Error,
    },
    /// It took too long and was killed.
    #[error("{program} took longer than {}", stead_model::duration::to_exact(*.limit))]
    Timeout {
        /// The program.
        program: String,
        /// The limit.
        limit: Duration,
    },
    /// It printed too much and was killed.
    #[error("{program} printed more than {MOST_OUTPUT} bytes")]
    TooMuch {
        /// The program.
        program: String,
    },
    /// Its output, or the log, cannot be used.
    #[error("{program}: {source}")]
    Pipe {
        /// The program.
        program: String,
        /// Why.
        source: io::Error,
    },
}

impl Ended {
    /// Returns how it ended, in words.
    pub(crate) fn describe(&self) -> String {
        match (self.status.code(), self.status.signal()) {
            (Some(code), _) => format!("exit code {code}"),
            (None, Some(signal)) => format!("signal {signal}"),
            (None, None) => "an unknown end".to_owned(),
        }
    }

    /// Returns what it printed, as text.
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }
}

impl Job {
    /// Returns a program that may take so long.
    pub(crate) fn new(program: impl AsRef<OsStr>, timeout: Duration) -> Self {
        Self {
            program: program.as_ref().to_owned(),
            args: Vec::new(),
            env: Vec::new(),
            hidden: Vec::new(),
            input: Vec::new(),
            timeout,
            memory: None,
            log: None,
        }
    }

    /// Adds an argument.
    pub(crate) fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.args.push(arg.as_ref().to_owned());
        self
    }

    /// Adds arguments.
    pub(crate) fn args<A: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        self.args.extend(args.into_iter().map(|arg| arg.as_ref().to_owned()));
        self
    }

    /// Sets a variable.
    pub(crate) fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        self.env.push((name.as_ref().to_owned(), value.as_ref().to_owned()));
        self
    }

    /// Takes inherited variables away.
    pub(crate) fn without(mut self, names: &[&'static str]) -> Self {
        self.hidden.extend_from_slice(names);
        self
    }

    /// Gives it something to read.
    pub(crate) fn input(mut self, input: Vec<u8>) -> Self {
        self.input = input;
        self
    }

    /// Limits the memory of each of its processes.
    pub(crate) fn memory(mut self, bytes: u64) -> Self {
        self.memory = Some(bytes);
        self
    }

    /// Adds what it is and what it complains of to a file.
    pub(crate) fn log(mut self, log: &Path) -> Self {
        self.log = Some(log.to_owned());
        self
    }

    fn name(&self) -> String {
        Path::new(&self.program).file_name().unwrap_or(&self.program).to_string_lossy().into_owned()
    }

    /// Runs it to its end.
    ///
    /// # Errors
    /// If it cannot be started, takes too long or prints too much. How it ended is for the caller to judge.
    pub(crate) async fn run(self) -> Result<Ended, JobError> {
        self.run_into(&mut Collected::default()).await
    }

    /// Runs it to its end and gives what it prints to `sink`, whatever its size.
    pub(crate) async fn run_into(self, sink: &mut dyn Sink) -> Result<Ended, JobError> {
        let (program, limit) = (self.name(), self.timeout);
        match tokio::time::timeout(limit, self.talk(sink)).await {
            Ok(ended) => ended,
            Err(_) => Err(JobError::Timeout { program, limit }),
        }
    }

    async fn talk(mut self, sink: &mut dyn Sink) -> Result<Ended, JobError> {
        let program = self.name();
        let pipe = |source| JobError::Pipe { program: program.clone(), source };
        let mut log = match &self.log {
            Some(path) => Some(self.open_log(path).map_err(pipe)?),
            None => None,
        };
        let mut command = std::process::Command::new(&self.program);
        command.args(&self.args).process_group(0).current_dir("/");
        self.hidden.iter().for_each(|name| {
            command.env_remove(name);
        });
        command.envs(self.env.iter().map(|(name, value)| (name, value)));
        command.stdin(if self.input.is_empty() { Stdio::null() } else { Stdio::piped() });
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = tokio::process::Command::from(command)
            .spawn()
            .map_err(|source| JobError::Start { program: program.clone(), source })?;
        let pid = child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
        let mut group = Group(pid);
        if let Some(bytes) = self.memory {
            let limit = Rlimit { current: Some(bytes), maximum: Some(bytes) };
            prlimit(pid, Resource::As, limit).map_err(|error| pipe(error.into()))?;
        }
        let input = std::mem::take(&mut self.input);
        let stdin = child.stdin.take();
        let write = async {
            if let Some(mut stdin) = stdin {
                // A program that does not want all of it says so by how it ends.
                stdin.write_all(&input).await.unwrap_or(());
            }
        };
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let mut tail = Vec::new();
        let complaints = read(stderr, |bytes| {
            if let Some(log) = &mut log {
                log.write_all(bytes)?;
            }
            tail.extend_from_slice(bytes);
            if tail.len() > 2 * COMPLAINT {
                tail.drain(..tail.len() - COMPLAINT);
            }
            Ok(())
        });
        let output = read(stdout, |bytes| sink.take(bytes));
        let (status, (), printed, complained) = tokio::join!(child.wait(), write, output, complaints);
        // Its number may be somebody else's from now on.
        group.0 = None;
        if let Err(error) = printed {
            let is_much = error.kind() == io::ErrorKind::FileTooLarge;
            return Err(if is_much { JobError::TooMuch { program } } else { pipe(error) });
        }
        complained.map_err(pipe)?;
        let status = status.map_err(pipe)?;
        let stdout = sink.collected();
        let ended = Ended { status, stdout, stderr: String::from_utf8_lossy(&tail).into_owned() };
        if let Some(log) = &mut log {
            writeln!(log, "# {}", ended.describe()).map_err(pipe)?;
        }
        Ok(ended)
    }

    /// Opens the log and says in it what is started. No argument holds a secret.
    fn open_log(&self, path: &Path) -> io::Result<File> {
        let mut log = File::options().create(true).append(true).open(path)?;
        let args: Vec<_> = self.args.iter().map(|arg| arg.to_string_lossy()).collect();
        writeln!(log, "$ {} {}", self.program.to_string_lossy(), args.join(" "))?;
        Ok(log)
    }
}

/// Takes what a program prints.
pub(crate) trait Sink: Send {
    /// Takes a piece; an error ends the program.
    fn take(&mut self, bytes: &[u8]) -> io::Result<()>;

    /// Returns what it kept in memory.
    fn collected(&mut self) -> Vec<u8> {
        Vec::new()
    }
}

/// Keeps everything, within bounds.
#[derive(Default)]
struct Collected(Vec<u8>);

impl Sink for Collected {
    fn take(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.0.len() + bytes.len() > MOST_OUTPUT {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.0.extend_from_slice(bytes);
        Ok(())
    }

    fn collected(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.0)
    }
}

async fn read(
    pipe: Option<impl AsyncRead + Unpin>,
    mut take: impl FnMut(&[u8]) -> io::Result<()>,
) -> io::Result<()> {
    let Some(mut pipe) = pipe else { return Ok(()) };
    let mut buffer = vec![0; 64 << 10];
    loop {
        match pipe.read(&mut buffer).await? {
            0 => return Ok(()),
            count => take(buffer.get(..count).unwrap_or_default())?,
        }
    }
}

/// A process group, killed when it is dropped before its end, with whoever left it: Nix starts builders in sessions of their own.
struct Group(Option<Pid>);

impl Drop for Group {
    fn drop(&mut self) {
        let Some(group) = self.0 else { return };
        let below = descendants(group.as_raw_nonzero().get());
        // The only expected failure is that the group is gone already, which is what is wanted.
        kill_process_group(group, Signal::KILL).unwrap_or(());
        for process in below {
            process.signal(Signal::KILL);
        }
    }
}

/// Returns everybody that a process started, and whom they started.
fn descendants(leader: i32) -> Vec<Process> {
    let all = Process::all();
    let mut found: Vec<Process> = Vec::new();
    let mut parents: BTreeSet<u32> = u32::try_from(leader).into_iter().collect();
    loop {
        let known = parents.len();
        let children = all.iter().filter(|process| parents.contains(&process.parent));
        let new: Vec<Process> = children.filter(|process| !found.contains(process)).copied().collect();
        parents.extend(new.iter().map(|process| process.pid));
        found.extend(new);
        if parents.len() == known {
            return found;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str) -> Job {
        Job::new("/bin/sh", Duration::from_secs(60)).args(["-c", script])
    }

    #[tokio::test]
    async fn output_input_and_log_are_kept_apart() {
        let directory = tempfile::tempdir().unwrap();
        let log = directory.path().join("log");
        let job = sh("cat; echo bad >&2; exit 3").input(b"hello".to_vec()).log(&log);
        let ended = job.run().await.unwrap();
        assert_eq!((ended.text().as_str(), ended.stderr.as_str()), ("hello", "bad\n"));
        assert_eq!(ended.describe(), "exit code 3");
        let log = std::fs::read_to_string(log).unwrap();
        assert!(log.ends_with("bad\n# exit code 3\n"), "{log}");
    }

    /// A program that takes too long is killed with everything it started.
    #[tokio::test]
    async fn what_takes_too_long_is_killed_as_a_group() {
        let directory = tempfile::tempdir().unwrap();
        let pid = directory.path().join("pid");
        // One of them leaves the group.
        let mut job = sh("setsid sleep 600 & echo $! > \"$0\"; wait").arg(&pid);
        job.timeout = Duration::from_secs(3);
        assert!(matches!(job.run().await, Err(JobError::Timeout { .. })));
        let pid = std::fs::read_to_string(pid).unwrap();
        let status = || std::fs::read_to_string(format!("/proc/{}/stat", pid.trim()));
        for _ in 0..6000 {
            match status() {
                Ok(stat) if !stat.contains(") Z") => tokio::time::sleep(Duration::from_millis(10)).await,
                Ok(_) | Err(_) => return,
            }
        }
        panic!("the sleep is still there: {:?}", status());
    }

    #[tokio::test]
    async fn memory_has_a_limit() {
        // The shell's own copy of a text of 64 MiB does not fit.
        let job = sh("sleep 0.2; x=$(head -c 67108864 /dev/zero | tr '\\0' a); echo ${#x}");
        let ended = job.memory(32 << 20).run().await.unwrap();
        assert!(!ended.status.success() || ended.text() != "67108864\n", "{ended:?}");
    }
}
