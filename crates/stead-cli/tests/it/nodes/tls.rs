//! Certificates of a test's own, and servers that are not ours: one that says what it was told to say, and a door that opens
//! when a test wants it to.

use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::Command;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};

use crate::cases_17_32::lab::Lab;

/// Makes a certificate and its key, `NAME.pem` and `NAME.key`, and returns the fingerprint.
pub(super) fn make_certificate(lab: &Lab, name: &str) -> String {
    let openssl = |words: &str| {
        let mut command = Command::new("openssl");
        let ended = command.current_dir(lab.root()).args(words.split(' ')).output().unwrap();
        assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
        String::from_utf8(ended.stdout).unwrap()
    };
    openssl(&format!(
        "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 30 -subj /CN=localhost \
         -addext subjectAltName=DNS:localhost,IP:127.0.0.1 -keyout {name}.key -out {name}.pem"
    ));
    let said = openssl(&format!("x509 -noout -fingerprint -sha256 -in {name}.pem"));
    said.trim().rsplit_once('=').unwrap().1.to_owned()
}

/// A TLS server that gives one answer after the other, the last of them from then on, and remembers what it was asked.
pub(super) struct Canned {
    pub(super) url: String,
    pub(super) fingerprint: String,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Canned {
    /// Starts it with these answers: status, further headers, body.
    pub(super) fn start(lab: &Lab, answers: &[(&str, &str, &str)]) -> Self {
        let fingerprint = make_certificate(lab, "canned");
        let chain =
            CertificateDer::pem_file_iter(lab.path("canned.pem")).unwrap().map(Result::unwrap).collect();
        let key = PrivateKeyDer::from_pem_file(lab.path("canned.key")).unwrap();
        let config = ServerConfig::builder_with_provider(Arc::new(default_provider()));
        let config = config.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
        let config = Arc::new(config.with_single_cert(chain, key).unwrap());
        let answers: Vec<String> = answers
            .iter()
            .map(|(status, headers, body)| {
                let length = body.len();
                format!("HTTP/1.1 {status}\r\n{headers}Content-Length: {length}\r\nConnection: close\r\n\r\n{body}")
            })
            .collect();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("https://127.0.0.1:{}", listener.local_addr().unwrap().port());
        let asked = Arc::new(Mutex::new(Vec::new()));
        let heard = Arc::clone(&asked);
        // It ends with the test's process.
        thread::spawn(move || {
            for stream in listener.incoming() {
                let connection = ServerConnection::new(Arc::clone(&config)).unwrap();
                // A client that does not trust us goes away here.
                drop(converse(StreamOwned::new(connection, stream.unwrap()), &answers, &heard));
            }
        });
        Self { url, fingerprint, asked }
    }

    /// Returns what it was asked since the last time, each up to the end of its headers.
    pub(super) fn asked(&self) -> Vec<String> {
        std::mem::take(&mut *self.asked.lock().unwrap())
    }
}

fn converse(
    mut stream: StreamOwned<ServerConnection, TcpStream>,
    answers: &[String],
    heard: &Mutex<Vec<String>>,
) -> io::Result<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte)?;
        head.extend_from_slice(&byte);
    }
    let mut heard = heard.lock().unwrap();
    let answer = &answers[heard.len().min(answers.len() - 1)];
    heard.push(String::from_utf8_lossy(&head).into_owned());
    drop(heard);
    stream.write_all(answer.as_bytes())?;
    stream.conn.send_close_notify();
    stream.flush()
}

/// A port behind which nothing is until it is opened: who connects before waits there.
pub(super) struct Door {
    pub(super) port: u16,
    leads_to: Arc<AtomicU16>,
}

impl Door {
    pub(super) fn closed() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let leads_to = Arc::new(AtomicU16::new(0));
        let target = Arc::clone(&leads_to);
        // Its threads end with the test's process.
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (stream, target) = (stream.unwrap(), Arc::clone(&target));
                thread::spawn(move || {
                    while target.load(Ordering::SeqCst) == 0 {
                        thread::sleep(Duration::from_millis(5));
                    }
                    let Ok(other) = TcpStream::connect(("127.0.0.1", target.load(Ordering::SeqCst))) else {
                        return;
                    };
                    let (from, to) = (stream.try_clone().unwrap(), other.try_clone().unwrap());
                    thread::spawn(move || pass(from, to));
                    pass(other, stream);
                });
            }
        });
        Self { port, leads_to }
    }

    /// Lets everybody through, to another port of this machine.
    pub(super) fn open(&self, to: u16) {
        self.leads_to.store(to, Ordering::SeqCst);
    }
}

/// Hands on what comes until nothing more does.
fn pass(mut from: TcpStream, mut to: TcpStream) {
    // Either side may go away at any time.
    drop(io::copy(&mut from, &mut to));
    drop(to.shutdown(Shutdown::Write));
}
