//! What a level has the level below do, and how that ended.
//!
//! An errand travels to a hosting node on standard input, because it holds keys; the node keeps it going whether or not
//! anybody listens. What happens meanwhile is in the journal of the errand's run, which is handed over line by line,
//! and the last line is the [`ErrandEnd`].

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::id::{NodeName, RunId};
use crate::site::Parcel;
use crate::site::parcel::ParcelError;

/// What the level below does with the nodes of its manifest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrandVerb {
    /// Makes them.
    Create,
    /// Compares them with what they should be.
    Verify,
    /// Removes them.
    Destroy,
}

impl ErrandVerb {
    /// Returns the command that does it.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Verify => "verify",
            Self::Destroy => "destroy",
        }
    }
}

/// What a hosting node is to do. `Debug` shows no key: a parcel does not.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Errand {
    /// The run it becomes there, named by who sends it: sent again, it is the same.
    pub run: RunId,
    /// What is done.
    pub verb: ErrandVerb,
    /// The hosting node: the host of the run.
    pub node: NodeName,
    /// The site of the level below.
    pub parcel: Parcel,
    /// Its manifest.
    pub manifest: Value,
    /// Further arguments of the command.
    pub arguments: Vec<String>,
}

impl Errand {
    /// Returns the errand's bytes, which are as secret as its parcel.
    pub fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("an errand is always JSON")
    }

    /// Returns the errand that `bytes` are.
    ///
    /// # Errors
    /// If they are none. Nothing of them is repeated.
    pub fn parse(bytes: &[u8]) -> Result<Self, ParcelError> {
        if bytes.len() > crate::site::parcel::MAX_BYTES {
            return Err(ParcelError::TooLarge);
        }
        let errand: Self = serde_json::from_slice(bytes)
            .map_err(|error| ParcelError::Malformed { line: error.line(), column: error.column() })?;
        errand.parcel.check()?;
        Ok(errand)
    }
}

/// What became of the wish to begin an errand.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrandBegun {
    /// Its run was killed: nothing more becomes of it, and it needs another name.
    pub lost: bool,
    /// The hash of the program that answers.
    pub sha256: String,
}

/// How an errand ended.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ErrandEnd {
    /// The exit code of its command; none: something killed it.
    pub code: Option<i32>,
    /// The document its command printed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub document: Option<Value>,
    /// The last lines of what it complained of.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub complaint: String,
}

/// A line of those that follow an errand which is no event.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrandNote {
    /// Nothing happened for a while.
    Waiting {},
    /// It ended; nothing follows.
    End(ErrandEnd),
}
