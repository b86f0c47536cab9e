//! The environment of a step: the caller's, with the effective values and without what is not granted.

use std::collections::{BTreeMap, BTreeSet};

use stead_runner::operation::{OpContext, Params};
use stead_runner::redact::Secret;

use super::StepSurroundings;
use super::outputs::OUTPUT_PREFIX;

/// Switches of Stead itself: a `stead` that a step starts must not obey them again.
const CONTROLS: [&str; 2] = ["ONLY", "DRY_RUN"];

/// What a step's program gets besides what it inherits.
pub(super) struct Environment {
    /// Inherited variables it does not get.
    pub(super) hidden: Vec<String>,
    /// Variables that are set.
    pub(super) set: BTreeMap<String, String>,
}

/// The secrets a step may see.
pub(super) enum Grants {
    All,
    Names(BTreeSet<String>),
}

impl Grants {
    /// Returns what the parameter `secrets` grants.
    pub(super) fn of(params: &Params) -> Self {
        let names: BTreeSet<String> = params.texts("secrets").into_iter().collect();
        if names.contains("*") { Self::All } else { Self::Names(names) }
    }

    /// Returns no grants.
    pub(super) fn none() -> Self {
        Self::Names(BTreeSet::new())
    }

    fn holds(&self, name: &str) -> bool {
        match self {
            Self::All => true,
            Self::Names(names) => names.contains(name),
        }
    }
}

impl StepSurroundings {
    /// Returns the environment of the step that `cx` is of.
    pub(super) fn environment(&self, cx: &OpContext, grants: &Grants) -> Environment {
        let text = |secret: &Secret| secret.expose_text().unwrap_or_default().to_owned();
        let mut set = self.values.clone();
        let granted = self.secrets.iter().filter(|(name, _)| grants.holds(name));
        set.extend(granted.map(|(name, value)| (name.clone(), text(value))));
        let own = self.own.get(&cx.task).map(|own| &own.env);
        set.extend(own.into_iter().flatten().map(|(name, value)| (name.clone(), text(value))));
        for name in CONTROLS {
            set.remove(name);
        }
        set.extend(self.outputs.variables());
        set.extend(cx.marks());
        set.extend([
            ("STEAD_MODE".to_owned(), self.mode.as_str().to_owned()),
            ("STEAD_CATALOGUE".to_owned(), self.catalogue.clone()),
            ("STEAD_ROOT".to_owned(), self.root.display().to_string()),
            ("STEAD_TARGET".to_owned(), self.target.clone()),
        ]);
        let controls = CONTROLS.iter().map(|name| (*name).to_owned());
        let hidden = self.hidden.iter().chain(self.secrets.keys()).cloned().chain(controls);
        // Outputs are of this run only.
        let outputs = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
        let outputs = outputs.filter(|name| name.starts_with(OUTPUT_PREFIX));
        let hidden = hidden.chain(cx.hidden_env.iter().cloned()).chain(outputs);
        Environment { hidden: hidden.filter(|name| !set.contains_key(name)).collect(), set }
    }
}
