//! `node.server`: the server of a level is there while its nodes need it, and what its nodes are told of it.

use std::path::PathBuf;
use std::sync::Arc;

use stead_model::NodeName;
use stead_model::node::operations::serving;
use stead_model::node::{Bootstrap, NodeEntry, NodesState, ServerEntry};
use stead_model::site::manifest::Mode;
use stead_model::site::secrets::Secret;
use stead_model::token::{self, Audience, Claims, LiveRing, Version, revoke_node};
use stead_runner::clock;
use stead_runner::operation::{OpContext, OpError, Outcome};

use super::{NodeView, NodesSurroundings};
use crate::server_client::ServerClient;
use crate::site::{change_keyring, new_token_id};

/// Starts, asks and stops the server of a level: what a program has that can be one.
#[async_trait::async_trait]
pub trait LevelServer: Send + Sync {
    /// Has a server of the site answer, with the site as it is now.
    async fn ensure(&self) -> Result<Serving, String>;

    /// Stops it.
    async fn stop(&self) -> Result<(), String>;

    /// Has it read the site again, if it runs.
    async fn reload(&self) -> Result<(), String>;
}

/// A server that answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Serving {
    /// Its port.
    pub port: u16,
    /// SHA-256 of its certificate, `AB:CD:…`.
    pub fingerprint: String,
    /// SHA-256 of its key.
    pub spki_pin: String,
    /// The socket for operators of the same account.
    pub socket: PathBuf,
    /// Whether this call started it.
    pub started: bool,
}

impl NodesSurroundings {
    /// Has a server answer, or lets go of it.
    pub(super) async fn serve(&self, _: &OpContext, act: &str) -> Result<Outcome, OpError> {
        match act {
            serving::ENSURE => self.ensure_server().await,
            serving::RELEASE => self.release_server().await,
            other => Err(OpError::invalid(format!("nothing is called `{other}` that a server does"))),
        }
    }

    async fn ensure_server(&self) -> Result<Outcome, OpError> {
        let serving = self.serving().await?.clone();
        let address = self.parts.wishes.self_addr.clone();
        let address = address
            .ok_or_else(|| OpError::invalid("nobody said by which address nodes reach this machine"))?;
        let url = match address.starts_with("https://") {
            true => address,
            false if address.contains(':') && !address.starts_with('[') => {
                format!("https://[{address}]:{}", serving.port)
            }
            false => format!("https://{address}:{}", serving.port),
        };
        let changed = self.parts.memory.change(|state| {
            let before = state.server.take();
            let started_by_run =
                serving.started || before.as_ref().is_some_and(|before| before.started_by_run);
            let (port, fingerprint) = (serving.port, serving.fingerprint.clone());
            state.server = Some(ServerEntry { url, port, fingerprint, started_by_run });
            state.server != before
        });
        self.parts.memory.flush().await?;
        Ok(Outcome { changed: changed || serving.started, ..Outcome::default() })
    }

    /// Stops the server that a run started, once no node fetches from it any more.
    async fn release_server(&self) -> Result<Outcome, OpError> {
        let lone = self.parts.memory.look(|state| {
            let server = state.server.clone();
            server.filter(|_| !state.nodes.values().any(fetches))
        });
        let Some(server) = lone else { return Ok(Outcome::default()) };
        let mut changed = false;
        if server.started_by_run && !self.others_fetch() {
            self.level_server()?.stop().await.map_err(OpError::operation)?;
            changed = true;
        }
        self.parts.memory.change(|state| state.server = None);
        self.parts.memory.flush().await?;
        Ok(Outcome { changed, ..Outcome::default() })
    }

    /// Whether nodes of another manifest or host fetch from the same server.
    fn others_fetch(&self) -> bool {
        let directory = self.parts.state_dir.join("nodes");
        let below =
            |path: PathBuf| std::fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path());
        let pairs = below(directory).flat_map(below).map(|pair| pair.join("state.json"));
        let others = pairs.filter(|path| path != self.parts.memory.path());
        let states = others.filter_map(|path| NodesState::parse(&std::fs::read(path).ok()?).ok());
        states.into_iter().any(|state| state.server.is_some() && state.nodes.values().any(fetches))
    }

    fn level_server(&self) -> Result<&Arc<dyn LevelServer>, OpError> {
        self.parts.server.as_ref().ok_or_else(|| OpError::permanent("this program has no server"))
    }

    /// Returns the server of this level, made to answer when it is needed first.
    pub(super) async fn serving(&self) -> Result<&Serving, OpError> {
        let ensuring = || async { self.level_server()?.ensure().await.map_err(OpError::operation) };
        self.serving.get_or_try_init(ensuring).await
    }

    /// Returns what asks the server of this level.
    pub(super) async fn server_client(&self) -> Result<ServerClient, OpError> {
        Ok(ServerClient::socket(self.serving().await?.socket.clone()))
    }

    /// Returns what a node is told, with a new token, and the token's id.
    pub(super) async fn bootstrap(&self, node: &NodeView<'_>) -> Result<(Bootstrap, String), OpError> {
        let name = &node.node.name;
        let spec = node.written.spec.as_ref().map(|spec| spec.value.clone());
        let serving = self.serving().await?;
        let now = clock::now().as_micros().div_euclid(1_000_000);
        let site = &self.parts.site;
        let no_key = |error: token::RingError| OpError::permanent(error.to_string());
        let ring = LiveRing::of(site, now).map_err(no_key)?;
        let key = ring.minting().map_err(no_key)?;
        let iat = ring.issue_time(name.as_str(), now);
        let ttl = i64::try_from(site.settings.value.server.token_ttl.as_secs()).unwrap_or(i64::MAX);
        let jti = new_token_id().map_err(|error| OpError::operation(error.to_string()))?;
        let version = Version::V2 {
            exp: iat.saturating_add(ttl),
            kid: key.kid(),
            aud: Audience::Node,
            jti: jti.clone(),
        };
        let claims = Claims { node: name.to_string(), spec, iat, version };
        let server = self.parts.memory.look(|state| state.server.as_ref().map(|server| server.url.clone()));
        let bootstrap = Bootstrap {
            schema: Bootstrap::SCHEMA,
            node: name.clone(),
            mode: node.known.modes.config,
            server: server.ok_or_else(|| OpError::operation("no server of this level is known"))?,
            fingerprints: vec![serving.fingerprint.clone()],
            spki_pin: Some(serving.spki_pin.clone()),
            token: Secret::new(token::mint(key, &claims)),
            binary_sha256: Some(self.program_sha256().await?.to_string()),
            authorized_keys: self.planted_keys().await?,
        };
        Ok((bootstrap, jti))
    }

    /// Makes all tokens of a node worthless.
    pub(super) async fn revoke_tokens(&self, name: &NodeName) -> Result<(), OpError> {
        let (directory, name) = (self.parts.site_dir.clone(), name.clone());
        let now = clock::now().as_micros().div_euclid(1_000_000);
        let revoking = tokio::task::spawn_blocking(move || {
            change_keyring(&directory, &directory, |site| Ok(revoke_node(&site.keyring.value, &name, now)))
        });
        let revoked = revoking.await.map_err(|_| OpError::operation("revoking was cut off"))?;
        revoked.map_err(|error| OpError::operation(error.to_string()))?;
        // A server that runs refuses them from now on.
        match &self.parts.server {
            Some(server) => server.reload().await.map_err(OpError::operation),
            None => Ok(()),
        }
    }
}

/// Whether a node fetches its spec.
fn fetches(entry: &NodeEntry) -> bool {
    entry.mode != Mode::Push || entry.jti.is_some()
}
