//! The key that a container shows: nobody can plant one, so the first one seen counts from then on.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use russh::client::{Config, Handler};
use russh::keys::PublicKeyOrCertificate;
use tokio::time::timeout;

use super::Cluster;
use super::api::ApiError;
use super::find::Found;

/// How long a container may take to show its key.
const PATIENCE: Duration = Duration::from_secs(5);

impl Cluster {
    /// Returns the key that the container at `host` shows, and keeps it; none if it shows none yet.
    pub(super) async fn first_key(&self, found: &Found, host: &str) -> Result<Option<String>, ApiError> {
        let Some(key) = shown(host, found.record.ssh_port()).await else { return Ok(None) };
        let mut record = found.record.clone();
        record.host_key = Some(key.clone());
        self.write(&found.place, &record).await?;
        self.say(Some(format!("{} showed its host key for the first time: {key}", found.place)));
        Ok(Some(key))
    }
}

/// Returns type and base64 of the key that the SSH server at `host` shows.
async fn shown(host: &str, port: u16) -> Option<String> {
    let seen = Arc::new(Mutex::new(None));
    let config = Arc::new(Config::default());
    let looking = russh::client::connect(config, (host, port), Look(Arc::clone(&seen)));
    // It ends with an error: the key is not accepted, so nothing else is said.
    timeout(PATIENCE, looking).await.ok();
    seen.lock().unwrap_or_else(PoisonError::into_inner).take()
}

/// Looks at the key and goes.
struct Look(Arc<Mutex<Option<String>>>);

impl Handler for Look {
    type Error = russh::Error;

    async fn check_server_key(&mut self, key: &PublicKeyOrCertificate) -> Result<bool, russh::Error> {
        let line = key.public_key().to_openssh().ok();
        let words = line.map(|line| line.split_ascii_whitespace().take(2).collect::<Vec<_>>().join(" "));
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = words;
        Ok(false)
    }
}
