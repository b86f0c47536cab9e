//! Join tokens: who may become a member of a fleet, once, signed with the fleet's join key.
//!
//! Like the tokens of nodes they are checked in one order, and no byte of a payload is looked at before its signature
//! holds. A joiner has no key: it [`inspect`]s its own token for the authority it has to meet before it sends it.

use std::fmt;

use serde_json::Value;

use super::claims::{LATEST, integer, members, text};
use super::verify::{EARLY, decode};
use super::{MAX_BYTES, SigningKey};
use crate::base64::url;
use crate::fleet::peer::Role;
use crate::plan::Digest;

/// What join tokens begin with.
const PREFIX: &str = "sj1";

/// What a join token says. Times are in seconds since 1970.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JoinClaims {
    /// What its bearer will be.
    pub role: Role,
    /// What its bearer will be called; none: as it likes.
    pub name: Option<String>,
    /// When it was made.
    pub iat: i64,
    /// When it expires.
    pub exp: i64,
    /// Its own id.
    pub jti: String,
    /// SHA-256 of the certificate of the fleet's authority.
    pub ca: Digest,
}

impl JoinClaims {
    /// Returns the payload: compact, its members in the order of the format.
    fn to_json(&self) -> String {
        let text = |text: &str| Value::from(text).to_string();
        format!(
            "{{\"v\":1,\"r\":{},\"n\":{},\"iat\":{},\"exp\":{},\"jti\":{},\"ca\":{}}}",
            text(self.role.word()),
            text(self.name.as_deref().unwrap_or_default()),
            self.iat,
            self.exp,
            text(&self.jti),
            text(&self.ca.to_string()),
        )
    }

    fn parse(payload: &[u8]) -> Result<Self, &'static str> {
        let members = members(payload)?;
        if integer(&members, "v")? != Some(1) {
            return Err("`v` is not 1");
        }
        let role = text(&members, "r")?.and_then(Role::parse).ok_or("`r` is not a role")?;
        let name = match text(&members, "n")?.ok_or("`n` is missing")? {
            "" => None,
            name if role.names(name) => Some(name.to_owned()),
            _ => return Err("`n` is not a name that the role allows"),
        };
        let jti =
            text(&members, "jti")?.filter(|jti| is_join_id(jti)).ok_or("`jti` is not the id of a token")?;
        Ok(Self {
            role,
            name,
            iat: integer(&members, "iat")?.ok_or("`iat` is missing")?,
            exp: integer(&members, "exp")?.ok_or("`exp` is missing")?,
            jti: jti.to_owned(),
            ca: text(&members, "ca")?.and_then(Digest::parse).ok_or("`ca` is not a SHA-256")?,
        })
    }
}

/// Whether `text` may be the id of a join token: 1 to 64 letters, digits, `-` and `_`.
pub fn is_join_id(text: &str) -> bool {
    (1..=64).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
}

/// Why a join is refused. Holds nothing of the token.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message} ({})", code.word())]
pub struct JoinRefusal {
    /// Which code answers.
    pub code: JoinCode,
    /// Why, and what to do.
    pub message: String,
}

/// The codes of a refused join.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum JoinCode {
    /// It is no token.
    Malformed,
    /// This fleet has not signed it.
    Signature,
    /// It has expired, or is from the future.
    Expired,
    /// It was used already, or revoked.
    Used,
    /// The name is not the token's, or is taken.
    Name,
    /// Who answers is not of the token's fleet; the token was not sent.
    Authority,
}

impl JoinCode {
    /// Every code.
    pub const ALL: [Self; 6] =
        [Self::Malformed, Self::Signature, Self::Expired, Self::Used, Self::Name, Self::Authority];

    /// Returns its word.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Malformed => "join-malformed",
            Self::Signature => "join-signature",
            Self::Expired => "join-expired",
            Self::Used => "join-used",
            Self::Name => "join-name",
            Self::Authority => "join-ca",
        }
    }
}

impl fmt::Display for JoinCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.word())
    }
}

impl JoinRefusal {
    /// Returns a refusal.
    pub fn new(code: JoinCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }
}

fn malformed(message: impl Into<String>) -> JoinRefusal {
    JoinRefusal::new(JoinCode::Malformed, message)
}

/// Returns the token that says `claims`, signed with `key`.
pub fn mint(key: &SigningKey, claims: &JoinClaims) -> String {
    let signed = format!("{PREFIX}.{}", url::encode(claims.to_json().as_bytes()));
    let signature = url::encode(&key.sign(signed.as_bytes()));
    format!("{signed}.{signature}")
}

/// Returns what is signed, the payload and the signature.
fn split(token: &str) -> Result<(&str, Vec<u8>, Vec<u8>), JoinRefusal> {
    if token.len() > MAX_BYTES {
        return Err(malformed(format!("a token has at most {MAX_BYTES} bytes")));
    }
    let parts = token.rsplit_once('.').and_then(|(signed, mac)| {
        let payload = signed.strip_prefix(PREFIX)?.strip_prefix('.')?;
        Some((signed, payload, mac))
    });
    let Some((signed, payload, mac)) = parts else {
        return Err(malformed(format!("a join token is `{PREFIX}.` and two parts with a dot between")));
    };
    let (payload, signature) = decode(payload, mac).map_err(malformed)?;
    Ok((signed, payload, signature))
}

/// Returns what `token` says, if `key` signed it and it holds at `now` (seconds since 1970).
pub fn verify(token: &str, key: &SigningKey, now: i64) -> Result<JoinClaims, JoinRefusal> {
    let (signed, payload, signature) = split(token)?;
    if !key.signed(signed.as_bytes(), &signature) {
        return Err(JoinRefusal::new(
            JoinCode::Signature,
            "this fleet has not signed the token; mint one with `stead fleet token mint` on its master",
        ));
    }
    let claims = JoinClaims::parse(&payload).map_err(malformed)?;
    if now >= claims.exp {
        return Err(JoinRefusal::new(JoinCode::Expired, "the token has expired; mint another"));
    }
    if claims.iat > now.saturating_add(EARLY) {
        return Err(JoinRefusal::new(JoinCode::Expired, "the token is from the future; look at the clocks"));
    }
    Ok(claims)
}

/// Returns what `token` says without looking at its signature, which proves nothing.
pub fn inspect(token: &str) -> Result<JoinClaims, JoinRefusal> {
    let (_, payload, _) = split(token)?;
    JoinClaims::parse(&payload).map_err(malformed)
}

/// Returns when a token that is made at `iat` for `seconds` expires.
pub fn expiry(iat: i64, seconds: i64) -> i64 {
    iat.saturating_add(seconds).min(LATEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    const VECTOR: &str = "sj1.eyJ2IjoxLCJyIjoid29ya2VyIiwibiI6IncxIiwiaWF0IjoxNzM4ODAwMDAwLCJleHAiOjE3Mzg4MDM2MDAsImp0aSI6IkFBRUNBd1FGQmdjSUNRb0xEQTBPRHciLCJjYSI6IjExMTExMTExMTExMTExMTExMTExMTExMTExMTExMTExMTExMTExMTExMTExMTExMTExMTExMTExMTExMTExMTEifQ.GWwJG3O-Dj6hw_gPnnX7VsKOSdKlMcrU_YuhepZZfHE";
    const IAT: i64 = 1_738_800_000;

    fn key() -> SigningKey {
        SigningKey::from_bytes([0xcd; 32])
    }

    fn claims() -> JoinClaims {
        JoinClaims {
            role: Role::Worker,
            name: Some("w1".to_owned()),
            iat: IAT,
            exp: IAT + 3_600,
            jti: "AAECAwQFBgcICQoLDA0ODw".to_owned(),
            ca: Digest([0x11; 32]),
        }
    }

    fn code(token: &str, now: i64) -> Option<JoinCode> {
        verify(token, &key(), now).err().map(|refusal| refusal.code)
    }

    fn signed(payload: &str) -> String {
        let signed = format!("sj1.{}", url::encode(payload.as_bytes()));
        format!("{signed}.{}", url::encode(&key().sign(signed.as_bytes())))
    }

    /// Case 17: the vector of section 12.
    #[test]
    fn the_vector_is_minted_and_verified() {
        assert_eq!(mint(&key(), &claims()), VECTOR);
        assert_eq!(verify(VECTOR, &key(), IAT).unwrap(), claims());
        assert_eq!(inspect(VECTOR).unwrap(), claims());
        let anybody = JoinClaims { name: None, ..claims() };
        assert_eq!(verify(&mint(&key(), &anybody), &key(), IAT).unwrap(), anybody);
    }

    /// Case 17: no byte can be another one.
    #[test]
    fn a_flipped_byte_is_refused() {
        for at in 0..VECTOR.len() {
            for bit in [1, 2, 0x20] {
                let mut bytes = VECTOR.as_bytes().to_vec();
                bytes[at] ^= bit;
                let Ok(token) = String::from_utf8(bytes) else { continue };
                let refused = code(&token, IAT);
                assert!(
                    matches!(refused, Some(JoinCode::Malformed | JoinCode::Signature)),
                    "{at} {bit}: {refused:?}"
                );
            }
        }
        assert_eq!(
            verify(VECTOR, &SigningKey::from_bytes([0xce; 32]), IAT).unwrap_err().code,
            JoinCode::Signature
        );
    }

    #[test]
    fn time_and_shape_have_codes() {
        assert_eq!(code(VECTOR, IAT + 3_599), None);
        assert_eq!(code(VECTOR, IAT + 3_600), Some(JoinCode::Expired));
        assert_eq!(code(VECTOR, IAT - EARLY - 1), Some(JoinCode::Expired));
        let long = format!("{VECTOR}{}", "A".repeat(MAX_BYTES));
        for bad in [
            "",
            "sj1",
            "sj1.",
            "sj1..",
            "sj1.e30",
            "sj2.e30.AAAA",
            &VECTOR[4..],
            &format!("{VECTOR}="),
            &long,
        ] {
            assert_eq!(code(bad, IAT), Some(JoinCode::Malformed), "{bad}");
            assert!(inspect(bad).is_err());
        }
    }

    #[test]
    fn payloads_are_read_strictly() {
        let good = claims().to_json();
        assert_eq!(code(&signed(&good), IAT), None);
        for (from, to) in [
            ("\"v\":1", "\"v\":2"),
            ("\"v\":1", "\"v\":true"),
            ("\"v\":1", "\"v\":1,\"v\":1"),
            ("worker", "boss"),
            ("\"w1\"", "\"W 1\""),
            ("\"w1\"", "null"),
            ("\"iat\":1738800000,", ""),
            ("\"exp\":1738803600,", "\"exp\":\"1738803600\","),
            ("AAECAwQFBgcICQoLDA0ODw", "a/b"),
            ("AAECAwQFBgcICQoLDA0ODw", ""),
            ("1111", "111"),
        ] {
            let bad = good.replacen(from, to, 1);
            assert_ne!(bad, good);
            assert_eq!(code(&signed(&bad), IAT), Some(JoinCode::Malformed), "{bad}");
        }
        assert_eq!(code(&signed("[]"), IAT), Some(JoinCode::Malformed));
    }
}
