//! Whether an instance is ready: looked at from outside, again and again.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http_body_util::Empty;
use hyper_util::rt::TokioIo;
use stead_drivers::machine::{oci, sandbox};
use stead_model::fleet::Millis;
use stead_model::fleet::vm::{Driver, Ready, ReadyKind, VmSpec};
use stead_model::machine::{Machine, MachineId, MachineProgram};
use stead_runner::machine::MachineDriver;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

use super::files::Record;

/// How long an instance has to be alive where nothing else says that it is ready.
pub(super) const STARTED: Millis = 2_000;

/// How an instance is looked at.
pub(super) struct Probe {
    pub(super) driver: Arc<dyn MachineDriver>,
    pub(super) kind: Driver,
    pub(super) root_dir: Option<PathBuf>,
    pub(super) machine: Machine,
    pub(super) console_from: u64,
    pub(super) spec: Arc<VmSpec>,
}

impl Probe {
    /// Looks until it is otherwise than `was`, and returns why it is not ready, if it is not. Cancel safe.
    pub(super) async fn until_changed(self, was: Option<String>) -> Option<String> {
        let ready = &self.spec.ready;
        let interval = Duration::from_secs(ready.interval_seconds.max(1).into());
        let patience = patience(ready);
        let mut first = true;
        loop {
            if !std::mem::take(&mut first) {
                tokio::time::sleep(interval).await;
            }
            let looked = tokio::time::timeout(patience, self.look()).await;
            let why = looked.unwrap_or_else(|_| Err("it took too long".to_owned())).err();
            if why.is_some() != was.is_some() || (was.is_some() && why != was) {
                return why;
            }
        }
    }

    async fn look(&self) -> Result<(), String> {
        let ready = &self.spec.ready;
        match ready.kind {
            ReadyKind::Started => Ok(()),
            ReadyKind::Tcp => self.connect(ready).await.map(drop),
            ReadyKind::Http => self.ask(ready).await,
            ReadyKind::Serial => self.read_console(ready).await,
            ReadyKind::Exec => self.execute(ready).await,
        }
    }

    /// Returns where a port of the instance is reached.
    fn address(&self, port: u16) -> (String, u16) {
        let nets = &self.spec.runtime.nets;
        let passed_on = nets.iter().flat_map(|net| &net.ports).find(|passed| passed.guest == port);
        match (self.kind, passed_on) {
            (Driver::Sandbox, _) => ("127.0.0.1".to_owned(), port),
            (Driver::Oci | Driver::Qemu | Driver::CloudHypervisor, Some(passed)) => {
                ("127.0.0.1".to_owned(), passed.host)
            }
            (Driver::Oci | Driver::Qemu | Driver::CloudHypervisor, None) => {
                let first = self.machine.addresses.first();
                (first.cloned().unwrap_or_else(|| "127.0.0.1".to_owned()), port)
            }
        }
    }

    async fn connect(&self, ready: &Ready) -> Result<TcpStream, String> {
        let (host, port) = self.address(ready.port.unwrap_or_default());
        TcpStream::connect((host.as_str(), port)).await.map_err(|error| format!("{host}:{port}: {error}"))
    }

    async fn ask(&self, ready: &Ready) -> Result<(), String> {
        let stream = self.connect(ready).await?;
        let path = ready.path.as_deref().unwrap_or("/");
        let request = hyper::Request::get(path)
            .header("host", "localhost")
            .header("connection", "close")
            .body(Empty::<bytes::Bytes>::new())
            .map_err(|error| format!("`{path}`: {error}"))?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|error| error.to_string())?;
        let exchange = sender.send_request(request);
        tokio::pin!(exchange, connection);
        let mut closed = false;
        let response = loop {
            tokio::select! {
                biased;
                response = &mut exchange => break response.map_err(|error| error.to_string())?,
                // Its errors reach the exchange too.
                _ = &mut connection, if !closed => closed = true,
            }
        };
        let status = response.status();
        if status.is_success() || status.is_redirection() { Ok(()) } else { Err(format!("{path}: {status}")) }
    }

    /// Reads the console until it shows what is waited for.
    async fn read_console(&self, ready: &Ready) -> Result<(), String> {
        let wanted = ready.pattern.as_deref().unwrap_or_default().as_bytes();
        let console = self.driver.console(&self.machine.id, self.console_from).await;
        let mut console = console.map_err(|error| error.to_string())?;
        let mut seen: Vec<u8> = Vec::new();
        let mut piece = vec![0; 16 << 10];
        loop {
            let read = console.bytes.read(&mut piece).await.map_err(|error| error.to_string())?;
            if read == 0 {
                return Err("its console ended".to_owned());
            }
            seen.extend_from_slice(piece.get(..read).unwrap_or_default());
            if wanted.is_empty() || seen.windows(wanted.len()).any(|part| part == wanted) {
                return Ok(());
            }
            seen.drain(..seen.len().saturating_sub(wanted.len()));
        }
    }

    async fn execute(&self, ready: &Ready) -> Result<(), String> {
        let root_dir = self.root_dir.as_deref().ok_or("nothing says where the machine is")?;
        match self.kind {
            Driver::Sandbox => self.execute_in_sandbox(ready, root_dir).await,
            Driver::Oci => self.execute_in_container(ready, root_dir).await,
            Driver::Qemu | Driver::CloudHypervisor => Err(format!(
                "nothing can be executed in a machine of `{}` from outside: use `tcp`, `http` or `serial` in `ready`",
                self.kind.word()
            )),
        }
    }

    async fn execute_in_container(&self, ready: &Ready, root_dir: &Path) -> Result<(), String> {
        let (root_dir, id, argv) = (root_dir.to_owned(), self.machine.id.clone(), ready.argv.clone());
        let patience = patience(ready);
        let over = Over::default();
        let is_over = Arc::clone(&over.0);
        let work = move || oci::execute(&root_dir, &id, &argv, patience, &is_over);
        let ended = tokio::task::spawn_blocking(work).await;
        drop(over);
        ended.map_err(|error| error.to_string())?
    }

    async fn execute_in_sandbox(&self, ready: &Ready, root_dir: &Path) -> Result<(), String> {
        let program = MachineProgram { argv: ready.argv.clone(), ..MachineProgram::default() };
        let command = sandbox::command_in(root_dir, &self.machine.id, &program);
        let mut command = command.map_err(|error| error.to_string())?;
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
        let status = command.status().await.map_err(|error| error.to_string())?;
        if status.success() { Ok(()) } else { Err(status.to_string()) }
    }
}

/// How long one look may take.
fn patience(ready: &Ready) -> Duration {
    Duration::from_secs(ready.timeout_seconds.max(1).into())
}

/// Says that nobody waits any more, however the wait ends.
#[derive(Default)]
struct Over(Arc<AtomicBool>);

impl Drop for Over {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Which look at which run of an instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) pid: Option<u32>,
    pub(super) pid_start: Option<u64>,
    pub(super) ready: Ready,
}

impl Run {
    /// Returns the run that a record names.
    pub(super) fn of(record: &Record, spec: &VmSpec) -> Self {
        Self { pid: record.pid, pid_start: record.pid_start, ready: spec.ready.clone() }
    }
}

/// Waits until a machine has ended. Cancel safe.
pub(super) async fn ended(driver: Arc<dyn MachineDriver>, id: MachineId) {
    // Whatever it says, it is looked at anew.
    driver.wait(&id).await.ok();
}
