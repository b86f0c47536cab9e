//! The other side of the protocol: an SSH server for machines that have none of their own.
//!
//! It logs in by public key only, runs commands and carries connections; what the keys are and how a command is
//! started is the [`SshHost`]'s. There are no terminals, no subsystems and no agents.

mod command;
mod key;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use russh::server::{
    Auth, ChannelOpenHandle, Config, Handle, Handler, Msg, PublicKeyOffer, Session, VerifiedPublicKey,
};
use russh::{Channel, ChannelOpenFailure, MethodKind, MethodSet, Preferred, SshId, kex};
use stead_runner::transport::Endpoint;
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, oneshot};
use tokio::task::JoinSet;

use super::forwarding::carry;
use crate::transport::endpoint::{Listener, connect};

pub(crate) use command::Started;
pub(crate) use key::{ServerKey, opens};

/// How long a client may be silent before it is asked whether it is there; after three times it is gone.
const KEEPALIVE: Duration = Duration::from_secs(15);

/// How long a client may take to log in.
const LOGIN_GRACE: Duration = Duration::from_secs(30);
/// Clients that have not logged in yet, at once; more are turned away.
const STRANGERS: usize = 64;

/// What a server lets people into.
pub(crate) trait SshHost: Send + Sync + 'static {
    /// Returns the lines of `authorized_keys` that open `user`, as they are now; none for a stranger.
    fn keys(&self, user: &str) -> Vec<String>;

    /// Starts the shell of `user`: with `line` to run, or without. Its pipes are open.
    fn start(
        &self,
        user: &str,
        line: Option<OsString>,
        locale: &BTreeMap<String, String>,
    ) -> io::Result<Started>;

    /// Returns where the socket is that a client calls `path`; none: it is not one of this host's.
    fn socket(&self, path: &str) -> Option<PathBuf>;

    /// Notes something that happened.
    fn note(&self, line: &str);
}

/// A server for one host.
pub(crate) struct SshServer {
    config: Arc<Config>,
    host: Arc<dyn SshHost>,
    strangers: Semaphore,
}

impl SshServer {
    /// Returns a server that shows `key`.
    pub(crate) fn new(key: ServerKey, host: Arc<dyn SshHost>) -> Self {
        // An exchange that withstands machines nobody has yet costs a tenth of a second on each side, over a
        // connection that never leaves this machine.
        let is_quick =
            |name: &kex::Name| !["mlkem", "sntrup"].iter().any(|slow| name.as_ref().contains(slow));
        let kex: Vec<kex::Name> = Preferred::DEFAULT.kex.iter().copied().filter(is_quick).collect();
        let config = Config {
            server_id: SshId::Standard(Cow::Borrowed("SSH-2.0-stead")),
            methods: MethodSet::from(&[MethodKind::PublicKey][..]),
            // Keys of 256 bits are not guessed: a refusal needs no pause.
            auth_rejection_time: Duration::ZERO,
            auth_rejection_time_initial: Some(Duration::ZERO),
            keys: vec![key.into_inner()],
            preferred: Preferred { kex: kex.into(), ..Preferred::DEFAULT },
            inactivity_timeout: None,
            keepalive_interval: Some(KEEPALIVE),
            max_auth_attempts: 32,
            nodelay: true,
            ..Config::default()
        };
        Self { config: Arc::new(config), host, strangers: Semaphore::new(STRANGERS) }
    }

    /// Serves one connection to its end. Dropping the future ends it.
    pub(crate) async fn serve(&self, stream: TcpStream) {
        // Whoever knows this answer tries again, as with any server that has too many at its door.
        let Ok(stranger) = self.strangers.try_acquire() else { return };
        let (logged_in, login) = oneshot::channel();
        let connection = Connection {
            host: Arc::clone(&self.host),
            user: String::new(),
            logged_in: Some(logged_in),
            tasks: JoinSet::new(),
            forwards: BTreeMap::new(),
            carrying: Arc::default(),
        };
        // Without it small answers wait for each other; a socket that refuses is as good as gone.
        stream.set_nodelay(true).ok();
        let serving = async {
            let Ok(session) = russh::server::run_stream(Arc::clone(&self.config), stream, connection).await
            else {
                return;
            };
            let end = OnDrop(session.handle());
            match session.await {
                Ok(()) | Err(russh::Error::Disconnect | russh::Error::HUP | russh::Error::IO(_)) => {}
                Err(error) => self.host.note(&format!("a connection ended: {error}")),
            }
            drop(end);
        };
        tokio::pin!(serving);
        tokio::select! {
            () = &mut serving => return,
            login = tokio::time::timeout(LOGIN_GRACE, login) => {
                if !matches!(login, Ok(Ok(()))) {
                    self.host.note("a connection ended: it did not log in in time");
                    return;
                }
            }
        }
        drop(stranger);
        serving.await;
    }
}

/// Ends a connection whose server is going.
struct OnDrop(Handle);

impl Drop for OnDrop {
    fn drop(&mut self) {
        let handle = self.0.clone();
        // The library's own task serves the connection; it ends when it is told, or with the runtime.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let mut farewell = JoinSet::new();
            farewell.spawn_on(
                async move {
                    handle
                        .disconnect(russh::Disconnect::ByApplication, String::new(), String::new())
                        .await
                        .ok();
                },
                &runtime,
            );
            farewell.detach_all();
        }
    }
}

/// One connection's callbacks. Dropping it ends what it carries; commands go on without it.
struct Connection {
    host: Arc<dyn SshHost>,
    user: String,
    /// Told once, when somebody has logged in.
    logged_in: Option<oneshot::Sender<()>>,
    tasks: JoinSet<()>,
    /// Sockets that listen for the client, by what it calls them.
    forwards: BTreeMap<String, JoinSet<()>>,
    /// Connections that came in there. They go on when the socket has gone: the library ends a connection if nobody
    /// is there any more to hear that the client refuses a channel.
    carrying: Arc<Mutex<JoinSet<()>>>,
}

impl Connection {
    fn carry_to(&mut self, to: Endpoint, channel: Channel<Msg>, reply: ChannelOpenHandle) {
        while self.tasks.try_join_next().is_some() {}
        self.tasks.spawn(async move {
            match connect(&to).await {
                Ok(stream) => {
                    reply.accept().await;
                    carry(channel, stream).await;
                }
                Err(_) => reply.reject(ChannelOpenFailure::ConnectFailed).await,
            }
        });
    }

    /// Listens on `at` for the client, which is told of `address`; returns where that is.
    async fn listen(&mut self, at: &Endpoint, address: &str, handle: Handle) -> Option<Endpoint> {
        let (listener, listen) = Listener::bind(at).await.ok()?;
        // A client knows its forward by the address it asked for, not by the one that was taken.
        let place = match &listen {
            Endpoint::Tcp(_, port) => Endpoint::Tcp(address.to_owned(), *port),
            Endpoint::Unix(_) => Endpoint::Unix(address.into()),
        };
        let mut listening = JoinSet::new();
        let carrying = Arc::clone(&self.carrying);
        listening.spawn(async move {
            while let Ok(stream) = listener.accept().await {
                let mut carrying = carrying.lock().unwrap_or_else(PoisonError::into_inner);
                while carrying.try_join_next().is_some() {}
                let (handle, place) = (handle.clone(), place.clone());
                carrying.spawn(async move {
                    let opened = match place {
                        Endpoint::Tcp(host, port) => {
                            handle.channel_open_forwarded_tcpip(host, u32::from(port), "127.0.0.1", 0).await
                        }
                        Endpoint::Unix(path) => {
                            handle.channel_open_forwarded_streamlocal(path.to_string_lossy()).await
                        }
                    };
                    if let Ok(channel) = opened {
                        carry(channel, stream).await;
                    }
                });
            }
        });
        self.forwards.insert(forward_name(&listen), listening);
        Some(listen)
    }
}

/// Clients name a forward by its port, in their own words for the address.
fn forward_name(listen: &Endpoint) -> String {
    match listen {
        Endpoint::Tcp(_, port) => port.to_string(),
        Endpoint::Unix(path) => path.display().to_string(),
    }
}

fn port(number: u32) -> Option<u16> {
    u16::try_from(number).ok()
}

impl Handler for Connection {
    type Error = russh::Error;

    async fn auth_publickey_offered(
        &mut self,
        user: &str,
        offer: PublicKeyOffer<'_>,
    ) -> Result<Auth, russh::Error> {
        let known = opens(&self.host.keys(user), offer.public_key);
        Ok(if known { Auth::Accept } else { Auth::reject() })
    }

    async fn auth_publickey(&mut self, user: &str, key: VerifiedPublicKey<'_>) -> Result<Auth, russh::Error> {
        let shown = key::fingerprint(key.public_key);
        if !opens(&self.host.keys(user), key.public_key) {
            self.host.note(&format!("refused {shown} for {}", user.escape_debug()));
            return Ok(Auth::reject());
        }
        self.host.note(&format!("login of {user} with {shown}"));
        user.clone_into(&mut self.user);
        if let Some(logged_in) = self.logged_in.take() {
            // Whoever waited for it has gone with the connection.
            logged_in.send(()).ok();
        }
        Ok(Auth::Accept)
    }

    async fn channel_open_session(
        &mut self,
        channel: Channel<Msg>,
        reply: ChannelOpenHandle,
        session: &mut Session,
    ) -> Result<(), russh::Error> {
        while self.tasks.try_join_next().is_some() {}
        reply.accept().await;
        let (host, user) = (Arc::clone(&self.host), self.user.clone());
        self.tasks.spawn(command::serve(channel, session.handle(), host, user));
        Ok(())
    }

    async fn channel_open_direct_tcpip(
        &mut self,
        channel: Channel<Msg>,
        host: &str,
        number: u32,
        _originator_address: &str,
        _originator_port: u32,
        reply: ChannelOpenHandle,
        _session: &mut Session,
    ) -> Result<(), russh::Error> {
        match port(number) {
            Some(port) => self.carry_to(Endpoint::Tcp(host.to_owned(), port), channel, reply),
            None => reply.reject(ChannelOpenFailure::ConnectFailed).await,
        }
        Ok(())
    }

    async fn channel_open_direct_streamlocal(
        &mut self,
        channel: Channel<Msg>,
        path: &str,
        reply: ChannelOpenHandle,
        _session: &mut Session,
    ) -> Result<(), russh::Error> {
        match self.host.socket(path) {
            Some(path) => self.carry_to(Endpoint::Unix(path), channel, reply),
            None => reply.reject(ChannelOpenFailure::AdministrativelyProhibited).await,
        }
        Ok(())
    }

    async fn tcpip_forward(
        &mut self,
        address: &str,
        number: &mut u32,
        session: &mut Session,
    ) -> Result<bool, russh::Error> {
        let Some(wanted) = port(*number) else { return Ok(false) };
        // Whatever address is asked for: nothing of such a machine is seen from outside.
        let at = Endpoint::Tcp("127.0.0.1".to_owned(), wanted);
        match self.listen(&at, address, session.handle()).await {
            Some(Endpoint::Tcp(_, taken)) => {
                *number = u32::from(taken);
                Ok(true)
            }
            Some(Endpoint::Unix(_)) | None => Ok(false),
        }
    }

    async fn cancel_tcpip_forward(
        &mut self,
        _address: &str,
        number: u32,
        _session: &mut Session,
    ) -> Result<bool, russh::Error> {
        Ok(self.forwards.remove(&number.to_string()).is_some())
    }

    async fn streamlocal_forward(&mut self, path: &str, session: &mut Session) -> Result<bool, russh::Error> {
        let Some(at) = self.host.socket(path).map(Endpoint::Unix) else { return Ok(false) };
        Ok(self.listen(&at, path, session.handle()).await.is_some())
    }

    async fn cancel_streamlocal_forward(
        &mut self,
        path: &str,
        _session: &mut Session,
    ) -> Result<bool, russh::Error> {
        let place = self.host.socket(path).map(Endpoint::Unix);
        Ok(place.is_some_and(|place| self.forwards.remove(&forward_name(&place)).is_some()))
    }
}
