//! Provisioning tokens: who may fetch which spec, signed with a key of the site.
//!
//! [`mint`] makes them, [`verify`] checks them in the one order there is, over values that are passed in: keys,
//! revocations and the time. No byte of a payload is looked at before its signature holds. [`inspect`] decodes
//! without a key and proves nothing.

use std::fmt;

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest as _, Sha256};

use crate::base64::url;

mod claims;
pub mod join;
mod ring;
#[cfg(test)]
mod tests;
mod verify;

pub use claims::{Audience, Claims, LATEST, Version, is_person, is_token_id};
pub use ring::{
    LIVE_MOST, LiveRing, Overlap, Revoked, RingError, revoke_all_of, revoke_node, revoke_token, rotate,
};
pub use verify::{
    Endpoint, Refusal, RefusalCode, bearer, check_endpoint, check_identity, check_spec, inspect, verify,
    verify_again,
};

/// The longest token that is looked at.
pub const MAX_BYTES: usize = 4096;

/// A key that signs tokens. Its bytes are not shown.
#[derive(Clone, PartialEq, Eq)]
pub struct SigningKey([u8; 32]);

impl SigningKey {
    /// Returns the key that 64 hex digits name.
    pub fn parse(text: &str) -> Option<Self> {
        crate::plan::Digest::parse(&text.to_ascii_lowercase()).map(|bytes| Self(bytes.0))
    }

    /// Returns the key with these bytes.
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Returns the 64 hex digits, which are as secret as the key.
    pub fn to_hex(&self) -> String {
        crate::plan::Digest(self.0).to_string()
    }

    /// Returns what the key is called: the first 8 hex digits of its hash.
    pub fn kid(&self) -> String {
        let digest = crate::plan::Digest(Sha256::digest(self.0).into()).to_string();
        digest.get(..8).unwrap_or_default().to_owned()
    }

    /// Returns the key of a level below: that of the subtree that `node` hosts, which may be a host.
    pub fn derive(&self, manifest: &crate::SiteKey, node: &impl fmt::Display) -> Self {
        Self(self.sign(format!("stead/delegate/1|{manifest}|{node}").as_bytes()))
    }

    fn mac(&self, message: &[u8]) -> Hmac<Sha256> {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).expect("HMAC takes keys of any length");
        mac.update(message);
        mac
    }

    /// Returns the signature of `message`.
    fn sign(&self, message: &[u8]) -> [u8; 32] {
        self.mac(message).finalize().into_bytes().into()
    }

    /// Whether this key signed `message`; takes as long whether it did or not.
    fn signed(&self, message: &[u8], signature: &[u8]) -> bool {
        self.mac(message).verify_slice(signature).is_ok()
    }
}

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SigningKey({})", self.kid())
    }
}

/// Returns the token that says `claims`, signed with `key`.
pub fn mint(key: &SigningKey, claims: &Claims) -> String {
    let payload = url::encode(claims.to_json(&key.kid()).as_bytes());
    let signature = url::encode(&key.sign(payload.as_bytes()));
    format!("{payload}.{signature}")
}
