//! What an agent is told.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{WireCode, WireError, parse_body};
use crate::id::MessageId;
use crate::time::Timestamp;

/// What an agent is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SignalKind {
    /// Fetch the spec and become it.
    Converge,
    /// Run a command, or end one: [`super::JobOrder`].
    Job,
    /// Know these peers.
    Link,
    /// Stop for good.
    Terminate,
}

impl SignalKind {
    /// Returns the word.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Converge => "converge",
            Self::Job => "job",
            Self::Link => "link",
            Self::Terminate => "terminate",
        }
    }
}

/// What `GET …/next` answers with.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Signal {
    /// What it is called; ids grow.
    pub id: MessageId,
    /// What to do.
    pub kind: SignalKind,
    /// With what: an object.
    pub payload: Value,
}

/// What an operator sends: `POST …/signals`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SignalRequest {
    /// What to do.
    pub kind: SignalKind,
    /// With what; `link` takes `{"peers": [{"name", "address"}]}`.
    #[serde(default)]
    pub payload: Map<String, Value>,
}

impl SignalRequest {
    /// Returns what a body asks for.
    pub fn parse(body: &[u8]) -> Result<Self, WireError> {
        let request: Self = parse_body(body)?;
        if request.kind == SignalKind::Job {
            return Err(WireError::new(WireCode::E400, "jobs are submitted at /v1/jobs"));
        }
        Ok(request)
    }
}

/// How a client knows a server: by its certificates, or by the key that they are for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pins {
    /// SHA-256 of certificates, `AB:CD:…`.
    pub fingerprints: Vec<String>,
    /// SHA-256 of the key (DER of SubjectPublicKeyInfo), `sha256:` and hex digits.
    pub spki_pin: String,
}

/// What `POST …/token` answers with. The token is not shown.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RenewedToken {
    /// The new token.
    pub token: String,
    /// When it ends.
    pub expires_at: Timestamp,
    /// How the server is known from now on.
    #[serde(flatten)]
    pub pins: Pins,
}

impl fmt::Debug for RenewedToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RenewedToken").field("expires_at", &self.expires_at).finish_non_exhaustive()
    }
}
