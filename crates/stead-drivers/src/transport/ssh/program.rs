//! A program on the other side of a connection: its start, its streams, its signals and its end.
//!
//! ```text
//!   Process ──orders──▶ Writing ──▶ channel ──▶ Reading ──▶ spools, end ──▶ Process
//! ```
//! Two tasks per program: one only reads the channel, because the connection waits for whoever does not, the other
//! feeds the input and carries out orders. When the [`Process`] is dropped before the end, the process group is killed.

mod reading;
mod writing;

use std::sync::Arc;

use stead_runner::transport::{Command, Exit, Process, Running, Signal, Stdin, TransportError, Writer};
use tokio::sync::{mpsc, oneshot, watch};

use super::connection::{Connection, Opened};
use super::watch::{SCRIPT as WATCHER, Tie};
use crate::transport::launch::{self, Launch};
use crate::transport::random_name;
use reading::Reading;
use writing::{Order, Writing};

pub(super) use writing::{Content, Input, copy};

/// Between the user's writes and the channel: a few packets.
const INPUT_BUFFER: usize = 64 << 10;

/// How a program ended, once it has.
type End = Option<Result<Exit, TransportError>>;

/// What a dropped [`Process`] means for a program that still runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OnDrop {
    /// Its process group is killed.
    Kill,
    /// Its input ends, so that it can clean up after itself.
    EndInput,
}

/// Starts `command` over `connection` and returns when the program is about to run.
pub(super) async fn start(
    connection: &Arc<Connection>,
    command: &Command,
    on_drop: OnDrop,
    tie: Option<Tie>,
) -> Result<Running, TransportError> {
    // Refused before a place is taken, if it cannot be started at all.
    launch::check(command)?;
    let (stdin, input) = match &command.stdin {
        Stdin::Empty => (None, Input::Bytes(Vec::new())),
        Stdin::Bytes(bytes) => (None, Input::Bytes(bytes.clone())),
        Stdin::Piped => {
            let (ours, theirs) = tokio::io::duplex(INPUT_BUFFER);
            (Some(Box::pin(ours) as Writer), Input::Pipe(theirs))
        }
    };
    let opened = connection.open_session().await?;
    let running = start_as(connection, opened, Launching::of(command)?, input, on_drop, tie).await?;
    Ok(Running { stdin, ..running })
}

/// As [`start`], with this input whatever the command says.
pub(super) async fn start_with(
    connection: &Arc<Connection>,
    command: &Command,
    input: Input,
    on_drop: OnDrop,
) -> Result<Running, TransportError> {
    launch::check(command)?;
    let opened = connection.open_session().await?;
    start_in(connection, opened, command, input, on_drop).await
}

/// Starts the shell that watches commands, fed with lines.
pub(super) async fn start_watcher(
    connection: &Arc<Connection>,
    opened: Opened,
    lines: mpsc::UnboundedReceiver<String>,
) -> Result<Running, TransportError> {
    let nonce = random_name(16)?;
    let launch = Launch::of_shell(WATCHER, &nonce);
    let launching = Launching { nonce, launch };
    start_as(connection, opened, launching, Input::Lines(lines), OnDrop::EndInput, None).await
}

/// As [`start_with`], in a session that is open already.
pub(super) async fn start_in(
    connection: &Arc<Connection>,
    opened: Opened,
    command: &Command,
    input: Input,
    on_drop: OnDrop,
) -> Result<Running, TransportError> {
    start_as(connection, opened, Launching::of(command)?, input, on_drop, None).await
}

/// A launch and the mark that it prints.
struct Launching {
    nonce: String,
    launch: Launch,
}

impl Launching {
    fn of(command: &Command) -> Result<Self, TransportError> {
        let nonce = random_name(16)?;
        let launch = Launch::new(command, &nonce)?;
        Ok(Self { nonce, launch })
    }
}

async fn start_as(
    connection: &Arc<Connection>,
    opened: Opened,
    launching: Launching,
    input: Input,
    on_drop: OnDrop,
    tie: Option<Tie>,
) -> Result<Running, TransportError> {
    let Launching { nonce, launch } = launching;
    let knot = tie.as_ref().map(Tie::knot);
    let (reads, writes) = opened.channel.split();
    let (ended, end) = watch::channel(None);
    let (closed, close) = watch::channel(false);
    let (stop, stopped) = watch::channel(false);
    let (orders, order_receiver) = mpsc::unbounded_channel();
    let (started, start) = oneshot::channel();
    let (reading, stdout, stderr) =
        Reading::new(Arc::clone(connection), &nonce, started, ended, closed, (opened.slot, tie));
    let pid = reading.pid();
    connection.spawn(reading.run(reads, stopped));
    // From here the two tasks end what was begun, also if this future is dropped.
    let process = SshProcess { connection: Arc::clone(connection), orders, end: end.clone() };
    let writing =
        Writing { connection: Arc::clone(connection), writes, end, closed: close, pid, on_drop, stop };
    connection.spawn(writing.run(launch, knot, input, order_receiver));
    match start.await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => return Err(error),
        Err(_) => return Err(connection.lost("a program was being started")),
    }
    Ok(Running {
        stdin: None,
        stdout: Box::pin(stdout),
        stderr: Box::pin(stderr),
        process: Box::new(process),
    })
}

struct SshProcess {
    connection: Arc<Connection>,
    // Dropping this is the order to end.
    orders: mpsc::UnboundedSender<Order>,
    end: watch::Receiver<End>,
}

#[async_trait::async_trait]
impl Process for SshProcess {
    async fn signal(&mut self, signal: Signal) -> Result<(), TransportError> {
        if self.end.borrow().is_some() {
            return Ok(());
        }
        let (reply, answer) = oneshot::channel();
        if self.orders.send(Order { signal, reply }).is_err() {
            return Ok(());
        }
        // A task that ended meanwhile has nothing left to signal.
        answer.await.unwrap_or(Ok(()))
    }

    async fn wait(&mut self) -> Result<Exit, TransportError> {
        let lost = || Err(self.connection.lost("a program ran"));
        match self.end.wait_for(Option::is_some).await {
            Ok(end) => end.clone().unwrap_or_else(lost),
            Err(_) => lost(),
        }
    }
}
