//! Who calls a master: its role, its name, and what the role may do.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::id::{InvalidId, WorkerName};
use crate::token::is_person;

/// What somebody is to a fleet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Looks.
    Observer,
    /// Runs instances.
    Worker,
    /// Says what is wanted.
    Publisher,
    /// Freezes and enrols.
    Operator,
    /// Is a master itself.
    Master,
}

impl Role {
    /// Every role with its word.
    pub const WORDS: [(&'static str, Self); 5] = [
        ("observer", Self::Observer),
        ("worker", Self::Worker),
        ("publisher", Self::Publisher),
        ("operator", Self::Operator),
        ("master", Self::Master),
    ];

    /// Returns the role that a word names.
    pub fn parse(word: &str) -> Option<Self> {
        Self::WORDS.iter().find(|(name, _)| *name == word).map(|(_, role)| *role)
    }

    /// Returns its word.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Observer => "observer",
            Self::Worker => "worker",
            Self::Publisher => "publisher",
            Self::Operator => "operator",
            Self::Master => "master",
        }
    }

    /// Whether it may call `method`.
    pub const fn may(self, method: Method) -> bool {
        use Method as M;
        match method {
            M::Hello => true,
            M::GetStatus | M::Explain | M::GetSnapshot => match self {
                Self::Observer | Self::Publisher | Self::Operator | Self::Master => true,
                Self::Worker => false,
            },
            M::GetAssignment | M::ReportObserved => matches!(self, Self::Worker | Self::Master),
            M::ReserveGeneration | M::PublishDesiredState | M::ReportPipeline => {
                matches!(self, Self::Publisher | Self::Master)
            }
            M::Renew => matches!(self, Self::Worker | Self::Publisher | Self::Master),
            M::SetHold | M::MintJoin | M::GetEnrolments | M::RevokeEnrolment => {
                matches!(self, Self::Operator | Self::Master)
            }
        }
    }

    /// Whether `name` may be the name of somebody with this role.
    pub fn names(self, name: &str) -> bool {
        match self {
            Self::Worker | Self::Master => WorkerName::parse(name).is_ok(),
            Self::Observer | Self::Publisher | Self::Operator => is_person(name),
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.word())
    }
}

/// What can be asked of a master.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Method {
    /// Who is there.
    Hello,
    /// A number for a commit.
    ReserveGeneration,
    /// What is wanted.
    PublishDesiredState,
    /// What a worker is to run.
    GetAssignment,
    /// What a worker runs.
    ReportObserved,
    /// How the fleet is.
    GetStatus,
    /// Why an instance is where it is.
    Explain,
    /// Everything that a plan needs.
    GetSnapshot,
    /// How a commit fares before it is published.
    ReportPipeline,
    /// Freeze something.
    SetHold,
    /// A new certificate for an old one.
    Renew,
    /// A token for somebody new.
    MintJoin,
    /// Who was enrolled.
    GetEnrolments,
    /// An end to it.
    RevokeEnrolment,
}

impl Method {
    /// Every method, in the order of the protocol.
    pub const ALL: [Self; 14] = [
        Self::Hello,
        Self::ReserveGeneration,
        Self::PublishDesiredState,
        Self::GetAssignment,
        Self::ReportObserved,
        Self::GetStatus,
        Self::Explain,
        Self::GetSnapshot,
        Self::ReportPipeline,
        Self::SetHold,
        Self::Renew,
        Self::MintJoin,
        Self::GetEnrolments,
        Self::RevokeEnrolment,
    ];

    /// Returns its name in the protocol.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Hello => "hello",
            Self::ReserveGeneration => "reserveGeneration",
            Self::PublishDesiredState => "publishDesiredState",
            Self::GetAssignment => "getAssignment",
            Self::ReportObserved => "reportObserved",
            Self::GetStatus => "getStatus",
            Self::Explain => "explain",
            Self::GetSnapshot => "getSnapshot",
            Self::ReportPipeline => "reportPipeline",
            Self::SetHold => "setHold",
            Self::Renew => "renew",
            Self::MintJoin => "mintJoin",
            Self::GetEnrolments => "getEnrolments",
            Self::RevokeEnrolment => "revokeEnrolment",
        }
    }
}

/// Somebody of a fleet, as certificates name them: `stead://FLEETID/ROLE/NAME`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Peer {
    /// Which fleet.
    pub fleet: String,
    /// What they are to it.
    pub role: Role,
    /// Their name, which is one that the role allows.
    pub name: String,
}

impl Peer {
    /// Returns whom `uri` names.
    pub fn parse(uri: &str) -> Result<Self, InvalidId> {
        let invalid = || InvalidId {
            kind: "member of a fleet",
            text: uri.to_owned(),
            rule: "`stead://FLEETID/ROLE/NAME`",
        };
        let rest = uri.strip_prefix("stead://").ok_or_else(invalid)?;
        let (fleet, rest) = rest.split_once('/').ok_or_else(invalid)?;
        let (role, name) = rest.split_once('/').ok_or_else(invalid)?;
        let role = Role::parse(role).filter(|role| role.names(name)).ok_or_else(invalid)?;
        if !is_fleet_id(fleet) {
            return Err(invalid());
        }
        Ok(Self { fleet: fleet.to_owned(), role, name: name.to_owned() })
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "stead://{}/{}/{}", self.fleet, self.role, self.name)
    }
}

/// Whether `text` may name a fleet: 1 to 64 lower-case letters, digits and `-`.
pub fn is_fleet_id(text: &str) -> bool {
    (1..=64).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Section 12: the table of roles, by the numbers of methods; 12 and 13 go with 11.
    #[test]
    fn every_role_may_what_the_table_says() {
        let table: [(Role, &[usize]); 5] = [
            (Role::Observer, &[0, 5, 6, 7]),
            (Role::Worker, &[0, 3, 4, 10]),
            (Role::Publisher, &[0, 1, 2, 5, 6, 7, 8, 10]),
            (Role::Operator, &[0, 5, 6, 7, 9, 11, 12, 13]),
            (Role::Master, &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13]),
        ];
        for (role, numbers) in table {
            let may: Vec<usize> = (0..14).filter(|number| role.may(Method::ALL[*number])).collect();
            assert_eq!(may, numbers, "{role}");
        }
    }

    #[test]
    fn members_have_one_spelling() {
        for good in ["stead://f1/worker/w1.lab", "stead://f-1/operator/Ann@lab"] {
            assert_eq!(Peer::parse(good).unwrap().to_string(), good);
        }
        for bad in [
            "",
            "stead://",
            "http://f/worker/w1",
            "stead://F/worker/w1",
            "stead:///worker/w1",
            "stead://f/worker/",
            "stead://f/worker/W1",
            "stead://f/worker/w1/x",
            "stead://f/boss/w1",
            "stead://f/operator/a b",
            "stead://f/worker",
        ] {
            assert!(Peer::parse(bad).is_err(), "{bad}");
        }
    }
}
