//! The door for hooks of Git servers: a signed request means "look now" and nothing else. Nothing of it is parsed.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use stead_model::fleet::services::publisher::Webhook;
use stead_model::fleet::webhook::{HEADER, is_signed};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use zeroize::Zeroizing;

use super::{Metrics, PublishError};

/// The largest body that is taken: those of Git servers are far smaller, their largest is 25 MB and says nothing more.
const MOST_BODY: usize = 1 << 20;

/// How many connections are served at once; more wait.
const MOST_CONNECTIONS: usize = 64;

/// How long one may last.
const LONGEST: Duration = Duration::from_secs(20);

/// The door.
pub(super) struct Door {
    listener: TcpListener,
    known: Arc<Known>,
}

/// What a request is compared with.
struct Known {
    path: String,
    secret: Zeroizing<Vec<u8>>,
    poke: Arc<Notify>,
    metrics: Arc<Metrics>,
}

impl Door {
    /// Opens the door.
    pub(super) async fn open(
        hook: &Webhook,
        poke: Arc<Notify>,
        metrics: Arc<Metrics>,
    ) -> Result<Self, PublishError> {
        let read = std::fs::read(&hook.secret_file);
        let mut secret = Zeroizing::new(read.map_err(|source| PublishError::File {
            what: "read",
            path: hook.secret_file.clone().into(),
            source,
        })?);
        while secret.last().is_some_and(|byte| matches!(byte, b'\n' | b'\r')) {
            secret.pop();
        }
        if secret.is_empty() {
            let why = format!("`webhook.secret_file` {} is empty: anybody could sign", hook.secret_file);
            return Err(PublishError::Settings(why));
        }
        let bad = |_| PublishError::Settings(format!("`{}` is not an address to listen at", hook.listen));
        let address: SocketAddr = hook.listen.parse().map_err(bad)?;
        let listener = TcpListener::bind(address).await;
        let listener = listener.map_err(|source| PublishError::Listen { address, source })?;
        Ok(Self { listener, known: Arc::new(Known { path: hook.path.clone(), secret, poke, metrics }) })
    }

    /// Serves until it is dropped.
    pub(super) async fn serve(self) {
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                Some(_) = connections.join_next() => {}
                accepted = self.listener.accept(), if connections.len() < MOST_CONNECTIONS => match accepted {
                    Ok((stream, peer)) => {
                        connections.spawn(serve_one(stream, peer, Arc::clone(&self.known)));
                    }
                    // Out of files, mostly: it passes.
                    Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
                },
            }
        }
    }
}

async fn serve_one(stream: TcpStream, peer: SocketAddr, known: Arc<Known>) {
    let service = service_fn(|request| {
        let known = Arc::clone(&known);
        async move { Ok::<_, std::convert::Infallible>(answer(request, peer, &known).await) }
    });
    let mut builder = hyper::server::conn::http1::Builder::new();
    let connection = builder.keep_alive(false).serve_connection(TokioIo::new(stream), service);
    // Whatever becomes of it concerns who sent it.
    tokio::time::timeout(LONGEST, connection).await.map(Result::ok).ok();
}

async fn answer(request: Request<Incoming>, peer: SocketAddr, known: &Known) -> Response<Full<Bytes>> {
    let path = request.uri().path();
    if path == "/metrics" && peer.ip().is_loopback() {
        return match *request.method() {
            Method::GET => reply(StatusCode::OK, known.metrics.to_text()),
            _ => reply(StatusCode::METHOD_NOT_ALLOWED, String::new()),
        };
    }
    if path != known.path {
        return reply(StatusCode::NOT_FOUND, String::new());
    }
    if request.method() != Method::POST {
        return reply(StatusCode::METHOD_NOT_ALLOWED, String::new());
    }
    let header = request.headers().get(HEADER).and_then(|value| value.to_str().ok()).map(str::to_owned);
    let Ok(body) = Limited::new(request.into_body(), MOST_BODY).collect().await else {
        return reply(StatusCode::PAYLOAD_TOO_LARGE, String::new());
    };
    if is_signed(&known.secret, &body.to_bytes(), &header.unwrap_or_default()) {
        known.poke.notify_one();
        return reply(StatusCode::ACCEPTED, String::new());
    }
    reply(StatusCode::UNAUTHORIZED, String::new())
}

fn reply(status: StatusCode, text: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(text)));
    *response.status_mut() = status;
    response
}
