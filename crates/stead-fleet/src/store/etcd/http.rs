//! Requests to etcd's servers: one connection that is kept, the next server when one does not answer.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use base64::Engine as _;
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::Mutex;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::super::StoreError;

/// How long one server may take for an answer.
const ANSWER: Duration = Duration::from_secs(4);

/// How long a connection may take.
const CONNECT: Duration = Duration::from_secs(1);

/// The largest answer.
const LARGEST: usize = 256 << 20;

/// Who etcd's servers are, and who we are to them.
#[derive(Clone, Debug)]
pub struct EtcdTls {
    /// The file with the servers' CA.
    pub ca_file: std::path::PathBuf,
    /// The file with our certificate.
    pub cert_file: std::path::PathBuf,
    /// The file with its key.
    pub key_file: std::path::PathBuf,
}

/// Whether a request may be sent again when nobody knows what became of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Again {
    /// It may: it changes nothing, or nothing more.
    Always,
    /// Only if it was never sent.
    IfNotSent,
}

/// A way to etcd's servers.
pub(super) struct Http {
    endpoints: Arc<Vec<Endpoint>>,
    tls: Option<TlsConnector>,
    current: AtomicUsize,
    kept: Mutex<Option<Connection>>,
}

impl std::fmt::Debug for Http {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Http").field("endpoints", &self.endpoints).finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct Endpoint {
    host: String,
    port: u16,
}

/// A connection, and the task that drives it as long as this lives.
struct Connection {
    sender: SendRequest<Full<Bytes>>,
    authority: String,
    tasks: JoinSet<()>,
}

/// Why there is no answer from one server.
enum Miss {
    /// It was not reached.
    NotSent(String),
    /// Nobody knows.
    Unclear(String),
    /// It refused, which the others would too.
    Refused(StoreError),
}

/// An answer that does not end.
pub(super) struct Stream {
    body: Incoming,
    _tasks: JoinSet<()>,
}

impl Stream {
    /// Returns the next piece; none at the end. Cancel-safe.
    pub(super) async fn next(&mut self) -> Result<Option<Bytes>, StoreError> {
        loop {
            match self.body.frame().await {
                None => return Ok(None),
                Some(Err(error)) => return Err(StoreError::Unavailable(error.to_string())),
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        return Ok(Some(data));
                    }
                }
            }
        }
    }
}

impl Http {
    pub(super) fn new(endpoints: &[String], tls: Option<EtcdTls>) -> Result<Self, StoreError> {
        let endpoints: Option<Vec<Endpoint>> = endpoints.iter().map(|text| endpoint(text)).collect();
        let endpoints = endpoints
            .filter(|endpoints| !endpoints.is_empty())
            .ok_or_else(|| StoreError::Unavailable("it has no address".to_owned()))?;
        let tls = tls.map(|tls| connector(&tls)).transpose()?;
        Ok(Self { endpoints: Arc::new(endpoints), tls, current: AtomicUsize::new(0), kept: Mutex::new(None) })
    }

    /// Returns another way to the same servers.
    pub(super) fn fork(&self) -> Self {
        Self {
            endpoints: Arc::clone(&self.endpoints),
            tls: self.tls.clone(),
            current: AtomicUsize::new(self.current.load(Ordering::Relaxed)),
            kept: Mutex::new(None),
        }
    }

    /// Returns the answer of the first server that gives one.
    pub(super) async fn ask(&self, path: &str, body: &Value, again: Again) -> Result<Bytes, StoreError> {
        let mut last = String::new();
        for _ in 0..=self.endpoints.len() {
            match self.once(path, body).await {
                Ok(bytes) => return Ok(bytes),
                Err(Miss::Refused(error)) => return Err(error),
                Err(Miss::NotSent(why)) => last = why,
                Err(Miss::Unclear(why)) if again == Again::Always => last = why,
                Err(Miss::Unclear(why)) => return Err(StoreError::Unavailable(why)),
            }
            self.current.fetch_add(1, Ordering::Relaxed);
        }
        Err(StoreError::Unavailable(last))
    }

    async fn once(&self, path: &str, body: &Value) -> Result<Bytes, Miss> {
        let mut kept = self.kept.lock().await;
        let mut connection = match kept.take().filter(|kept| !kept.sender.is_closed()) {
            Some(connection) => connection,
            None => self.connect().await?,
        };
        let answered = timeout(ANSWER, async {
            let response = send(&mut connection, path, body).await?;
            read_body(response).await
        });
        let bytes = answered.await.unwrap_or_else(|_| {
            Err(Miss::Unclear(format!("{} gave no answer in {} s", connection.authority, ANSWER.as_secs())))
        });
        // After a failure nobody knows what is still on the way.
        if matches!(bytes, Ok(_) | Err(Miss::Refused(_))) {
            *kept = Some(connection);
        }
        bytes
    }

    /// Returns an answer that does not end.
    pub(super) async fn stream(&self, path: &str, body: &Value) -> Result<Stream, StoreError> {
        let mut last = String::new();
        for _ in 0..self.endpoints.len() {
            let begun = async {
                let mut connection = self.connect().await?;
                let response = timeout(ANSWER, send(&mut connection, path, body)).await;
                let response =
                    response.unwrap_or_else(|_| Err(Miss::Unclear("it gave no answer".to_owned())))?;
                Ok(Stream { body: response.into_body(), _tasks: connection.tasks })
            };
            match begun.await {
                Ok(stream) => return Ok(stream),
                Err(Miss::Refused(error)) => return Err(error),
                Err(Miss::NotSent(why) | Miss::Unclear(why)) => last = why,
            }
            self.current.fetch_add(1, Ordering::Relaxed);
        }
        Err(StoreError::Unavailable(last))
    }

    /// Writes the bytes of an answer in lines (`{"result": {"blob": …}}`) to a file.
    pub(super) async fn download(&self, path: &str, file: &Path) -> Result<(), StoreError> {
        let failed = |source| StoreError::File { what: "write", path: file.to_owned(), source };
        let garbled = || StoreError::Unavailable("etcd's snapshot cannot be read".to_owned());
        let mut stream = self.stream(path, &serde_json::json!({})).await?;
        let mut out = tokio::fs::File::create(file).await.map_err(failed)?;
        let mut line = Vec::new();
        loop {
            let piece = stream.next().await?;
            let is_over = piece.is_none();
            line.extend_from_slice(&piece.unwrap_or_default());
            while let Some(at) = line.iter().position(|byte| *byte == b'\n') {
                let rest = line.split_off(at + 1);
                let told: Value = serde_json::from_slice(&line).map_err(|_| garbled())?;
                line = rest;
                let blob = told["result"]["blob"].as_str().unwrap_or_default();
                let bytes = base64::engine::general_purpose::STANDARD.decode(blob).map_err(|_| garbled())?;
                out.write_all(&bytes).await.map_err(failed)?;
            }
            if is_over {
                break;
            }
        }
        out.sync_all().await.map_err(failed)
    }

    async fn connect(&self) -> Result<Connection, Miss> {
        let at = self.current.load(Ordering::Relaxed) % self.endpoints.len().max(1);
        let Some(Endpoint { host, port }) = self.endpoints.get(at) else {
            return Err(Miss::NotSent("it has no address".to_owned()));
        };
        let authority = format!("{host}:{port}");
        let missed = |error: &dyn std::fmt::Display| Miss::NotSent(format!("{authority}: {error}"));
        let reached = timeout(CONNECT, TcpStream::connect((host.trim_matches(['[', ']']), *port))).await;
        let stream = reached.map_err(|error| missed(&error))?.map_err(|error| missed(&error))?;
        stream.set_nodelay(true).map_err(|error| missed(&error))?;
        let Some(tls) = &self.tls else { return shake_hands(stream, authority).await };
        let name = ServerName::try_from(host.clone()).map_err(|error| missed(&error))?;
        let secured = timeout(CONNECT, tls.connect(name, stream)).await;
        let stream = secured.map_err(|error| missed(&error))?.map_err(|error| missed(&error))?;
        shake_hands(stream, authority).await
    }
}

async fn shake_hands<S>(stream: S, authority: String) -> Result<Connection, Miss>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let begun = http1::handshake(TokioIo::new(stream)).await;
    let (sender, connection) = begun.map_err(|error| Miss::NotSent(error.to_string()))?;
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        // What goes wrong shows in the requests.
        connection.await.ok();
    });
    Ok(Connection { sender, authority, tasks })
}

async fn send(connection: &mut Connection, path: &str, body: &Value) -> Result<Response<Incoming>, Miss> {
    let request = Request::post(path)
        .header("host", &connection.authority)
        .header("content-type", "application/json")
        .body(Full::new(Bytes::from(body.to_string())))
        .map_err(|error| Miss::NotSent(error.to_string()))?;
    connection.sender.ready().await.map_err(|error| Miss::NotSent(error.to_string()))?;
    let sent = connection.sender.send_request(request).await;
    let response = sent.map_err(|error| Miss::Unclear(format!("{}: {error}", connection.authority)))?;
    if response.status().is_success() {
        return Ok(response);
    }
    let status = response.status();
    let bytes = read_body(response).await?;
    let told: Value = serde_json::from_slice(&bytes).unwrap_or_default();
    let message = told["message"].as_str().or_else(|| told["error"].as_str()).unwrap_or_default().to_owned();
    Err(if message.contains("compacted") {
        Miss::Refused(StoreError::Compacted)
    } else if message.contains("lease not found") {
        Miss::Refused(StoreError::LeaseEnded)
    } else if status.is_client_error() {
        Miss::Refused(StoreError::Unavailable(format!("etcd refuses it: {message} ({status})")))
    } else {
        // Without a leader of its own etcd answers so; what was asked may or may not be done.
        Miss::Unclear(format!("{}: {message} ({status})", connection.authority))
    })
}

async fn read_body(response: Response<Incoming>) -> Result<Bytes, Miss> {
    let collected = Limited::new(response.into_body(), LARGEST).collect().await;
    collected.map(|body| body.to_bytes()).map_err(|error| Miss::Unclear(error.to_string()))
}

fn endpoint(text: &str) -> Option<Endpoint> {
    let text = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://")).unwrap_or(text);
    let text = text.trim_end_matches('/');
    match text.rsplit_once(':').filter(|(_, port)| !port.contains(']')) {
        Some((host, port)) => Some(Endpoint { host: host.to_owned(), port: port.parse().ok()? }),
        None => Some(Endpoint { host: text.to_owned(), port: 2379 }),
    }
}

fn connector(tls: &EtcdTls) -> Result<TlsConnector, StoreError> {
    let unusable = |path: &Path, why: String| StoreError::Unavailable(format!("{}: {why}", path.display()));
    let read = |path: &Path| {
        std::fs::read(path).map_err(|source| StoreError::File { what: "read", path: path.to_owned(), source })
    };
    let chain = |path: &Path| -> Result<Vec<CertificateDer<'static>>, StoreError> {
        let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&read(path)?).collect();
        found.map_err(|error| unusable(path, error.to_string()))
    };
    let mut roots = rustls::RootCertStore::empty();
    for certificate in chain(&tls.ca_file)? {
        roots.add(certificate).map_err(|error| unusable(&tls.ca_file, error.to_string()))?;
    }
    let key = PrivateKeyDer::from_pem_slice(&read(&tls.key_file)?)
        .map_err(|error| unusable(&tls.key_file, error.to_string()))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| unusable(&tls.ca_file, error.to_string()))?
        .with_root_certificates(roots)
        .with_client_auth_cert(chain(&tls.cert_file)?, key)
        .map_err(|error| unusable(&tls.cert_file, error.to_string()))?;
    Ok(TlsConnector::from(Arc::new(config)))
}
