//! A whole master: store, authority, wire and page around [`mod@crate::master`].
//!
//! | file of `STATE/fleet` | what |
//! |---|---|
//! | `master.db` | what an embedded store keeps, the authority's key with it |
//! | `master.db.authority` | a copy of the authority, for a store that is lost |
//! | `operator/` | the identity of whoever has the master's account |
//! | `events/` | what happened |

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use stead_model::WorkerName;
use stead_model::fleet::peer::Role;
use stead_model::fleet::services::MasterFile;
use stead_model::fleet::services::master::Store;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::api::Master;
use crate::events::Events;
use crate::identity::{Authority, Identity, IdentityError, Member};
use crate::master::{self, Check, Handle, MasterError, Observe, Peers, Rebuild, Running, Settings};
use crate::store::{
    Embedded, Etcd, EtcdTls, FleetStore, REBUILD, StoreError, StoreLedger, begin_anew, keep_authority,
};
use crate::wire::{self, Carrier, Client, ServeError, Transport};

/// Where the identity of whoever has the master's account is.
pub const OPERATOR: &str = "operator";

/// What a master is told.
#[derive(Clone, Debug)]
pub struct MasterOptions {
    /// `STATE/fleet`.
    pub directory: PathBuf,
    /// What `master.yaml` and flags say.
    pub file: MasterFile,
    /// Begin anew from what the workers report.
    pub rebuild: bool,
    /// Say what happens on standard error, too.
    pub is_told: bool,
}

/// Why there is no master.
#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    /// Its state cannot be used.
    #[error(transparent)]
    Master(#[from] MasterError),
    /// Its store cannot be used.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Its authority cannot be used.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// Nobody can connect.
    #[error(transparent)]
    Serve(#[from] ServeError),
    /// It cannot listen.
    #[error("failed to listen at {address}")]
    Listen {
        /// Where.
        address: String,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// Its event log cannot be used.
    #[error("failed to write events below {}", path.display())]
    Events {
        /// Where.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// What it keeps its state with has ended; it leads no more.
    #[error("the master has ended by itself; its event log says why, as far as it could be written")]
    Ended,
    /// Others cannot reach it by what it would tell them.
    #[error(
        "`listen` is {0}, which is nobody's address; several masters need `advertise: HOST:PORT` in master.yaml"
    )]
    Advertise(String),
    /// Nothing says what it is called.
    #[error("this machine's name is no name of a master: {0}; set `name` in master.yaml")]
    Name(String),
}

/// A master that listens.
#[derive(Debug)]
pub struct MasterService {
    running: Running,
    authority: Arc<Authority>,
    events: Arc<Events>,
    listener: TcpListener,
    page: TcpListener,
    /// Where workers, publishers and people reach it.
    pub address: SocketAddr,
    /// Where its page is.
    pub observe: SocketAddr,
}

impl MasterService {
    /// Opens the store, makes or reads the authority, listens, and keeps an identity for whoever has this account.
    pub async fn start(options: MasterOptions) -> Result<Self, ServiceError> {
        let MasterOptions { directory, file, rebuild, is_told } = options;
        let name = name(&file)?;
        check_advertise(&file)?;
        let (store, rebuild) = open(&directory, &file.store, rebuild).await?;
        let listener = listen(&file.listen).await?;
        let page = listen(&file.observe).await?;
        let bound = |listener: &TcpListener, address: &str| {
            listener
                .local_addr()
                .map_err(|source| ServiceError::Listen { address: address.to_owned(), source })
        };
        let (address, observe) = (bound(&listener, &file.listen)?, bound(&page, &file.observe)?);
        let place = directory.join("events");
        let events = Events::open(&place).map_err(|source| ServiceError::Events { path: place, source })?;
        let events = Arc::new(if is_told { events.with_copy(Box::new(std::io::stderr())) } else { events });
        let ledger = ledger(&directory, &file.store, Arc::clone(&store)).await?;
        let authority = Authority::open(Arc::new(ledger), &name).await?;
        if let Store::Embedded { path } = &file.store {
            keep_authority(&*store, &store_file(&directory, path.as_deref())).await?;
        }
        let settings = Settings {
            name,
            address: file.advertise.clone().unwrap_or_else(|| near(address).to_string()),
            store,
            history: usize::try_from(file.history).unwrap_or(usize::MAX),
            events: Some(Arc::clone(&events)),
            peers: Some(peers(Arc::clone(&authority))?),
            rebuild,
        };
        let running = master::start(settings).await?;
        own_identity(&authority, &directory.join(OPERATOR), near(address)).await?;
        Ok(Self { running, authority, events, listener, page, address, observe })
    }

    /// Returns the way to the master.
    pub fn handle(&self) -> Arc<Handle> {
        self.running.handle()
    }

    /// Says something to whoever is told what happens.
    pub fn say(&self, message: &str) {
        self.events.say(message);
    }

    /// Returns who admits to the fleet.
    pub fn authority(&self) -> Arc<Authority> {
        Arc::clone(&self.authority)
    }

    /// Serves until `shutdown`; then it leads no more.
    pub async fn serve(self, shutdown: CancellationToken) -> Result<(), ServiceError> {
        let observe = Observe {
            tls: Some(Arc::new(self.authority.page_config()?)),
            check: visitors(Arc::clone(&self.authority)),
        };
        let handle = self.running.handle();
        let shown = observe.serve(self.page, Arc::clone(&handle), shutdown.clone());
        let served = wire::serve(self.listener, handle, Arc::clone(&self.authority), shutdown.clone());
        let is_over = async {
            tokio::select! {
                () = self.running.ended() => shutdown.cancel(),
                () = shutdown.cancelled() => {}
            }
        };
        let (authority, leaving) = (Arc::clone(&self.authority), self.running.handle());
        let farewells = async {
            let mut departed = BTreeSet::new();
            loop {
                tokio::select! {
                    names = authority.departed(&departed) => departed = names,
                    () = shutdown.cancelled() => return,
                }
                leaving.set_departed(departed.clone()).await;
            }
        };
        let ((), served, (), ()) = tokio::join!(
            shown,
            async {
                let served = served.await;
                // Without a wire nobody is served: the page goes too.
                shutdown.cancel();
                served
            },
            is_over,
            farewells
        );
        let has_ended = self.running.has_ended();
        self.running.stop().await;
        served?;
        if has_ended { Err(ServiceError::Ended) } else { Ok(()) }
    }
}

/// How long a way to another master is used: much less than its certificate holds.
const WAY: Duration = Duration::from_secs(24 * 60 * 60);

/// Returns how this master reaches the one that leads, to answer as it would.
fn peers(authority: Arc<Authority>) -> Result<Peers, ServiceError> {
    let carrier = Carrier::start().map_err(ServeError::Thread)?;
    let known: Mutex<Option<(String, Instant, Arc<Client>)>> = Mutex::new(None);
    Ok(Arc::new(move |address: &str| {
        let mut known = known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((there, since, client)) = known.as_ref()
            && there == address
            && since.elapsed() < WAY
        {
            return Some(Arc::clone(client) as Arc<dyn Master>);
        }
        let identity = authority.as_caller(vec![address.to_owned()]).ok()?;
        let client = Client::new(Arc::clone(&carrier) as Arc<dyn Transport>, identity).ok()?;
        *known = Some((address.to_owned(), stead_runner::clock::instant(), Arc::clone(&client)));
        Some(client as Arc<dyn Master>)
    }))
}

/// Refuses a master of several that would send others to themselves.
fn check_advertise(file: &MasterFile) -> Result<(), ServiceError> {
    let host = file.listen.rsplit_once(':').map_or(file.listen.as_str(), |(host, _)| host);
    let address = host.trim_matches(['[', ']']).parse::<IpAddr>();
    let is_nowhere = address.is_ok_and(|address| address.is_unspecified());
    match &file.store {
        Store::Distributed { .. } if is_nowhere && file.advertise.is_none() => {
            Err(ServiceError::Advertise(file.listen.clone()))
        }
        Store::Distributed { .. } | Store::Embedded { .. } => Ok(()),
    }
}

/// Returns what a master is called: as its file says, else as the machine is called.
fn name(file: &MasterFile) -> Result<String, ServiceError> {
    if let Some(name) = &file.name {
        return Ok(name.to_string());
    }
    let full = rustix::system::uname().nodename().to_string_lossy().to_ascii_lowercase();
    let short = full.split('.').next().unwrap_or_default();
    let name = WorkerName::parse(short).map_err(|error| ServiceError::Name(error.to_string()))?;
    Ok(name.to_string())
}

async fn listen(address: &str) -> Result<TcpListener, ServiceError> {
    let failed = |source| ServiceError::Listen { address: address.to_owned(), source };
    TcpListener::bind(address).await.map_err(failed)
}

/// Returns where this machine reaches what listens at `bound`.
fn near(bound: SocketAddr) -> SocketAddr {
    match bound.ip().is_unspecified() {
        true => SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), bound.port()),
        false => bound,
    }
}

fn store_file(directory: &Path, given: Option<&str>) -> PathBuf {
    given.map_or_else(|| directory.join("master.db"), PathBuf::from)
}

/// Returns what the authority keeps its records in: of a store in a file there is a copy beside it.
async fn ledger(
    directory: &Path,
    store: &Store,
    opened: Arc<dyn FleetStore>,
) -> Result<StoreLedger, ServiceError> {
    match store {
        Store::Embedded { path } => {
            Ok(StoreLedger::copied(opened, &store_file(directory, path.as_deref())).await?)
        }
        Store::Distributed { .. } => Ok(StoreLedger::new(opened)),
    }
}

/// Opens the store. One that is lost keeps the authority and who was enrolled, as far as they can be read.
async fn open(
    directory: &Path,
    store: &Store,
    rebuild: bool,
) -> Result<(Arc<dyn FleetStore>, Option<Rebuild>), ServiceError> {
    match store {
        Store::Embedded { path } => {
            let path = store_file(directory, path.as_deref());
            let store = if rebuild { begin_anew(&path).await?.0 } else { Embedded::open(&path)? };
            let store: Arc<dyn FleetStore> = Arc::new(store);
            let rebuild = rebuilding(&store, rebuild).await?;
            Ok((store, rebuild))
        }
        Store::Distributed { endpoints, prefix, tls } => {
            let tls = tls.as_ref().map(|tls| EtcdTls {
                ca_file: PathBuf::from(&tls.ca_file),
                cert_file: PathBuf::from(&tls.cert_file),
                key_file: PathBuf::from(&tls.key_file),
            });
            let store: Arc<dyn FleetStore> = Arc::new(Etcd::new(endpoints, prefix, tls)?);
            let rebuild = rebuilding(&store, rebuild).await?;
            Ok((store, rebuild))
        }
    }
}

/// Returns whom a master that begins anew waits for: every worker whose certificate still counts. None if it does not, for
/// nobody asked for it now, nor of the master before, which may have been killed on the way.
async fn rebuilding(store: &Arc<dyn FleetStore>, is_asked: bool) -> Result<Option<Rebuild>, ServiceError> {
    if !is_asked && store.get(REBUILD).await?.is_none() {
        return Ok(None);
    }
    let ledger = StoreLedger::new(Arc::clone(store));
    let now = stead_runner::clock::now().as_micros().div_euclid(1_000_000);
    let records = crate::identity::Ledger::enrolments(&ledger).await.map_err(IdentityError::from)?;
    let workers = records.into_iter().map(|(record, _)| record);
    let workers = workers.filter(|record| record.role == Role::Worker && record.is_live(now));
    let enrolled = workers.filter_map(|record| WorkerName::parse(record.name.as_deref()?).ok()).collect();
    Ok(Some(Rebuild { enrolled, ..Rebuild::default() }))
}

/// Keeps an identity of an operator for whoever has this account, unless there is one that still counts.
async fn own_identity(
    authority: &Authority,
    directory: &Path,
    address: SocketAddr,
) -> Result<(), ServiceError> {
    let masters = vec![address.to_string()];
    let now = stead_runner::clock::now().as_micros().div_euclid(1_000_000);
    let kept = Identity::load(directory)?.filter(|identity| {
        identity.peer().fleet == authority.fleet() && !identity.member().wants_renewal(now)
    });
    let mut identity = match kept {
        Some(identity) if identity.masters == masters => return Ok(()),
        Some(identity) => identity,
        None => authority.enrol(Role::Operator, "local").await?,
    };
    identity.masters = masters;
    Ok(identity.save(directory)?)
}

/// Returns who from elsewhere may look: whoever has a certificate of the fleet that counts, or a token for one.
fn visitors(authority: Arc<Authority>) -> Check {
    let may_look = |role: Role| match role {
        Role::Observer | Role::Operator | Role::Publisher | Role::Master => true,
        Role::Worker => false,
    };
    Arc::new(move |visitor| {
        let member = visitor.certificate.as_ref().and_then(|certificate| Member::read(certificate).ok());
        let is_member = member.is_some_and(|member| {
            member.peer.fleet == authority.fleet()
                && may_look(member.peer.role)
                && authority.knows(&member)
                && !authority.is_revoked(&member.serial)
        });
        is_member || visitor.token.as_ref().and_then(|token| authority.bearer(token)).is_some_and(may_look)
    })
}
