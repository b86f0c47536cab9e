//! Takes connections for a master.
//!
//! ```text
//! serve: accept, handshake (any thread) ── Accepted ──▶ one thread: a task per connection ── calls ──▶ master (any thread)
//! ```

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use capnp::capability::FromClientHook;
use capnp_rpc::rpc_twoparty_capnp::Side;
use capnp_rpc::{RpcSystem, twoparty};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use stead_model::WorkerName;
use stead_model::fleet::peer::Role;
use stead_model::fleet::state::Heartbeat;
use stead_runner::clock;
use tokio::io::BufWriter;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::task::{JoinSet, LocalSet};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::compat::{TokioAsyncReadCompatExt, TokioAsyncWriteCompatExt};
use tokio_util::sync::CancellationToken;

use super::fleet_capnp::{join, master};
use super::flow::{Flow, Input, Output};
use super::service::{Door, Service};
use super::{
    DEADLINE, MAX_CONNECTIONS, MAX_HANDSHAKES, MAX_HANDSHAKES_OF_ONE, MAX_MESSAGE, MAX_STRANGER_MESSAGE,
    MAX_STRANGERS, MAX_WORKER_CONNECTIONS, MAX_WORKER_MESSAGE, reader_options,
};
use crate::api::Master;
use crate::identity::{Authority, IdentityError, Member};

/// How long a peer may be silent: it is asked to say something every 15 seconds.
const SILENCE: Duration = Duration::from_secs(60);
/// How long a peer may leave its answers unread.
const STUCK: Duration = Duration::from_secs(30);
/// How long somebody without a certificate may stay.
const STRANGER: Duration = Duration::from_secs(30);
/// How often connections are looked at for silence, and certificates for their end.
const LOOK: Duration = Duration::from_secs(5);
/// Connections that wait for their thread; more wait to be accepted.
const QUEUE: usize = 256;

/// Why a master cannot serve.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// Its certificate cannot be used.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// Its thread could not be started.
    #[error("failed to start the thread of connections")]
    Thread(#[source] io::Error),
}

/// A connection whose handshake is done.
struct Accepted {
    stream: TlsStream<TcpStream>,
    member: Option<Member>,
    permits: [Option<OwnedSemaphorePermit>; 2],
}

/// How many may be connected at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// All together.
    pub connections: usize,
    /// Those of them that have not shown a certificate.
    pub strangers: usize,
}

impl Default for Room {
    fn default() -> Self {
        Self { connections: MAX_CONNECTIONS, strangers: MAX_STRANGERS }
    }
}

/// Serves `master` to who connects to `listener`, until `shutdown`; then every connection is closed.
///
/// `authority` says who may call what: its certificate is shown, members are checked against it, joiners are admitted by it.
/// Peers without a certificate can only join. Calls run on the runtime this is called on. The process may open as many
/// files from then on as it is allowed to.
pub async fn serve(
    listener: TcpListener,
    master: Arc<dyn Master>,
    authority: Arc<Authority>,
    shutdown: CancellationToken,
) -> Result<(), ServeError> {
    serve_in(Room::default(), listener, master, authority, shutdown).await
}

/// As [`serve`], with room for so many. Whoever finds none is turned away once hands were shaken, and comes again as it
/// would to a master that is away; who is connected notices nothing.
pub async fn serve_in(
    room: Room,
    listener: TcpListener,
    master: Arc<dyn Master>,
    authority: Arc<Authority>,
    shutdown: CancellationToken,
) -> Result<(), ServeError> {
    let files = getrlimit(Resource::Nofile);
    // With fewer files there is room for fewer connections, and nothing else changes.
    let _is_raised = setrlimit(Resource::Nofile, Rlimit { current: files.maximum, ..files }).is_ok();
    let acceptor = TlsAcceptor::from(Arc::new(authority.server_config()?));
    let stop = shutdown.child_token();
    let (accepted, incoming) = mpsc::channel(QUEUE);
    let ended = start_thread(incoming, master, Arc::clone(&authority), stop.clone())?;
    let strangers = Arc::new(Semaphore::new(room.strangers));
    let room = Arc::new(Semaphore::new(room.connections));
    let mut handshakes: JoinSet<IpAddr> = JoinSet::new();
    let mut shaking: BTreeMap<IpAddr, usize> = BTreeMap::new();
    let mut follow = std::pin::pin!(authority.follow());
    loop {
        tokio::select! {
            () = shutdown.cancelled() => break,
            () = &mut follow => break,
            Some(done) = handshakes.join_next(), if !handshakes.is_empty() => match done {
                Ok(from) => shaken(&mut shaking, from),
                // Whose it was is not known: it is forgotten with everybody's.
                Err(_) => shaking.clear(),
            },
            taken = listener.accept() => {
                let Ok((stream, from)): io::Result<(TcpStream, SocketAddr)> = taken else {
                    // Out of files or the like: what is connected goes on.
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    continue;
                };
                let from = from.ip().to_canonical();
                let of_one = shaking.entry(from).or_default();
                // Whoever finds no room is turned away at once, and tries the next master.
                if handshakes.len() >= MAX_HANDSHAKES || *of_one >= MAX_HANDSHAKES_OF_ONE {
                    continue;
                }
                *of_one += 1;
                let (acceptor, accepted) = (acceptor.clone(), accepted.clone());
                let (room, strangers) = (Arc::clone(&room), Arc::clone(&strangers));
                let authority = Arc::clone(&authority);
                handshakes.spawn(async move {
                    let taken = tokio::time::timeout(DEADLINE, handshake(&acceptor, &authority, stream)).await;
                    let Ok(Some((stream, member))) = taken else { return from };
                    let Ok(room) = room.try_acquire_owned() else { return from };
                    let stranger = match &member {
                        Some(_) => None,
                        None => match strangers.try_acquire_owned() {
                            Ok(permit) => Some(permit),
                            Err(_) => return from,
                        },
                    };
                    drop(accepted.send(Accepted { stream, member, permits: [Some(room), stranger] }).await);
                    from
                });
            }
        }
    }
    handshakes.shutdown().await;
    stop.cancel();
    drop(ended.await);
    Ok(())
}

/// Notes that a peer of this address has shaken hands, or will not.
fn shaken(shaking: &mut BTreeMap<IpAddr, usize>, from: IpAddr) {
    if let Some(count) = shaking.get_mut(&from) {
        *count = count.saturating_sub(1);
        if *count == 0 {
            shaking.remove(&from);
        }
    }
}

/// Returns the stream of a peer with what its certificate tells; nothing if it is refused.
async fn handshake(
    acceptor: &TlsAcceptor,
    authority: &Authority,
    stream: TcpStream,
) -> Option<(TlsStream<TcpStream>, Option<Member>)> {
    stream.set_nodelay(true).ok()?;
    let stream = acceptor.accept(stream).await.ok()?;
    let shown = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
    let member = match shown {
        Some(certificate) => Some(Member::read(certificate).ok()?),
        None => None,
    };
    if let Some(member) = &member
        && !authority.knows(member)
    {
        // It may have been given by another master just now.
        authority.refresh().await.ok()?;
        if !authority.knows(member) {
            return None;
        }
    }
    Some((stream, member))
}

/// Starts the thread that carries connections; what is returned ends with it.
fn start_thread(
    mut incoming: mpsc::Receiver<Accepted>,
    master: Arc<dyn Master>,
    authority: Arc<Authority>,
    stop: CancellationToken,
) -> Result<oneshot::Receiver<()>, ServeError> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(ServeError::Thread)?;
    let (done, ended) = oneshot::channel();
    let outside = Handle::current();
    let body = move || {
        let local = LocalSet::new();
        local.block_on(&runtime, async move {
            let hall = Rc::new(Hall::new(master, authority, outside));
            let mut connections = JoinSet::new();
            connections.spawn_local(Rc::clone(&hall).watch());
            loop {
                tokio::select! {
                    () = stop.cancelled() => break,
                    Some(_) = connections.join_next() => {}
                    taken = incoming.recv() => {
                        let Some(taken) = taken else { break };
                        connections.spawn_local(Rc::clone(&hall).carry(taken));
                    }
                }
            }
        });
        done.send(()).ok();
    };
    std::thread::Builder::new()
        .name("stead-wire-serve".to_owned())
        .spawn(body)
        .map_err(ServeError::Thread)?;
    Ok(ended)
}

/// A live connection of a member.
struct Live {
    serial: String,
    not_after: i64,
    cut: CancellationToken,
}

/// The newest session of a worker.
struct Session {
    number: u64,
    /// The process that speaks: its machine's boot, and what it calls itself.
    process: (String, String),
    /// The certificate it showed last.
    serial: String,
    /// The connections that spoke for it; they are told when a newer one comes.
    replaced: CancellationToken,
}

/// What all connections share, on their thread.
pub(super) struct Hall {
    pub(super) master: Arc<dyn Master>,
    pub(super) authority: Arc<Authority>,
    /// Where calls run.
    pub(super) outside: Handle,
    live: RefCell<BTreeMap<u64, Live>>,
    next: Cell<u64>,
    sessions: RefCell<BTreeMap<WorkerName, Session>>,
}

impl fmt::Debug for Hall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hall").field("connections", &self.live.borrow().len()).finish_non_exhaustive()
    }
}

impl Hall {
    fn new(master: Arc<dyn Master>, authority: Arc<Authority>, outside: Handle) -> Self {
        Self {
            master,
            authority,
            outside,
            live: RefCell::default(),
            next: Cell::new(0),
            sessions: RefCell::default(),
        }
    }

    /// Notes that a worker speaks in this session, with this certificate. Returns what is cancelled once a newer session
    /// speaks for it; nothing if one has already, or if another process says that it is the same session.
    pub(super) fn speaks(&self, heartbeat: &Heartbeat, serial: &str) -> Option<CancellationToken> {
        let number = heartbeat.session;
        let process = (heartbeat.boot_id.clone(), heartbeat.process.clone());
        let mut sessions = self.sessions.borrow_mut();
        // Whoever joins anew in the place of somebody revoked begins to count anew.
        let newest = sessions.get_mut(&heartbeat.worker);
        match newest.filter(|newest| !self.authority.is_revoked(&newest.serial)) {
            Some(newest) if (number, &process) == (newest.number, &newest.process) => {
                serial.clone_into(&mut newest.serial);
                Some(newest.replaced.clone())
            }
            Some(newest) if number <= newest.number => None,
            Some(_) | None => {
                let replaced = CancellationToken::new();
                let session =
                    Session { number, process, serial: serial.to_owned(), replaced: replaced.clone() };
                if let Some(older) = sessions.insert(heartbeat.worker.clone(), session) {
                    older.replaced.cancel();
                }
                Some(replaced)
            }
        }
    }

    /// Cuts connections whose certificate is revoked or has expired.
    async fn watch(self: Rc<Self>) {
        let mut revoked = self.authority.revocations();
        let mut look = tokio::time::interval(LOOK);
        loop {
            tokio::select! {
                changed = revoked.changed() => if changed.is_err() { return },
                _ = look.tick() => {}
            }
            let now = clock::now().as_micros().div_euclid(1_000_000);
            let revoked = Arc::clone(&revoked.borrow_and_update());
            for live in self.live.borrow().values() {
                if revoked.contains(&live.serial) || live.not_after <= now {
                    live.cut.cancel();
                }
            }
        }
    }

    /// Carries one connection until it ends, or has to.
    async fn carry(self: Rc<Self>, taken: Accepted) {
        let Accepted { stream, member, permits } = taken;
        let flow = Flow::new(true);
        let (input, output) = tokio::io::split(stream);
        let role = member.as_ref().map(|member| member.peer.role);
        let limit = match role {
            Some(Role::Worker) => MAX_WORKER_MESSAGE,
            Some(Role::Observer | Role::Publisher | Role::Operator | Role::Master) => MAX_MESSAGE,
            None => MAX_STRANGER_MESSAGE,
        };
        let is_same = |live: &&Live| member.as_ref().is_some_and(|member| member.serial == live.serial);
        let others = self.live.borrow().values().filter(is_same).count();
        if role == Some(Role::Worker) && others >= MAX_WORKER_CONNECTIONS {
            return;
        }
        let network = twoparty::VatNetwork::new(
            Input::new(input, &flow).compat(),
            BufWriter::with_capacity(4_096, Output::new(output, &flow)).compat_write(),
            Side::Server,
            reader_options(limit),
        );
        let cut = CancellationToken::new();
        let number = self.next.get();
        self.next.set(number.wrapping_add(1));
        let stays = if member.is_some() { Duration::MAX } else { STRANGER };
        let offer = match member {
            Some(member) => {
                let live =
                    Live { serial: member.serial.clone(), not_after: member.not_after, cut: cut.clone() };
                self.live.borrow_mut().insert(number, live);
                // Revoked between the handshake and now: the watcher has not seen this connection.
                if self.authority.is_revoked(&member.serial) {
                    cut.cancel();
                }
                let service = Service::new(Rc::clone(&self), member);
                capnp_rpc::new_client::<master::Client, _>(service).into_client_hook()
            }
            None => {
                let door = Door::new(Rc::clone(&self));
                capnp_rpc::new_client::<join::Client, _>(door).into_client_hook()
            }
        };
        let system = RpcSystem::new(Box::new(network), Some(capnp::capability::Client::new(offer)));
        tokio::select! {
            () = cut.cancelled() => {}
            () = guard(&flow, stays) => {}
            // A peer that went away, or wrote what cannot be read.
            ended = system => drop(ended),
        }
        self.live.borrow_mut().remove(&number);
        drop(permits);
    }
}

/// Returns when a peer has been silent, stuck or there for too long.
async fn guard(flow: &Flow, stays: Duration) {
    let start = clock::instant();
    let mut look = tokio::time::interval(LOOK);
    loop {
        look.tick().await;
        if flow.silence() > SILENCE || flow.stuck() > STUCK || start.elapsed() > stays {
            return;
        }
    }
}
