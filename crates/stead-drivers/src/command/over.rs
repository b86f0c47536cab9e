//! Commands over a bare connection: the same meaning of every parameter, without the executor on the other side.
//!
//! What a command cannot have here is the care for processes that leave its group: only the group is ended.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;

use stead_model::event::{Mode, Stream};
use stead_runner::operation::{OpContext, OpError, Outcome, Params, Stop};
use stead_runner::transport::{
    Command, Exit, Running, Signal, Stdin, Transport, TransportError, TransportErrorKind,
};
use tokio::io::AsyncReadExt;
use tokio::time::{Duration, Instant};

use super::process::Ended;
use super::tail::Tail;
use super::{ExitCodes, SHELL, given_env, outcome};

/// How long output is waited for after the command has ended: background children may keep it open.
const DRAIN: Duration = Duration::from_secs(1);

/// Looks whether a path is there; the connection starts it where the path belongs.
const EXISTS: &str = "[ -e \"$1\" ]";

/// Runs a command, or in a dry run says what it would do.
pub(super) async fn act(
    transport: &dyn Transport,
    cx: &OpContext,
    params: &Params,
    mode: Mode,
    argv: Vec<OsString>,
) -> Result<Outcome, OpError> {
    let mut env = cx.marks();
    // A path of the driver means nothing there.
    env.remove("STEAD_BUNDLE");
    env.extend(given_env(params)?);
    let work = Work {
        transport,
        cx,
        env: env.into_iter().map(|(name, value)| (name.into(), value.into())).collect(),
        cwd: params.text("cwd").map(PathBuf::from),
    };
    let cancelled = || OpError::operation("cancelled before the command started");
    if mode == Mode::Run && cx.cancel.now() >= Stop::Ask {
        return Err(cancelled());
    }
    if let Some(reason) = work.settled(params).await? {
        return Ok(Outcome { reason: Some(reason), ..Outcome::default() });
    }
    if mode == Mode::DryRun {
        if let Some(creates) = params.text("creates") {
            cx.predicted.set(key(params, creates), true.into());
        }
        return Ok(Outcome { changed: true, ..Outcome::default() });
    }
    if cx.cancel.now() >= Stop::Ask {
        return Err(cancelled());
    }
    let program = argv.first().cloned().unwrap_or_default();
    let stdin = params.text("stdin").map_or(Stdin::Empty, |text| Stdin::Bytes(text.as_bytes().to_vec()));
    let (mut stdout, mut stderr) = (Tail::default(), Tail::default());
    let mut sink = |stream, bytes: &[u8]| {
        cx.output.write(stream, bytes);
        match stream {
            Stream::Stdout => stdout.push(bytes),
            Stream::Stderr => stderr.push(bytes),
        }
    };
    let ended = work.run(argv, stdin, &mut sink).await?;
    let stderr = stderr.into_text();
    let message = match (ended.exit_code, stderr.lines().next()) {
        // The connection says which program is missing, and where it was looked for.
        (Some(code @ (126 | 127)), Some(line)) if program != SHELL => format!("exit code {code}: {line}"),
        _ => ended.describe(),
    };
    Ok(outcome(&ended, &ExitCodes::new(params), message, stdout.into_text(), stderr))
}

/// Returns what a dry run remembers a path by.
fn key(params: &Params, path: &str) -> String {
    format!("command:{}:{path}", params.text("cwd").unwrap_or_default())
}

struct Work<'a> {
    transport: &'a dyn Transport,
    cx: &'a OpContext,
    env: BTreeMap<OsString, OsString>,
    cwd: Option<PathBuf>,
}

impl Work<'_> {
    /// Returns why the command has nothing to do, if so.
    async fn settled(&self, params: &Params) -> Result<Option<String>, OpError> {
        if let Some(creates) = params.text("creates") {
            let looked = [SHELL, "-c", EXISTS, "stead", creates].map(OsString::from).to_vec();
            let predicted = self.cx.predicted.get(&key(params, creates)).is_some();
            if predicted || self.run(looked, Stdin::Empty, &mut |_, _| {}).await?.exit_code == Some(0) {
                return Ok(Some(format!("creates: {creates} exists")));
            }
        }
        let Some(unless) = params.text("unless") else { return Ok(None) };
        let probe = [SHELL, "-c", unless].map(OsString::from).to_vec();
        let ended = self.run(probe, Stdin::Empty, &mut |_, _| {}).await?;
        Ok((ended.exit_code == Some(0)).then(|| format!("unless: `{unless}` succeeded")))
    }

    async fn run(
        &self,
        argv: Vec<OsString>,
        stdin: Stdin,
        sink: &mut (dyn FnMut(Stream, &[u8]) + Send),
    ) -> Result<Ended, OpError> {
        let (env, cwd, tied) = (self.env.clone(), self.cwd.clone(), Some(self.cx.grace));
        let command = Command { argv, env, cwd, stdin, clear_env: false, tied };
        let running = self.transport.exec(command).await.map_err(|error| self.failed(&error, false))?;
        self.wait(running, sink).await.map_err(|error| self.failed(&error, true))
    }

    fn failed(&self, error: &TransportError, begun: bool) -> OpError {
        // Whether it began is told by `changed`; the caller knows what that means for its task.
        OpError { changed: begun, ..OpError::new(error.class(), error.to_string()) }
    }

    async fn wait(
        &self,
        mut running: Running,
        sink: &mut (dyn FnMut(Stream, &[u8]) + Send),
    ) -> Result<Ended, TransportError> {
        let (mut out, mut err) = (vec![0; 16 << 10], vec![0; 4 << 10]);
        let (mut out_open, mut err_open) = (true, true);
        let mut kill_at: Option<Instant> = None;
        let mut drain_until: Option<Instant> = None;
        let mut exit: Option<Exit> = None;
        let mut was_killed = false;
        let mut broken: Option<std::io::Error> = None;
        let cancel = &self.cx.cancel;
        while exit.is_none() || out_open || err_open {
            let Running { stdout, stderr, process, .. } = &mut running;
            tokio::select! {
                read = stdout.read(&mut out), if out_open => match read {
                    Ok(n) if n > 0 => sink(Stream::Stdout, out.get(..n).unwrap_or_default()),
                    ended => {
                        out_open = false;
                        broken = broken.or(ended.err());
                    }
                },
                read = stderr.read(&mut err), if err_open => match read {
                    Ok(n) if n > 0 => sink(Stream::Stderr, err.get(..n).unwrap_or_default()),
                    ended => {
                        err_open = false;
                        broken = broken.or(ended.err());
                    }
                },
                ended = process.wait(), if exit.is_none() => {
                    exit = Some(ended?);
                    drain_until = Some(Instant::now() + DRAIN);
                }
                () = cancel.at_least(Stop::Ask), if kill_at.is_none() && exit.is_none() => {
                    kill_at = Some(Instant::now() + self.cx.grace);
                    process.signal(Signal::Terminate).await?;
                }
                () = kill_time(kill_at, cancel), if kill_at.is_some() && !was_killed && exit.is_none() => {
                    was_killed = true;
                    process.signal(Signal::Kill).await?;
                }
                () = until(drain_until) => break,
            }
        }
        let lost = || TransportError::new(TransportErrorKind::Lost, "the connection ended under a command");
        let (exit_code, signal) = match exit.ok_or_else(lost)? {
            Exit::Code(code) => (Some(code), None),
            Exit::Signal(signal) => (None, Some(signal)),
        };
        if let Some(error) = broken {
            let message = format!("the command's output is not whole: {error}");
            return Err(TransportError::new(TransportErrorKind::Failed, message));
        }
        Ok(Ended { exit_code, signal, stopped: kill_at.is_some() })
    }
}

async fn kill_time(at: Option<Instant>, cancel: &stead_runner::operation::Cancel) {
    tokio::select! { () = until(at) => {}, () = cancel.at_least(Stop::Kill) => {} }
}

async fn until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::path::Path;
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use serde_json::Map;
    use stead_model::ErrorClass;
    use stead_model::plan::Digest;
    use stead_model::transport::TransportSpec;
    use stead_runner::transport::{FileMeta, Forward, Forwarded, Process, Source};
    use stead_testkit::context::context;
    use tokio::io::{AsyncRead, ReadBuf};

    use super::*;

    /// Says something, and then breaks.
    struct Broken(bool);

    impl AsyncRead for Broken {
        fn poll_read(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            into: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            if std::mem::replace(&mut self.0, true) {
                return Poll::Ready(Err(io::Error::other("the spool is full")));
            }
            into.put_slice(b"half");
            Poll::Ready(Ok(()))
        }
    }

    /// A connection whose commands end well, and whose output does not.
    struct Line;

    #[async_trait::async_trait]
    impl Process for Line {
        async fn signal(&mut self, _: Signal) -> Result<(), TransportError> {
            Ok(())
        }

        async fn wait(&mut self) -> Result<Exit, TransportError> {
            Ok(Exit::Code(0))
        }
    }

    fn unused<T>() -> Result<T, TransportError> {
        Err(TransportError::new(TransportErrorKind::Failed, "not needed"))
    }

    #[async_trait::async_trait]
    impl Transport for Line {
        fn spec(&self) -> &TransportSpec {
            &TransportSpec::Local
        }

        async fn exec(&self, _: Command) -> Result<Running, TransportError> {
            let stderr = Box::pin(tokio::io::empty());
            Ok(Running { stdin: None, stdout: Box::pin(Broken(false)), stderr, process: Box::new(Line) })
        }

        async fn put(&self, _: Source, _: &Path, _: FileMeta) -> Result<Digest, TransportError> {
            unused()
        }

        async fn get(&self, _: &Path, _: &Path) -> Result<Digest, TransportError> {
            unused()
        }

        async fn forward(&self, _: Forward) -> Result<Forwarded, TransportError> {
            unused()
        }
    }

    /// A command that ended well and whose output was lost on its way has not done what was asked.
    #[tokio::test]
    async fn output_that_is_not_whole_fails_the_command() {
        let directory = tempfile::tempdir().unwrap();
        let cx = context(directory.path());
        let done = act(&Line, &cx, &Params::new(Map::new()), Mode::Run, vec!["true".into()]).await;
        let error = done.unwrap_err();
        assert_eq!(error.message, "the command's output is not whole: the spool is full");
        assert!(error.changed && error.class != ErrorClass::Exit, "it has begun: {:?}", error.class);
    }
}
