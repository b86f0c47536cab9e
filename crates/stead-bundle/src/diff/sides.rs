//! What is compared: two sides, which roles of them, and which capture of a role.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde_json::Value;

use super::numbers::Numbers;
use crate::analysis::Capture;

/// The role that is compared unless another is asked for.
const DEFAULT_ROLE: &str = "client";

/// Which of the two sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// What is compared with.
    Baseline,
    /// What is compared.
    Compare,
}

impl fmt::Display for Which {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Baseline => "BASE",
            Self::Compare => "NEW",
        })
    }
}

/// One side of a comparison, loaded: a bundle, or a capture alone.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Side {
    /// The bundle or file as it was named.
    pub name: String,
    /// `run_meta.json`; none for a capture alone.
    pub run_meta: Option<Value>,
    /// `versions.json`, if there is one.
    pub versions: Option<Value>,
    /// What each role left.
    pub roles: BTreeMap<String, RoleSide>,
    /// The capture, if that is all there is; it stands for any role.
    pub capture_alone: Option<Capture>,
}

/// What one role left on one side.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RoleSide {
    /// `role_meta.json`, if there is one.
    pub role_meta: Option<Value>,
    /// Its capture, analysed; the one that [`choose_capture`] names.
    pub capture: Option<Capture>,
    /// SHA-256 of each artifact, by its path below the role's directory.
    pub artifacts: BTreeMap<String, String>,
    /// The numbers of artifacts that are JSON, by path.
    pub numbers: BTreeMap<String, Numbers>,
    /// Files compared line by line, by path.
    pub text: BTreeMap<String, String>,
}

impl Side {
    /// Returns the capture of `role`.
    pub(crate) fn capture_of(&self, role: Option<&str>) -> Option<&Capture> {
        let of_role = || role.and_then(|role| self.roles.get(role)).and_then(|role| role.capture.as_ref());
        self.capture_alone.as_ref().or_else(of_role)
    }

    /// Returns the metadata of `role`.
    pub(crate) fn role_meta(&self, role: Option<&str>) -> Option<&Value> {
        self.roles.get(role?)?.role_meta.as_ref()
    }
}

/// The roles a side has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Roles {
    /// A capture alone: it stands for any role.
    Any,
    /// Those of a bundle.
    Named(BTreeSet<String>),
}

/// Which roles were asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RoleChoice {
    /// None in particular: `client`, else the only common one.
    Default,
    /// The same, else every common one.
    DefaultOrAll,
    /// This one.
    Named(String),
    /// Every common one.
    All,
}

/// Why no roles can be compared.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RoleError {
    /// A side has no such role.
    #[error("{side} has no role `{role}`; it has {}", listed(.roles))]
    Unknown {
        /// The side.
        side: Which,
        /// The role asked for.
        role: String,
        /// The roles there are.
        roles: BTreeSet<String>,
    },
    /// No role is the obvious one.
    #[error("no role was named, and there are several in common: {}", listed(.common))]
    Ambiguous {
        /// The roles that both sides have.
        common: BTreeSet<String>,
    },
    /// Nothing can be set against each other.
    #[error("BASE and NEW have no role in common: only runs of roles can be compared")]
    NothingInCommon,
    /// Only one side has a capture.
    #[error("{without} has no capture of role `{role}`, the other side has one")]
    OneCapture {
        /// The side without.
        without: Which,
        /// The role.
        role: String,
    },
}

fn listed(roles: &BTreeSet<String>) -> String {
    if roles.is_empty() {
        return "none".to_owned();
    }
    roles.iter().map(String::as_str).collect::<Vec<_>>().join(", ")
}

/// Returns the roles to compare, at least one; none stands for two captures without a role.
pub fn choose_roles(
    baseline: &Roles,
    compare: &Roles,
    choice: &RoleChoice,
) -> Result<Vec<Option<String>>, RoleError> {
    let common = match (baseline, compare) {
        (Roles::Any, Roles::Any) => return Ok(vec![None]),
        (Roles::Named(roles), Roles::Any) | (Roles::Any, Roles::Named(roles)) => roles.clone(),
        (Roles::Named(baseline), Roles::Named(compare)) => baseline & compare,
    };
    match choice {
        RoleChoice::Named(role) => {
            for (side, roles) in [(Which::Baseline, baseline), (Which::Compare, compare)] {
                if let Roles::Named(roles) = roles
                    && !roles.contains(role)
                {
                    return Err(RoleError::Unknown { side, role: role.clone(), roles: roles.clone() });
                }
            }
            Ok(vec![Some(role.clone())])
        }
        RoleChoice::Default | RoleChoice::DefaultOrAll if common.contains(DEFAULT_ROLE) => {
            Ok(vec![Some(DEFAULT_ROLE.to_owned())])
        }
        RoleChoice::Default if common.len() == 1 => Ok(common.into_iter().map(Some).collect()),
        RoleChoice::All | RoleChoice::DefaultOrAll if !common.is_empty() => {
            Ok(common.into_iter().map(Some).collect())
        }
        RoleChoice::Default | RoleChoice::DefaultOrAll | RoleChoice::All if common.is_empty() => {
            Err(RoleError::NothingInCommon)
        }
        RoleChoice::Default | RoleChoice::DefaultOrAll | RoleChoice::All => {
            Err(RoleError::Ambiguous { common })
        }
    }
}

/// Returns the capture of `role` among the names of its files: its own pcap, its own pcapng, else the first.
pub fn choose_capture<'a>(role: &str, files: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let captures: BTreeSet<&str> =
        files.into_iter().filter(|file| file.ends_with(".pcap") || file.ends_with(".pcapng")).collect();
    let own = [format!("{role}.pcap"), format!("{role}.pcapng")];
    let own = own.iter().find_map(|name| captures.get(name.as_str()).copied());
    own.or_else(|| captures.first().copied())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(roles: &[&str]) -> Roles {
        Roles::Named(roles.iter().map(|role| (*role).to_owned()).collect())
    }

    fn chosen(baseline: &Roles, compare: &Roles, choice: &RoleChoice) -> Vec<String> {
        let roles = choose_roles(baseline, compare, choice);
        match roles {
            Ok(roles) => roles.into_iter().map(|role| role.unwrap_or_default()).collect(),
            Err(error) => vec![error.to_string()],
        }
    }

    #[test]
    fn without_a_name_the_client_or_the_only_common_role_is_compared() {
        let default = RoleChoice::Default;
        assert_eq!(chosen(&named(&["client", "x"]), &named(&["client", "x"]), &default), ["client"]);
        assert_eq!(chosen(&named(&["a", "x"]), &named(&["b", "x"]), &default), ["x"]);
        assert_eq!(
            chosen(&named(&["a", "b"]), &named(&["a", "b"]), &default),
            ["no role was named, and there are several in common: a, b"]
        );
        assert_eq!(
            chosen(&named(&["a"]), &named(&["b"]), &default),
            ["BASE and NEW have no role in common: only runs of roles can be compared"]
        );
    }

    #[test]
    fn a_role_that_a_side_lacks_is_said_with_those_it_has() {
        let choice = RoleChoice::Named("c".to_owned());
        assert_eq!(
            chosen(&named(&["c"]), &named(&["a", "b"]), &choice),
            ["NEW has no role `c`; it has a, b"]
        );
        assert_eq!(chosen(&named(&["c"]), &named(&["c"]), &choice), ["c"]);
        assert_eq!(chosen(&named(&["b", "c"]), &named(&["b", "c"]), &RoleChoice::All), ["b", "c"]);
    }

    #[test]
    fn a_capture_alone_stands_for_any_role() {
        let choice = RoleChoice::Named("server".to_owned());
        assert_eq!(chosen(&Roles::Any, &named(&["client", "server"]), &choice), ["server"]);
        assert_eq!(choose_roles(&Roles::Any, &Roles::Any, &choice), Ok(vec![None]));
    }

    #[test]
    fn a_role_has_one_capture_that_counts() {
        let files = ["a.pcap", "client.pcapng", "z.txt"];
        assert_eq!(choose_capture("client", files), Some("client.pcapng"));
        assert_eq!(choose_capture("client", [files[0], files[1], "client.pcap"]), Some("client.pcap"));
        assert_eq!(choose_capture("server", files), Some("a.pcap"));
        assert_eq!(choose_capture("server", ["z.txt"]), None);
    }
}
