//! The server's process: binds, says that it is ready, and answers until it is told to stop.

use std::collections::HashMap;
use std::fs;
use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Map, json};
use stead_drivers::site::{Manifests, load};
use stead_runner::clock;
use stead_runner::socket::SocketPath;
use stead_web::Desk;
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::audit::Audit;
use crate::certificate::CertificateError;
use crate::connection;
use crate::handle::Peer;
use crate::keys;
use crate::lock;
use crate::log::{Destination, Log};
use crate::moving;
use crate::place::{ServerFacts, ServerOptions, ServerPlace, WantedPort};
use crate::plans::Plans;
use crate::rates::counted;
use crate::repos::Repos;
use crate::server::{Parts, Server};
use crate::snapshot::{SnapshotError, Sources};
use crate::store::{JournalError, Store};

/// How long connections may take to end once the server stops: it ends within a second.
const LEAVE: Duration = Duration::from_millis(500);
/// In how many parts they are given it: where the machine is busy, each has its turn between two of them.
const TURNS: u32 = 20;

/// How long is waited when no connection can be taken.
const BREATHER: Duration = Duration::from_millis(50);

/// How often is looked whether the keyring has changed, for those who could not tell this server.
const LOOK: Duration = Duration::from_secs(1);

/// What Linux sends to a process whose file would grow beyond its limit: the write fails, which is enough.
const SIGXFSZ: i32 = 25;

/// Who the server belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attachment {
    /// Who started it watches it: requests are logged to standard error unless a file is named.
    Foreground,
    /// Nobody: it leaves the session that it was started in, and logs to a file.
    Detached,
}

/// Why a server did not start, or ended.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The site, certificate or repositories cannot be used.
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    /// What it remembers cannot be used.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// A file could not be used.
    #[error("failed to {what} {}", path.display())]
    File {
        /// What was done.
        what: &'static str,
        /// With which file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Another program has the port.
    #[error("port {} at {} is held by another program", address.port(), address.ip())]
    Held {
        /// Which.
        address: SocketAddr,
    },
    /// The address cannot be used.
    #[error("failed to listen at {address}")]
    Listen {
        /// Which.
        address: SocketAddr,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A server of this site has the port.
    #[error("a server of this site is running on port {port}")]
    Running {
        /// Which.
        port: u16,
    },
    /// The runtime or its signals cannot be set up.
    #[error("failed to set up the process")]
    Process(#[source] io::Error),
}

impl From<CertificateError> for ServeError {
    fn from(error: CertificateError) -> Self {
        Self::Snapshot(SnapshotError::Certificate(error))
    }
}

fn failed(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> ServeError {
    let path = path.to_owned();
    move |source| ServeError::File { what, path, source }
}

/// Serves a site until the process is told to stop (SIGTERM, SIGINT). `ready` is called once it answers.
pub fn serve(
    place: &ServerPlace,
    options: &ServerOptions,
    attachment: Attachment,
    ready: impl FnOnce(&ServerFacts),
) -> Result<(), ServeError> {
    if attachment == Attachment::Detached {
        // Started by a shell, it would get that shell's signals.
        rustix::process::setsid().ok();
    }
    raise_open_files();
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.enable_all().build().map_err(ServeError::Process)?;
    let result = runtime.block_on(run(place, options, attachment, ready));
    // What still reads a file is not waited for.
    runtime.shutdown_timeout(Duration::from_millis(100));
    result
}

/// Lets this process have as many connections as the system allows it.
fn raise_open_files() {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    if let Ok((_, most)) = getrlimit(Resource::RLIMIT_NOFILE) {
        // Without it fewer connections are taken, which is said when it happens.
        setrlimit(Resource::RLIMIT_NOFILE, most, most).ok();
    }
}

async fn run(
    place: &ServerPlace,
    options: &ServerOptions,
    attachment: Attachment,
    ready: impl FnOnce(&ServerFacts),
) -> Result<(), ServeError> {
    let directory = place.directory();
    let mut make = fs::DirBuilder::new();
    make.recursive(true).mode(0o700).create(&directory).map_err(failed("make", &directory))?;
    let signals = Signals::listen().map_err(ServeError::Process)?;
    let settings =
        load(&place.site, &place.site, Manifests::None).map_err(SnapshotError::Load)?.site.settings;
    if settings.is_broken() {
        return Err(SnapshotError::Site(settings.diagnostics).into());
    }
    let bind = options.bind.unwrap_or(settings.value.server.bind);
    let wanted = place.wanted_port(options.port, settings.value.server.port);
    let (listener, port) = listen(place, bind, wanted).await?;
    let lock_file = place.lock(port);
    let lock = lock::take(&lock_file).map_err(failed("lock", &lock_file))?;
    let Some(lock) = lock else { return Err(ServeError::Running { port }) };
    // Held until the process has ended: who waits for the lock waits for all of it.
    std::mem::forget(lock);
    let pid_file = place.pid_file(port);
    // That of a server before it: until this one answers there is none, which tells that it is starting.
    fs::remove_file(&pid_file).ok();
    let mut stays = Vec::new();
    if wanted.any_will_do {
        let kept = place.port_file();
        stays = moving::settle(place, wanted, port).map_err(failed("take along what belongs to", &kept))?;
    }
    let repos = place.repos(port);
    Repos::tidy(&repos).map_err(failed("tidy", &repos))?;
    let sources = Sources { place: place.clone(), options: options.clone(), port, bind };
    let chosen = sources.certificate()?;
    let keyring = keys::stamp(&place.site);
    let snapshot = sources.read(chosen.certificate)?;
    let (stop, stopping) = watch::channel(false);
    let program = std::env::current_exe().map_err(ServeError::Process)?;
    let plans_directory = place.plans(port);
    let plans = Plans::open(place, port, program).map_err(failed("use", &plans_directory))?;
    let log = Arc::new(open_log(place, options, attachment, port)?);
    let tell = {
        let log = Arc::clone(&log);
        move |what: &str| log.say("journal", Map::from_iter([("problem".to_owned(), json!(what))]))
    };
    let store = Store::open(place, port, stopping.clone(), Arc::new(tell))?;
    let revoked = store.revoke(snapshot.keys().revoked()).await;
    revoked
        .map_err(|error| io::Error::other(error.message))
        .map_err(failed("write", &place.journal(port)))?;
    let audit_file = place.audit();
    let audit = Audit::open(&audit_file).map_err(failed("write", &audit_file))?;
    let facts = ServerFacts {
        url: format!("https://{}", SocketAddr::new(own_address(bind), port)),
        port,
        pid: std::process::id(),
        fingerprint: snapshot.certificate.fingerprint().to_owned(),
        replaced_fingerprint: chosen.replaced,
        spki_pin: snapshot.certificate.pins().spki_pin.clone(),
        socket: place.socket(port),
        specs: snapshot.site.specs.len(),
        repos: snapshot.repos.len(),
    };
    for problem in stays {
        log.say("unusable", Map::from_iter([("problem".to_owned(), json!(problem))]));
    }
    for (file, problem) in &snapshot.broken {
        let known = [("file".to_owned(), json!(file)), ("problem".to_owned(), json!(problem))];
        log.say("unusable", known.into_iter().collect());
    }
    let socket = listen_locally(&facts.socket).map_err(failed("listen at", &facts.socket))?;
    log.say(
        "start",
        Map::from_iter([("port".to_owned(), json!(port)), ("pid".to_owned(), json!(facts.pid))]),
    );
    let desk = Desk::new(vec![place.state.join("runs")]);
    let parts = Parts { sources, snapshot, store, plans, desk, log, audit, stopping, facts: facts.clone() };
    let server = Server::new(parts);
    let mut serving = Serving {
        server,
        listener,
        socket,
        tasks: JoinSet::new(),
        connections: Connections::default(),
        said_full: None,
        keyring,
    };
    write_pid(&pid_file).map_err(failed("write", &pid_file))?;
    ready(&facts);
    serving.run(signals).await;
    // From here on nobody finds this server, and nobody waits for it.
    for left in [&pid_file, &facts.socket] {
        fs::remove_file(left).ok();
    }
    stop.send_replace(true);
    serving.server.log.say("stop", Map::new());
    serving.leave().await;
    Ok(())
}

fn open_log(
    place: &ServerPlace,
    options: &ServerOptions,
    attachment: Attachment,
    port: u16,
) -> Result<Log, ServeError> {
    let destination = match (&options.log, attachment) {
        (Some(path), _) => Destination::File(path.clone()),
        (None, Attachment::Detached) => Destination::File(place.log(port)),
        (None, Attachment::Foreground) => Destination::Stderr,
    };
    let path = match &destination {
        Destination::File(path) => path.clone(),
        Destination::Stderr => PathBuf::from("standard error"),
    };
    Log::open(&destination).map_err(failed("write", &path))
}

/// Binds the port; if any would do, the one of the last time while it is free.
async fn listen(
    place: &ServerPlace,
    bind: IpAddr,
    wanted: WantedPort,
) -> Result<(TcpListener, u16), ServeError> {
    if let Some(kept) = wanted.kept
        && let Ok(listener) = TcpListener::bind((bind, kept)).await
    {
        return Ok((listener, kept));
    }
    let port = wanted.number;
    match bound((bind, port).into()).await {
        Err(ServeError::Listen { address, source }) if source.kind() == io::ErrorKind::AddrInUse => {
            let lock_file = place.lock(port);
            match lock::holder(&lock_file).map_err(failed("look at", &lock_file))? {
                Some(_) => Err(ServeError::Running { port }),
                None if wanted.any_will_do => bound((bind, 0).into()).await,
                None => Err(ServeError::Held { address }),
            }
        }
        answer => answer,
    }
}

async fn bound(address: SocketAddr) -> Result<(TcpListener, u16), ServeError> {
    let failed = |source| ServeError::Listen { address, source };
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    let port = listener.local_addr().map_err(failed)?.port();
    Ok((listener, port))
}

/// Binds the socket, which is there for this account alone from its first moment.
fn listen_locally(path: &Path) -> io::Result<UnixListener> {
    let new = path.with_extension("new");
    for old in [&new, path] {
        match fs::remove_file(old) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
    }
    let listener = UnixListener::bind(SocketPath::new(&new)?.path())?;
    fs::set_permissions(&new, fs::Permissions::from_mode(0o600))?;
    fs::rename(&new, path)?;
    Ok(listener)
}

fn write_pid(path: &Path) -> io::Result<()> {
    let new = path.with_extension("pid.new");
    let mut file = fs::File::create(&new)?;
    writeln!(file, "{}", std::process::id())?;
    fs::rename(&new, path)
}

/// Returns the address at which this machine reaches what listens at `bind`.
fn own_address(bind: IpAddr) -> IpAddr {
    match bind {
        IpAddr::V4(four) if four.is_unspecified() => IpAddr::from([127, 0, 0, 1]),
        IpAddr::V6(six) if six.is_unspecified() => IpAddr::from([0, 0, 0, 0, 0, 0, 0, 1]),
        IpAddr::V4(_) | IpAddr::V6(_) => bind,
    }
}

/// The signals that mean something to a server.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
    _file_size: Signal,
}

impl Signals {
    fn listen() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
            _file_size: signal(SignalKind::from_raw(SIGXFSZ))?,
        })
    }
}

/// What happens to a server.
enum Input {
    Remote(io::Result<(TcpStream, SocketAddr)>),
    Local(io::Result<UnixStream>),
    Ended,
    Look,
    Reload,
    Stop,
}

/// The connections over TLS, by who has them.
#[derive(Clone, Default)]
struct Connections(Arc<Mutex<Counts>>);

#[derive(Default)]
struct Counts {
    all: u64,
    by_address: HashMap<IpAddr, u64>,
}

/// One of them, as long as it lasts.
struct Connection {
    counts: Connections,
    address: IpAddr,
}

impl Connections {
    /// Takes one of `most` for `address`, which may have three of four: nobody has them all.
    fn take(&self, address: IpAddr, most: u64) -> Option<Connection> {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let own = counts.by_address.get(&address).copied().unwrap_or(0);
        if counts.all >= most || own >= most - most / 4 {
            return None;
        }
        counts.all += 1;
        counts.by_address.insert(address, own + 1);
        drop(counts);
        Some(Connection { counts: self.clone(), address })
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let mut counts = self.counts.0.lock().unwrap_or_else(PoisonError::into_inner);
        counts.all = counts.all.saturating_sub(1);
        let left = counts.by_address.get(&self.address).map_or(0, |own| own.saturating_sub(1));
        match left {
            0 => counts.by_address.remove(&self.address),
            left => counts.by_address.insert(self.address, left),
        };
    }
}

struct Serving {
    server: Arc<Server>,
    listener: TcpListener,
    socket: UnixListener,
    tasks: JoinSet<()>,
    connections: Connections,
    /// When a connection was last refused and the log told so.
    said_full: Option<Instant>,
    /// The keyring as it was when it was last read.
    keyring: Option<keys::Stamp>,
}

impl Serving {
    async fn run(&mut self, mut signals: Signals) {
        let server = Arc::clone(&self.server);
        self.tasks.spawn(async move { server.index().await });
        let server = Arc::clone(&self.server);
        self.tasks.spawn(async move { server.plans.work(&server).await });
        let site = self.server.sources.place.site.clone();
        let mut look = tokio::time::interval(LOOK);
        look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let input = tokio::select! {
                accepted = self.listener.accept() => Input::Remote(accepted),
                accepted = self.socket.accept() => Input::Local(accepted.map(|(stream, _)| stream)),
                Some(_) = self.tasks.join_next() => Input::Ended,
                _ = look.tick() => Input::Look,
                _ = signals.hangup.recv() => Input::Reload,
                _ = signals.terminate.recv() => Input::Stop,
                _ = signals.interrupt.recv() => Input::Stop,
            };
            match input {
                Input::Remote(Ok((stream, peer))) => self.take(stream, peer),
                Input::Local(Ok(stream)) => self.take_local(stream),
                Input::Remote(Err(_)) | Input::Local(Err(_)) => {
                    self.server.log.say("exhausted", Map::new());
                    tokio::time::sleep(BREATHER).await;
                }
                Input::Ended => {}
                Input::Look => {
                    let now = keys::stamp(&site);
                    if std::mem::replace(&mut self.keyring, now) != now {
                        let server = Arc::clone(&self.server);
                        // Why it cannot be used is in the log.
                        self.tasks.spawn(async move { drop(server.reload_keys().await) });
                    }
                }
                Input::Reload => {
                    let server = Arc::clone(&self.server);
                    self.tasks.spawn(async move { server.reload().await });
                }
                Input::Stop => return,
            }
        }
    }

    fn take(&mut self, stream: TcpStream, peer: SocketAddr) {
        let snapshot = self.server.snapshot();
        let most = snapshot.limits().connections;
        let Some(counted) = self.connections.take(counted(peer.ip()), most) else {
            // One more would be one too many: it is closed at once.
            self.say_full(peer.ip());
            return;
        };
        let server = Arc::clone(&self.server);
        let patience = Duration::from_secs(snapshot.limits().header_seconds);
        self.tasks.spawn(async move {
            let _counted = counted;
            // Answers are small and go out at once.
            stream.set_nodelay(true).ok();
            // A stream of TLS is large, and a future has room for it at every place it is moved to: it is moved once.
            let handshake = Box::pin(async move {
                let accepted = tokio::time::timeout(patience, snapshot.tls.accept(stream)).await;
                accepted.ok()?.ok().map(Box::new)
            });
            if let Some(stream) = handshake.await {
                connection::serve(server, Peer::Remote(peer.ip()), stream).await;
            }
        });
    }

    /// Says that there are too many connections, now and then.
    fn say_full(&mut self, peer: IpAddr) {
        let now = clock::instant();
        if self.said_full.is_none_or(|said| now.duration_since(said) >= LOOK) {
            self.said_full = Some(now);
            self.server.log.say("full", Map::from_iter([("peer".to_owned(), json!(peer))]));
        }
    }

    fn take_local(&mut self, stream: UnixStream) {
        let Ok(credentials) = stream.peer_cred() else { return };
        let server = Arc::clone(&self.server);
        let peer = Peer::Local { uid: credentials.uid() };
        self.tasks.spawn(connection::serve(server, peer, stream));
    }

    /// Lets connections end, for a moment.
    async fn leave(&mut self) {
        let Self { tasks, server, .. } = self;
        let mut all = Box::pin(async {
            while tasks.join_next().await.is_some() {}
            server.finish().await;
        });
        for _ in 0..TURNS {
            if tokio::time::timeout(LEAVE / TURNS, &mut all).await.is_ok() {
                break;
            }
        }
        drop(all);
        self.tasks.abort_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_has_all_connections() {
        let connections = Connections::default();
        let [greedy, other] = ["10.0.0.1", "10.0.0.2"].map(|address| address.parse::<IpAddr>().unwrap());
        let mut taken: Vec<Connection> = (0..20).filter_map(|_| connections.take(greedy, 8)).collect();
        assert_eq!(taken.len(), 6);
        let others: Vec<Connection> = (0..20).filter_map(|_| connections.take(other, 8)).collect();
        assert_eq!(others.len(), 2);
        taken.pop();
        assert!(connections.take(other, 8).is_some(), "one that has ended is free for anybody");
        drop((taken, others));
        let counts = connections.0.lock().unwrap();
        assert_eq!((counts.all, counts.by_address.len()), (0, 0));
    }
}
