//! What a package manager is asked to do at once, and what it says it would do.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::name::Request;

/// One transaction.
#[derive(Clone, Debug, Default)]
pub(crate) struct Transaction {
    /// Packages to install or bring to a version.
    pub(crate) install: Vec<Request>,
    /// Packages to remove.
    pub(crate) remove: Vec<String>,
    /// Remove their configuration too.
    pub(crate) purge: bool,
    /// Also install what is only recommended.
    pub(crate) recommends: bool,
    /// More than `remove` may go.
    pub(crate) cascade: bool,
}

/// What a transaction would do, by name and version.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Planned {
    /// New packages.
    pub(crate) installs: BTreeMap<String, String>,
    /// Packages that get another version: before, after.
    pub(crate) changes: BTreeMap<String, (String, String)>,
    /// Packages that go, with the version they have.
    pub(crate) removes: BTreeMap<String, String>,
}

impl Planned {
    /// Returns the packages that would go without having been named.
    pub(crate) fn unasked(&self, named: &[String]) -> Vec<&str> {
        self.removes.keys().filter(|name| !named.contains(name)).map(String::as_str).collect()
    }
}
