//! Which keys are live, and how the ring changes: rotation and revocation as functions of values.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use super::{LATEST, RefusalCode, SigningKey, Version};
use crate::id::NodeName;
use crate::site::Site;
use crate::site::keyring::{KeyUse, Keyring, KeyringKey, Revocation};

/// The most keys that may be live at once.
pub const LIVE_MOST: usize = 8;

/// Why no key can be used. Whoever asks answers nobody: it fails closed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RingError {
    /// There is none.
    #[error("there is no key: neither `auth.signing_key` in secrets.yaml nor keyring.yaml has one")]
    NoKey,
    /// `site.yaml` has problems.
    #[error("site.yaml cannot be read")]
    BrokenSettings,
    /// `secrets.yaml` has problems.
    #[error("secrets.yaml cannot be read")]
    BrokenSecrets,
    /// `keyring.yaml` has problems.
    #[error("keyring.yaml cannot be read")]
    BrokenKeyring,
    /// Keys verify, but none of them signs.
    #[error("no key signs: keyring.yaml has none with `use: mint`, and `auth.signing_key` has ended")]
    NoMintKey,
    /// A key would end after all time.
    #[error("the overlap is too long")]
    TooLong,
    /// More than [`LIVE_MOST`].
    #[error("{0} keys are live; at most {LIVE_MOST} may be")]
    TooMany(usize),
}

/// The keys that are live at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveRing {
    // Invariant: not empty, and at most `LIVE_MOST`.
    keys: Vec<SigningKey>,
    minting: Option<SigningKey>,
    revoked: Arc<Revoked>,
}

/// Tokens that are not accepted any more, in the shape in which every request asks for them.
///
/// Entries are never dropped for their age: tokens of version 1 do not end, and the lifetime of others may be given by
/// hand, so that an old one would be good again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Revoked {
    tokens: HashSet<String>,
    nodes: BTreeMap<NodeName, i64>,
}

impl Revoked {
    /// Returns what a keyring revokes.
    pub fn of(keyring: &Keyring) -> Self {
        let mut revoked = Self::default();
        for entry in &keyring.revoked {
            match entry {
                Revocation::Token { jti } => {
                    revoked.tokens.insert(jti.clone());
                }
                Revocation::Node { node, before } => {
                    let latest = revoked.nodes.entry(node.clone()).or_insert(*before);
                    *latest = (*latest).max(*before);
                }
            }
        }
        revoked
    }

    /// Returns the nodes whose tokens are revoked, each with the time before which they were made.
    pub fn nodes(&self) -> impl Iterator<Item = (&NodeName, i64)> {
        self.nodes.iter().map(|(node, before)| (node, *before))
    }

    fn covers(&self, claims: &super::Claims) -> bool {
        claims.jti().is_some_and(|jti| self.tokens.contains(jti))
            || self.nodes.get(claims.node.as_str()).is_some_and(|before| claims.iat < *before)
    }
}

impl LiveRing {
    /// Returns the keys of `site` that are live at `now` (seconds since 1970).
    pub fn of(site: &Site, now: i64) -> Result<Self, RingError> {
        if site.secrets.is_broken() {
            return Err(RingError::BrokenSecrets);
        }
        if site.keyring.is_broken() {
            return Err(RingError::BrokenKeyring);
        }
        Self::new(&site.keyring.value, site.secrets.value.signing_key.as_ref(), now)
    }

    /// Returns the keys of `keyring` that are live at `now`, with `signing_key` unless the keyring lists it.
    pub fn new(keyring: &Keyring, signing_key: Option<&SigningKey>, now: i64) -> Result<Self, RingError> {
        Self::revoking(keyring, signing_key, Arc::new(Revoked::of(keyring)), now)
    }

    /// Returns the same where what the keyring revokes is at hand already.
    pub fn revoking(
        keyring: &Keyring,
        signing_key: Option<&SigningKey>,
        revoked: Arc<Revoked>,
        now: i64,
    ) -> Result<Self, RingError> {
        let is_live = |key: &&KeyringKey| key.until.is_none_or(|until| now < until);
        let mut keys: Vec<SigningKey> =
            keyring.keys.iter().filter(is_live).map(|key| key.key.clone()).collect();
        let unlisted = signing_key.filter(|own| !keyring.keys.iter().any(|listed| listed.key == **own));
        keys.extend(unlisted.cloned());
        let mints = |key: &&KeyringKey| key.usage == KeyUse::Mint && is_live(key);
        // Where no key of the ring mints, the site's own does while it is live, listed or not.
        let own = signing_key.filter(|own| keys.contains(own));
        let minting = keyring.keys.iter().find(mints).map(|key| key.key.clone()).or_else(|| own.cloned());
        match keys.len() {
            0 => Err(RingError::NoKey),
            count if count > LIVE_MOST => Err(RingError::TooMany(count)),
            _ => Ok(Self { keys, minting, revoked }),
        }
    }

    /// Returns the key that signs new tokens.
    pub fn minting(&self) -> Result<&SigningKey, RingError> {
        self.minting.as_ref().ok_or(RingError::NoMintKey)
    }

    /// Returns all live keys.
    pub fn keys(&self) -> &[SigningKey] {
        &self.keys
    }

    /// Returns when a token for `node` that is made `now` says that it was made: not before its last revocation, or
    /// it would be revoked from the start.
    pub fn issue_time(&self, node: &str, now: i64) -> i64 {
        self.revoked.nodes.get(node).map_or(now, |before| now.max(*before))
    }

    /// Returns why a token with these claims is not good any more at `now`; none: it is.
    pub fn refusal(&self, claims: &super::Claims, now: i64) -> Option<RefusalCode> {
        let has_key = match &claims.version {
            Version::V1 { .. } => true,
            Version::V2 { kid, .. } => self.keys.iter().any(|key| key.kid() == *kid),
        };
        if self.is_revoked(claims) {
            return Some(RefusalCode::E303);
        }
        if !has_key {
            return Some(RefusalCode::E301);
        }
        claims.exp().filter(|exp| now >= *exp).map(|_| RefusalCode::E302)
    }

    pub(super) fn is_revoked(&self, claims: &super::Claims) -> bool {
        self.revoked.covers(claims)
    }
}

/// How long the old key goes on to verify, from when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overlap {
    /// The moment of rotation, in seconds since 1970.
    pub now: i64,
    /// How long.
    pub length: Duration,
}

/// Returns the ring in which `new` mints, and what minted before verifies until the overlap ends.
///
/// Keys that have ended are dropped, but never `signing_key`: a key the ring does not list would be live again.
pub fn rotate(
    keyring: &Keyring,
    signing_key: Option<&SigningKey>,
    new: SigningKey,
    overlap: Overlap,
) -> Result<Keyring, RingError> {
    let length = i64::try_from(overlap.length.as_secs()).unwrap_or(i64::MAX);
    let ends = overlap.now.saturating_add(length);
    if ends > LATEST {
        return Err(RingError::TooLong);
    }
    let mut rotated = keyring.clone();
    if let Some(own) = signing_key
        && !rotated.keys.iter().any(|listed| listed.key == *own)
    {
        // It minted if no other did; else it went on to verify without an end, and gets one now.
        rotated.keys.insert(0, KeyringKey { key: own.clone(), usage: KeyUse::Mint, until: None });
    }
    for key in &mut rotated.keys {
        if key.usage == KeyUse::Mint {
            key.usage = KeyUse::Verify;
            key.until = Some(key.until.map_or(ends, |until| until.min(ends)));
        }
    }
    rotated.keys.retain(|key| {
        let has_ended = key.until.is_some_and(|until| until <= overlap.now);
        !has_ended || signing_key == Some(&key.key)
    });
    rotated.keys.push(KeyringKey { key: new, usage: KeyUse::Mint, until: None });
    let live = rotated.keys.iter().filter(|key| key.until.is_none_or(|until| overlap.now < until)).count();
    if live > LIVE_MOST { Err(RingError::TooMany(live)) } else { Ok(rotated) }
}

/// Returns the ring in which the token `jti` is revoked. The same again changes nothing.
pub fn revoke_token(keyring: &Keyring, jti: &str) -> Keyring {
    let mut revoked = keyring.clone();
    let entry = Revocation::Token { jti: jti.to_owned() };
    if !revoked.revoked.contains(&entry) {
        revoked.revoked.push(entry);
    }
    revoked
}

/// Returns the ring in which every token of `node` that there is at `now` (seconds since 1970) is revoked.
pub fn revoke_all_of(keyring: &Keyring, node: &NodeName, now: i64) -> Keyring {
    // One that was minted in the second of a revocation says that it is of the next.
    let newest = Revoked::of(keyring).nodes.get(node).copied().unwrap_or(now);
    revoke_node(keyring, node, now.max(newest))
}

/// Returns the ring in which every token of `node` that says it was made up to `now` (seconds since 1970) is revoked.
pub fn revoke_node(keyring: &Keyring, node: &NodeName, now: i64) -> Keyring {
    // A token knows only the second it was made in: those of this second are revoked as well.
    let before = now.saturating_add(1);
    let mut revoked = keyring.clone();
    let others = |entry: &Revocation| match entry {
        Revocation::Node { node: other, before: earlier } => other != node || *earlier > before,
        Revocation::Token { .. } => true,
    };
    revoked.revoked.retain(others);
    let is_covered = revoked
        .revoked
        .iter()
        .any(|entry| matches!(entry, Revocation::Node { node: other, .. } if other == node));
    if !is_covered {
        revoked.revoked.push(Revocation::Node { node: node.clone(), before });
    }
    revoked
}
