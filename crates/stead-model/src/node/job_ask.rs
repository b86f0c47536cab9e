//! Jobs of nodes below: what a level asks about them where they are, and what it is told.
//!
//! ```text
//!  stead job …  ── asked: path [quay, crane] ──▶ stead on quay ── path [crane] ──▶ stead on crane ──▶ its server
//! ```
//! A job belongs to the server that its node asks. Seen from above its id has the way to that server in front:
//! `quay/crane/j5`. Every level takes its own part off and hands the rest down; nobody talks to a server that is not
//! that of its own level.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::wire::{Job, JobRequest};
use crate::exit_code::ExitCode;
use crate::id::{MessageId, SiteKey};

/// The most levels between a job and who asks about it.
const MOST_LEVELS: usize = 256;

/// A job as a level above its server names it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobId {
    /// The nodes it is in, outermost first; before them the host if that is another machine. Empty: of this level.
    pub path: Vec<SiteKey>,
    /// What its server calls it.
    pub id: MessageId,
}

/// Why a text names no job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected the id of a job such as `j5`, or with the nodes it is in before it: `quay/j5`")]
pub struct JobIdError;

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for step in &self.path {
            write!(f, "{step}/")?;
        }
        self.id.fmt(f)
    }
}

impl FromStr for JobId {
    type Err = JobIdError;

    fn from_str(text: &str) -> Result<Self, JobIdError> {
        let mut steps: Vec<&str> = text.split('/').collect();
        let id = steps.pop().and_then(|id| MessageId::parse(id).ok()).ok_or(JobIdError)?;
        if steps.len() > MOST_LEVELS {
            return Err(JobIdError);
        }
        let path: Result<_, _> = steps.into_iter().map(SiteKey::parse).collect();
        Ok(Self { path: path.map_err(|_| JobIdError)?, id })
    }
}

impl Serialize for JobId {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for JobId {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// What a level above wants of the jobs of a server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JobAsked {
    /// Who is to be asked from here on; empty: the server of the level that reads this.
    pub path: Vec<SiteKey>,
    /// Whether nodes on the way are asked by jobs of their agents, and never over SSH.
    pub by_job: bool,
    /// Who wants it, as the first level knows them.
    pub by: String,
    /// What is wanted.
    pub wish: JobWish,
}

/// What is wanted of the jobs of a server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobWish {
    /// A new job. It has a key: however often it is asked for, there is one.
    Submit(Box<JobRequest>),
    /// A job, as soon as it has ended or so many seconds have passed.
    Show {
        /// Which.
        id: MessageId,
        /// How long to wait for its end.
        wait: u64,
    },
    /// The end of a job.
    Cancel(MessageId),
    /// All jobs, without what they wrote.
    List,
}

/// What a level above is told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobAnswer {
    /// What the new job is called.
    Submitted(MessageId),
    /// A job.
    Job(Box<Job>),
    /// All of them.
    Jobs(Vec<Job>),
    /// It was refused, or nobody could be asked.
    Refused(JobRefusal),
}

/// Why there is no other answer, as the command ends with it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobRefusal {
    /// What the command exits with.
    pub exit_code: ExitCode,
    /// The code.
    pub code: String,
    /// Why.
    pub message: String,
}

/// What a part of an answer begins with, on a line of its own: what one job may write is less than what another wrote.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AnswerPart {
    /// How long the whole answer is, in bytes.
    pub total: u64,
    /// Which answer it is a part of.
    pub digest: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_has_the_way_to_its_server_in_front() {
        for (text, steps) in [("j5", 0), ("quay/j5", 1), ("attic.lan/quay/crane-1/j1794831036477", 3)] {
            let id: JobId = text.parse().unwrap();
            assert_eq!((id.path.len(), id.to_string()), (steps, text.to_owned()));
            let json = serde_json::to_string(&id).unwrap();
            assert_eq!(serde_json::from_str::<JobId>(&json).unwrap(), id);
        }
        for text in ["", "/", "j", "quay", "/j5", "quay/", "quay//j5", "../j5", "Quay/j5", "quay/j05"] {
            assert_eq!(text.parse::<JobId>(), Err(JobIdError), "{text}");
        }
        let deep = format!("{}j5", "a/".repeat(MOST_LEVELS + 1));
        assert_eq!(deep.parse::<JobId>(), Err(JobIdError));
    }
}
