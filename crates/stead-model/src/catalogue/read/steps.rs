//! Reads steps.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::{NameKind, Reader};
use crate::catalogue::keys::{ARGS_KEYS, NEEDS_KEYS, STEP_KEYS};
use crate::catalogue::reserved::is_own;
use crate::catalogue::step::number_of;
use crate::catalogue::{At, Granted, PerMode, Step, StepAction, StepMode};
use crate::diagnostic::Place;
use crate::id::StepId;
use crate::layer::Text;
use crate::plan_file::retry;
use crate::yaml::{Fields, Node};

impl Reader<'_, '_> {
    pub(super) fn steps(&mut self, fields: Fields<'_>) -> BTreeMap<StepId, Step> {
        let entries = self.entries(fields, "steps", "steps", NameKind::Word);
        entries
            .into_iter()
            .filter_map(|(key, node)| {
                let id = StepId::parse(key.as_text().unwrap_or_default()).ok()?;
                Some((id.clone(), self.step(id, key, node)?))
            })
            .collect()
    }

    fn step(&mut self, id: StepId, key: Node<'_>, node: Node<'_>) -> Option<Step> {
        let fields = self.walk.map(node, &STEP_KEYS)?;
        let modes = self.modes(fields, "modes");
        if let Some(node) =
            fields.get("modes").filter(|node| node.as_list().is_some_and(|items| items.len() == 0))
        {
            self.walk
                .report(node.bad("a step has at least one mode").help("write `[apply]`, `[delete]` or both"));
        }
        let modes = modes.unwrap_or_else(|| StepMode::WORDS.map(|(_, mode)| mode).into());
        let action = self.action(node, fields);
        let mut step = Step {
            doc: self.text(fields, "doc"),
            number: None,
            destructive: self.modes(fields, "destructive").unwrap_or_default(),
            args: self.args(fields, &key.place()),
            gate: fields.get("gate").and_then(|node| self.gate(node)),
            needs: self.needed(fields),
            env: self.step_env(fields),
            secrets: self.granted(fields),
            cwd: fields.get("cwd").and_then(|node| self.cwd(node)),
            timeout: fields.get("timeout").and_then(|node| self.timeout(node)),
            retry: fields.get("retry").and_then(|node| retry(&mut self.walk, node)).unwrap_or_default(),
            idempotent: self.boolean(fields, "idempotent", true),
            place: key.place(),
            action: action?,
            modes,
            id,
        };
        if let Some(mode) = step.destructive.difference(&step.modes).next() {
            let place = fields.get("destructive").unwrap_or(node);
            let problem = place.bad(format!("`{}` has no mode `{mode}` in which it could destroy", step.id));
            self.walk.report(problem.help("add it to `modes`, or remove it here"));
        }
        step.number = match fields.get("number") {
            Some(node) => self.walk.integer(node, 0..=i64::MAX).and_then(|number| u64::try_from(number).ok()),
            None => number_of(step.basename()),
        };
        Some(step)
    }

    fn action(&mut self, node: Node<'_>, fields: Fields<'_>) -> Option<StepAction> {
        let belongs = |reader: &mut Self, keys: &[&str], to: &str| {
            for name in keys {
                if let Some(key) = node.key(name) {
                    let problem = key.bad(format!("`{name}` has no use without `{to}`"));
                    reader.walk.report(problem.help("remove it"));
                }
            }
        };
        match (fields.get("run"), fields.get("inputs")) {
            (Some(run), None) => {
                belongs(self, &["as"], "inputs");
                self.relative(run).map(StepAction::Run)
            }
            (None, Some(inputs)) => {
                belongs(self, &["args", "env", "secrets", "cwd"], "run");
                let goes_by = fields.get("as").and_then(|node| self.relative(node));
                let name = self.walk.text(inputs)?;
                if !self.names.inputs.contains(name) {
                    self.unknown(inputs, "inputs", name, self.names.inputs.iter().copied());
                    return None;
                }
                let inputs = At { value: name.to_owned(), place: inputs.place() };
                Some(StepAction::Inputs { inputs, goes_by })
            }
            (Some(_), Some(_)) | (None, None) => {
                let problem = node.bad("a step has either `run` or `inputs`");
                self.walk.report(problem.help("`run: PATH` runs a script, `inputs: NAME` hands inputs over"));
                None
            }
        }
    }

    fn modes(&mut self, fields: Fields<'_>, key: &str) -> Option<BTreeSet<StepMode>> {
        let items = fields.get(key).and_then(|node| self.walk.list(node, "modes"))?;
        let mut modes = BTreeSet::new();
        for node in items {
            let Some(mode) = self.walk.choice(node, &StepMode::WORDS) else { continue };
            if !modes.insert(mode) {
                self.walk.report(node.bad(format!("`{mode}` is listed twice")));
            }
        }
        Some(modes)
    }

    fn args(&mut self, fields: Fields<'_>, place: &Place) -> PerMode<Vec<At<Text>>> {
        let delete = At { value: Text::literal(DELETE_ARGUMENT), place: place.clone() };
        let mut args = PerMode { apply: Vec::new(), delete: vec![delete] };
        let Some(given) = fields.get("args").and_then(|node| self.walk.map(node, &ARGS_KEYS)) else {
            return args;
        };
        for (word, mode) in StepMode::WORDS {
            if let Some(items) = given.get(word).and_then(|node| self.walk.list(node, "arguments")) {
                *args.get_mut(mode) = items.filter_map(|node| self.expanded(node)).collect();
            }
        }
        args
    }

    fn needed(&mut self, fields: Fields<'_>) -> PerMode<Vec<At<StepId>>> {
        let mut needs = PerMode::default();
        let Some(given) = fields.get("needs").and_then(|node| self.walk.map(node, &NEEDS_KEYS)) else {
            return needs;
        };
        for (word, mode) in StepMode::WORDS {
            if let Some(node) = given.get(word) {
                *needs.get_mut(mode) = self.step_ids(node);
            }
        }
        needs
    }

    fn step_env(&mut self, fields: Fields<'_>) -> BTreeMap<String, At<Text>> {
        let mut env = BTreeMap::new();
        for (key, node) in self.entries(fields, "env", "`env`", NameKind::Variable) {
            let name = key.as_text().unwrap_or_default();
            if is_own(name) {
                let problem = key.bad(format!("`{name}` is reserved"));
                self.walk.report(problem.help("Stead decides what steps see of it: choose another name"));
            }
            if let Some(text) = self.expanded(node) {
                env.insert(name.to_owned(), text);
            }
        }
        env
    }

    fn granted(&mut self, fields: Fields<'_>) -> Granted {
        let mut names = Vec::new();
        let items = fields.get("secrets").and_then(|node| self.walk.list(node, "names of secret variables"));
        let all = |node: Node<'_>| node.as_text() == Some("*");
        if let Some(mut items) = items.clone()
            && items.len() == 1
            && items.next().is_some_and(all)
        {
            return Granted::All;
        }
        for node in items.into_iter().flatten() {
            let Some(name) = self.walk.text(node) else { continue };
            if name == "*" {
                self.walk.report(node.bad("`*` stands alone: it grants every secret"));
            } else if self.names.vars.contains(name) || self.names.input_vars.contains(name) {
                names.push(At { value: name.to_owned(), place: node.place() });
            } else {
                self.unknown(node, "variable", name, self.names.vars.iter().copied());
            }
        }
        Granted::Names(names)
    }

    fn timeout(&mut self, node: Node<'_>) -> Option<Duration> {
        let timeout = self.walk.duration(node)?;
        if timeout.is_zero() {
            self.walk.report(node.bad("a step needs some time").help("write a longer one, or leave it out"));
        }
        Some(timeout)
    }

    fn cwd(&mut self, node: Node<'_>) -> Option<At<Text>> {
        self.walk.full_text(node)?;
        self.expanded(node)
    }
}

/// What a script is given in delete mode, unless `args.delete` says otherwise.
const DELETE_ARGUMENT: &str = "--delete";
