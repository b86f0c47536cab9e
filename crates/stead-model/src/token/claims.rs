//! What a token says.

use std::fmt;

use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use crate::id::{NodeName, SiteKey};

/// The latest time a token may name, in seconds: what every reader of JSON keeps exactly.
pub const LATEST: i64 = 1 << 53;

/// What a token may be used for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Audience {
    /// The node's own spec, artifacts and repositories.
    Spec,
    /// Also its signals, jobs, reports and renewal.
    Node,
    /// What operators do.
    Operator,
    /// Something this version does not know: nothing.
    Other(String),
}

impl Audience {
    /// Returns the audience that a word names.
    pub fn parse(word: &str) -> Self {
        match word {
            "spec" => Self::Spec,
            "node" => Self::Node,
            "operator" => Self::Operator,
            other => Self::Other(other.to_owned()),
        }
    }

    /// Returns the word.
    pub fn word(&self) -> &str {
        match self {
            Self::Spec => "spec",
            Self::Node => "node",
            Self::Operator => "operator",
            Self::Other(word) => word,
        }
    }
}

/// The part of a token that differs between versions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Version {
    /// Version 1.
    V1 {
        /// When it expires, if it says so.
        exp: Option<i64>,
    },
    /// Version 2.
    V2 {
        /// When it expires.
        exp: i64,
        /// The key that signed it; what is minted always names the right one.
        kid: String,
        /// What it may be used for.
        aud: Audience,
        /// Its own id.
        jti: String,
    },
}

/// What a token says. Times are in seconds since 1970.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claims {
    /// The node, or the person if the audience is `operator`.
    pub node: String,
    /// The spec; none for operators.
    pub spec: Option<SiteKey>,
    /// When it was made.
    pub iat: i64,
    /// The rest.
    pub version: Version,
}

impl Claims {
    /// Returns what it may be used for.
    pub fn audience(&self) -> Audience {
        match &self.version {
            Version::V1 { .. } => Audience::Spec,
            Version::V2 { aud, .. } => aud.clone(),
        }
    }

    /// Returns when it expires, if it does.
    pub fn exp(&self) -> Option<i64> {
        match self.version {
            Version::V1 { exp } => exp,
            Version::V2 { exp, .. } => Some(exp),
        }
    }

    /// Returns its id, if it has one.
    pub fn jti(&self) -> Option<&str> {
        match &self.version {
            Version::V1 { .. } => None,
            Version::V2 { jti, .. } => Some(jti),
        }
    }

    /// Returns the payload: compact, its members in the order of the format.
    pub(super) fn to_json(&self, kid: &str) -> String {
        let text = |text: &str| Value::from(text).to_string();
        let spec =
            self.spec.as_ref().map_or_else(String::new, |spec| format!(",\"s\":{}", text(spec.as_str())));
        let head =
            |version: u8| format!("{{\"v\":{version},\"n\":{}{spec},\"iat\":{}", text(&self.node), self.iat);
        match &self.version {
            Version::V1 { exp: None } => format!("{}}}", head(1)),
            Version::V1 { exp: Some(exp) } => format!("{},\"exp\":{exp}}}", head(1)),
            Version::V2 { exp, kid: _, aud, jti } => format!(
                "{},\"exp\":{exp},\"kid\":{},\"aud\":{},\"jti\":{}}}",
                head(2),
                text(kid),
                text(aud.word()),
                text(jti)
            ),
        }
    }

    /// Returns what `payload` says, or why it says nothing.
    pub(super) fn parse(payload: &[u8]) -> Result<Self, &'static str> {
        let members = members(payload)?;
        let version = match integer(&members, "v")?.ok_or("`v` is missing")? {
            version @ (1 | 2) => version,
            _ => return Err("`v` is neither 1 nor 2"),
        };
        let node = text(&members, "n")?.ok_or("`n` is missing")?;
        let iat = integer(&members, "iat")?.ok_or("`iat` is missing")?;
        let exp = integer(&members, "exp")?;
        let version = if version == 1 {
            Version::V1 { exp }
        } else {
            Version::V2 {
                exp: exp.ok_or("`exp` is missing")?,
                kid: text(&members, "kid")?.ok_or("`kid` is missing")?.to_owned(),
                aud: Audience::parse(text(&members, "aud")?.ok_or("`aud` is missing")?),
                jti: token_id(text(&members, "jti")?.ok_or("`jti` is missing")?)?,
            }
        };
        let spec = text(&members, "s")?;
        let is_operator = matches!(&version, Version::V2 { aud: Audience::Operator, .. });
        let spec = if is_operator {
            if !is_person(node) {
                return Err("`n` is not the name of a person");
            }
            if spec.is_some() {
                return Err("an operator has no `s`");
            }
            None
        } else {
            NodeName::parse(node).map_err(|_| "`n` is not the name of a node")?;
            Some(SiteKey::parse(spec.ok_or("`s` is missing")?).map_err(|_| "`s` is not the name of a spec")?)
        };
        Ok(Self { node: node.to_owned(), spec, iat, version })
    }
}

fn token_id(text: &str) -> Result<String, &'static str> {
    if is_token_id(text) { Ok(text.to_owned()) } else { Err("`jti` is not the id of a token") }
}

/// Whether `text` may be the id of a token: 1 to 128 visible ASCII characters.
pub fn is_token_id(text: &str) -> bool {
    (1..=128).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic())
}

/// Whether `text` may name a person: what accounts and mail addresses are made of.
pub fn is_person(text: &str) -> bool {
    (1..=64).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._@-".contains(&byte))
}

/// Returns the members of an object, each of which is there once.
pub(super) fn members(payload: &[u8]) -> Result<Map<String, Value>, &'static str> {
    match serde_json::from_slice::<Strict>(payload) {
        Ok(Strict(Value::Object(members))) => Ok(members),
        Ok(_) => Err("the payload is not a JSON object"),
        Err(_) => Err("the payload is not JSON, or a member is there twice"),
    }
}

pub(super) fn text<'m>(
    members: &'m Map<String, Value>,
    name: &'static str,
) -> Result<Option<&'m str>, &'static str> {
    match members.get(name) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_)) => {
            Err("a claim that must be text is not")
        }
    }
}

pub(super) fn integer(members: &Map<String, Value>, name: &str) -> Result<Option<i64>, &'static str> {
    match members.get(name) {
        None => Ok(None),
        Some(Value::Number(number)) => match number.as_i64() {
            Some(number) if (0..=LATEST).contains(&number) => Ok(Some(number)),
            Some(_) | None => Err("a claim that must be a whole number is not"),
        },
        Some(Value::Null | Value::Bool(_) | Value::String(_) | Value::Array(_) | Value::Object(_)) => {
            Err("a claim that must be a whole number is not")
        }
    }
}

/// A JSON value in which no object has a member twice. Nesting is bounded by the reader.
struct Strict(Value);

impl<'de> serde::Deserialize<'de> for Strict {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(StrictVisitor)
    }
}

struct StrictVisitor;

impl<'de> Visitor<'de> for StrictVisitor {
    type Value = Strict;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Strict, E> {
        Ok(Strict(Value::Null))
    }

    fn visit_bool<E>(self, value: bool) -> Result<Strict, E> {
        Ok(Strict(value.into()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Strict, E> {
        Ok(Strict(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Strict, E> {
        Ok(Strict(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Strict, E> {
        Ok(Strict(Number::from_f64(value).map_or(Value::Null, Value::Number)))
    }

    fn visit_str<E>(self, value: &str) -> Result<Strict, E> {
        Ok(Strict(value.into()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Strict, A::Error> {
        let mut items = Vec::new();
        while let Some(Strict(item)) = seq.next_element()? {
            items.push(item);
        }
        Ok(Strict(Value::Array(items)))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Strict, A::Error> {
        let mut members = Map::new();
        while let Some(name) = map.next_key::<String>()? {
            let Strict(value) = map.next_value()?;
            if members.insert(name, value).is_some() {
                return Err(serde::de::Error::custom("a member is there twice"));
            }
        }
        Ok(Strict(Value::Object(members)))
    }
}
