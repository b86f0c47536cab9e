//! What a driver asks of the place where roles run: workdirs, programs, addresses, artifacts.

use core::net::IpAddr;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::RunId;
use crate::time::Timestamp;

/// Eight hex digits that tell runs of one name apart on an agent.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct WorkTag(String);

impl WorkTag {
    /// Returns the tag of these bytes.
    pub fn new(bytes: [u8; 4]) -> Self {
        Self(format!("{:08x}", u32::from_be_bytes(bytes)))
    }

    /// Returns the tag that eight lower-case hex digits name.
    pub fn parse(text: &str) -> Option<Self> {
        let is_hex = text.len() == 8 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        is_hex.then(|| Self(text.to_owned()))
    }

    /// Returns the digits.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for WorkTag {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        Self::parse(&text).ok_or("a tag is eight lower-case hex digits")
    }
}

impl From<WorkTag> for String {
    fn from(tag: WorkTag) -> Self {
        tag.0
    }
}

/// What one run has on an agent: `<agent workdir>/run-<run>-<tag>/`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunWork {
    /// The run.
    pub run: RunId,
    /// Tells it from others of its name.
    pub tag: WorkTag,
}

impl fmt::Display for RunWork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "run-{}-{}", self.run, self.tag.as_str())
    }
}

/// Which program a role would start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProgramQuestion {
    /// As `command` has it: without a slash it is looked for on `PATH`, with one below the workdir.
    pub name: String,
    /// The role's own `PATH`; none: the agent's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// The role's workdir.
    pub workdir: String,
}

/// A program that was found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Program {
    /// Where; absolute.
    pub path: String,
    /// The hash of its content, as 64 hex digits; none if it may be executed and not read.
    pub sha256: Option<String>,
}

/// What a path is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileStat {
    /// What it is; links are followed.
    pub kind: FoundKind,
    /// Permission bits.
    pub mode: u32,
    /// Its size.
    pub bytes: u64,
    /// When it last changed.
    pub modified: Timestamp,
    /// The hash of a file's content, if it was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
}

/// Which files of a role are wanted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArtifactQuestion {
    /// Where they are looked for.
    pub workdir: String,
    /// Which, relative to the workdir: `*`, `?`, `[…]`, `**`.
    pub globs: Vec<String>,
    /// Older ones are stale: set for workdirs that were there before the role.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub newer_than: Option<Timestamp>,
    /// Longer ones are told without their hash.
    pub max_bytes: u64,
}

/// A path that fits a pattern.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Found {
    /// Relative to the workdir, with `/`.
    pub path: String,
    /// What it is; only [`FoundKind::File`] is collected.
    pub kind: FoundKind,
    /// Its size.
    pub bytes: u64,
    /// When it last changed.
    pub modified: Timestamp,
    /// The hash of a file's content; empty for all else.
    pub sha256: String,
    /// The globs it fits, by their place in the question.
    pub globs: Vec<usize>,
}

/// What a found path is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FoundKind {
    /// A regular file.
    File,
    /// A regular file from before the role's start.
    Stale,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A pipe, socket or device.
    Special,
    /// A file whose name is not text; the path shows it as far as it is.
    BadName,
    /// A file that could not be read; the path is whole.
    Unreadable,
}

/// What a driver that was lost left on an agent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leftovers {
    /// The roles there, by name.
    pub roles: Vec<LeftRole>,
}

/// What is left of one role.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftRole {
    /// The role instance.
    pub role: String,
    /// Its workdir, if it had one of its own and it is still there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workdir: Option<String>,
    /// Its logs, if they are kept there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdout: Option<String>,
    /// As `stdout`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stderr: Option<String>,
    /// How it ended, as its supervisor noted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit: Option<super::RoleExit>,
}

/// A question about the place where roles run. Local and remote agents answer it by the same code.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "snake_case")]
pub enum SiteAsk {
    /// Make a fresh workdir; what lost drivers left for longer than a day goes first.
    MakeWorkdir {
        /// Whose.
        work: RunWork,
        /// Which role's.
        role: String,
    },
    /// Make a directory that was named, unless it is there.
    EnsureDirectory {
        /// Absolute.
        path: String,
    },
    /// Let the run's workdirs stay for good; all else of it goes.
    KeepWork {
        /// Whose.
        work: RunWork,
    },
    /// Remove everything the run has there.
    RemoveWork {
        /// Whose.
        work: RunWork,
    },
    /// Find a program.
    Program(ProgramQuestion),
    /// Is this one of the agent's addresses?
    HasAddress {
        /// It.
        address: IpAddr,
    },
    /// What is at a path?
    Stat {
        /// Absolute.
        path: String,
        /// Whether its content is to be hashed.
        #[serde(default)]
        hash: bool,
    },
    /// Which files fit?
    Artifacts(ArtifactQuestion),
    /// What did a lost driver leave?
    Leftovers {
        /// Of which run.
        work: RunWork,
    },
}

/// The answer to a [`SiteAsk`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case")]
pub enum SiteAnswer {
    /// It is done.
    Done,
    /// Where it is.
    Path {
        /// Absolute.
        path: String,
    },
    /// The program.
    Program(Program),
    /// Yes or no.
    Is {
        /// Which.
        yes: bool,
    },
    /// What is there; nothing if nothing is.
    Stat {
        /// It.
        found: Option<FileStat>,
    },
    /// What fits, by path.
    Artifacts {
        /// It.
        found: Vec<Found>,
    },
    /// What is left.
    Leftovers(Leftovers),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_has_a_directory_of_its_own() {
        let work = RunWork { run: RunId::parse("soak-07").unwrap(), tag: WorkTag::new([0xde, 0xad, 0, 1]) };
        assert_eq!(work.to_string(), "run-soak-07-dead0001");
        assert_eq!(WorkTag::parse("DEAD0001"), None);
        let text = serde_json::to_string(&work).unwrap();
        assert_eq!(serde_json::from_str::<RunWork>(&text).unwrap(), work);
        assert!(serde_json::from_str::<RunWork>(r#"{"run":"x","tag":"../../ab"}"#).is_err());
    }

    #[test]
    fn questions_and_answers_travel_as_json() {
        let ask = SiteAsk::HasAddress { address: "127.0.0.1".parse().unwrap() };
        let text = serde_json::to_string(&ask).unwrap();
        assert_eq!(text, r#"{"ask":"has_address","address":"127.0.0.1"}"#);
        assert_eq!(serde_json::from_str::<SiteAsk>(&text).unwrap(), ask);
        let answer = SiteAnswer::Leftovers(Leftovers::default());
        let text = serde_json::to_string(&answer).unwrap();
        assert_eq!(serde_json::from_str::<SiteAnswer>(&text).unwrap(), answer);
    }
}
