//! A server of a test, and a client that says exactly what it is told to.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::ring::default_provider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, ClientConnection, DigitallySignedStruct, SignatureScheme, StreamOwned};
use serde_json::Value;

use crate::cases_17_32::lab::Lab;

const PATIENCE: Duration = Duration::from_secs(60);

/// Waits for a state.
pub(super) fn until(mut is_there: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_there() {
        assert!(Instant::now() < deadline, "it does not come");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Sends a signal to the server that a document is of.
pub(super) fn kill(document: &Value, signal: Signal) {
    let pid = i32::try_from(document["pid"].as_i64().unwrap()).unwrap();
    kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
}

/// Whether the server that a document is of is there.
pub(super) fn is_alive(document: &Value) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", document["pid"])).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

/// A server of a test, on a port of its own; it is gone with this.
pub(super) struct Serving<'l> {
    pub(super) lab: &'l Lab,
    pub(super) port: u16,
    pub(super) facts: Value,
}

impl<'l> Serving<'l> {
    pub(super) fn start(lab: &'l Lab) -> Self {
        Self::start_on(lab, 0)
    }

    /// Takes over a server that says this of itself.
    pub(super) fn of(lab: &'l Lab, facts: Value) -> Self {
        Self { lab, port: u16::try_from(facts["port"].as_u64().unwrap()).unwrap(), facts }
    }

    pub(super) fn start_on(lab: &'l Lab, port: u16) -> Self {
        let port = port.to_string();
        let facts =
            lab.run(["server", "start", "-p", &port, "-b", "127.0.0.1", "--json"]).exits(0).document();
        Self::of(lab, facts)
    }

    /// Ends it as a crash would, and starts it again on its port.
    pub(super) fn crash_and_start(&mut self) {
        kill(&self.facts, Signal::KILL);
        let (lab, port) = (self.lab, self.port);
        until(|| lab.run(["server", "status", "-p", &port.to_string()]).code == 1);
        self.facts = Self::start_on(lab, port).detach();
    }

    fn detach(self) -> Value {
        std::mem::ManuallyDrop::new(self).facts.clone()
    }

    pub(super) fn status(&self) -> Value {
        self.lab.run(["server", "status", "-p", &self.port.to_string(), "--json"]).document()
    }

    /// Reloads by signal and waits until it is done.
    pub(super) fn reload(&self) {
        let before = self.status()["reload"].clone();
        kill(&self.facts, Signal::HUP);
        until(|| self.status()["reload"] != before);
    }

    pub(super) fn mint(&self, args: &[&str]) -> String {
        let minted = self.lab.run(["token", "mint"].into_iter().chain(args.iter().copied())).exits(0).stdout;
        minted.trim().to_owned()
    }

    pub(super) fn operator(&self) -> String {
        self.mint(&["--node", "ann@desk", "--aud", "operator"])
    }

    pub(super) fn get(&self, path: &str, token: &str) -> Reply {
        self.ask("GET", path, token, "")
    }

    pub(super) fn ask(&self, method: &str, path: &str, token: &str, body: &str) -> Reply {
        self.begin(method, path, token, body).end()
    }

    pub(super) fn ask_with(
        &self,
        method: &str,
        path: &str,
        token: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Reply {
        let mut all = headers.to_vec();
        let bearer = format!("Bearer {token}");
        if !token.is_empty() {
            all.push(("Authorization", &bearer));
        }
        self.request(method, path, &all, body).end()
    }

    pub(super) fn begin(&self, method: &str, path: &str, token: &str, body: &str) -> Asked {
        let bearer = format!("Bearer {token}");
        let headers = [("Authorization", bearer.as_str())];
        self.request(method, path, if token.is_empty() { &[] } else { &headers }, body)
    }

    pub(super) fn request(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Asked {
        let headers: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        let mut asked = self.connect();
        let length = body.len();
        asked.send(&format!(
            "{method} {path} HTTP/1.1\r\nHost: x\r\n{headers}Content-Length: {length}\r\nConnection: close\r\n\r\n{body}"
        ));
        asked
    }

    /// Asks `times` times at once. The connections are opened before, so that all that is counted comes within a moment.
    pub(super) fn flood(&self, times: usize, path: &str, authorization: &str) -> Vec<Reply> {
        let mut opened: Vec<Asked> = (0..times).map(|_| self.connect()).collect();
        for asked in &mut opened {
            let stream = asked.stream();
            while stream.conn.is_handshaking() {
                stream.conn.complete_io(&mut stream.sock).unwrap();
            }
        }
        let token =
            if authorization.is_empty() { "" } else { &format!("Authorization: {authorization}\r\n") };
        for asked in &mut opened {
            asked.send(&format!("GET {path} HTTP/1.1\r\nHost: x\r\n{token}Connection: close\r\n\r\n"));
        }
        opened.into_iter().map(Asked::end).collect()
    }

    pub(super) fn connect(&self) -> Asked {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        let config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Anybody))
            .with_no_client_auth();
        let name = ServerName::try_from("localhost").unwrap();
        let connection = ClientConnection::new(Arc::new(config), name).unwrap();
        Asked(StreamOwned::new(connection, stream))
    }

    pub(super) fn log(&self) -> String {
        self.lab.read(&format!("state/server/server-{}.log", self.port))
    }
}

impl Drop for Serving<'_> {
    fn drop(&mut self) {
        self.lab.run(["server", "stop", "-p", &self.port.to_string()]);
    }
}

/// A connection on which something was asked.
pub(super) struct Asked(StreamOwned<ClientConnection, TcpStream>);

impl Asked {
    /// Sends bytes; that the server has had enough shows in its answer.
    pub(super) fn send(&mut self, text: &str) -> bool {
        self.0.write_all(text.as_bytes()).and_then(|()| self.0.flush()).is_ok()
    }

    /// Reads until `end` has come, and returns everything so far.
    pub(super) fn read_until(&mut self, end: &str) -> String {
        let mut bytes = Vec::new();
        while !bytes.ends_with(end.as_bytes()) {
            let mut byte = [0];
            self.0.read_exact(&mut byte).unwrap();
            bytes.extend_from_slice(&byte);
        }
        String::from_utf8(bytes).unwrap()
    }

    /// Returns the connection itself.
    pub(super) fn stream(&mut self) -> &mut StreamOwned<ClientConnection, TcpStream> {
        &mut self.0
    }

    /// Whether the server has neither answered nor gone away.
    pub(super) fn waits(&mut self) -> bool {
        self.0.sock.set_nonblocking(true).unwrap();
        let read = self.0.read(&mut [0; 1]);
        self.0.sock.set_nonblocking(false).unwrap();
        read.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
    }

    /// Reads until the server ends the connection.
    pub(super) fn end(mut self) -> Reply {
        let mut bytes = Vec::new();
        // A connection may end without the farewell of TLS.
        drop(self.0.read_to_end(&mut bytes));
        Reply::parse(&bytes)
    }
}

/// What was answered.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) status: u16,
    pub(super) head: String,
    pub(super) body: String,
}

impl Reply {
    fn parse(bytes: &[u8]) -> Self {
        let text = String::from_utf8_lossy(bytes).into_owned();
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
        Self { status, head: head.to_ascii_lowercase(), body: body.to_owned() }
    }

    #[track_caller]
    pub(super) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// Returns the code of a refusal.
    pub(super) fn code(&self) -> String {
        let body: Value = serde_json::from_str(&self.body).unwrap_or_default();
        body["error"]["code"].as_str().unwrap_or_default().to_owned()
    }

    pub(super) fn header(&self, name: &str) -> String {
        let line = self.head.lines().find_map(|line| line.strip_prefix(&format!("{name}: ")));
        let line = line.unwrap_or_default();
        if name == "allow" { line.to_ascii_uppercase() } else { line.to_owned() }
    }
}

/// Takes any certificate: these tests are about what comes after.
#[derive(Debug)]
struct Anybody;

impl ServerCertVerifier for Anybody {
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
