//! Keys, certificates and an agent, made by OpenSSH's own programs.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Kinds of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyKind {
    /// Ed25519.
    Ed25519,
    /// ECDSA on P-256.
    Ecdsa,
    /// RSA with 2048 bits.
    Rsa,
}

impl KeyKind {
    /// Returns its name as `ssh-keygen` takes it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ed25519 => "ed25519",
            Self::Ecdsa => "ecdsa",
            Self::Rsa => "rsa",
        }
    }
}

fn run(command: &mut Command) -> String {
    let output = command.stdin(Stdio::null()).output().expect("OpenSSH's programs are installed");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Makes a key at `path` and `path.pub`.
///
/// # Panics
/// If `ssh-keygen` fails.
pub fn make_key(path: &Path, kind: KeyKind) {
    make_key_with(path, kind, "");
}

/// As [`make_key`], with a passphrase.
///
/// # Panics
/// If `ssh-keygen` fails.
pub fn make_key_with(path: &Path, kind: KeyKind, passphrase: &str) {
    let mut command = Command::new("ssh-keygen");
    command.args(["-q", "-t", kind.name(), "-N", passphrase, "-C", "stead test", "-f"]).arg(path);
    if kind == KeyKind::Rsa {
        command.args(["-b", "2048"]);
    }
    run(&mut command);
}

/// Replaces a key by a new one of its kind.
///
/// # Panics
/// If `ssh-keygen` fails.
pub fn rekey(path: &Path, kind: KeyKind) {
    fs::remove_file(path).expect("a key");
    make_key(path, kind);
}

/// Signs `key.pub` with the authority at `authority`: as a user certificate, or a host certificate with `host`.
/// Returns the certificate's path, `key-cert.pub`.
///
/// # Panics
/// If `ssh-keygen` fails.
pub fn certify(authority: &Path, key: &Path, principals: &str, host: bool) -> PathBuf {
    let mut command = Command::new("ssh-keygen");
    command.args(["-q", "-I", "stead-test", "-n", principals, "-V", "+1h"]);
    if host {
        command.arg("-h");
    }
    command.arg("-s").arg(authority).arg(key.with_added_extension("pub"));
    run(&mut command);
    PathBuf::from(format!("{}-cert.pub", key.display()))
}

/// Returns the fingerprint `SHA256:…` of a key file.
///
/// # Panics
/// If `ssh-keygen` fails.
pub fn fingerprint(path: &Path) -> String {
    let line = run(Command::new("ssh-keygen").arg("-lf").arg(path));
    line.split_whitespace().nth(1).expect("a fingerprint").to_owned()
}

/// A running `ssh-agent`; ended when dropped.
#[derive(Debug)]
pub struct SshAgent {
    directory: tempfile::TempDir,
    agent: Child,
}

impl SshAgent {
    /// Starts one without keys.
    ///
    /// # Panics
    /// If it does not come up.
    pub fn start() -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let socket = directory.path().join("agent");
        let agent = Command::new("ssh-agent")
            .args(["-D", "-a"])
            .arg(&socket)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("ssh-agent is installed");
        let started = Self { directory, agent };
        let end = Instant::now() + Duration::from_secs(60);
        while std::os::unix::net::UnixStream::connect(&socket).is_err() {
            assert!(Instant::now() < end, "ssh-agent does not listen");
            std::thread::sleep(Duration::from_millis(5));
        }
        started
    }

    /// Where it listens.
    pub fn socket(&self) -> PathBuf {
        self.directory.path().join("agent")
    }

    /// Gives it a key.
    ///
    /// # Panics
    /// If `ssh-add` fails.
    pub fn add(&self, key: &Path) {
        run(Command::new("ssh-add").arg("-q").arg(key).env("SSH_AUTH_SOCK", self.socket()));
    }
}

impl Drop for SshAgent {
    fn drop(&mut self) {
        // It may have ended by itself.
        self.agent.kill().ok();
        self.agent.wait().ok();
    }
}
