//! What people and Prometheus see of a master: a page, the status, whether it is well, figures. Nothing can be changed
//! here.
//!
//! One port speaks TLS and, to this machine alone, plain HTTP. From elsewhere a visitor needs a certificate or a token
//! that [`Observe::check`] takes.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use hyper::body::Incoming;
use hyper::header::{self, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls::pki_types::CertificateDer;
use stead_web::{Body, Shown};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use super::calls::{Handle, Whose, written};
use crate::api::{CallError, StatusFilter};

mod figures;

/// Where the page asks, from where it is.
const ROOT: &str = "data/";

/// How long a visitor may take to begin, and to say what it wants.
const BEGIN: Duration = Duration::from_secs(10);

/// The most visitors at once.
const MOST_VISITORS: usize = 256;

/// What TLS begins with.
const TLS_HANDSHAKE: u8 = 0x16;

/// Who wants to see something.
#[derive(Clone, Debug)]
pub struct Visitor {
    /// From where.
    pub peer: SocketAddr,
    /// With which certificate.
    pub certificate: Option<CertificateDer<'static>>,
    /// With which token (`Authorization: Bearer …`).
    pub token: Option<String>,
}

/// Whether a visitor from elsewhere may see a master.
pub type Check = Arc<dyn Fn(&Visitor) -> bool + Send + Sync>;

/// What shows a master.
#[derive(Clone)]
pub struct Observe {
    /// Its TLS; client certificates are asked for and not required. None: only this machine is served.
    pub tls: Option<Arc<rustls::ServerConfig>>,
    /// Whether a visitor from elsewhere may see it.
    pub check: Check,
}

impl std::fmt::Debug for Observe {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Observe").field("tls", &self.tls.is_some()).finish_non_exhaustive()
    }
}

/// Why nothing is shown.
#[derive(Debug, thiserror::Error)]
#[error("failed to listen at {address}")]
pub struct ObserveError {
    /// Where.
    pub address: SocketAddr,
    /// Why.
    #[source]
    pub source: std::io::Error,
}

/// Whether a visitor may see a master: from this machine everybody may, under this machine's own name.
pub fn may_see(visitor: &Visitor, host: Option<&str>, check: &Check) -> bool {
    let is_here = visitor.peer.ip().to_canonical().is_loopback();
    // A page of elsewhere that has its name point here would come with that name.
    let is_named_so = host.is_none_or(stead_web::is_own_name);
    (is_here && is_named_so) || check(visitor)
}

impl Observe {
    /// Returns what listens at `address`.
    pub async fn listen(address: SocketAddr) -> Result<TcpListener, ObserveError> {
        TcpListener::bind(address).await.map_err(|source| ObserveError { address, source })
    }

    /// Shows a master until `shutdown`.
    pub async fn serve(self, listener: TcpListener, master: Arc<Handle>, shutdown: CancellationToken) {
        let mut visitors = JoinSet::new();
        loop {
            let taken = tokio::select! {
                taken = listener.accept(), if visitors.len() < MOST_VISITORS => taken,
                Some(_) = visitors.join_next() => continue,
                () = shutdown.cancelled() => return,
            };
            match taken {
                Ok((stream, peer)) => {
                    let (observe, master) = (self.clone(), Arc::clone(&master));
                    visitors.spawn(async move { observe.welcome(stream, peer, master).await });
                }
                // Too many open files, say: others end soon.
                Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        }
    }

    async fn welcome(self, stream: TcpStream, peer: SocketAddr, master: Arc<Handle>) {
        let mut first = [0];
        match timeout(BEGIN, stream.peek(&mut first)).await {
            Ok(Ok(1)) => {}
            Ok(Ok(_) | Err(_)) | Err(_) => return,
        }
        let visitor = Visitor { peer, certificate: None, token: None };
        if first != [TLS_HANDSHAKE] {
            // Nobody elsewhere is answered in the clear.
            if peer.ip().to_canonical().is_loopback() {
                self.converse(stream, visitor, master).await;
            }
            return;
        }
        let Some(tls) = &self.tls else { return };
        let accepted = timeout(BEGIN, TlsAcceptor::from(Arc::clone(tls)).accept(stream)).await;
        let Ok(Ok(stream)) = accepted else { return };
        let shown = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
        let certificate = shown.map(|certificate| certificate.clone().into_owned());
        self.converse(stream, Visitor { certificate, ..visitor }, master).await;
    }

    async fn converse<S>(&self, stream: S, visitor: Visitor, master: Arc<Handle>)
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let service = service_fn(|request: Request<Incoming>| {
            let (visitor, master, check) = (visitor.clone(), Arc::clone(&master), Arc::clone(&self.check));
            async move { Ok::<_, std::convert::Infallible>(answer(&request, visitor, &master, &check).await) }
        });
        let mut builder = http1::Builder::new();
        builder.timer(TokioTimer::new()).header_read_timeout(BEGIN).max_buf_size(16 << 10);
        // A visitor that goes away in between is no matter.
        builder.serve_connection(TokioIo::new(stream), service).await.ok();
    }
}

async fn answer(
    request: &Request<Incoming>,
    mut visitor: Visitor,
    master: &Handle,
    check: &Check,
) -> Response<Body> {
    let text = |name| request.headers().get(name).and_then(|value: &HeaderValue| value.to_str().ok());
    visitor.token =
        text(header::AUTHORIZATION).and_then(|value| value.strip_prefix("Bearer ")).map(str::to_owned);
    let is_head = match *request.method() {
        Method::GET => false,
        Method::HEAD => true,
        _ => {
            let mut refusal =
                reply(StatusCode::METHOD_NOT_ALLOWED, TEXT, "only GET and HEAD are answered\n".into());
            refusal.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET, HEAD"));
            return refusal;
        }
    };
    if !may_see(&visitor, text(header::HOST), check) {
        let body = "a certificate or token of an observer is needed\n";
        return reply(StatusCode::FORBIDDEN, TEXT, body.into());
    }
    let mut response = route(request.uri().path(), master).await;
    if is_head {
        let length = HeaderValue::from(hyper::body::Body::size_hint(response.body()).lower());
        response.headers_mut().insert(header::CONTENT_LENGTH, length);
        *response.body_mut() = Body::Whole(None);
    }
    response
}

const TEXT: &str = "text/plain; charset=utf-8";

async fn route(path: &str, master: &Handle) -> Response<Body> {
    match path {
        "/" => stead_web::of_page(ROOT),
        "/data/about" => {
            stead_web::of_shown(Shown::json(&serde_json::json!({"title": "fleet", "views": ["fleet"]})))
        }
        "/status.json" | "/data/fleet" => match shown_status(master).await {
            Ok(text) => reply(StatusCode::OK, "application/json", text.into()),
            Err(error) => reply(StatusCode::SERVICE_UNAVAILABLE, TEXT, format!("{error}\n").into()),
        },
        "/healthz" => {
            let figures = master.figures();
            if !figures.has_store.load(Ordering::Relaxed) {
                return reply(StatusCode::SERVICE_UNAVAILABLE, TEXT, "no store\n".into());
            }
            let role = if figures.leads.load(Ordering::Relaxed) { "leader\n" } else { "follower\n" };
            reply(StatusCode::OK, TEXT, role.into())
        }
        "/metrics" => {
            let shown = master.shown(0, Duration::ZERO, Whose::Own).await;
            let text = figures::page(shown.ok().as_deref(), master.figures());
            reply(StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", text.into())
        }
        _ => reply(StatusCode::NOT_FOUND, TEXT, "there are /, /status.json, /healthz and /metrics\n".into()),
    }
}

async fn shown_status(master: &Handle) -> Result<String, CallError> {
    let shown = master.shown(0, Duration::ZERO, Whose::Own).await?;
    Ok(written(shown, &StatusFilter::default()).await?.0)
}

fn reply(status: StatusCode, kind: &'static str, body: Bytes) -> Response<Body> {
    let mut response = Response::new(body.into());
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_this_machine_sees_without_being_asked() {
        let nobody: Check = Arc::new(|_| false);
        let known: Check = Arc::new(|visitor| visitor.token.as_deref() == Some("good"));
        let from = |peer: &str, token: Option<&str>| Visitor {
            peer: peer.parse().unwrap(),
            certificate: None,
            token: token.map(str::to_owned),
        };
        let here = from("127.0.0.1:5", None);
        for (host, sees) in [
            (None, true),
            (Some("localhost:44445"), true),
            (Some("127.0.0.1"), true),
            (Some("[::1]:44445"), true),
            (Some("evil.example"), false),
            (Some("evil.example:44445"), false),
        ] {
            assert_eq!(may_see(&here, host, &nobody), sees, "{host:?}");
        }
        assert!(may_see(&from("[::ffff:127.0.0.1]:5", None), None, &nobody));
        assert!(!may_see(&from("10.0.0.1:5", None), Some("localhost"), &known));
        assert!(may_see(&from("10.0.0.1:5", Some("good")), None, &known));
    }
}
