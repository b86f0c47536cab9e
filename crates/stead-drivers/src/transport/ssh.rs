//! Hosts behind SSH, spoken in this process.
//!
//! [`Opener`] resolves a spec against ssh_config, makes the way to the host, checks its key and logs in; [`Ssh`] is the
//! transport over that one connection. Only this module and those below name the SSH library.
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic))]

mod algorithms;
mod client;
mod config;
mod config_files;
mod connection;
mod copying;
mod forwarding;
mod host_key;
mod identity;
mod known_hosts;
mod login;
mod opener;
mod pattern;
mod preamble;
mod program;
pub(in crate::transport) mod secret;
pub(crate) mod server;
mod settings;
mod spool;
mod watch;
mod way;

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use stead_model::plan::Digest;
use stead_model::transport::TransportSpec;
use stead_runner::transport::{
    Command, FileMeta, Forward, Forwarded, Running, Source, Transport, TransportError,
};

use super::launch;
use connection::Connection;
use program::OnDrop;
use watch::Watch;

pub use config::{ConfigError, ConfigText, Outside, Query, SshConfig};
pub use known_hosts::{Known, KnownHosts, Place, Verdict};
pub(super) use opener::Opener;

/// A logged-in connection.
pub(super) struct Ssh {
    spec: TransportSpec,
    connection: Arc<Connection>,
    // Beside the connection, not in it: what it runs holds the connection.
    watch: Watch,
}

impl fmt::Debug for Ssh {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ssh").field("host", &self.connection.name()).finish_non_exhaustive()
    }
}

#[async_trait::async_trait]
impl Transport for Ssh {
    fn spec(&self) -> &TransportSpec {
        &self.spec
    }

    async fn exec(&self, command: Command) -> Result<Running, TransportError> {
        // Refused before a watcher is started for it.
        launch::check(&command)?;
        let tie = match command.tied {
            Some(grace) => self.watch.tie(&self.connection, grace).await?,
            None => None,
        };
        program::start(&self.connection, &command, OnDrop::Kill, tie).await
    }

    async fn put(&self, from: Source, to: &Path, meta: FileMeta) -> Result<Digest, TransportError> {
        copying::put(&self.connection, from, to, &meta).await
    }

    async fn get(&self, from: &Path, to: &Path) -> Result<Digest, TransportError> {
        copying::get(&self.connection, from, to).await
    }

    async fn forward(&self, what: Forward) -> Result<Forwarded, TransportError> {
        forwarding::forward(&self.connection, what).await
    }
}
