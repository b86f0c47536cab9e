//! What a catalogue declares, known before the rest of it is read.

use std::collections::{BTreeMap, BTreeSet};

use crate::catalogue::Condition;
use crate::diagnostic::{Diagnostic, suggest};
use crate::yaml::{Codes, Fields, Node};

/// The names a file declares, faulty entries included.
pub(super) struct Names<'t> {
    values: BTreeMap<&'t str, Declared<'t>>,
    pub(super) vars: BTreeSet<&'t str>,
    pub(super) steps: BTreeSet<&'t str>,
    pub(super) inputs: BTreeSet<&'t str>,
    /// The variables that keys of inputs take.
    pub(super) input_vars: BTreeSet<&'t str>,
    pub(super) has_delete: bool,
}

/// What is known of a control or variable.
struct Declared<'t> {
    is_bool: bool,
    /// What it may be, if that is enumerated.
    allowed: Option<Vec<&'t str>>,
    in_layers: bool,
}

impl<'t> Names<'t> {
    pub(super) fn of(fields: Fields<'t>) -> Self {
        let entries = |key: &str| fields.get(key).and_then(Node::as_map).into_iter().flatten();
        let keys = |key: &str| entries(key).filter_map(|(key, _)| key.as_text()).collect();
        let mut values = BTreeMap::new();
        for (key, node) in entries("controls") {
            let name = key.as_text().unwrap_or_default();
            let mut declared = Declared::of(node);
            declared.is_bool |= name == "DRY_RUN";
            let built_in = matches!(name, "ONLY" | "DRY_RUN");
            declared.in_layers = !built_in && node.get("in_layers").is_none_or(|node| node.raw() != "false");
            values.insert(name, declared);
        }
        for (key, node) in entries("vars") {
            values.insert(key.as_text().unwrap_or_default(), Declared::of(node));
        }
        let input_vars = entries("inputs")
            .filter_map(|(_, inputs)| inputs.get("keys")?.as_map())
            .flatten()
            .filter_map(|(key, node)| node.get("from").unwrap_or(key).as_text())
            .collect();
        Self {
            values,
            vars: keys("vars"),
            steps: keys("steps"),
            inputs: keys("inputs"),
            input_vars,
            has_delete: fields.get("delete").is_some(),
        }
    }

    /// Whether layers may set `name`, or nothing is known of it.
    pub(super) fn is_in_layers(&self, name: &str) -> bool {
        self.values.get(name).is_some_and(|declared| declared.in_layers)
    }

    /// Returns every problem of the names in `condition`.
    pub(super) fn judge(&self, condition: &Condition) -> Vec<Diagnostic> {
        let mut problems = Vec::new();
        self.judge_into(condition, &mut problems);
        problems
    }

    fn judge_into(&self, condition: &Condition, problems: &mut Vec<Diagnostic>) {
        let (name, word) = match condition {
            Condition::Not(inner) => return self.judge_into(inner, problems),
            Condition::And(parts) | Condition::Or(parts) => {
                return parts.iter().for_each(|part| self.judge_into(part, problems));
            }
            Condition::Name(name) => (name, None),
            Condition::Equals(name, word) | Condition::Differs(name, word) => (name, Some(word.as_str())),
        };
        let error = |message: String| Diagnostic::error(Codes::STEPS.bad_value, name.place.clone(), message);
        let known = &name.value;
        let Some(declared) = self.values.get(known.as_str()) else {
            let help = suggest(known, self.values.keys().copied());
            let candidates = self.values.keys().map(|name| (*name).to_owned()).collect();
            let problem = error(format!("there is no control or variable `{known}`")).help(help);
            problems.push(problem.candidates(candidates));
            return;
        };
        match (word, &declared.allowed) {
            (None, _) if !declared.is_bool => problems.push(
                error(format!("`{known}` is not bool, so it cannot stand alone in a gate"))
                    .help(format!("compare it: `{known} == word`")),
            ),
            (Some(word), Some(allowed)) if !allowed.contains(&word) => problems.push(
                error(format!("`{known}` is never `{word}`")).help(suggest(word, allowed.iter().copied())),
            ),
            (None | Some(_), _) => {}
        }
    }
}

impl<'t> Declared<'t> {
    fn of(node: Node<'t>) -> Self {
        let is_bool = node.get("type").and_then(Node::as_text) == Some("bool");
        let listed = node.get("enum").and_then(Node::as_list);
        let allowed = match (is_bool, listed) {
            (true, _) => Some(vec!["true", "false"]),
            (false, Some(items)) => Some(items.map(|item| item.as_text().unwrap_or(item.raw())).collect()),
            (false, None) => None,
        };
        Self { is_bool, allowed, in_layers: true }
    }
}
