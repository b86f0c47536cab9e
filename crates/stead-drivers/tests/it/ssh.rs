//! The SSH transport against the distribution's own server, and OpenSSH's client as the measure.

mod basics;
mod configuration;
mod contract;
mod faults;
mod files;
mod host_keys;
mod logins;
mod shells;
mod tied;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use stead_drivers::transport::{Notice, Notices, Surroundings, Transports};
use stead_model::transport::{SshSpec, TransportSpec};
use stead_runner::transport::{Command, Connect, Exit, Running, Transport, TransportError};
use stead_testkit::sshd::Sshd;
use tokio::io::AsyncReadExt;

/// An account of its own: a home directory, an environment, and the notices it got.
struct Account {
    home: tempfile::TempDir,
    environment: BTreeMap<std::ffi::OsString, std::ffi::OsString>,
    notices: Arc<Mutex<Vec<Notice>>>,
}

impl Account {
    fn new() -> Self {
        let home = tempfile::tempdir().unwrap();
        std::fs::create_dir(home.path().join(".ssh")).unwrap();
        Self { home, environment: BTreeMap::new(), notices: Arc::default() }
    }

    fn set(mut self, name: &str, value: impl Into<std::ffi::OsString>) -> Self {
        self.environment.insert(name.into(), value.into());
        self
    }

    fn transports(&self) -> Transports {
        let around = Surroundings {
            home: self.home.path().to_path_buf(),
            user: "tester".to_owned(),
            environment: self.environment.clone(),
        };
        let notices = Arc::clone(&self.notices);
        Transports::new(around, Notices::new(move |notice| notices.lock().unwrap().push(notice)))
    }

    async fn connect(&self, spec: SshSpec) -> Result<Arc<dyn Transport>, TransportError> {
        self.transports().connect(&TransportSpec::Ssh(Box::new(spec))).await
    }

    fn noticed(&self, code: &str) -> Vec<String> {
        let notices = self.notices.lock().unwrap();
        notices.iter().filter(|notice| notice.code == code).map(|notice| notice.message.clone()).collect()
    }
}

/// Connects with the fixture's own spec.
async fn connect(server: &Sshd) -> Arc<dyn Transport> {
    Account::new().connect(server.spec()).await.unwrap()
}

/// What a finished program was.
#[derive(Debug, PartialEq, Eq)]
struct Finished {
    exit: Exit,
    stdout: String,
    stderr: String,
}

async fn finish(mut running: Running) -> Result<Finished, TransportError> {
    let mut stdout = Vec::new();
    let mut stderr = Vec::new();
    let (out, err) =
        tokio::join!(running.stdout.read_to_end(&mut stdout), running.stderr.read_to_end(&mut stderr));
    let exit = running.process.wait().await?;
    out.unwrap();
    err.unwrap();
    Ok(Finished {
        exit,
        stdout: String::from_utf8_lossy(&stdout).into_owned(),
        stderr: String::from_utf8_lossy(&stderr).into_owned(),
    })
}

async fn run(transport: &dyn Transport, argv: &[&str]) -> Result<Finished, TransportError> {
    finish(transport.exec(Command::new(argv.iter().copied())).await?).await
}

async fn output(transport: &dyn Transport, argv: &[&str]) -> String {
    let finished = run(transport, argv).await.unwrap();
    assert_eq!(finished.exit, Exit::Code(0), "{argv:?}: {}", finished.stderr);
    finished.stdout
}
