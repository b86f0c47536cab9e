//! Ways to a machine: this one, and those behind SSH.
//!
//! [`Transports`] opens them. It reads the account's SSH files once and keeps them for the run; it retries nothing but
//! a server that has too many logins at once. What a user should know goes to the [`Notices`] it was given.

mod endpoint;
mod files;
mod launch;
mod local;
pub(crate) mod ssh;

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use stead_model::transport::{SecretSource, SshSpec, TransportSpec};
use stead_runner::transport::{Connect, Transport, TransportError, TransportErrorKind};

pub use ssh::{ConfigError, ConfigText, Known, KnownHosts, Outside, Place, Query, SshConfig, Verdict};

/// What the driver's account and process are like: nothing here asks the operating system itself.
#[derive(Clone, Debug, Default)]
pub struct Surroundings {
    /// The home directory.
    pub home: PathBuf,
    /// The account's name.
    pub user: String,
    /// The environment; secrets and the agent's socket are looked up here.
    pub environment: BTreeMap<OsString, OsString>,
}

impl Surroundings {
    /// Returns a variable that is set and not empty.
    pub fn variable(&self, name: &str) -> Option<&OsStr> {
        self.environment.get(OsStr::new(name)).map(OsString::as_os_str).filter(|value| !value.is_empty())
    }
}

/// Something a user should know about a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// Its code, such as `reach/noise`.
    pub code: &'static str,
    /// What is so, and what to do.
    pub message: String,
}

/// Whom notices go to.
#[derive(Clone)]
pub struct Notices(Arc<dyn Fn(Notice) + Send + Sync>);

impl Notices {
    /// Returns notices that go to `to`, from any thread.
    pub fn new(to: impl Fn(Notice) + Send + Sync + 'static) -> Self {
        Self(Arc::new(to))
    }

    /// Returns notices that nobody wants.
    pub fn ignored() -> Self {
        Self::new(drop)
    }

    fn send(&self, code: &'static str, message: impl Into<String>) {
        (self.0)(Notice { code, message: message.into() });
    }
}

impl fmt::Debug for Notices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Notices")
    }
}

/// Opens transports of both kinds.
#[derive(Debug)]
pub struct Transports {
    ssh: ssh::Opener,
    surroundings: Arc<Surroundings>,
}

impl Transports {
    /// Returns an opener for one run.
    pub fn new(surroundings: Surroundings, notices: Notices) -> Self {
        let surroundings = Arc::new(surroundings);
        Self { ssh: ssh::Opener::new(Arc::clone(&surroundings), notices), surroundings }
    }

    /// Returns what holds for a host: keyword and value as `ssh -G` names them, and the keywords of ssh_config that were
    /// there and have no effect. Connects to nothing.
    ///
    /// # Errors
    /// If ssh_config cannot be read or has a value that cannot be used.
    pub async fn effective(
        &self,
        spec: &SshSpec,
    ) -> Result<(Vec<(String, String)>, Vec<String>), TransportError> {
        self.ssh.effective(spec).await
    }

    /// Returns a secret from where it is, or why it is not there; never the secret in an error.
    pub fn secret(&self, source: &SecretSource) -> Result<String, String> {
        ssh::secret::read(source, &self.surroundings)
    }
}

#[async_trait::async_trait]
impl Connect for Transports {
    async fn connect(&self, spec: &TransportSpec) -> Result<Arc<dyn Transport>, TransportError> {
        match spec {
            TransportSpec::Local => Ok(Arc::new(local::Local::new(Arc::clone(&self.surroundings)))),
            TransportSpec::Ssh(ssh) => Ok(Arc::new(self.ssh.open(ssh).await?)),
        }
    }
}

/// Returns a name nobody can guess, of twice as many hex digits as `bytes`.
fn random_name(bytes: usize) -> Result<String, TransportError> {
    let mut random = vec![0; bytes];
    getrandom::fill(&mut random).map_err(|error| {
        TransportError::new(TransportErrorKind::Failed, format!("the system gives no random bytes: {error}"))
    })?;
    Ok(random.iter().map(|byte| format!("{byte:02x}")).collect())
}
