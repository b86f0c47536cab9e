//! An intent as its plan says it: which values of which files.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::yaml::edit::{KeyPath, Spot, Wanted};

/// One value that an intent sets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileEdit {
    /// The file, relative to the root.
    pub file: String,
    /// Texts that the document has at these paths; none: the file holds one document.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub select: BTreeMap<KeyPath, String>,
    /// Where in the document.
    pub path: KeyPath,
    /// What is written.
    pub value: Wanted,
    /// Whether the value must be an existing path under the root.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub must_exist: bool,
}

impl FileEdit {
    /// Returns which value of the file is meant.
    pub fn spot(&self) -> Spot {
        Spot { select: self.select.clone(), path: self.path.clone() }
    }
}
