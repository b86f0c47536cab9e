//! What a node is told when it is made: who it is, where its spec is and whom to trust.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::id::NodeName;
use crate::site::manifest::Mode;
use crate::site::secrets::Secret;

/// The most that a bootstrap file may have.
const MOST_BYTES: usize = 1024 * 1024;

/// What a node is told when it is made. `Debug` does not show the token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bootstrap {
    /// 1.
    pub schema: u32,
    /// Who it is.
    pub node: NodeName,
    /// How it gets its spec.
    pub mode: Mode,
    /// The server of its level: an https URL.
    pub server: String,
    /// Fingerprints of the server's certificates, `AB:CD:…`.
    #[serde(default)]
    pub fingerprints: Vec<String>,
    /// The hash of the server's public key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spki_pin: Option<String>,
    /// By what the server knows it.
    #[serde(serialize_with = "shown", deserialize_with = "kept")]
    pub token: Secret,
    /// The hash of the program to run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub binary_sha256: Option<String>,
    /// Lines of the public keys of those that made it.
    #[serde(default)]
    pub authorized_keys: Vec<String>,
}

impl Bootstrap {
    /// The format.
    pub const SCHEMA: u32 = 1;

    /// Returns the file's text.
    pub fn to_json(&self) -> String {
        let mut text = serde_json::to_string_pretty(self).expect("a bootstrap is always JSON");
        text.push('\n');
        text
    }

    /// Returns what `bytes` say, or what is wrong with them, without repeating any of them.
    pub fn parse(bytes: &[u8]) -> Result<Self, InvalidBootstrap> {
        if bytes.len() > MOST_BYTES {
            return Err(InvalidBootstrap::TooLarge);
        }
        let bootstrap: Self = serde_json::from_slice(bytes)
            .map_err(|error| InvalidBootstrap::Malformed { line: error.line(), column: error.column() })?;
        if bootstrap.schema != Self::SCHEMA {
            return Err(InvalidBootstrap::Schema(bootstrap.schema));
        }
        Ok(bootstrap)
    }
}

/// Why a file is no bootstrap.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidBootstrap {
    /// It is larger than any.
    #[error("it has more than {MOST_BYTES} bytes")]
    TooLarge,
    /// It does not have the fields, or is not JSON.
    #[error("it is malformed at line {line}, column {column}")]
    Malformed {
        /// Counted from 1.
        line: usize,
        /// Counted from 1.
        column: usize,
    },
    /// It has another format.
    #[error("its schema is {0}, not {schema}", schema = Bootstrap::SCHEMA)]
    Schema(u32),
}

fn shown<S: Serializer>(secret: &Secret, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(secret.expose())
}

fn kept<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Secret, D::Error> {
    String::deserialize(deserializer).map(Secret::new)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bootstrap() -> Bootstrap {
        Bootstrap {
            schema: 1,
            node: NodeName::parse("edge").unwrap(),
            mode: Mode::Pull,
            server: "https://127.0.0.1:44443".to_owned(),
            fingerprints: vec!["AB:CD".to_owned()],
            spki_pin: Some("pin".to_owned()),
            token: Secret::new("very.secret"),
            binary_sha256: None,
            authorized_keys: Vec::new(),
        }
    }

    #[test]
    fn a_bootstrap_is_written_and_read_and_its_token_not_shown() {
        let text = bootstrap().to_json();
        assert!(text.contains("very.secret"));
        assert_eq!(Bootstrap::parse(text.as_bytes()).unwrap(), bootstrap());
        assert!(!format!("{:?}", bootstrap()).contains("very"));
    }

    #[test]
    fn what_is_no_bootstrap_is_refused_without_repeating_it() {
        let other = bootstrap().to_json().replace("\"schema\": 1", "\"schema\": 2");
        assert_eq!(Bootstrap::parse(other.as_bytes()), Err(InvalidBootstrap::Schema(2)));
        let error = Bootstrap::parse(br#"{"token": "very.secret", "x": 1}"#).unwrap_err();
        assert!(!error.to_string().contains("very"), "{error}");
        assert_eq!(Bootstrap::parse(&vec![b' '; MOST_BYTES + 1]), Err(InvalidBootstrap::TooLarge));
    }
}
