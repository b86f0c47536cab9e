//! Operations on other machines: connections, the executor there, and the conversation with it.
//!
//! ```text
//!   executor ── operation ──▶ HostPool ──▶ Session (one per host and run) ══ Transport ══▶ `stead executor`
//!                                             │ lost: connects anew until the lease ends
//!                                             └ open: probe, upload if needed, attach, hello
//! ```
//!
//! What an operation means is decided here as on this machine: parameters are rendered before, verdicts given after.
//! Only carrying it out happens elsewhere, by the same function ([`crate::operate::operate`]).

mod agent;
mod bare;
mod become_account;
mod binary;
mod bring;
mod open;
mod pending;
mod pool;
mod request;
mod session;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::transport::Connect;

pub use agent::{RemoteAgent, RemoteAgentSettings};
pub use become_account::Account;
pub(crate) use binary::Binaries;
pub use bring::{Carrier, Destination};
pub(crate) use pending::Lost;
pub(crate) use pool::{HostPool, PoolSettings, is_here};
pub(crate) use request::{Sending, reads_facts};

/// How a run gets to its hosts.
#[derive(Clone)]
pub struct Reach {
    /// Opens connections.
    pub connect: Arc<dyn Connect>,
    /// This program, for targets it fits.
    pub executable: PathBuf,
    /// Directories with a `stead` per kind of machine (`ARCH/stead`), first match first.
    pub binaries: Vec<PathBuf>,
    /// Who drives, for those who find a target locked.
    pub user: String,
    /// Where from.
    pub driver: String,
    /// How long a session on a target lives without hearing from this run.
    pub lease: Duration,
}

impl Reach {
    /// Returns a way through `connect` that brings `executable` to targets.
    pub fn new(connect: Arc<dyn Connect>, executable: impl Into<PathBuf>) -> Self {
        Self {
            connect,
            executable: executable.into(),
            binaries: Vec::new(),
            user: String::new(),
            driver: String::new(),
            lease: stead_model::executor::LEASE,
        }
    }
}

impl std::fmt::Debug for Reach {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reach").field("executable", &self.executable).finish_non_exhaustive()
    }
}
