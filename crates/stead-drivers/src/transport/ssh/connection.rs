//! One connection to one host, shared by everything a run does there.
//!
//! It owns the tasks of its channels. A server that refuses one more session (`MaxSessions`) makes the next ones wait
//! in order until a session ends; only a refusal without any other session is an error.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;

use russh::client::{Handle, Msg};
use russh::{Channel, ChannelOpenFailure};
use stead_runner::transport::{Command, Signal, TransportError, TransportErrorKind};
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinSet;

use super::client::{Client, Shared};
use super::program::{self, Input, OnDrop};
use super::way::{Cut, ProxyProcess};
use crate::transport::Notices;

/// A server frees the place of an ended session a moment after it said so.
const REFUSAL_PAUSE: Duration = Duration::from_millis(20);
/// How often a refusal is taken for that moment when no session of ours is open.
const LONELY_REFUSALS: u32 = 25;

/// A connection that is logged in.
pub(super) struct Connection {
    handle: Handle<Client>,
    shared: Arc<Shared>,
    name: String,
    notices: Notices,
    sessions: Sessions,
    noisy: AtomicBool,
    tasks: Mutex<JoinSet<()>>,
    another: OnceLock<Another>,
    side: tokio::sync::Mutex<Weak<Connection>>,
    // What this connection runs through: kept while it lives.
    _kept: Kept,
}

/// What a connection runs through, and what ends it.
pub(super) type Kept = (Option<Arc<Connection>>, Option<ProxyProcess>, Cut);

/// Makes another connection to the same host.
pub(super) type Another = Box<
    dyn Fn() -> Pin<Box<dyn Future<Output = Result<Arc<Connection>, TransportError>> + Send>> + Send + Sync,
>;

/// A connection as it comes from the login.
pub(super) struct Parts {
    pub(super) handle: Handle<Client>,
    pub(super) shared: Arc<Shared>,
    pub(super) name: String,
}

/// The places a server gives.
#[derive(Debug, Default)]
struct Sessions {
    open: Arc<Open>,
    crowded: AtomicBool,
    // Held by whoever is next when the server is full.
    door: tokio::sync::Mutex<()>,
    // Sessions that serve others: they are not waited for.
    beside: Arc<Open>,
    // Told when the place of such a session is needed.
    lent: Mutex<Option<oneshot::Sender<()>>>,
}

#[derive(Debug, Default)]
struct Open {
    count: AtomicUsize,
    freed: Notify,
}

/// A taken place; dropping it gives it back.
#[derive(Debug)]
pub(super) struct Slot(Arc<Open>);

impl Slot {
    fn take(open: &Arc<Open>) -> Self {
        open.count.fetch_add(1, Ordering::SeqCst);
        Self(Arc::clone(open))
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.0.count.fetch_sub(1, Ordering::SeqCst);
        self.0.freed.notify_one();
    }
}

/// A session channel and its place.
pub(super) struct Opened {
    pub(super) channel: Channel<Msg>,
    pub(super) slot: Slot,
}

impl Connection {
    pub(super) fn new(parts: Parts, notices: Notices, kept: Kept) -> Self {
        Self {
            handle: parts.handle,
            shared: parts.shared,
            name: parts.name,
            notices,
            sessions: Sessions::default(),
            noisy: AtomicBool::new(false),
            tasks: Mutex::new(JoinSet::new()),
            another: OnceLock::new(),
            side: tokio::sync::Mutex::new(Weak::new()),
            _kept: kept,
        }
    }

    /// The host, for messages.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn handle(&self) -> &Handle<Client> {
        &self.handle
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    pub(super) fn is_closed(&self) -> bool {
        self.handle.is_closed()
    }

    /// Whether the server delivers signals to a session's process group: OpenSSH does since 7.9.
    pub(super) fn server_signals(&self) -> bool {
        self.shared.server_version().is_some_and(|version| version >= (7, 9))
    }

    /// Runs a task of this connection; it ends with the connection.
    pub(super) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        while tasks.try_join_next().is_some() {}
        tasks.spawn(task);
    }

    /// Returns why the connection is no more.
    pub(super) fn lost(&self, when: &str) -> TransportError {
        let reason = self.shared.end_reason();
        let name = &self.name;
        TransportError::new(
            TransportErrorKind::Lost,
            format!("the connection to {name} ended while {when}: {reason}"),
        )
    }

    /// Says once that the login shell prints.
    pub(super) fn note_noise(&self, count: usize) {
        if count > 0 && !self.noisy.swap(true, Ordering::SeqCst) {
            let name = &self.name;
            self.notices.send(
                "reach/noise",
                format!(
                    "the login shell on {name} printed {count} bytes before the program's output; they are left out: \
                     let its start-up files print only for interactive shells"
                ),
            );
        }
    }

    /// Opens a session channel, waiting for a place while others are open.
    pub(super) async fn open_session(&self) -> Result<Opened, TransportError> {
        if !self.sessions.crowded.load(Ordering::SeqCst)
            && let Some(opened) = self.try_open().await?
        {
            return Ok(opened);
        }
        self.sessions.crowded.store(true, Ordering::SeqCst);
        let _turn = self.sessions.door.lock().await;
        let mut lonely = 0;
        loop {
            if let Some(opened) = self.try_open().await? {
                // Whoever comes next tries without waiting; a refusal brings them back here.
                self.sessions.crowded.store(false, Ordering::SeqCst);
                return Ok(opened);
            }
            self.sessions.crowded.store(true, Ordering::SeqCst);
            if self.sessions.open.count.load(Ordering::SeqCst) > 0 {
                tokio::time::timeout(REFUSAL_PAUSE, self.sessions.open.freed.notified()).await.ok();
                continue;
            }
            lonely += 1;
            if lonely > LONELY_REFUSALS {
                if self.sessions.beside.count.load(Ordering::SeqCst) == 0 {
                    let name = &self.name;
                    return Err(TransportError::new(
                        TransportErrorKind::Failed,
                        format!("{name} opens no session: `MaxSessions` of its sshd_config may be 0"),
                    ));
                }
                // Once that one is gone the server has its moment again.
                self.take_place_back();
                lonely = 0;
            }
            // Nobody of ours frees a place, and a refused try must not be taken for that.
            tokio::time::sleep(REFUSAL_PAUSE).await;
        }
    }

    /// Opens a session channel that serves others; nothing if the server has no place.
    pub(super) async fn open_beside(&self) -> Result<Option<Opened>, TransportError> {
        self.try_open_as(&self.sessions.beside).await
    }

    /// Says who gives up a place that was opened beside when a program needs it.
    pub(super) fn lend_place(&self, give_up: oneshot::Sender<()>) {
        *self.sessions.lent.lock().unwrap_or_else(PoisonError::into_inner) = Some(give_up);
    }

    fn take_place_back(&self) {
        let lent = self.sessions.lent.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(lent) = lent {
            // One that has gone by itself needs no telling.
            lent.send(()).ok();
        }
    }

    /// Returns nothing if the server has no place.
    async fn try_open(&self) -> Result<Option<Opened>, TransportError> {
        self.try_open_as(&self.sessions.open).await
    }

    async fn try_open_as(&self, whose: &Arc<Open>) -> Result<Option<Opened>, TransportError> {
        let slot = Slot::take(whose);
        match self.handle.channel_open_session().await {
            Ok(channel) => Ok(Some(Opened { channel, slot })),
            Err(russh::Error::ChannelOpenFailure(
                ChannelOpenFailure::ConnectFailed
                | ChannelOpenFailure::ResourceShortage
                | ChannelOpenFailure::AdministrativelyProhibited,
            )) => Ok(None),
            Err(_) => Err(self.lost("a session was being opened")),
        }
    }

    /// Says how another connection to the same host is made.
    pub(super) fn set_another(&self, another: Another) {
        // Said once, by whoever made this one.
        self.another.set(another).ok();
    }

    /// Returns a second connection to the host, made when it is needed.
    async fn side(&self) -> Result<Arc<Self>, TransportError> {
        let mut side = self.side.lock().await;
        if let Some(side) = side.upgrade().filter(|side| !side.is_closed()) {
            return Ok(side);
        }
        let Some(another) = self.another.get() else {
            let name = &self.name;
            return Err(TransportError::new(
                TransportErrorKind::Failed,
                format!("{name} has no session left to signal a program by"),
            ));
        };
        let made = another().await?;
        *side = Arc::downgrade(&made);
        Ok(made)
    }

    /// Signals a process group by a second session: for servers that do not do so themselves.
    pub(super) fn kill_group(
        self: Arc<Self>,
        pid: u32,
        signal: Signal,
    ) -> Pin<Box<dyn Future<Output = Result<(), TransportError>> + Send>> {
        Box::pin(async move {
            let name = match signal {
                Signal::Interrupt => "INT",
                Signal::Terminate => "TERM",
                Signal::Kill => "KILL",
            };
            // A server that gives a session no group of its own: then the process itself.
            let script = "kill -s \"$1\" -- \"-$2\" 2>/dev/null || kill -s \"$1\" \"$2\" 2>/dev/null";
            let command = Command::new(["sh", "-c", script, "sh", name, &pid.to_string()]);
            let nothing = Input::Bytes(Vec::new());
            // The sessions that are to be signalled may be what fills the server: then nobody waits for a place.
            let mut running = match self.try_open().await? {
                Some(opened) => program::start_in(&self, opened, &command, nothing, OnDrop::EndInput).await?,
                None => {
                    let side = self.side().await?;
                    program::start_with(&side, &command, nothing, OnDrop::EndInput).await?
                }
            };
            // Whatever it says: gone already is as good.
            running.process.wait().await.map(drop)
        })
    }
}
