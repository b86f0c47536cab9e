//! A real etcd on this machine, for tests of several masters.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::sshd::free_port;

/// A server, ended with its value.
#[derive(Debug)]
pub struct Server {
    child: Child,
    port: u16,
    _data: tempfile::TempDir,
}

impl Server {
    /// Starts one; none, with a reason, where there is no etcd.
    ///
    /// # Panics
    /// If it does not start, or if there is none and `STEAD_CI` is set: then nothing may be skipped.
    #[expect(clippy::print_stderr, reason = "a skip says why")]
    pub fn start() -> Option<Self> {
        let mut last = String::new();
        // A free port may be taken by another test before the server has it.
        for _ in 0..5 {
            let data = tempfile::tempdir().expect("a directory");
            let (port, peers) = (free_port(), free_port());
            let [client, peer] = [port, peers].map(|port| format!("http://127.0.0.1:{port}"));
            let started = Command::new("etcd")
                .args(["--name", "one", "--data-dir"])
                .arg(data.path())
                .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
                .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
                .args(["--initial-cluster", &format!("one={peer}"), "--log-level", "error"])
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn();
            let child = match started {
                Ok(child) => child,
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                    assert!(std::env::var_os("STEAD_CI").is_none(), "etcd is not installed");
                    eprintln!("skipped: etcd is not installed");
                    return None;
                }
                Err(error) => panic!("{error}"),
            };
            let mut server = Self { child, port, _data: data };
            match server.wait() {
                Ok(()) => return Some(server),
                Err(why) => last = why,
            }
        }
        panic!("etcd did not start: {last}");
    }

    /// Returns where it listens.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Returns its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    fn wait(&mut self) -> Result<(), String> {
        let end = Instant::now() + Duration::from_secs(60);
        while Instant::now() < end {
            if let Some(status) = self.child.try_wait().expect("its end is seen") {
                return Err(status.to_string());
            }
            if self.is_healthy() {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Err("it is not healthy in time".to_owned())
    }

    fn is_healthy(&self) -> bool {
        let Ok(mut stream) = TcpStream::connect(("127.0.0.1", self.port)) else { return false };
        stream.set_read_timeout(Some(Duration::from_secs(2))).expect("a time limit");
        let mut said = String::new();
        let asked = stream.write_all(b"GET /health HTTP/1.0\r\nHost: x\r\n\r\n");
        asked.is_ok() && stream.read_to_string(&mut said).is_ok() && said.contains("\"true\"")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}
