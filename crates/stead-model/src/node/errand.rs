//! What a level has the level below do, and how that ended.
//!
//! An errand travels to a hosting node on standard input, because it holds keys; the node keeps it going whether or not
//! anybody listens. What happens meanwhile is in the journal of the errand's run, which is handed over line by line,
//! and the last line is the [`ErrandEnd`].

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::id::{RunId, SiteKey};
use crate::plan::Digest;
use crate::site::Parcel;
use crate::site::parcel::ParcelError;

/// Failed nodes that the shortened end of an errand names.
const MOST_ROWS: usize = 100;

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
    /// Says what of them is not as it should be. No run of its own: the document says it all.
    Drift,
}

impl ErrandVerb {
    /// Returns the command that does it.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Verify => "verify",
            Self::Destroy => "destroy",
            Self::Drift => "drift",
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
    /// The hosting node, or this machine as the level above calls it: the host of the run.
    pub host: SiteKey,
    /// The site of the level below.
    pub parcel: Parcel,
    /// Its manifest; null: nobody describes the nodes any more, and what is known of them there counts.
    pub manifest: Value,
    /// Further arguments of the command.
    pub arguments: Vec<String>,
    /// The archive of repositories that was brought before, for the server of the level below. Counts when nodes are made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repositories: Option<String>,
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
    /// Not begun: the run of before that still works on the nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub busy: Option<RunId>,
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

impl ErrandEnd {
    /// Returns the end without what was said of nodes that did not fail, for who hears only so much.
    pub fn shortened(mut self) -> Self {
        let rows = self.document.as_mut().and_then(|document| document["nodes"].as_array_mut());
        if let Some(rows) = rows {
            rows.retain(|row| row["status"] == "failed");
            rows.truncate(MOST_ROWS);
        }
        self
    }
}

/// Which images and templates a hosting node is asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImagesAsked {
    /// Where they lie there; what is not absolute is below its state directory.
    pub directory: String,
    /// What nodes call them, without the ending of a file.
    pub names: Vec<String>,
}

/// Images and templates that a hosting node is to fetch from the server of the level above.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImagesOffered {
    /// Where they are to lie there; what is not absolute is below its state directory.
    pub directory: String,
    /// What there is to fetch.
    pub files: Vec<ImageOffered>,
}

/// A file that the server of a level has for a hosting node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImageOffered {
    /// What it is to be called.
    pub file: String,
    /// How many bytes it has.
    pub size: u64,
    /// Its hash, by which it is asked for and known.
    pub sha256: Digest,
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
