//! `script.run` and `inputs.sync`: what the tasks of `stead steps` do.
//!
//! A plan of steps holds names; the values are handed over in memory, per run, as [`StepSurroundings`]. Without them
//! both operations refuse to act: they are no operations of plan files.
//!
//! ```text
//!  values, grants ──▶ environment ──▶ script ──▶ process, `::` lines ──▶ StepOutcome (result data)
//!  documents ───────▶ sink: file | kubectl                                   │
//!       outputs ◀── events of finished steps (masked, as recorded) ◀─────────┘
//! ```

mod environment;
mod inputs;
mod marks;
mod outputs;
mod script;
mod sink;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use stead_model::catalogue::{Document, SinkFormat};
use stead_model::{StepMode, TaskName};
use stead_runner::operation::{OpError, Registry};
use stead_runner::redact::Secret;

pub use marks::MarkKey;
pub use outputs::Outputs;

/// What the steps of one run are surrounded by. `Debug` shows no values.
#[derive(Clone)]
pub struct StepSurroundings {
    /// The catalogue's name.
    pub catalogue: String,
    /// The directory that paths of the catalogue start from.
    pub root: PathBuf,
    /// Which order runs.
    pub mode: StepMode,
    /// What the run acts on.
    pub target: String,
    /// Effective values that every step sees.
    pub values: BTreeMap<String, String>,
    /// Effective values that only those steps see to which they are granted.
    pub secrets: BTreeMap<String, Secret>,
    /// Inherited variables that no step sees, unless a value of the name is set or granted.
    pub hidden: BTreeSet<String>,
    /// What single steps have of their own.
    pub own: BTreeMap<TaskName, OwnSurroundings>,
    /// The documents that steps hand over, by name.
    pub inputs: BTreeMap<String, InputsDocument>,
    /// What finished steps said.
    pub outputs: Outputs,
}

impl fmt::Debug for StepSurroundings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StepSurroundings")
            .field("catalogue", &self.catalogue)
            .field("root", &self.root)
            .field("mode", &self.mode)
            .field("target", &self.target)
            .finish_non_exhaustive()
    }
}

/// What one step has of its own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnSurroundings {
    /// Where it starts, relative to the root; none: there.
    pub cwd: Option<PathBuf>,
    /// Variables, over the values.
    pub env: BTreeMap<String, Secret>,
}

/// One document of secret values, and where it goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InputsDocument {
    /// The name of the inputs.
    pub name: String,
    /// Where it goes.
    pub sink: SinkPlace,
    /// Every key with its value, which may be empty.
    pub keys: BTreeMap<String, Secret>,
}

/// Where a document goes, references expanded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SinkPlace {
    /// Into a file.
    File {
        /// Which, absolute.
        path: PathBuf,
        /// What is written.
        format: SinkFormat,
    },
    /// Into a cluster.
    Kubectl {
        /// The program.
        command: String,
        /// The context of the kubeconfig, if the target came from one.
        context: Option<String>,
        /// The namespace.
        namespace: String,
        /// What is particular to the Secret.
        document: Document,
    },
}

/// Adds both operations; without surroundings they refuse to act.
pub(crate) fn add_to(registry: &mut Registry, surroundings: Option<StepSurroundings>) {
    let surroundings = surroundings.map(Arc::new);
    registry.add_action(script::ScriptRun(surroundings.clone()));
    registry.add_action(inputs::InputsSync(surroundings));
}

fn within(surroundings: &Option<Arc<StepSurroundings>>) -> Result<&StepSurroundings, OpError> {
    surroundings.as_deref().ok_or_else(|| {
        OpError::permanent("only `stead steps` does this: the values of a step are in its catalogue's layers")
    })
}
