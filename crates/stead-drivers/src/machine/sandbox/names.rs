//! Which names there are.

use std::collections::BTreeSet;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

pub(super) use stead_model::site::names::is_account;

/// All names, or some. Written as `any`, or as a list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Names {
    /// Every name.
    #[default]
    Any,
    /// These.
    Only(BTreeSet<String>),
}

impl Names {
    /// Whether there is something called `name`.
    pub fn has(&self, name: &str) -> bool {
        match self {
            Self::Any => true,
            Self::Only(names) => names.contains(name),
        }
    }
}

impl Serialize for Names {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Any => serializer.serialize_str("any"),
            Self::Only(names) => names.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Names {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = serde_json::Value::deserialize(deserializer)?;
        if value.as_str() == Some("any") {
            return Ok(Self::Any);
        }
        let says = |_| D::Error::custom(format!("{value} is neither `any` nor a list of names"));
        serde_json::from_value(value.clone()).map(Self::Only).map_err(says)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_any_or_a_list() {
        let only: Names = serde_json::from_str(r#"["curl", "htop"]"#).unwrap();
        assert!(only.has("curl") && !only.has("vim"));
        assert_eq!(serde_json::to_string(&only).unwrap(), r#"["curl","htop"]"#);
        assert!(serde_json::from_str::<Names>("\"any\"").unwrap().has("vim"));
        assert!(serde_json::from_str::<Names>("\"all\"").is_err());
    }

    #[test]
    fn an_account_has_a_name_that_is_no_path() {
        assert!(is_account("stead") && is_account("_apt-x1"));
        for bad in ["", "../x", "a/b", "Ann", "1a", "a b", "."] {
            assert!(!is_account(bad), "{bad}");
        }
    }
}
