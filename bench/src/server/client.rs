//! A client that costs as little as TLS allows, so that the figures are the server's.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::ring::default_provider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, ClientConnection, DigitallySignedStruct, SignatureScheme, StreamOwned};
use stead_model::Value;

/// How connections are made: the certificate is that of our own server.
pub(crate) struct Trust(Arc<ClientConfig>);

impl Trust {
    pub(crate) fn new() -> Self {
        let config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()
            .expect("TLS can be set up")
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(OwnServer))
            .with_no_client_auth();
        Self(Arc::new(config))
    }
}

/// One connection.
pub(crate) struct Client {
    stream: StreamOwned<ClientConnection, TcpStream>,
    read: Vec<u8>,
}

impl Client {
    pub(crate) fn connect(port: u16, trust: &Trust) -> Self {
        let stream = TcpStream::connect(("127.0.0.1", port)).expect("the server takes connections");
        stream.set_nodelay(true).expect("a socket");
        let name = ServerName::try_from("localhost").expect("a name");
        let connection = ClientConnection::new(Arc::clone(&trust.0), name).expect("TLS can be set up");
        Self { stream: StreamOwned::new(connection, stream), read: Vec::new() }
    }

    /// Sends the beginning of a request that never ends.
    pub(crate) fn send_part(&mut self) {
        self.stream.write_all(b"G").and_then(|()| self.stream.flush()).expect("a byte goes out");
    }

    pub(crate) fn send(&mut self, method: &str, path: &str, token: &str) {
        let authorization =
            if token.is_empty() { String::new() } else { format!("Authorization: Bearer {token}\r\n") };
        let request = format!("{method} {path} HTTP/1.1\r\nHost: x\r\n{authorization}\r\n");
        self.stream
            .write_all(request.as_bytes())
            .and_then(|()| self.stream.flush())
            .expect("a request goes out");
    }

    /// Reads one answer, which must be good.
    pub(crate) fn receive(&mut self) {
        self.read.clear();
        let mut piece = [0; 4096];
        loop {
            let count = self.stream.read(&mut piece).expect("an answer comes in");
            assert!(count > 0, "the server has ended the connection");
            self.read.extend_from_slice(&piece[..count]);
            let Some(end) = self.read.windows(4).position(|window| window == b"\r\n\r\n") else { continue };
            let head = String::from_utf8_lossy(&self.read[..end]);
            assert!(head.starts_with("HTTP/1.1 200"), "{head}");
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
            let length: usize =
                length.and_then(|length| length.parse().ok()).expect("an answer has a length");
            if self.read.len() >= end + 4 + length {
                return;
            }
        }
    }

    pub(crate) fn ask(&mut self, path: &str, token: &str) {
        self.send("GET", path, token);
        self.receive();
    }

    /// Asks again and again, and returns how long each answer took.
    pub(crate) fn repeat(&mut self, path: &str, token: &str, deadline: Instant) -> Vec<Duration> {
        let mut times = Vec::new();
        loop {
            let begun = Instant::now();
            if begun >= deadline {
                return times;
            }
            self.ask(path, token);
            times.push(begun.elapsed());
        }
    }
}

/// Returns what the server answers over its socket.
pub(crate) fn ask_socket(socket: &Path, method: &str, path: &str, body: &str) -> Value {
    let mut stream = UnixStream::connect(socket).expect("the server has a socket");
    let length = body.len();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    );
    stream.write_all(request.as_bytes()).expect("a request goes out");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer comes in");
    let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    body.parse().unwrap_or_default()
}

/// Lets this process have `count` files open, if it may.
pub(crate) fn allow_open_files(count: usize) -> bool {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    limit.maximum.is_none_or(|most| most >= count as u64) && setrlimit(Resource::Nofile, raised).is_ok()
}

#[derive(Debug)]
struct OwnServer;

impl ServerCertVerifier for OwnServer {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        default_provider().signature_verification_algorithms.supported_schemes()
    }
}
