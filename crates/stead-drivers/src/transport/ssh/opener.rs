//! Opening a connection: resolve, make the way, check the key, log in; each hop by the same rules, all in one time.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use russh::AlgorithmKind;
use russh::client::Handle;
use russh::keys::PublicKey;
use stead_model::transport::{Jump, SshSpec, TransportSpec};
use stead_runner::transport::{TransportError, TransportErrorKind};
use tokio::time::{sleep, timeout};

use super::client::{Client, ClientError, Shared};
use super::config_files::ConfigFiles;
use super::connection::{Connection, Parts};
use super::host_key::{HostKeyCheck, KnownFiles, not_pinned};
use super::identity::{KeyFiles, collect, connect_agent};
use super::login::{Login, Step};
use super::settings::{Proxy, Settings, effective};
use super::watch::Watch;
use super::way::{self, Cut, ProxyProcess, Way};
use super::{Ssh, algorithms};
use crate::transport::{Notices, Surroundings};

/// How many hosts may lie on the way to one.
const MOST_HOPS: usize = 16;
/// The first pause before a server that was full is asked again; each next is longer, and none the same for two runs.
const FIRST_PAUSE: Duration = Duration::from_millis(40);
const LONGEST_PAUSE: Duration = Duration::from_millis(1000);

/// Opens connections for one run.
#[derive(Clone, Debug)]
pub(in crate::transport) struct Opener {
    around: Arc<Surroundings>,
    notices: Notices,
    files: Arc<ConfigFiles>,
    keys: Arc<KeyFiles>,
    known: KnownFiles,
}

/// What is being done, for the message of a timeout.
type Doing = Mutex<String>;

struct Shaken {
    handle: Handle<Client>,
    shared: Arc<Shared>,
    cut: Cut,
    proxy: Option<ProxyProcess>,
}

impl Opener {
    pub(in crate::transport) fn new(around: Arc<Surroundings>, notices: Notices) -> Self {
        Self { around, notices, files: Arc::default(), keys: Arc::default(), known: KnownFiles::default() }
    }

    /// Connects and logs in. Dropping the future gives up and leaves nothing behind.
    pub(in crate::transport) async fn open(&self, spec: &SshSpec) -> Result<Ssh, TransportError> {
        let connection = self.connect(spec).await?;
        let (opener, own) = (self.clone(), spec.clone());
        connection.set_another(Box::new(move || {
            let (opener, spec) = (opener.clone(), own.clone());
            Box::pin(async move { opener.connect(&spec).await })
        }));
        Ok(Ssh { spec: TransportSpec::Ssh(Box::new(spec.clone())), connection, watch: Watch::default() })
    }

    async fn connect(&self, spec: &SshSpec) -> Result<Arc<Connection>, TransportError> {
        let settings = self.settings(spec).await?;
        let doing = Doing::default();
        let limit = settings.connect_timeout;
        let reached = timeout(limit, self.reach(spec, &settings, None, &doing, 0)).await;
        reached.unwrap_or_else(|_| {
            let doing = doing.lock().unwrap_or_else(PoisonError::into_inner).clone();
            Err(TransportError::new(
                TransportErrorKind::TimedOut,
                format!(
                    "{} was not reached within {}: {doing} (`connect_timeout` sets the limit)",
                    settings.name(),
                    stead_model::duration::to_exact(limit),
                ),
            ))
        })
    }

    /// Returns the values that hold for `spec`, named and ordered as `ssh -G` does, and the keywords without effect.
    pub(in crate::transport) async fn effective(
        &self,
        spec: &SshSpec,
    ) -> Result<(Vec<(String, String)>, Vec<String>), TransportError> {
        let (files, around, spec) = (Arc::clone(&self.files), Arc::clone(&self.around), spec.clone());
        let work = move || {
            let config = files.resolve(&spec, &around)?;
            let settings = Settings::new(&spec, &config, &around)?;
            Ok((effective(&spec, &settings, &config), config.ignored().map(str::to_owned).collect()))
        };
        tokio::task::spawn_blocking(work).await.unwrap_or_else(|_| Err(broken()))
    }

    async fn settings(&self, spec: &SshSpec) -> Result<Settings, TransportError> {
        let (files, around, spec) = (Arc::clone(&self.files), Arc::clone(&self.around), spec.clone());
        let work = move || {
            let config = files.resolve(&spec, &around)?;
            Settings::new(&spec, &config, &around)
        };
        let settings = tokio::task::spawn_blocking(work).await.unwrap_or_else(|_| Err(broken()))?;
        if settings.softened {
            self.notices.send(
                "reach/host-keys",
                format!(
                    "ssh_config says `StrictHostKeyChecking no` for {}: read as accept-new, a changed key is still \
                     refused; only `insecure=true` checks nothing",
                    settings.name()
                ),
            );
        }
        Ok(settings)
    }

    /// Connects to one host, through `through` if that is given, else as the settings say.
    fn reach<'a>(
        &'a self,
        spec: &'a SshSpec,
        settings: &'a Settings,
        through: Option<Arc<Connection>>,
        doing: &'a Doing,
        depth: usize,
    ) -> Pin<Box<dyn Future<Output = Result<Arc<Connection>, TransportError>> + Send + 'a>> {
        Box::pin(async move {
            let through = match (&settings.proxy, through) {
                (_, Some(through)) => Some(through),
                (Proxy::Jump(hops), None) => self.hops(spec, hops, doing, depth).await?,
                (Proxy::Direct | Proxy::Command(_), None) => None,
            };
            let name = settings.name();
            say(doing, format!("reading the keys for {name} was not done"));
            let (mut agent, problem) = match connect_agent(settings).await {
                None => (None, None),
                Some(Ok(agent)) => (Some(agent), None),
                Some(Err(problem)) => (None, Some(problem)),
            };
            let mut candidates = collect(settings, &self.around, &self.keys, agent.as_mut()).await;
            candidates.problems.extend(problem);
            let mut login = Login::default();
            loop {
                let before = login.progress();
                let mut shaken = self.shake_hands(settings, through.as_ref(), doing).await?;
                say(doing, format!("logging in to {name} was not done"));
                let step = login.step(&mut shaken.handle, settings, &candidates, agent.as_mut()).await;
                match step {
                    Step::In => {
                        let parts = Parts { handle: shaken.handle, shared: shaken.shared, name };
                        let kept = (through, shaken.proxy, shaken.cut);
                        return Ok(Arc::new(Connection::new(parts, self.notices.clone(), kept)));
                    }
                    // After too many tries a server hangs up; what was not tried yet gets a new connection.
                    Step::Closed if login.progress() > before => {}
                    Step::Closed | Step::Refused => return Err(login.failure(settings, &candidates)),
                }
            }
        })
    }

    /// Connects to the last of `hops`, through the ones before.
    async fn hops(
        &self,
        spec: &SshSpec,
        hops: &[Jump],
        doing: &Doing,
        depth: usize,
    ) -> Result<Option<Arc<Connection>>, TransportError> {
        if depth + hops.len() > MOST_HOPS {
            return Err(TransportError::new(
                TransportErrorKind::Invalid,
                format!("{}: more than {MOST_HOPS} jump hosts, or jumps in a circle", spec.host),
            ));
        }
        let mut through = None;
        for hop in hops {
            let hop_spec = hop_spec(spec, hop);
            let settings = self.settings(&hop_spec).await?;
            let reached = self.reach(&hop_spec, &settings, through, doing, depth + hops.len()).await;
            through = Some(reached.map_err(|mut error| {
                error.message = format!("jump host: {}", error.message);
                error
            })?);
        }
        Ok(through)
    }

    /// Makes the way and exchanges keys; asks again while the server hangs up before that.
    async fn shake_hands(
        &self,
        settings: &Settings,
        through: Option<&Arc<Connection>>,
        doing: &Doing,
    ) -> Result<Shaken, TransportError> {
        let name = settings.name();
        let mut pause = FIRST_PAUSE;
        let mut refusals = 0;
        // Keys that the server has shown, none of them the pinned one.
        let mut shown: Vec<PublicKey> = Vec::new();
        loop {
            if refusals == 0 {
                say(doing, format!("connecting to {name} was not done"));
            }
            let (way, cut, mut proxy) = make_way(settings, through).await?;
            if refusals == 0 {
                say(doing, format!("{name} did not finish the key exchange"));
            }
            match self.exchange(settings, way, &shown).await {
                Ok((handle, shared)) => return Ok(Shaken { handle, shared, cut, proxy }),
                Err(ClientError::OtherKey(key)) => {
                    let is_again = shown.iter().any(|other| other.algorithm() == key.algorithm());
                    shown.push(*key);
                    if is_again {
                        return Err(not_pinned(settings, &shown));
                    }
                }
                Err(ClientError::Protocol(russh::Error::NoCommonAlgo {
                    kind: AlgorithmKind::Key, ..
                })) if !shown.is_empty() => {
                    return Err(not_pinned(settings, &shown));
                }
                Err(ClientError::Protocol(error)) if proxy.is_none() && hung_up(&error) => {
                    refusals += 1;
                    say(
                        doing,
                        format!(
                            "{name} hung up before the login {refusals} times, as a server with too many logins at once (`MaxStartups`) or none at all does"
                        ),
                    );
                    sleep(jittered(pause)).await;
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
                Err(error) => return Err(explain(settings, error, proxy.as_mut()).await),
            }
        }
    }

    /// Exchanges keys; the server is not asked for a key of the types that were `shown`.
    async fn exchange(
        &self,
        settings: &Settings,
        way: Way,
        shown: &[PublicKey],
    ) -> Result<(Handle<Client>, Arc<Shared>), ClientError> {
        let check =
            HostKeyCheck::new(settings, &self.known, self.notices.clone()).map_err(ClientError::HostKey)?;
        let preferred = algorithms::preferred(&settings.lists, &check.kinds(), check.takes_certificates())
            .map_err(ClientError::HostKey)?;
        let preferred = algorithms::without(preferred, shown).map_err(ClientError::Protocol)?;
        let config = russh::client::Config {
            preferred,
            keepalive_interval: settings.keepalive,
            keepalive_max: settings.keepalive_count,
            nodelay: true,
            ..russh::client::Config::default()
        };
        let shared = Arc::new(Shared::default());
        let client = Client::new(check, Arc::clone(&shared));
        let handle = russh::client::connect_stream(Arc::new(config), way, client).await?;
        Ok((handle, shared))
    }
}

fn say(doing: &Doing, what: String) {
    *doing.lock().unwrap_or_else(PoisonError::into_inner) = what;
}

fn broken() -> TransportError {
    TransportError::new(
        TransportErrorKind::Failed,
        "ssh_config could not be read: the reader ended without a result",
    )
}

/// A hop is reached by what the spec says of every host; what it says of its own host is not for the hop.
fn hop_spec(spec: &SshSpec, hop: &Jump) -> SshSpec {
    SshSpec {
        user: hop.user.clone(),
        host: hop.host.clone(),
        port: hop.port,
        host_key: hop.host_key.clone(),
        key: spec.key.clone(),
        passphrase: spec.passphrase.clone(),
        known_hosts: spec.known_hosts.clone(),
        agent: spec.agent,
        host_keys: spec.host_keys,
        insecure: spec.insecure,
        connect_timeout: spec.connect_timeout,
        keepalive: spec.keepalive,
        ssh_config: spec.ssh_config.clone(),
        ..SshSpec::default()
    }
}

async fn make_way(
    settings: &Settings,
    through: Option<&Arc<Connection>>,
) -> Result<(Way, Cut, Option<ProxyProcess>), TransportError> {
    if let Some(through) = through {
        let (way, cut) = way::through(through, settings).await?;
        return Ok((way, cut, None));
    }
    match &settings.proxy {
        Proxy::Command(line) => {
            let (way, cut, process) = way::command(line)?;
            Ok((way, cut, Some(process)))
        }
        Proxy::Direct | Proxy::Jump(_) => {
            let (way, cut) = way::direct(settings).await?;
            Ok((way, cut, None))
        }
    }
}

/// Whether the server closed the connection without a word.
fn hung_up(error: &russh::Error) -> bool {
    use std::io::ErrorKind;
    if let russh::Error::IO(error) = error {
        return matches!(
            error.kind(),
            ErrorKind::ConnectionReset
                | ErrorKind::ConnectionAborted
                | ErrorKind::BrokenPipe
                | ErrorKind::UnexpectedEof
                | ErrorKind::NotConnected
        );
    }
    matches!(error, russh::Error::HUP | russh::Error::Disconnect)
}

/// Returns between half of `pause` and one and a half.
fn jittered(pause: Duration) -> Duration {
    let mut random = [0; 2];
    // Without randomness every run waits alike, which is still right.
    getrandom::fill(&mut random).ok();
    pause / 2 + pause * u32::from(u16::from_ne_bytes(random)) / u32::from(u16::MAX)
}

async fn explain(
    settings: &Settings,
    error: ClientError,
    proxy: Option<&mut ProxyProcess>,
) -> TransportError {
    let name = settings.name();
    let (kind, text) = match error {
        ClientError::HostKey(error) => return error,
        ClientError::OtherKey(_) => {
            (TransportErrorKind::HostKey, format!("{name} showed another key than the pinned one"))
        }
        ClientError::Protocol(russh::Error::NoCommonAlgo { kind, ours, theirs }) => (
            TransportErrorKind::Login,
            format!(
                "{name} shares no {kind:?} algorithm with this program: ours are {ours:?}, its are {theirs:?}"
            ),
        ),
        ClientError::Protocol(russh::Error::Version) => {
            (TransportErrorKind::Login, format!("what listens at {name} does not speak SSH 2"))
        }
        ClientError::Protocol(russh::Error::WrongServerSig) => (
            TransportErrorKind::HostKey,
            format!(
                "{name} could not prove that it owns its host key: it is not the machine it claims to be"
            ),
        ),
        ClientError::Protocol(error) => {
            (TransportErrorKind::Refused, format!("the key exchange with {name} failed: {error}"))
        }
    };
    let words = match proxy {
        Some(proxy) => proxy.last_words().await,
        None => String::new(),
    };
    let said = if words.is_empty() { String::new() } else { format!("; the ProxyCommand said: {words}") };
    TransportError::new(kind, text + &said)
}
