//! The server of a level: a process of this program.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use stead_drivers::nodes::{LevelServer, Serving};
use stead_server::{ServerError, ServerFacts, ServerOptions, ServerPlace, Started};

use super::load::Loaded;

/// Starts, asks and stops the server of one site and state directory.
pub(super) struct OwnServer(Arc<Inner>);

struct Inner {
    place: ServerPlace,
    program: PathBuf,
}

impl OwnServer {
    pub(super) fn new(loaded: &Loaded, program: &Path) -> Self {
        let place = ServerPlace { site: loaded.directory.path.clone(), state: loaded.state_dir.clone() };
        Self(Arc::new(Inner { place, program: program.to_owned() }))
    }

    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Inner) -> Result<T, ServerError> + Send + 'static,
    ) -> Result<T, String> {
        let inner = Arc::clone(&self.0);
        let done = tokio::task::spawn_blocking(move || work(&inner)).await;
        let done = done.map_err(|_| "the work on the server was cut off".to_owned())?;
        done.map_err(|error| {
            let cause =
                std::error::Error::source(&error).map_or_else(String::new, |cause| format!(": {cause}"));
            format!("the server: {error}{cause}")
        })
    }
}

fn serving(facts: &ServerFacts, started: bool, for_run: bool) -> Serving {
    Serving {
        port: facts.port,
        fingerprint: facts.fingerprint.clone(),
        spki_pin: facts.spki_pin.clone(),
        socket: facts.socket.clone(),
        started,
        for_run,
    }
}

#[async_trait::async_trait]
impl LevelServer for OwnServer {
    async fn ensure(&self) -> Result<Serving, String> {
        self.blocking(|inner| {
            let options = ServerOptions { for_run: true, ..ServerOptions::default() };
            let started = stead_server::ensure(&inner.place, &options, &inner.program)?;
            let is_new = match &started {
                Started::Now(_) => true,
                // It may have read the site before it became what it is now. What is wrong with specs of other nodes is
                // not this run's.
                Started::Before(_) => {
                    stead_server::reload_usable(&inner.place)?.into_result()?;
                    false
                }
            };
            Ok(serving(started.facts(), is_new, is_new))
        })
        .await
    }

    async fn find(&self) -> Result<Option<Serving>, String> {
        let status = self.blocking(|inner| stead_server::status(&inner.place, None)).await?;
        Ok(status.report.map(|report| serving(&report.facts, false, report.for_run)))
    }

    async fn stop(&self) -> Result<(), String> {
        self.blocking(|inner| stead_server::stop(&inner.place, None).map(drop)).await
    }

    async fn reload(&self) -> Result<(), String> {
        // Its keys are what changed: whatever is wrong with other files, a token that is revoked is refused.
        self.blocking(|inner| stead_server::reload_keys(&inner.place)?.into_result().map(drop)).await
    }

    async fn pack_repositories(&self, aside: &Path) -> Result<Option<PathBuf>, String> {
        let aside = aside.to_owned();
        self.blocking(move |inner| Ok(stead_server::pack_repositories(&inner.place, &aside)?)).await
    }
}
