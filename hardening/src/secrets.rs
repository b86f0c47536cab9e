//! Secrets of tests in places where they have no business.
//!
//! Every secret value that a test makes up holds one of [`MARKS`]. Whatever is written below a test's directory is searched
//! for them, archives and databases included; what may hold one is listed in `ci/secrets-allowed`, each with its reason.
//! Tests remove what they write, so it is looked at when it is written: the kernel hands over each file as it is closed.

pub(crate) mod command;
mod content;
mod places;
mod watch;

use std::path::PathBuf;

pub use content::Finder;
pub use places::{Allowed, AllowedError};

/// What every secret value of a test holds (new ones take one of the first four), and how tokens and private keys begin.
pub const MARKS: &[&str] = &[
    "hunter2",
    "s3cret",
    "s3cr3t",
    "sesame",
    "top-secret",
    "other-secret",
    "first-secret",
    "second-secret",
    "new-secret",
    "secret-by-default",
    "hush-hush",
    // Tokens of nodes, versions 1 and 2, and tokens to join a fleet.
    "eyJ2IjoxLCJuIjoi",
    "eyJ2IjoyLCJuIjoi",
    "sj1.eyJ2Ijox",
    "-----BEGIN PRIVATE KEY-----",
    "-----BEGIN OPENSSH PRIVATE KEY-----",
    "-----BEGIN RSA PRIVATE KEY-----",
    "-----BEGIN EC PRIVATE KEY-----",
];

/// A secret where none may be.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Leak {
    /// The file; in an archive, the archive and the entry.
    pub path: PathBuf,
    /// Which mark.
    pub mark: &'static str,
    /// How it is written there.
    pub form: &'static str,
    /// The text around it.
    pub around: String,
}
