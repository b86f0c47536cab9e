//! Instances of VMs and commits: what a fleet counts and what it comes from.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest as _, Sha256};

use crate::id::{InvalidId, VmId};

/// One instance of a VM: `web/0`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct InstanceKey {
    /// The VM.
    pub vm: VmId,
    /// Which of its instances, from 0.
    pub ordinal: u32,
}

impl InstanceKey {
    /// Returns the instance of `vm` with this ordinal.
    pub fn new(vm: &VmId, ordinal: u32) -> Self {
        Self { vm: vm.clone(), ordinal }
    }

    /// Returns the instance that `text` names: `ID/ORDINAL`.
    pub fn parse(text: &str) -> Result<Self, InvalidId> {
        let invalid = || InvalidId {
            kind: "instance",
            text: text.to_owned(),
            rule: "the id of a VM, `/` and a number without leading zeros, such as `web/0`",
        };
        let (vm, ordinal) = text.split_once('/').ok_or_else(invalid)?;
        let is_number = ordinal.bytes().all(|byte| byte.is_ascii_digit())
            && (ordinal == "0" || !ordinal.starts_with('0'));
        let ordinal = ordinal.parse().ok().filter(|_| is_number).ok_or_else(invalid)?;
        Ok(Self { vm: VmId::parse(vm).map_err(|_| invalid())?, ordinal })
    }

    /// Returns its name as a file and as a host: `ID.ORDINAL`.
    pub fn file_name(&self) -> String {
        format!("{}.{}", self.vm, self.ordinal)
    }

    /// Returns the hardware address of its network card where the spec gives none.
    pub fn mac(&self) -> String {
        let hash = Sha256::digest(format!("mac/v1\n{self}"));
        let bytes = hash.iter().take(5).map(|byte| format!(":{byte:02x}"));
        format!("02{}", bytes.collect::<String>())
    }
}

impl fmt::Display for InstanceKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.vm, self.ordinal)
    }
}

impl FromStr for InstanceKey {
    type Err = InvalidId;

    fn from_str(text: &str) -> Result<Self, InvalidId> {
        Self::parse(text)
    }
}

impl Serialize for InstanceKey {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for InstanceKey {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::parse(&String::deserialize(deserializer)?).map_err(serde::de::Error::custom)
    }
}

/// A commit: 40 or 64 lower-case hex digits.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CommitId(String);

impl CommitId {
    /// Returns the commit `text` names, or why it names none.
    pub fn parse(text: &str) -> Result<Self, InvalidId> {
        let is_hex = text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        if is_hex && matches!(text.len(), 40 | 64) {
            return Ok(Self(text.to_owned()));
        }
        let rule = "40 or 64 lower-case hex digits";
        Err(InvalidId { kind: "commit", text: text.to_owned(), rule })
    }

    /// Returns its digits.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for CommitId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl fmt::Debug for CommitId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl FromStr for CommitId {
    type Err = InvalidId;

    fn from_str(text: &str) -> Result<Self, InvalidId> {
        Self::parse(text)
    }
}

impl Serialize for CommitId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for CommitId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::parse(&String::deserialize(deserializer)?).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instances_have_one_spelling() {
        let key = InstanceKey::parse("web/10").unwrap();
        assert_eq!((key.to_string().as_str(), key.file_name().as_str()), ("web/10", "web.10"));
        for bad in ["web", "web/", "/0", "web/01", "web/-1", "web/+1", "web/0/1", "Web/0", "web/4294967296"] {
            assert!(InstanceKey::parse(bad).is_err(), "{bad}");
        }
        assert!(InstanceKey::parse("web/2").unwrap() < key, "ordinals are numbers");
    }

    /// Section 3: the vector.
    #[test]
    fn the_hardware_address_comes_from_the_name() {
        assert_eq!(InstanceKey::parse("web/0").unwrap().mac(), "02:21:d2:e8:88:64");
    }

    #[test]
    fn commits_are_whole() {
        assert!(CommitId::parse("60a0e5f7ea71e87670f92cb0d5674464daba62cf").is_ok());
        for bad in ["", "60a0e5f", "60A0e5f7ea71e87670f92cb0d5674464daba62cf", &"g".repeat(40)] {
            assert!(CommitId::parse(bad).is_err(), "{bad}");
        }
    }
}
