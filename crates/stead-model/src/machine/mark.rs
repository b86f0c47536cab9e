//! The mark: scope and name, the UUID that follows from them, and the hardware addresses that follow from that.

use std::fmt;

use serde::{Deserialize, Serialize};
use sha1::Sha1;
use sha2::{Digest, Sha256};

/// The name space of machines' UUIDs: `2be64ad0-61dd-51fe-8f22-7d3c8b38a1a0`.
const NAMESPACE: [u8; 16] =
    [0x2b, 0xe6, 0x4a, 0xd0, 0x61, 0xdd, 0x51, 0xfe, 0x8f, 0x22, 0x7d, 0x3c, 0x8b, 0x38, 0xa1, 0xa0];

/// What a driver calls a machine.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct MachineId(String);

impl MachineId {
    /// Returns the id of this text.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// Returns its text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for MachineId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Whose a machine is: a scope (`SITE/MANIFEST/HOST` for nodes) and a name in it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "Written")]
pub struct Owner {
    scope: String,
    name: String,
}

/// An owner as somebody wrote it.
#[derive(Deserialize)]
struct Written {
    scope: String,
    name: String,
}

impl TryFrom<Written> for Owner {
    type Error = InvalidOwner;

    fn try_from(written: Written) -> Result<Self, InvalidOwner> {
        Self::new(&written.scope, &written.name)
    }
}

/// Why two texts are no owner.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{scope}` and `{name}` do not name a machine: {why}")]
pub struct InvalidOwner {
    /// The scope given.
    pub scope: String,
    /// The name given.
    pub name: String,
    /// What is wrong.
    pub why: &'static str,
}

impl Owner {
    /// Returns the owner of these names.
    ///
    /// # Errors
    /// If one is empty or has a character that would make two owners look alike.
    pub fn new(scope: &str, name: &str) -> Result<Self, InvalidOwner> {
        let refuse = |why| Err(InvalidOwner { scope: scope.to_owned(), name: name.to_owned(), why });
        let odd = |c: char| c.is_control() || c.is_whitespace();
        if scope.is_empty() || scope.split('/').any(str::is_empty) || scope.contains(odd) || scope.len() > 255
        {
            return refuse("a scope is names with `/` between them");
        }
        if name.is_empty() || name.len() > 63 || name.contains(|c: char| odd(c) || c == '/') {
            return refuse("a name has up to 63 characters, and neither `/` nor white space");
        }
        Ok(Self { scope: scope.to_owned(), name: name.to_owned() })
    }

    /// Returns the scope.
    pub fn scope(&self) -> &str {
        &self.scope
    }

    /// Returns the name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the UUID (version 5) of `SCOPE/NAME`.
    pub fn uuid(&self) -> String {
        let mut hasher = Sha1::new();
        hasher.update(NAMESPACE);
        hasher.update(self.to_string());
        let mut bytes: Vec<u8> = hasher.finalize().iter().copied().take(16).collect();
        for (place, keep, set) in [(6, 0x0f, 0x50), (8, 0x3f, 0x80)] {
            if let Some(byte) = bytes.get_mut(place) {
                *byte = (*byte & keep) | set;
            }
        }
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let parts: Vec<&str> =
            [0..8, 8..12, 12..16, 16..20, 20..32].into_iter().filter_map(|range| hex.get(range)).collect();
        parts.join("-")
    }

    /// Returns the hardware address of network card `index`.
    pub fn mac(&self, index: usize) -> String {
        let digest = Sha256::digest(format!("{}/{index}", self.uuid()));
        let tail: Vec<String> = digest.iter().take(3).map(|byte| format!("{byte:02x}")).collect();
        format!("52:54:00:{}", tail.join(":"))
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.scope, self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Section 9 of reach: the vectors of the mark.
    #[test]
    fn uuid_and_hardware_address_follow_from_scope_and_name() {
        let owner = Owner::new("lab/harbour/local", "quay").unwrap();
        assert_eq!(owner.uuid(), "b8ca0a97-6f03-56c9-ab24-2f428cb4ff94");
        assert_eq!(owner.mac(0), "52:54:00:83:99:24");
        assert_ne!(owner.mac(1), owner.mac(0));
    }

    #[test]
    fn names_that_would_look_alike_are_refused() {
        for (scope, name) in [("", "a"), ("a//b", "c"), ("a", ""), ("a", "b/c"), ("a b", "c"), ("a", "b\n")] {
            assert!(Owner::new(scope, name).is_err(), "{scope:?} {name:?}");
        }
    }
}
