//! The way to a server: TLS to an address, or the socket of the site's own server. One connection per exchange.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::Uri;
use hyper::body::Bytes;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use stead_runner::operation::OpError;
use stead_runner::socket::SocketPath;
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::ClientError;
use super::trust::{Seen, Trust};
use crate::http::client;

/// How long a connection may take.
const CONNECT: Duration = Duration::from_secs(10);

/// The way to a server.
#[derive(Clone)]
pub(crate) enum Way {
    Tls(Box<Tls>),
    Socket(PathBuf),
}

#[derive(Clone)]
pub(crate) struct Tls {
    host: String,
    port: u16,
    name: ServerName<'static>,
    trust: Trust,
    config: Arc<ClientConfig>,
    seen: Seen,
}

/// What came back.
pub(crate) struct Answer {
    pub(crate) status: u16,
    /// What the status line says beside the number, if it is in words of its own.
    pub(crate) reason: Option<String>,
    /// Names in lower case.
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    /// Returns the value of a header.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tls(tls) => write!(f, "https://{}", tls.authority()),
            Self::Socket(path) => write!(f, "{}", path.display()),
        }
    }
}

impl Way {
    /// Returns the way to the server at an https URL; `port` is that of a URL which names none.
    pub(crate) fn tls(url: &str, port: u16, trust: Trust) -> Result<Self, ClientError> {
        let invalid = |why: &str| {
            ClientError::Invalid(format!("`{}` is not a server's address: {why}", url.escape_debug()))
        };
        let uri: Uri = url.parse().map_err(|_| invalid("expected https://HOST:PORT"))?;
        if uri.scheme_str() != Some("https") {
            return Err(invalid("it has to begin with https://"));
        }
        let authority = uri.authority().ok_or_else(|| invalid("it names no host"))?;
        if authority.as_str().contains('@') || !matches!(uri.path(), "" | "/") || uri.query().is_some() {
            return Err(invalid("expected https://HOST:PORT and nothing else"));
        }
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        let name = ServerName::try_from(host.clone()).map_err(|error| invalid(&error.to_string()))?;
        let port = authority.port_u16().unwrap_or(port);
        let (config, seen) = trust.config()?;
        Ok(Self::Tls(Box::new(Tls { host, port, name, trust, config: Arc::new(config), seen })))
    }

    /// Returns what a request names as its host.
    pub(crate) fn host(&self) -> String {
        match self {
            Self::Tls(tls) => tls.authority(),
            Self::Socket(_) => "localhost".to_owned(),
        }
    }

    /// Sends a request and returns the answer, of at most `most` bytes, within `patience`. Cancel safe: dropping it ends
    /// everything.
    pub(crate) async fn exchange(
        &self,
        message: hyper::Request<Full<Bytes>>,
        most: usize,
        patience: Duration,
    ) -> Result<Answer, ClientError> {
        match tokio::time::timeout(patience, self.converse(message, most)).await {
            Ok(answer) => answer,
            Err(_) => Err(self.unreachable(format!(
                "no whole answer within {}",
                stead_model::duration::to_exact(patience)
            ))),
        }
    }

    async fn converse(
        &self,
        message: hyper::Request<Full<Bytes>>,
        most: usize,
    ) -> Result<Answer, ClientError> {
        let mut body = Vec::new();
        let mut is_too_large = false;
        let mut sink = |bytes: &[u8]| {
            is_too_large = body.len() + bytes.len() > most;
            if is_too_large {
                return Err(OpError::operation("the answer is too large"));
            }
            body.extend_from_slice(bytes);
            Ok(())
        };
        let name = self.to_string();
        let head = match self {
            Self::Tls(tls) => client::talk(&name, self.tls_stream(tls).await?, message, &mut sink).await,
            Self::Socket(path) => {
                let near = SocketPath::new(path).map_err(|error| self.unreachable(error.to_string()))?;
                let stream = UnixStream::connect(near.path())
                    .await
                    .map_err(|error| self.unreachable(error.to_string()))?;
                client::talk(&name, stream, message, &mut sink).await
            }
        };
        match head {
            Ok(head) => Ok(Answer { status: head.status, reason: head.reason, headers: head.headers, body }),
            Err(_) if is_too_large => {
                Err(ClientError::Answer(format!("{name} answered with more than {most} bytes")))
            }
            Err(error) => Err(self.unreachable(error.message)),
        }
    }

    async fn tls_stream(&self, tls: &Tls) -> Result<TlsStream<TcpStream>, ClientError> {
        let connected =
            tokio::time::timeout(CONNECT, TcpStream::connect((tls.host.as_str(), tls.port))).await;
        let stream = match connected {
            Ok(stream) => stream.map_err(|error| self.unreachable(error.to_string()))?,
            Err(_) => return Err(self.unreachable("it does not answer".to_owned())),
        };
        // Small requests must not wait for more; without it they only are slower.
        stream.set_nodelay(true).ok();
        let connector = TlsConnector::from(Arc::clone(&tls.config));
        connector.connect(tls.name.clone(), stream).await.map_err(|error| self.no_tls(tls, &error))
    }

    /// Returns why there is no TLS: a server that is another than the one that is meant, or something else.
    fn no_tls(&self, tls: &Tls, error: &io::Error) -> ClientError {
        let cause = error.get_ref().and_then(|cause| cause.downcast_ref::<rustls::Error>());
        match cause {
            Some(rustls::Error::InvalidCertificate(why)) => ClientError::Untrusted {
                server: self.to_string(),
                expected: tls.trust.pins().map(super::trust::PinSet::shown).unwrap_or_default(),
                seen: tls.seen.refused(),
                why: why.to_string(),
            },
            Some(_) | None => self.unreachable(format!("no TLS: {error}")),
        }
    }

    fn unreachable(&self, why: String) -> ClientError {
        ClientError::Unreachable { server: self.to_string(), why }
    }
}

impl Tls {
    fn authority(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }
}
