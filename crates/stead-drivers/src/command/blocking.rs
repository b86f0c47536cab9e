//! A program run from an operation, which lives on a blocking thread: `validate`, `git`, `getent`.
//!
//! The same group, cancel and kill rules as a command's, on a small runtime of its own.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use stead_model::ErrorClass;
use stead_model::event::Stream;
use stead_runner::operation::{OpContext, OpError};

use super::process::{self, Capture, Ended, Start};
use super::program;
use super::tail::Tail;

/// A program to run, by argument list.
pub(crate) struct Program {
    /// Its name or path.
    pub(crate) name: String,
    /// Its arguments.
    pub(crate) args: Vec<OsString>,
    /// Where it starts.
    pub(crate) cwd: PathBuf,
    /// Variables it gets besides the inherited ones.
    pub(crate) env: BTreeMap<String, String>,
}

/// What a program said and how it ended.
pub(crate) struct Said {
    pub(crate) ended: Ended,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Said {
    /// Whether it exited with 0.
    pub(crate) fn is_ok(&self) -> bool {
        self.ended.exit_code == Some(0)
    }

    /// Returns how it ended and the end of what it said, for messages.
    pub(crate) fn describe(&self) -> String {
        let said: Vec<&str> =
            self.stderr.lines().chain(self.stdout.lines()).filter(|line| !line.is_empty()).collect();
        let last = said.len().saturating_sub(20);
        match said[last..].join("\n") {
            said if said.is_empty() => self.ended.describe(),
            said => format!("{}: {said}", self.ended.describe()),
        }
    }
}

/// Runs a program to its end. Call only on a blocking thread.
///
/// # Errors
/// Class `permanent` if it is not there, `operation` if it cannot be run or was cancelled.
pub(crate) fn run(cx: &OpContext, program: Program) -> Result<Said, OpError> {
    run_with(cx, program, None, Capture::Stream, None)
}

/// Runs a program to its end that leaves another one behind, which must not hold its output open. Nothing of what it
/// says is kept.
pub(crate) fn run_apart(cx: &OpContext, program: Program) -> Result<Said, OpError> {
    run_with(cx, program, None, Capture::Discard, None)
}

/// Runs a program that reads `stdin`, to its end: for what must not be in an argument list.
///
/// # Errors
/// As [`run`], and class `timeout` if it takes longer than `limit`; then it is killed.
pub(crate) fn run_with(
    cx: &OpContext,
    program: Program,
    stdin: Option<Vec<u8>>,
    capture: Capture,
    limit: Option<Duration>,
) -> Result<Said, OpError> {
    let path = program.env.get("PATH").map(OsString::from).or_else(|| std::env::var_os("PATH"));
    let file = program::find(&program.name, &program.cwd, path.as_deref())
        .map_err(|missing| OpError::permanent(missing.message))?;
    let mut env = cx.marks();
    env.extend(program.env);
    let start = Start {
        program: file,
        name: program.name.clone(),
        args: program.args,
        cwd: program.cwd,
        hidden_env: cx.hidden_env.to_vec(),
        env,
        stdin,
        capture,
    };
    let cannot = |error: std::io::Error| OpError::io(format_args!("cannot run `{}`", program.name), &error);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(cannot)?;
    let (mut stdout, mut stderr) = (Tail::default(), Tail::default());
    let mut sink = |stream, bytes: &[u8]| match stream {
        Stream::Stdout => stdout.push(bytes),
        Stream::Stderr => stderr.push(bytes),
    };
    let running = process::run(start, &cx.cancel, cx.grace, &mut sink);
    let ended = match limit {
        None => runtime.block_on(running),
        Some(limit) => {
            runtime.block_on(async { tokio::time::timeout(limit, running).await }).map_err(|_| {
                let within = stead_model::duration::to_exact(limit);
                OpError::new(ErrorClass::Timeout, format!("`{}` did not end within {within}", program.name))
            })?
        }
    };
    let ended = ended.map_err(cannot)?;
    if ended.stopped {
        return Err(OpError::operation(format!("cancelled while `{}` ran", program.name)));
    }
    Ok(Said { ended, stdout: stdout.into_text(), stderr: stderr.into_text() })
}
