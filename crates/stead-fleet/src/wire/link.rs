//! Connections of clients: one thread carries all of a process.

use std::fmt;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use capnp_rpc::rpc_twoparty_capnp::Side;
use capnp_rpc::{RpcSystem, twoparty};
use rustls::pki_types::ServerName;
use rustls::{AlertDescription, ClientConfig};
use tokio::io::BufWriter;
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot};
use tokio::task::{JoinSet, LocalSet};
use tokio_rustls::TlsConnector;
use tokio_util::compat::{TokioAsyncReadCompatExt, TokioAsyncWriteCompatExt};
use tokio_util::sync::CancellationToken;

use super::convert;
use super::fleet_capnp::{join, master};
use super::flow::{Flow, Input, Output};
use super::request::{Answer, Hello, Request, Secret};
use super::transport::{Link, Mode, Transport};
use super::{DEADLINE, IDLE, MAX_MESSAGE, MAX_STRANGER_MESSAGE, PROTO_MAJOR, reader_options};
use crate::api::{Beat, CallError};

/// The code of a call that the master does not know.
pub(super) const UNIMPLEMENTED: &str = "unimplemented";
/// Calls that wait for the thread; more wait where they are made.
const QUEUE: usize = 64;
/// How often it is looked whether a connection is idle.
const LOOK: Duration = Duration::from_secs(5);

/// The thread that carries every connection of a process. It ends with the last handle.
pub struct Carrier {
    orders: mpsc::Sender<Order>,
}

impl fmt::Debug for Carrier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Carrier").finish_non_exhaustive()
    }
}

struct Order {
    address: String,
    mode: Mode,
    reply: oneshot::Sender<Result<Arc<dyn Link>, CallError>>,
    /// Keeps the thread for as long as there is a connection.
    orders: mpsc::Sender<Order>,
}

impl Carrier {
    /// Starts the thread.
    pub fn start() -> io::Result<Arc<Self>> {
        let (orders, mut incoming) = mpsc::channel::<Order>(QUEUE);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        std::thread::Builder::new().name("stead-wire".to_owned()).spawn(move || {
            let local = LocalSet::new();
            local.block_on(&runtime, async move {
                let mut connections = JoinSet::new();
                loop {
                    tokio::select! {
                        order = incoming.recv() => match order {
                            Some(order) => { connections.spawn_local(connect(order)); }
                            None => break,
                        },
                        Some(_) = connections.join_next(), if !connections.is_empty() => {}
                    }
                }
            });
        })?;
        Ok(Arc::new(Self { orders }))
    }
}

#[async_trait]
impl Transport for Carrier {
    async fn connect(&self, address: &str, mode: &Mode) -> Result<Arc<dyn Link>, CallError> {
        let (reply, answer) = oneshot::channel();
        let order =
            Order { address: address.to_owned(), mode: mode.clone(), reply, orders: self.orders.clone() };
        let gone = || CallError::Away("the thread of connections has ended".to_owned());
        self.orders.send(order).await.map_err(|_| gone())?;
        answer.await.map_err(|_| gone())?
    }
}

struct Call {
    request: Request,
    reply: oneshot::Sender<Result<Answer, CallError>>,
}

/// A connection as other threads have it.
struct Remote {
    address: String,
    calls: mpsc::Sender<Call>,
    closed: CancellationToken,
    _orders: mpsc::Sender<Order>,
}

impl fmt::Debug for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Remote").field("address", &self.address).finish_non_exhaustive()
    }
}

#[async_trait]
impl Link for Remote {
    async fn call(&self, request: Request) -> Result<Answer, CallError> {
        let (reply, answer) = oneshot::channel();
        let gone = || CallError::Away(format!("the connection to {} ended", self.address));
        self.calls.send(Call { request, reply }).await.map_err(|_| gone())?;
        tokio::select! {
            answer = answer => answer.map_err(|_| gone())?,
            () = self.closed.cancelled() => Err(gone()),
        }
    }

    fn is_open(&self) -> bool {
        !self.closed.is_cancelled() && !self.calls.is_closed()
    }

    fn close(&self) {
        self.closed.cancel();
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        self.closed.cancel();
    }
}

/// What the other side offers.
#[derive(Clone)]
enum Offer {
    Member(master::Client),
    Joiner(join::Client),
}

/// Makes a connection and carries its calls until it ends.
async fn connect(order: Order) {
    let Order { address, mode, reply, orders } = order;
    let closed = CancellationToken::new();
    let made = tokio::time::timeout(DEADLINE, Open::new(&address, &mode, &closed)).await;
    match made.unwrap_or_else(|_| Err(CallError::Away(format!("{address} did not answer in time")))) {
        Err(error) => drop(reply.send(Err(error))),
        Ok(open) => {
            let (calls, incoming) = mpsc::channel(QUEUE);
            let remote = Remote { address, calls, closed: closed.clone(), _orders: orders };
            if reply.send(Ok(Arc::new(remote))).is_ok() {
                open.carry(incoming, closed).await;
            }
        }
    }
}

/// A connection on its thread.
struct Open {
    offer: Offer,
    me: Hello,
    flow: Rc<Flow>,
    tasks: JoinSet<()>,
}

impl Open {
    async fn new(address: &str, mode: &Mode, closed: &CancellationToken) -> Result<Self, CallError> {
        let (tls, fleet, limit) = match mode {
            Mode::Member { tls, fleet } => (tls, fleet.as_str(), MAX_MESSAGE),
            Mode::Joiner(tls) => (tls, "", MAX_STRANGER_MESSAGE),
        };
        let stream = handshake(address, tls).await.map_err(|error| handshake_error(address, mode, &error))?;
        let flow = Flow::new(false);
        let (input, output) = tokio::io::split(stream);
        let network = twoparty::VatNetwork::new(
            Input::new(input, &flow).compat(),
            BufWriter::new(Output::new(output, &flow)).compat_write(),
            Side::Client,
            reader_options(limit),
        );
        let mut system = RpcSystem::new(Box::new(network), None);
        let offer = match mode {
            Mode::Member { .. } => Offer::Member(system.bootstrap(Side::Server)),
            Mode::Joiner(_) => Offer::Joiner(system.bootstrap(Side::Server)),
        };
        let mut tasks = JoinSet::new();
        let ended = closed.clone();
        tasks.spawn_local(async move {
            // How it ended is seen by the calls.
            drop(system.await);
            ended.cancel();
        });
        let me = Hello::new(fleet);
        let answer = offer.call(&Request::Hello(me.clone())).await;
        let answer =
            answer.map_err(|error| flow.refusal().map_or(error, |alert| alert_error(address, alert)));
        let Answer::Hello(you) = answer? else {
            return Err(CallError::Away("no hello came back".to_owned()));
        };
        if !you.speaks() {
            return Err(CallError::Refused {
                code: "version-unsupported".to_owned(),
                message: format!(
                    "the master at {address} speaks version {} of the protocol, and this program {PROTO_MAJOR}; \
                     upgrade masters first, and nobody by more than one version",
                    you.proto_major
                ),
            });
        }
        if !fleet.is_empty() && you.fleet != fleet {
            return Err(CallError::Away(format!("the master at {address} is of another fleet")));
        }
        Ok(Self { offer, me, flow, tasks })
    }

    async fn carry(mut self, mut incoming: mpsc::Receiver<Call>, closed: CancellationToken) {
        let mut look = tokio::time::interval(LOOK);
        let ping = Rc::new(std::cell::Cell::new(false));
        loop {
            tokio::select! {
                () = closed.cancelled() => break,
                call = incoming.recv() => {
                    let Some(Call { request, reply }) = call else { break };
                    let offer = self.offer.clone();
                    self.tasks.spawn_local(async move { drop(reply.send(offer.call(&request).await)) });
                }
                _ = look.tick() => if self.flow.silence() > IDLE && !ping.replace(true) {
                    let (offer, ping, closed) = (self.offer.clone(), Rc::clone(&ping), closed.clone());
                    let request = Request::Hello(self.me.clone());
                    self.tasks.spawn_local(async move {
                        let answer = tokio::time::timeout(DEADLINE, offer.call(&request)).await;
                        ping.set(false);
                        if !matches!(answer, Ok(Ok(_))) {
                            closed.cancel();
                        }
                    });
                },
                Some(_) = self.tasks.join_next(), if !self.tasks.is_empty() => {}
            }
        }
        closed.cancel();
    }
}

async fn handshake(
    address: &str,
    tls: &Arc<ClientConfig>,
) -> io::Result<tokio_rustls::client::TlsStream<TcpStream>> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    // Masters are known by their certificates, whatever their address; the name is not sent.
    let name = ServerName::try_from("master.stead").map_err(io::Error::other)?;
    TlsConnector::from(Arc::clone(tls)).connect(name, stream).await
}

fn handshake_error(address: &str, mode: &Mode, error: &io::Error) -> CallError {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    match (inner, mode) {
        (Some(rustls::Error::InvalidCertificate(_)), Mode::Joiner(_)) => CallError::Refused {
            code: "join-ca".to_owned(),
            message: format!(
                "{address} is not a master of the fleet that the token is for; the token was not sent"
            ),
        },
        (Some(rustls::Error::AlertReceived(alert)), _) => alert_error(address, *alert),
        (Some(_) | None, _) => CallError::Away(format!("{address}: {error}")),
    }
}

/// Returns what a master meant that ended the handshake.
fn alert_error(address: &str, alert: AlertDescription) -> CallError {
    const REFUSED: [AlertDescription; 5] = [
        AlertDescription::BadCertificate,
        AlertDescription::UnknownCA,
        AlertDescription::AccessDenied,
        AlertDescription::CertificateUnknown,
        AlertDescription::UnsupportedCertificate,
    ];
    let (code, message) = if alert == AlertDescription::CertificateRevoked {
        ("revoked", "the certificate is revoked; join anew")
    } else if alert == AlertDescription::CertificateExpired {
        ("certificate-expired", "the certificate has expired; join anew")
    } else if REFUSED.contains(&alert) {
        ("certificate-refused", "the master does not accept the certificate; join anew")
    } else {
        return CallError::Away(format!("{address} ended the connection: {alert:?}"));
    };
    CallError::Refused { code: code.to_owned(), message: message.to_owned() }
}

/// Why a call has no answer, on the thread of its connection.
enum Fault {
    Wire(capnp::Error),
    Call(CallError),
}

impl From<capnp::Error> for Fault {
    fn from(error: capnp::Error) -> Self {
        Self::Wire(error)
    }
}

impl Offer {
    async fn call(&self, request: &Request) -> Result<Answer, CallError> {
        let answer = match self {
            Self::Member(master) => call_master(master, request).await,
            Self::Joiner(join) => call_join(join, request).await,
        };
        answer.map_err(|fault| match fault {
            Fault::Wire(error) => convert::from_error(&error, UNIMPLEMENTED),
            Fault::Call(error) => error,
        })
    }
}

fn not_offered() -> Fault {
    Fault::Call(CallError::Refused {
        code: "forbidden".to_owned(),
        message: "this connection does not offer that".to_owned(),
    })
}

async fn call_join(join: &join::Client, request: &Request) -> Result<Answer, Fault> {
    match request {
        Request::Hello(me) => {
            let mut call = join.hello_request();
            convert::write_hello(call.get().init_me(), me);
            let answer = call.send().promise.await?;
            Ok(Answer::Hello(convert::read_hello(answer.get()?.get_you()?)?))
        }
        Request::Join { token, csr } => {
            let mut call = join.join_request();
            call.get().set_token(&token.0);
            call.get().set_csr(csr);
            let answer = call.send().promise.await?;
            let answer = answer.get()?;
            let (certificate, authority) = (answer.get_cert()?.to_vec(), answer.get_ca()?.to_vec());
            Ok(Answer::Admitted { certificate, authority })
        }
        Request::Reserve { .. }
        | Request::Publish(_)
        | Request::Assignment { .. }
        | Request::Report(_)
        | Request::Status { .. }
        | Request::Explain(_)
        | Request::Snapshot
        | Request::Pipeline(_)
        | Request::Hold(_)
        | Request::Renew(_)
        | Request::Mint(_)
        | Request::Enrolments
        | Request::Revoke(_) => Err(not_offered()),
    }
}

fn millis(duration: Duration) -> u32 {
    u32::try_from(duration.as_millis()).unwrap_or(u32::MAX)
}

async fn call_master(master: &master::Client, request: &Request) -> Result<Answer, Fault> {
    match request {
        Request::Hello(me) => {
            let mut call = master.hello_request();
            convert::write_hello(call.get().init_me(), me);
            let answer = call.send().promise.await?;
            Ok(Answer::Hello(convert::read_hello(answer.get()?.get_you()?)?))
        }
        Request::Join { .. } => Err(not_offered()),
        Request::Reserve { commit, publisher } => {
            let mut call = master.reserve_generation_request();
            call.get().set_commit(commit.as_str());
            call.get().set_publisher(publisher);
            let answer = call.send().promise.await?;
            Ok(Answer::Generation(answer.get()?.get_generation()))
        }
        Request::Publish(desired) => {
            let mut call = master.publish_desired_state_request();
            convert::write_desired(call.get().init_desired(), desired);
            let answer = call.send().promise.await?;
            let verdicts = convert::read_verdicts(answer.get()?.get_verdict()?)?;
            verdicts.map(Answer::Verdicts).map_err(Fault::Call)
        }
        Request::Assignment { worker, applied, wait } => {
            let mut call = master.get_assignment_request();
            let mut params = call.get();
            params.set_worker_id(worker.as_str());
            params.set_last_seen_generation(applied.generation);
            params.set_last_seen_revision(applied.revision);
            params.set_wait_ms(millis(*wait));
            let answer = call.send().promise.await?;
            let answer = answer.get()?;
            if answer.get_unchanged() {
                return Ok(Answer::Assignment(None));
            }
            Ok(Answer::Assignment(Some(convert::read_assignment(answer.get_assignment()?)?)))
        }
        Request::Report(heartbeat) => {
            let mut call = master.report_observed_request();
            convert::write_observed(call.get().init_observed(), heartbeat);
            let answer = call.send().promise.await?;
            let answer = answer.get()?;
            Ok(Answer::Beat(Beat {
                lease: Some(answer.get_lease_ms()).filter(|lease| *lease > 0),
                interval: u64::from(answer.get_interval_ms()),
                needs_full: answer.get_need_full(),
                leader: convert::text(answer.get_leader())?,
            }))
        }
        Request::Status { after, wait, filter } => {
            let mut call = master.get_status_request();
            let mut params = call.get();
            params.set_after_seq(*after);
            params.set_wait_ms(millis(*wait));
            params.set_filter(filter.as_bytes());
            let answer = call.send().promise.await?;
            let answer = answer.get()?;
            Ok(Answer::Status(convert::json_text(answer.get_status())?, answer.get_seq()))
        }
        Request::Explain(_)
        | Request::Snapshot
        | Request::Pipeline(_)
        | Request::Hold(_)
        | Request::Renew(_)
        | Request::Mint(_)
        | Request::Enrolments
        | Request::Revoke(_) => call_master_rarely(master, request).await,
    }
}

/// The calls of people, and those that are made once in a while.
async fn call_master_rarely(master: &master::Client, request: &Request) -> Result<Answer, Fault> {
    match request {
        Request::Explain(instance) => {
            let mut call = master.explain_request();
            call.get().set_instance(instance.to_string());
            let answer = call.send().promise.await?;
            Ok(Answer::Json(convert::json_text(answer.get()?.get_explanation())?))
        }
        Request::Snapshot => {
            let answer = master.get_snapshot_request().send().promise.await?;
            Ok(Answer::Json(convert::json_text(answer.get()?.get_snapshot())?))
        }
        Request::Pipeline(state) => {
            let mut call = master.report_pipeline_request();
            call.get().set_state(state.as_bytes());
            call.send().promise.await?;
            Ok(Answer::Done)
        }
        Request::Hold(hold) => {
            let mut call = master.set_hold_request();
            call.get().set_hold(hold.as_bytes());
            let answer = call.send().promise.await?;
            Ok(Answer::Text(convert::text(answer.get()?.get_id())?))
        }
        Request::Renew(csr) => {
            let mut call = master.renew_request();
            call.get().set_csr(csr);
            let answer = call.send().promise.await?;
            let answer = answer.get()?;
            let (certificate, authority) = (answer.get_cert()?.to_vec(), answer.get_ca()?.to_vec());
            Ok(Answer::Admitted { certificate, authority })
        }
        Request::Mint(order) => {
            let mut call = master.mint_join_request();
            call.get().set_role(order.role.word());
            call.get().set_name(order.name.as_deref().unwrap_or_default());
            call.get().set_ttl_ms(u64::try_from(order.lifetime.as_millis()).unwrap_or(u64::MAX));
            call.get().set_iat(order.iat.unwrap_or_default());
            call.get().set_exp(order.exp.unwrap_or_default());
            call.get().set_jti(order.jti.as_deref().unwrap_or_default());
            let answer = call.send().promise.await?;
            Ok(Answer::Token(Secret(convert::text(answer.get()?.get_token())?)))
        }
        Request::Enrolments => {
            let answer = master.get_enrolments_request().send().promise.await?;
            Ok(Answer::Json(convert::json_text(answer.get()?.get_enrolments())?))
        }
        Request::Revoke(what) => {
            let mut call = master.revoke_enrolment_request();
            call.get().set_what(what);
            let answer = call.send().promise.await?;
            Ok(Answer::Json(convert::json_text(answer.get()?.get_revoked())?))
        }
        Request::Hello(_)
        | Request::Join { .. }
        | Request::Reserve { .. }
        | Request::Publish(_)
        | Request::Assignment { .. }
        | Request::Report(_)
        | Request::Status { .. } => Err(not_offered()),
    }
}
