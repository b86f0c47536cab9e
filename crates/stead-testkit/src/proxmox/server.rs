//! TLS and HTTP: one thread that answers, until it is told to end.

use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::ext::ReasonPhrase;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use rcgen::{CertificateParams, KeyPair};
use rustls::ServerConfig;
use rustls::pki_types::PrivateKeyDer;
use sha2::{Digest, Sha256};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use super::request::Request;
use super::world::World;
use super::{Call, TOKEN, Wrong};
use crate::proxmox::calls::{Answer, answer};

/// How often it is looked whether an answer is still held back.
const LOOK_AGAIN: Duration = Duration::from_millis(2);

pub(super) struct Server {
    pub(super) port: u16,
    pub(super) fingerprint: String,
    pub(super) certificate: String,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    pub(super) fn start(world: Arc<Mutex<World>>) -> Self {
        let key = KeyPair::generate().expect("a key");
        let params = CertificateParams::new(vec!["localhost".to_owned()]).expect("a name");
        let certificate = params.self_signed(&key).expect("a certificate");
        let (pem, certificate) = (certificate.pem(), certificate.der().clone());
        let hash = Sha256::digest(&certificate);
        let fingerprint = hash.iter().map(|byte| format!("{byte:02X}")).collect::<Vec<_>>().join(":");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("TLS")
            .with_no_client_auth()
            .with_single_cert(vec![certificate], PrivateKeyDer::Pkcs8(key.serialize_der().into()))
            .expect("a certificate");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        listener.set_nonblocking(true).expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let (stop, stopped) = oneshot::channel();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let thread = std::thread::spawn(move || {
            runtime.block_on(async {
                let listener = TcpListener::from_std(listener).expect("a port");
                tokio::select! {
                    () = serve(listener, acceptor, world) => {}
                    _ = stopped => {}
                }
            });
        });
        Self { port, fingerprint, certificate: pem, stop: Some(stop), thread: Some(thread) }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            thread.join().ok();
        }
    }
}

async fn serve(listener: TcpListener, acceptor: TlsAcceptor, world: Arc<Mutex<World>>) {
    let mut connections = JoinSet::new();
    loop {
        let Ok((stream, _)) = listener.accept().await else { return };
        while connections.try_join_next().is_some() {}
        let (acceptor, world) = (acceptor.clone(), Arc::clone(&world));
        connections.spawn(async move {
            let Ok(stream) = acceptor.accept(stream).await else { return };
            let service = service_fn(|request| handle(request, Arc::clone(&world)));
            // A client that goes away is its own business; so is one that gets no answer.
            let connection = hyper::server::conn::http1::Builder::new();
            connection.serve_connection(TokioIo::new(stream), service).await.unwrap_or(());
        });
    }
}

/// No answer.
#[derive(Debug)]
struct Lost;

impl std::fmt::Display for Lost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the connection ends")
    }
}

impl std::error::Error for Lost {}

fn lock(world: &Mutex<World>) -> MutexGuard<'_, World> {
    world.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A request that is being answered.
struct Underway(Arc<Mutex<World>>);

impl Underway {
    fn begin(world: &Arc<Mutex<World>>) -> Self {
        let mut inner = lock(world);
        inner.requests += 1;
        inner.most_requests = inner.most_requests.max(inner.requests);
        Self(Arc::clone(world))
    }
}

impl Drop for Underway {
    fn drop(&mut self) {
        lock(&self.0).requests -= 1;
    }
}

async fn handle(
    request: hyper::Request<Incoming>,
    world: Arc<Mutex<World>>,
) -> Result<hyper::Response<Full<Bytes>>, Lost> {
    let _underway = Underway::begin(&world);
    let (head, body) = request.into_parts();
    let body = body.collect().await.map_err(|_| Lost)?.to_bytes();
    let given = head.headers.get("authorization").and_then(|value| value.to_str().ok());
    let is_known = given == Some(format!("PVEAPIToken={TOKEN}").as_str());
    let kind = head.headers.get("content-type").and_then(|value| value.to_str().ok()).unwrap_or_default();
    let request = Request::read(head.method.as_str(), &head.uri, kind, &body);
    let lock = || lock(&world);
    let wrong = lock().wrong(&request);
    while wrong == Some(Wrong::Hold) && lock().holds() {
        tokio::time::sleep(LOOK_AGAIN).await;
    }
    if let Some(Wrong::Delay(delay)) = wrong {
        tokio::time::sleep(delay).await;
    }
    if let Some(Wrong::Drop) = wrong {
        lock().note(&request, 0);
        return Err(Lost);
    }
    let answered = {
        let mut world = lock();
        world.tick();
        match &wrong {
            _ if !is_known => Answer::refused(401, "invalid token value!"),
            Some(Wrong::Status(status, words)) => Answer::refused(*status, words),
            Some(
                Wrong::Lose
                | Wrong::Drop
                | Wrong::Delay(_)
                | Wrong::Hold
                | Wrong::Task(_)
                | Wrong::Warn
                | Wrong::Race,
            )
            | None => answer(&mut world, &request, wrong.as_ref()),
        }
    };
    let is_lost = wrong == Some(Wrong::Lose);
    lock().note(&request, if is_lost { 0 } else { answered.status });
    if is_lost {
        return Err(Lost);
    }
    Ok(response(&answered))
}

fn response(answer: &Answer) -> hyper::Response<Full<Bytes>> {
    let mut response = hyper::Response::new(Full::new(Bytes::from(answer.body.to_string())));
    *response.status_mut() = hyper::StatusCode::from_u16(answer.status).expect("a status");
    response.headers_mut().insert("server", hyper::header::HeaderValue::from_static("pve-api-daemon/3.0"));
    let kind = hyper::header::HeaderValue::from_static("application/json;charset=UTF-8");
    response.headers_mut().insert("content-type", kind);
    if let Some(words) = &answer.reason {
        // As the API does it: the words of a refusal are in the status line.
        let words = words.replace(['\r', '\n'], " ");
        if let Ok(reason) = ReasonPhrase::try_from(words.trim().as_bytes().to_vec()) {
            response.extensions_mut().insert(reason);
        }
    }
    response
}

/// Returns what was asked, as it is kept.
pub(super) fn call(request: &Request, status: u16) -> Call {
    Call {
        method: request.method.clone(),
        path: request.path.join("/"),
        fields: request.fields.clone(),
        status,
    }
}
