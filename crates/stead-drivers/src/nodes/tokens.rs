//! Tokens of nodes: what an agent is told, whether that is still good, and its end.

use stead_model::NodeName;
use stead_model::node::{Bootstrap, NodeEntry, Told};
use stead_model::site::manifest::Mode;
use stead_model::site::secrets::Secret;
use stead_model::token::{
    self, Audience, Claims, LiveRing, RefusalCode, Version, revoke_all_of, revoke_node, revoke_token,
};
use stead_runner::clock;
use stead_runner::operation::{OpContext, OpError};

use super::remove::began;
use super::{NodeView, NodesSurroundings};
use crate::site::{change_keyring, new_token_id};

/// What an agent is to be told, and what is remembered of it.
pub(super) struct Telling {
    pub(super) bootstrap: Bootstrap,
    pub(super) jti: String,
    pub(super) told: Told,
}

impl NodesSurroundings {
    /// Returns what a node is told, with a new token; `supersedes`: it is made later than all tokens there are.
    pub(super) async fn telling(&self, node: &NodeView<'_>, supersedes: bool) -> Result<Telling, OpError> {
        let name = &node.node.name;
        let spec = node.written.spec.as_ref().map(|spec| spec.value.clone());
        let mode = node.agent_mode().ok_or_else(|| OpError::invalid(format!("{name} needs no agent")))?;
        let serving = self.serving().await?;
        let now = now();
        let site = &self.parts.site;
        let no_key = |error: token::RingError| OpError::permanent(error.to_string());
        let ring = LiveRing::of(site, now).map_err(no_key)?;
        let key = ring.minting().map_err(no_key)?;
        let iat = ring.issue_time(name.as_str(), now + i64::from(supersedes));
        let ttl = i64::try_from(site.settings.value.server.token_ttl.as_secs()).unwrap_or(i64::MAX);
        let jti = new_token_id().map_err(|error| OpError::operation(error.to_string()))?;
        let told = Told { mode, kid: key.kid(), iat, exp: iat.saturating_add(ttl) };
        let claims = claims(name, spec, &jti, &told);
        let server = self.parts.memory.look(|state| state.server.as_ref().map(|server| server.url.clone()));
        let bootstrap = Bootstrap {
            schema: Bootstrap::SCHEMA,
            node: name.clone(),
            mode,
            server: server.ok_or_else(|| OpError::operation("no server of this level is known"))?,
            fingerprints: vec![serving.fingerprint],
            spki_pin: Some(serving.spki_pin),
            token: Secret::new(token::mint(key, &claims)),
            binary_sha256: Some(self.program_sha256().await?.to_string()),
            authorized_keys: self.planted_keys().await?,
        };
        Ok(Telling { bootstrap, jti, told })
    }

    /// Returns why the token that a node was told is not good any more, as far as this level knows.
    pub(super) fn refusal(&self, name: &NodeName, entry: &NodeEntry) -> Option<RefusalCode> {
        let (jti, told) = (entry.jti.as_ref()?, entry.told.as_ref()?);
        let now = now();
        let ring = LiveRing::of(&self.parts.site, now).ok()?;
        ring.refusal(&claims(name, entry.spec.clone(), jti, told), now)
    }

    /// Whether a node may have tokens: it was told one, or nobody knows what was done to its machine before.
    pub(super) fn may_have_tokens(&self, cx: &OpContext, entry: &NodeEntry) -> bool {
        let was_configured = entry.spec_digest.is_some() || entry.machine_id.is_none();
        entry.fetches() || (!was_configured && !was_made_here(cx, entry))
    }

    /// Makes all tokens of a node worthless that were made before `before`, or until now.
    ///
    /// Tokens carry no more than the node's name: while a node of another pair fetches under it, only the token that
    /// is known to be of this one goes.
    pub(super) async fn revoke_tokens(
        &self,
        name: &NodeName,
        jti: Option<String>,
        before: Option<i64>,
    ) -> Result<(), OpError> {
        let is_shared = self.served_elsewhere().contains_key(name);
        let (directory, name) = (self.parts.site_dir.clone(), name.clone());
        let revoking = tokio::task::spawn_blocking(move || {
            change_keyring(&directory, &directory, |site| {
                let keyring = &site.keyring.value;
                Ok(match (is_shared, jti) {
                    // A revocation counts for the whole second it names.
                    (false, _) => match before {
                        Some(before) => revoke_node(keyring, &name, before - 1),
                        None => revoke_all_of(keyring, &name, now()),
                    },
                    (true, Some(jti)) => revoke_token(keyring, &jti),
                    (true, None) => keyring.clone(),
                })
            })
        });
        let revoked = revoking.await.map_err(|_| OpError::operation("revoking was cut off"))?;
        revoked.map_err(|error| OpError::operation(error.to_string()))?;
        // A server that runs refuses them from now on.
        match &self.parts.server {
            Some(server) => server.reload().await.map_err(OpError::operation),
            None => Ok(()),
        }
    }

    /// Whether this site makes tokens at all.
    pub(super) fn has_tokens(&self) -> bool {
        LiveRing::of(&self.parts.site, now()).is_ok()
    }
}

/// Whether the machine of a node was made by this run.
pub(super) fn was_made_here(cx: &OpContext, entry: &NodeEntry) -> bool {
    let Some(made) = entry.created_at else { return true };
    began(cx).is_none_or(|began| made >= began)
}

fn claims(name: &NodeName, spec: Option<stead_model::SiteKey>, jti: &str, told: &Told) -> Claims {
    let (kid, jti) = (told.kid.clone(), jti.to_owned());
    let version = Version::V2 { exp: told.exp, kid, aud: Audience::Node, jti };
    Claims { node: name.to_string(), spec, iat: told.iat, version }
}

fn now() -> i64 {
    clock::now().as_micros().div_euclid(1_000_000)
}

impl NodeView<'_> {
    /// Returns how the node's own agent works; none: it has none.
    pub(super) fn agent_mode(&self) -> Option<Mode> {
        self.written.spec.as_ref().and(self.known.modes.agent())
    }
}
