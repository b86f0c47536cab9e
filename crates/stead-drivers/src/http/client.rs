//! A small HTTP/1.1 client: one connection per request, TLS by rustls, every exchange with a deadline.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Bytes};
use hyper::ext::ReasonPhrase;
use hyper::http::uri::Authority;
use hyper::{HeaderMap, Uri};
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::Value;
use stead_model::ErrorClass;
use stead_model::operation::judge_texts;
use stead_runner::files::Needs;
use stead_runner::operation::{OpContext, OpError, Params, Stop};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use crate::file::present::source_file;

/// What to send.
pub(crate) struct Request<'a> {
    pub(crate) url: &'a str,
    pub(crate) method: &'a str,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
    pub(crate) roots: Roots,
    pub(crate) timeout: Duration,
}

/// What came back, without the body.
#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) status: u16,
    /// What the status line says beside the number, if it is in words of its own.
    pub(crate) reason: Option<String>,
    /// Names in lower case.
    pub(crate) headers: Vec<(String, String)>,
}

/// Which certificates are trusted.
#[derive(Clone)]
pub(crate) enum Roots {
    System,
    These(Vec<u8>),
}

/// What may be sent: bytes, or a file in pieces.
pub(crate) trait Sendable:
    Body<Data = Bytes, Error: Into<Box<dyn std::error::Error + Send + Sync>>> + Send + 'static
{
}

impl<B> Sendable for B where
    B: Body<Data = Bytes, Error: Into<Box<dyn std::error::Error + Send + Sync>>> + Send + 'static
{
}

/// Takes a piece of the body; an error ends the exchange.
pub(crate) type Sink<'a> = &'a mut (dyn FnMut(&[u8]) -> Result<(), OpError> + Send);

/// Returns the certificates that parameter `ca` names.
pub(crate) fn roots(cx: &OpContext, params: &Params) -> Result<Roots, OpError> {
    let Some(ca) = params.text("ca") else { return Ok(Roots::System) };
    if is_certificates(ca) {
        return Ok(Roots::These(ca.as_bytes().to_vec()));
    }
    let path = cx.files.content(ca, &source_file(cx, ca)?)?;
    let pem = std::fs::read(&path);
    pem.map(Roots::These)
        .map_err(|error| OpError::permanent(format!("cannot read `ca` {}: {error}", path.display())))
}

/// As [`roots`], where a thread must not wait: on another machine the driver has to be asked.
pub(crate) async fn roots_soon(cx: &OpContext, params: &Params) -> Result<Roots, OpError> {
    if params.text("ca").is_none() {
        return Ok(Roots::System);
    }
    let (cx, params) = (cx.clone(), params.clone());
    let read = tokio::task::spawn_blocking(move || roots(&cx, &params)).await;
    read.map_err(|error| OpError::operation(format!("reading `ca` ended early: {error}")))?
}

/// Whether `ca` is certificates rather than a file of them.
fn is_certificates(ca: &str) -> bool {
    ca.contains("-----BEGIN")
}

/// Returns `needs` with the driver's file that parameter `ca` names.
pub(crate) fn with_certificates(needs: Needs, params: &Params) -> Needs {
    if params.text("ca").is_some_and(is_certificates) { needs } else { needs.source(params, "ca") }
}

/// Sends a request and gives the body to `sink`. Ends when cancelled.
///
/// # Errors
/// As [`send_uncancelled`].
pub(crate) async fn send(cx: &OpContext, request: Request<'_>, sink: Sink<'_>) -> Result<Response, OpError> {
    let url = request.url.to_owned();
    tokio::select! {
        response = send_uncancelled(request, sink) => response,
        () = cx.cancel.at_least(Stop::Ask) => Err(OpError::operation(format!("{url}: cancelled"))),
    }
}

/// Sends a request and gives the body to `sink`.
///
/// # Errors
/// Class `timeout` if the deadline passes, `invalid` for a bad address, else `operation`.
pub(crate) async fn send_uncancelled(mut request: Request<'_>, sink: Sink<'_>) -> Result<Response, OpError> {
    let body = Full::new(Bytes::from(std::mem::take(&mut request.body)));
    send_body(request, body, sink).await
}

/// As [`send_uncancelled`], with `body` in place of the request's own.
pub(crate) async fn send_body<B: Sendable>(
    request: Request<'_>,
    body: B,
    sink: Sink<'_>,
) -> Result<Response, OpError> {
    let (timeout, url) = (request.timeout, request.url.to_owned());
    match tokio::time::timeout(timeout, exchange(request, body, sink)).await {
        Ok(response) => response,
        Err(_) => Err(OpError::new(
            ErrorClass::Timeout,
            format!("{url}: no whole answer within {}", stead_model::duration::to_exact(timeout)),
        )),
    }
}

/// Returns why the texts are not addresses of requests.
pub(crate) fn judge_address(value: &Value) -> Option<String> {
    judge_texts(value, |url| address(url).err().map(|error| error.message))
}

/// Returns the address `url` is, and its host with the port.
fn address(url: &str) -> Result<(Uri, Authority), OpError> {
    let uri: Uri = url.parse().map_err(|error| no_address(url, &error))?;
    let authority = uri.authority().cloned().ok_or_else(|| no_address(url, &"it names no host"))?;
    if authority.as_str().contains('@') {
        return Err(OpError::invalid("an address holds no account: use `headers`"));
    }
    Ok((uri, authority))
}

fn no_address(url: &str, what: &dyn fmt::Display) -> OpError {
    OpError::invalid(format!("`{url}` is not an address: {what}"))
}

async fn exchange<B: Sendable>(request: Request<'_>, body: B, sink: Sink<'_>) -> Result<Response, OpError> {
    let url = request.url;
    let (uri, authority) = address(url)?;
    let is_tls = uri.scheme_str() == Some("https");
    let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
    let port = authority.port_u16().unwrap_or(if is_tls { 443 } else { 80 });

    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    let mut builder =
        hyper::Request::builder().method(request.method).uri(path).header("host", authority.as_str());
    if !request.headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("user-agent")) {
        builder = builder.header("user-agent", concat!("stead/", env!("CARGO_PKG_VERSION")));
    }
    for (name, value) in &request.headers {
        builder = builder.header(name, value);
    }
    let message = builder
        .body(body)
        .map_err(|error| OpError::invalid(format!("the request cannot be built: {error}")))?;

    let stream = TcpStream::connect((host.as_str(), port))
        .await
        .map_err(|error| OpError::io(format_args!("cannot connect to {host}:{port}"), &error))?;
    if !is_tls {
        return talk(url, stream, message, sink).await;
    }
    let name = ServerName::try_from(host.clone()).map_err(|error| no_address(url, &error))?;
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config(&request.roots)?));
    let stream = connector
        .connect(name, stream)
        .await
        .map_err(|error| OpError::io(format_args!("no TLS with {host}:{port}"), &error))?;
    talk(url, stream, message, sink).await
}

/// Sends a message over an open stream and gives the body of the answer to `sink`.
///
/// # Errors
/// Class `operation`, or what the sink says.
pub(crate) async fn talk<S: AsyncRead + AsyncWrite + Unpin + Send, B: Sendable>(
    url: &str,
    stream: S,
    message: hyper::Request<B>,
    sink: Sink<'_>,
) -> Result<Response, OpError> {
    let failed = |error: hyper::Error| OpError::operation(format!("{url}: {}", chain(&error)));
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(failed)?;
    let conversation = async {
        let response = sender.send_request(message).await.map_err(failed)?;
        let head = Response {
            status: response.status().as_u16(),
            reason: response.extensions().get::<ReasonPhrase>().map(words),
            headers: headers(response.headers()),
        };
        let mut body = response.into_body();
        while let Some(frame) = body.frame().await {
            if let Some(bytes) = frame.map_err(failed)?.data_ref() {
                sink(bytes)?;
            }
        }
        Ok(head)
    };
    // The connection is driven here, not in a task of its own: dropping this future ends everything.
    tokio::pin!(conversation, connection);
    let mut closed = false;
    loop {
        tokio::select! {
            biased;
            said = &mut conversation => return said,
            // Its errors reach the conversation too, with more to say.
            _ = &mut connection, if !closed => closed = true,
        }
    }
}

/// Returns an error with its causes: hyper's own text names only the outermost.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(&format!(": {error}"));
        cause = error.source();
    }
    text
}

fn words(reason: &ReasonPhrase) -> String {
    String::from_utf8_lossy(reason.as_bytes()).into_owned()
}

fn headers(map: &HeaderMap) -> Vec<(String, String)> {
    map.iter()
        .map(|(name, value)| {
            (name.as_str().to_owned(), String::from_utf8_lossy(value.as_bytes()).into_owned())
        })
        .collect()
}

/// Returns the certificates that `roots` are; there may be none.
pub(crate) fn store(roots: &Roots) -> Result<RootCertStore, OpError> {
    let mut store = RootCertStore::empty();
    match roots {
        Roots::System => {
            for certificate in rustls_native_certs::load_native_certs().certs {
                // One that cannot be read is not trusted; the others still are.
                store.add(certificate).unwrap_or(());
            }
        }
        Roots::These(pem) => {
            for certificate in CertificateDer::pem_slice_iter(pem) {
                let bad = |error: &dyn std::fmt::Display| {
                    OpError::invalid(format!("`ca` is not a certificate: {error}"))
                };
                store.add(certificate.map_err(|error| bad(&error))?).map_err(|error| bad(&error))?;
            }
        }
    }
    Ok(store)
}

/// Returns how TLS is spoken with servers that `roots` vouch for.
pub(crate) fn config(roots: &Roots) -> Result<ClientConfig, OpError> {
    let store = store(roots)?;
    if store.is_empty() {
        return Err(OpError::permanent("no certificates to trust; `ca` names some"));
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let builder = builder.map_err(|error| OpError::permanent(format!("no TLS: {error}")))?;
    Ok(builder.with_root_certificates(store).with_no_client_auth())
}
