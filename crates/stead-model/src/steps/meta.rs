//! What a run of kind `steps` adds to `run_meta.json`: enough to compile its plan again.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::catalogue::StepMode;

use super::SelectionRow;

/// What a run of kind `steps` adds to `run_meta.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepsMeta {
    /// The catalogue's name.
    pub catalogue: String,
    /// Its file, absolute.
    pub file: String,
    /// Which order.
    pub mode: StepMode,
    /// What it acts on.
    pub target: String,
    /// The directory that paths of the catalogue start from, absolute.
    pub root: String,
    /// What was selected.
    pub selection: SelectionRow,
    /// How many steps the plan has.
    pub steps: u32,
    /// The file of the flag layer, absolute.
    pub profile: Option<String>,
    /// Values of `--set` that are not secret, the last of each name.
    pub set: BTreeMap<String, String>,
    /// Names of `--set` whose values are secret: they have to be given again.
    pub secret_set: Vec<String>,
    /// The effective configuration; none stands for a secret.
    pub config: BTreeMap<String, Option<String>>,
    /// By which it is known later whether secrets are still those of the run; none if the run has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_marks: Option<SecretMarks>,
    /// The command of the intent whose run it is, if it is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub intent: Option<String>,
}

/// Marks of secrets, from which nothing can be learned without their key; that is in no bundle.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SecretMarks {
    /// What makes them unlike those of other runs.
    pub salt: String,
    /// The mark of each secret's value, by name.
    pub marks: BTreeMap<String, String>,
}

impl StepsMeta {
    /// Returns the names whose value is not that of `now`; of secrets it is known only whether they have one.
    pub fn changed_names(&self, now: &BTreeMap<String, Option<String>>) -> Vec<String> {
        let names: std::collections::BTreeSet<&String> = self.config.keys().chain(now.keys()).collect();
        names.into_iter().filter(|name| self.config.get(*name) != now.get(*name)).cloned().collect()
    }
}
