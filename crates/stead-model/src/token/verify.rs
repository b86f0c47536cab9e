//! Checks tokens, in one order: the first failure answers.

use super::{Audience, Claims, LiveRing, MAX_BYTES, RingError, Version};
use crate::base64::url;
use crate::id::NodeName;
use crate::site::{ResolveError, ResolvedSpec, Site, resolve};

/// How long after its end a token is still accepted, for clocks that go wrong: seconds.
const LATE: i64 = 60;

/// How far in the future a token may have been made: seconds.
pub(super) const EARLY: i64 = 300;

/// The codes of the protocol that a refused token answers with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RefusalCode {
    /// There is no such spec.
    E200,
    /// There is no such posture.
    E201,
    /// There is no such key.
    E202,
    /// Missing or malformed.
    E300,
    /// Signature, key or identity.
    E301,
    /// Expired, or not yet valid.
    E302,
    /// Revoked.
    E303,
    /// Not for this.
    E304,
    /// The spec has problems.
    E400,
    /// It cannot be answered safely.
    E500,
}

impl RefusalCode {
    /// Returns the code.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::E200 => "E200",
            Self::E201 => "E201",
            Self::E202 => "E202",
            Self::E300 => "E300",
            Self::E301 => "E301",
            Self::E302 => "E302",
            Self::E303 => "E303",
            Self::E304 => "E304",
            Self::E400 => "E400",
            Self::E500 => "E500",
        }
    }
}

/// Why a token is refused. Holds nothing of the token.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}: {message}", code.as_str())]
pub struct Refusal {
    /// Which code answers.
    pub code: RefusalCode,
    /// Why.
    pub message: String,
}

fn refuse<T>(code: RefusalCode, message: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal { code, message: message.into() })
}

/// Check 1: returns the token of an `Authorization` header.
pub fn bearer(header: Option<&str>) -> Result<&str, Refusal> {
    match header.and_then(|header| header.strip_prefix("Bearer ")) {
        Some(token) if !token.is_empty() && !token.contains(char::is_whitespace) => Ok(token),
        Some(_) | None => refuse(RefusalCode::E300, "the header `Authorization: Bearer TOKEN` is missing"),
    }
}

/// The two parts of a token.
struct Parts<'t> {
    signed: &'t str,
    payload: Vec<u8>,
    signature: Vec<u8>,
}

/// Check 2: the shape of a token.
fn split(token: &str) -> Result<Parts<'_>, Refusal> {
    if token.len() > MAX_BYTES {
        return refuse(RefusalCode::E300, format!("a token has at most {MAX_BYTES} bytes"));
    }
    let parts = token
        .split_once('.')
        .filter(|(payload, mac)| !payload.is_empty() && !mac.is_empty() && !mac.contains('.'));
    let Some((signed, mac)) = parts else {
        return refuse(RefusalCode::E300, "a token has two parts with a dot between");
    };
    let (payload, signature) = decode(signed, mac).or_else(|why| refuse(RefusalCode::E300, why))?;
    Ok(Parts { signed, payload, signature })
}

/// Returns the bytes of payload and signature, or why they are none.
pub(super) fn decode(payload: &str, mac: &str) -> Result<(Vec<u8>, Vec<u8>), &'static str> {
    let (Some(payload), Some(signature)) = (url::decode(payload), url::decode(mac)) else {
        return Err("a part of the token is not base64url");
    };
    if payload.is_empty() {
        return Err("the payload is empty");
    }
    if signature.len() != 32 {
        return Err("the signature has not 32 bytes");
    }
    Ok((payload, signature))
}

/// Checks 2 to 8: returns what `token` says, if one of the live keys signed it and it holds at `now` (seconds since
/// 1970).
pub fn verify(
    token: &str,
    ring: Result<&LiveRing, &RingError>,
    accept_v1: bool,
    now: i64,
) -> Result<Claims, Refusal> {
    let parts = split(token)?;
    let ring = match ring {
        Ok(ring) => ring,
        Err(error) => return refuse(RefusalCode::E500, error.to_string()),
    };
    // Every key is tried, whichever fits.
    let signer = ring.keys().iter().fold(None, |found, key| {
        if key.signed(parts.signed.as_bytes(), &parts.signature) { Some(key) } else { found }
    });
    let Some(signer) = signer else {
        return refuse(RefusalCode::E301, "no live key has signed this token");
    };
    let claims = Claims::parse(&parts.payload).or_else(|why| refuse(RefusalCode::E300, why))?;
    match &claims.version {
        Version::V1 { .. } if !accept_v1 => {
            return refuse(RefusalCode::E300, "tokens of version 1 are not accepted here");
        }
        Version::V2 { kid, .. } if *kid != signer.kid() => {
            return refuse(RefusalCode::E301, "the token names another key than the one that signed it");
        }
        Version::V1 { .. } | Version::V2 { .. } => {}
    }
    check_now(&claims, ring, now)?;
    Ok(claims)
}

/// Checks the claims of a token that has held before: whether it still does, with the keys and the time that are now.
pub fn verify_again(
    claims: &Claims,
    ring: Result<&LiveRing, &RingError>,
    accept_v1: bool,
    now: i64,
) -> Result<(), Refusal> {
    let ring = match ring {
        Ok(ring) => ring,
        Err(error) => return refuse(RefusalCode::E500, error.to_string()),
    };
    match &claims.version {
        Version::V1 { .. } if !accept_v1 => {
            refuse(RefusalCode::E300, "tokens of version 1 are not accepted here")
        }
        Version::V2 { kid, .. } if ring.keys().iter().all(|key| key.kid() != *kid) => {
            refuse(RefusalCode::E301, "the key that signed this token is not live any more")
        }
        Version::V1 { .. } | Version::V2 { .. } => check_now(claims, ring, now),
    }
}

/// Checks 7 and 8: what changes with time and with the keyring.
fn check_now(claims: &Claims, ring: &LiveRing, now: i64) -> Result<(), Refusal> {
    if claims.exp().is_some_and(|exp| now >= exp.saturating_add(LATE)) {
        return refuse(RefusalCode::E302, "the token has expired");
    }
    if claims.iat > now.saturating_add(EARLY) {
        return refuse(RefusalCode::E302, "the token is from the future; look at the clocks");
    }
    if ring.is_revoked(claims) {
        return refuse(RefusalCode::E303, "the token is revoked");
    }
    Ok(())
}

/// What is asked for with a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// The list of specs.
    SpecList,
    /// A spec, artifacts, repositories.
    Spec,
    /// Signals, jobs, reports and renewal of a node.
    Node,
    /// What operators do.
    Operator,
}

/// Check 9: whether the token may be used there.
pub fn check_endpoint(claims: &Claims, endpoint: Endpoint) -> Result<(), Refusal> {
    let audience = claims.audience();
    let allowed = match endpoint {
        Endpoint::SpecList => matches!(audience, Audience::Spec | Audience::Node | Audience::Operator),
        Endpoint::Spec => matches!(audience, Audience::Spec | Audience::Node),
        Endpoint::Node => audience == Audience::Node,
        Endpoint::Operator => audience == Audience::Operator,
    };
    if allowed {
        Ok(())
    } else {
        refuse(RefusalCode::E304, format!("a token for `{}` is not for this", audience.word()))
    }
}

/// Check 10: whether the token is that of `identity`.
pub fn check_identity(claims: &Claims, identity: &str) -> Result<(), Refusal> {
    if claims.node == identity {
        Ok(())
    } else {
        refuse(RefusalCode::E301, "the token is of another identity")
    }
}

/// Check 11: returns what the token's node becomes by the token's spec.
pub fn check_spec(claims: &Claims, site: &Site) -> Result<ResolvedSpec, Refusal> {
    let (Some(spec), Ok(node)) = (&claims.spec, NodeName::parse(&claims.node)) else {
        return refuse(RefusalCode::E304, "the token is not that of a node");
    };
    resolve(site, spec, &node).or_else(|error| {
        let code = match &error {
            ResolveError::UnknownSpec(_) => RefusalCode::E200,
            ResolveError::UnknownPosture(_) => RefusalCode::E201,
            ResolveError::UnknownKey(_) => RefusalCode::E202,
            ResolveError::BrokenSpec(_) | ResolveError::BrokenPosture(_) => RefusalCode::E400,
            ResolveError::BrokenSite(_) => RefusalCode::E500,
        };
        refuse(code, error.to_string())
    })
}

/// Returns what `token` says without looking at its signature, which proves nothing.
pub fn inspect(token: &str) -> Result<Claims, Refusal> {
    let parts = split(token)?;
    Claims::parse(&parts.payload).or_else(|why| refuse(RefusalCode::E300, why))
}
