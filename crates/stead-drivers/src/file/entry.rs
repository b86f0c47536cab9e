//! One path of an operation: where it is, what is there, what should be.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use serde::{Deserialize, Serialize};
use stead_model::executor::SourceEntry;
use stead_runner::operation::OpError;

use crate::disk::Spot;
use crate::disk::body::Body;
use crate::disk::seen::{Kind, Seen, unknown};

/// What should be at a path. What is not said is kept.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Want {
    /// What kind of thing.
    pub(crate) kind: Kind,
    /// Permission bits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) mode: Option<u32>,
    /// Permission bits if it has to be made and `mode` does not say, before the umask.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) new_mode: Option<u32>,
    /// Owner.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) uid: Option<u32>,
    /// Group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) gid: Option<u32>,
    /// A file's content.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) body: Option<Body>,
    /// A link's text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) to: Option<String>,
    /// The content's bytes where `body` has only their hash and no source.
    #[serde(skip)]
    pub(crate) bytes: Option<Arc<Vec<u8>>>,
    /// Program and arguments that look at the new file before it takes its place, one of them `{}`; empty: none.
    #[serde(skip)]
    pub(crate) validate: Vec<String>,
    /// The driver's file that holds them, asked for when they are written.
    #[serde(skip)]
    pub(crate) from: Option<Arc<(String, SourceEntry)>>,
}

impl Want {
    /// Returns the wish for something of `kind`.
    pub(crate) fn new(kind: Kind) -> Self {
        Self { kind, ..Self::default() }
    }

    /// Returns this wish with these bytes as content.
    pub(crate) fn content(mut self, bytes: Vec<u8>) -> Self {
        let body = Body::new(&bytes);
        if body.bytes().is_none() {
            self.bytes = Some(Arc::new(bytes));
        }
        self.body = Some(body);
        self
    }

    /// Returns this wish with permission bits.
    pub(crate) fn mode(self, mode: u32) -> Self {
        Self { mode: Some(mode), ..self }
    }

    /// Returns this wish with an owner.
    pub(crate) fn owner(self, uid: u32, gid: u32) -> Self {
        Self { uid: Some(uid), gid: Some(gid), ..self }
    }

    /// Returns this wish with a program that looks at the new file first, one of its arguments `{}`.
    pub(crate) fn validated(self, argv: &[&str]) -> Self {
        Self { validate: argv.iter().map(|arg| (*arg).to_owned()).collect(), ..self }
    }

    /// Returns the mode something new gets.
    pub(crate) fn mode_if_new(&self) -> u32 {
        let default = if self.kind == Kind::Directory { 0o755 } else { 0o644 };
        self.mode.unwrap_or_else(|| self.new_mode.unwrap_or(default) & !umask())
    }

    /// Returns what is there once this wish is fulfilled.
    pub(crate) fn after(&self, seen: &Seen) -> Seen {
        let is_new = seen.kind != self.kind;
        let keep = |given: Option<u32>, old: u32, new: u32| given.unwrap_or(if is_new { new } else { old });
        match self.kind {
            Kind::Absent => Seen::default(),
            Kind::File | Kind::Directory | Kind::Symlink | Kind::Other | Kind::Unknown => Seen {
                kind: self.kind,
                mode: keep(self.mode, seen.mode, self.mode_if_new()),
                uid: keep(self.uid, seen.uid, rustix::process::geteuid().as_raw()),
                gid: keep(self.gid, seen.gid, rustix::process::getegid().as_raw()),
                body: match (self.kind, &self.body) {
                    (Kind::File, Some(body)) => Some(body.clone()),
                    (Kind::File, None) if is_new => Some(Body::new(b"")),
                    (Kind::File, None) => seen.body.clone(),
                    _ => None,
                },
                to: self.to.clone().or_else(|| seen.to.clone().filter(|_| self.kind == Kind::Symlink)),
            },
        }
    }
}

/// Returns what a new directory looks like of which nothing is said.
pub(crate) fn new_directory() -> Seen {
    Want::new(Kind::Directory).after(&Seen::default())
}

/// Returns what a directory made on the way looks like, whatever the mask of this process is.
pub(crate) fn directory_on_the_way() -> Seen {
    Want::new(Kind::Directory).mode(0o755).after(&Seen::default())
}

/// The process's umask. Read, not set: setting it to read it would race with every other thread.
/// Once: nothing here changes it.
fn umask() -> u32 {
    static UMASK: OnceLock<u32> = OnceLock::new();
    *UMASK.get_or_init(|| {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("Umask:"));
        line.and_then(|mask| u32::from_str_radix(mask.trim(), 8).ok()).unwrap_or(0o022)
    })
}

/// One path with what is there and what should be.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    /// What it is called in diffs, relative to the operation's path; empty: that path itself.
    pub(crate) label: String,
    pub(crate) spot: Spot,
    pub(crate) seen: Seen,
    pub(crate) want: Want,
}

/// An entry as data.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(crate) label: String,
    pub(crate) path: PathBuf,
    pub(crate) seen: Seen,
    pub(crate) want: Want,
    /// Content that an inverse has no room for is kept before it goes; see [`super::kept`].
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) is_kept: bool,
}

impl Entry {
    /// Returns the entry as data.
    pub(crate) fn record(&self) -> Record {
        Record {
            label: self.label.clone(),
            path: self.spot.path.clone(),
            seen: self.seen.clone(),
            want: self.want.clone(),
            is_kept: false,
        }
    }

    /// Whether something has to be done.
    pub(crate) fn differs(&self) -> bool {
        !super::compare::fields(&self.label, &self.seen, &self.want).is_empty()
    }

    /// Whether the content, or the thing itself, has to be made anew.
    pub(crate) fn content_differs(&self) -> bool {
        self.seen.kind != self.want.kind
            || self.want.body.as_ref().is_some_and(|body| self.seen.body.as_ref() != Some(body))
    }
}

/// Returns an error unless what is at `spot` is one of `kinds`.
pub(crate) fn expect(spot: &Spot, seen: &Seen, kinds: &[Kind]) -> Result<(), OpError> {
    if kinds.contains(&seen.kind) {
        return Ok(());
    }
    let path = spot.path.display();
    Err(match seen.kind {
        Kind::Unknown => unknown(&spot.path),
        Kind::Absent => OpError::operation(format!("`{path}` does not exist")),
        Kind::Symlink if !kinds.contains(&Kind::Symlink) => OpError::permanent(format!(
            "`{path}` is a symbolic link to `{}`; `follow: true` changes its target",
            seen.to.as_deref().unwrap_or_default()
        )),
        Kind::File | Kind::Directory | Kind::Symlink | Kind::Other => {
            let wanted: Vec<&str> =
                kinds.iter().filter(|kind| **kind != Kind::Absent).map(|kind| kind.as_str()).collect();
            OpError::permanent(format!("`{path}` is a {}, not a {}", seen.kind.as_str(), wanted.join(" or ")))
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Section 7: what `parents` makes has this mode whatever the mask is, and a dry run knows it.
    #[test]
    fn a_directory_on_the_way_is_predicted_with_its_mode() {
        assert_eq!(directory_on_the_way().mode, 0o755);
        assert_eq!(new_directory().mode, 0o755 & !umask());
    }
}
