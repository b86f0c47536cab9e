//! What goes to a program: the line that starts it, its input, signals, and the end if nobody wants it any more.

use std::sync::Arc;
use std::time::Duration;

use russh::{ChannelWriteHalf, Sig};
use stead_runner::transport::{Signal, TransportError};
use tokio::io::{AsyncRead, AsyncReadExt, DuplexStream};
use tokio::sync::{mpsc, oneshot, watch};

use super::reading::Started;
use super::{End, OnDrop};
use crate::transport::launch::Launch;
use crate::transport::ssh::connection::Connection;
use crate::transport::ssh::watch::Knot;

/// How long a killed program may take to be gone before the channel is closed regardless.
const KILL_GRACE: Duration = Duration::from_secs(5);
/// How long the server may take to close the channel of an ended program. Something it left behind may hold it open.
const CLOSE_GRACE: Duration = Duration::from_millis(500);

/// What is read at once while there is much: two packets.
const PIECE: usize = 64 << 10;
/// What is held ready while there is little: hundreds of programs may wait for a word at the same time.
const LITTLE: usize = 512;

/// A signal to be sent, and whom to tell.
#[derive(Debug)]
pub(super) struct Order {
    pub(super) signal: Signal,
    pub(super) reply: oneshot::Sender<Result<(), TransportError>>,
}

/// What feeds a program.
pub(in crate::transport::ssh) enum Input {
    /// These bytes, then the end.
    Bytes(Vec<u8>),
    /// What is written to the other end of this pipe.
    Pipe(DuplexStream),
    /// Lines, as they come.
    Lines(mpsc::UnboundedReceiver<String>),
    /// What is sent here, when it is; nothing if that never comes.
    Later(oneshot::Receiver<Content>),
}

/// Input that is given later.
pub(in crate::transport::ssh) enum Content {
    /// These bytes.
    Bytes(Vec<u8>),
    /// The pieces of a file.
    Pieces(mpsc::Receiver<std::io::Result<bytes::Bytes>>),
}

/// The task that writes to a channel.
pub(super) struct Writing {
    pub(super) connection: Arc<Connection>,
    pub(super) writes: ChannelWriteHalf<russh::client::Msg>,
    pub(super) end: watch::Receiver<End>,
    pub(super) closed: watch::Receiver<bool>,
    pub(super) pid: watch::Receiver<Option<Started>>,
    pub(super) on_drop: OnDrop,
    pub(super) stop: watch::Sender<bool>,
}

impl Writing {
    pub(super) async fn run(
        mut self,
        launch: Launch,
        knot: Option<Knot>,
        input: Input,
        mut orders: mpsc::UnboundedReceiver<Order>,
    ) {
        let mut closed = self.closed.clone();
        {
            let mut feeding = std::pin::pin!(feed(&self.writes, launch, knot, input));
            let mut fed = false;
            loop {
                tokio::select! {
                    biased;
                    // Its sender lives as long as the reading task.
                    () = async { closed.wait_for(|closed| *closed).await.ok(); } => return,
                    order = orders.recv() => match order {
                        Some(order) => {
                            // Rare: it takes no room in the task that waits for it.
                            order.reply.send(Box::pin(self.signal(order.signal)).await).ok();
                        }
                        None => break,
                    },
                    () = &mut feeding, if !fed => fed = true,
                }
            }
        }
        // Nobody holds the program any more.
        let running = self.end.borrow().is_none();
        match self.on_drop {
            OnDrop::Kill if running => {
                if self.pid.borrow().is_none() {
                    // Given up while it was being started: a shell that still reads its line ends here.
                    self.writes.eof().await.ok();
                    tokio::time::timeout(KILL_GRACE, self.pid.wait_for(Option::is_some)).await.ok();
                }
                // Without an answer here the connection is gone, and with it all that could be done.
                tokio::time::timeout(KILL_GRACE, Box::pin(self.signal(Signal::Kill))).await.ok();
                tokio::time::timeout(KILL_GRACE, self.end.wait_for(Option::is_some)).await.ok();
            }
            OnDrop::EndInput if running => {
                self.writes.eof().await.ok();
                self.end.wait_for(Option::is_some).await.ok();
            }
            OnDrop::Kill | OnDrop::EndInput => {}
        }
        // The server closes by itself when the last of the streams is closed; the library forgets such channels whole.
        if tokio::time::timeout(CLOSE_GRACE, self.closed.wait_for(|closed| *closed)).await.is_err() {
            self.writes.close().await.ok();
            self.stop.send_replace(true);
        }
    }

    async fn signal(&self, signal: Signal) -> Result<(), TransportError> {
        if self.end.borrow().is_some() {
            return Ok(());
        }
        let started = *self.pid.borrow();
        // OpenSSH signals for no session of root: those run without privilege separation.
        if self.connection.server_signals() && started.is_some_and(|started| !started.is_root) {
            let signal = match signal {
                Signal::Interrupt => Sig::INT,
                Signal::Terminate => Sig::TERM,
                Signal::Kill => Sig::KILL,
            };
            let sent = self.writes.signal(signal).await;
            return sent.map_err(|_| self.connection.lost("a program was being signalled"));
        }
        match started {
            Some(started) => Arc::clone(&self.connection).kill_group(started.pid, signal).await,
            None => Ok(()),
        }
    }
}

/// Writes the line and all input, and returns at its end or when nobody takes it any more.
async fn feed(
    writes: &ChannelWriteHalf<russh::client::Msg>,
    launch: Launch,
    knot: Option<Knot>,
    input: Input,
) {
    let all = async {
        writes.exec(true, launch.line).await?;
        let mut first = launch.script;
        if let Some(knot) = knot {
            // The login shell starts meanwhile.
            first.splice(..0, knot.words().await.into_bytes());
        }
        match input {
            Input::Bytes(bytes) => {
                first.extend_from_slice(&bytes);
                writes.data_bytes(first).await?;
            }
            Input::Pipe(pipe) => {
                writes.data_bytes(first).await?;
                copy(writes, pipe).await?;
            }
            Input::Lines(mut lines) => {
                writes.data_bytes(first).await?;
                while let Some(mut text) = lines.recv().await {
                    while let Ok(line) = lines.try_recv() {
                        text.push_str(&line);
                    }
                    writes.data_bytes(text.into_bytes()).await?;
                }
            }
            Input::Later(later) => {
                writes.data_bytes(first).await?;
                match later.await {
                    Ok(Content::Bytes(bytes)) => writes.data_bytes(bytes).await?,
                    Ok(Content::Pieces(mut pieces)) => {
                        while let Some(piece) = pieces.recv().await {
                            writes.data_bytes(piece?).await?;
                        }
                    }
                    Err(_) => {}
                }
            }
        }
        Ok::<_, russh::Error>(())
    };
    // The reading task notices what is wrong with the channel; an input that failed must end all the same.
    all.await.ok();
    writes.eof().await.ok();
}

/// Sends what `from` gives, in pieces as large as the channel takes.
pub(in crate::transport::ssh) async fn copy<S>(
    writes: &ChannelWriteHalf<S>,
    mut from: impl AsyncRead + Unpin,
) -> Result<(), russh::Error>
where
    S: From<(russh::ChannelId, russh::ChannelMsg)> + Send + Sync + 'static,
{
    loop {
        let mut buffer = bytes::BytesMut::with_capacity(LITTLE);
        if from.read_buf(&mut buffer).await? == 0 {
            return Ok(());
        }
        if buffer.len() == LITTLE {
            buffer.reserve(PIECE);
            tokio::select! {
                biased;
                more = from.read_buf(&mut buffer) => { more?; }
                // What is there already goes along; nothing is waited for.
                () = std::future::ready(()) => {}
            }
        }
        writes.data_bytes(buffer.freeze()).await?;
    }
}
