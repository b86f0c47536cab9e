//! Intents: values of YAML files in Git, changed in all files or in none, and committed if asked for.
//!
//! [`prepare`] finds out what an intent comes to and writes nothing. The operations `intent.edit` and `intent.commit`
//! are made for one run with its [`IntentSurroundings`] and are in no other registry. [`recover`] undoes what a dead
//! process left half done.

mod commit;
mod edit;
mod git;
mod prepared;
mod switch;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use stead_runner::operation::{OpError, Registry};

pub use git::ready_to_commit;
pub use prepared::{Prepared, PreparedFile, PreparedValue, current, missing_path, prepare};
pub use switch::{Recovered, is_half_done, recover};

use switch::{Foreign, Switch};

/// What the operations of one intent's run have in common.
#[derive(Clone, Debug)]
pub struct IntentSurroundings {
    /// The catalogue's root.
    root: PathBuf,
    /// The state directory.
    state_dir: PathBuf,
    /// The SHA-256 of every file as it was read when the person was shown what changes.
    shown: Arc<BTreeMap<String, String>>,
    /// The edit that waits for its commit.
    held: Arc<Mutex<Option<Switch>>>,
}

impl IntentSurroundings {
    /// Returns the surroundings of a run that does what `prepared` showed.
    pub fn new(root: impl Into<PathBuf>, state_dir: impl Into<PathBuf>, prepared: &Prepared) -> Self {
        let shown = prepared.files.iter().map(|file| (file.name.clone(), file.sha256())).collect();
        Self { root: root.into(), state_dir: state_dir.into(), shown: Arc::new(shown), held: Arc::default() }
    }

    /// Puts back an edit whose commit never came, because the run ended before it; returns the files.
    ///
    /// # Errors
    /// If that fails; the next intent tries again.
    pub fn settle(&self) -> Result<Vec<String>, OpError> {
        match self.take() {
            Some(switch) => switch.put_back(Foreign::Leave).map(|restored| restored.put_back),
            None => Ok(Vec::new()),
        }
    }

    fn hold(&self, switch: Switch) {
        *self.held.lock().unwrap_or_else(PoisonError::into_inner) = Some(switch);
    }

    fn take(&self) -> Option<Switch> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// Adds the operations of an intent's run. Plans of other runs do not know them.
pub fn add_to(registry: &mut Registry, surroundings: &IntentSurroundings) {
    registry.add_operation(edit::Edit(surroundings.clone()));
    registry.add_action(commit::Commit(surroundings.clone()));
}
