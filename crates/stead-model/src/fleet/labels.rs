//! Labels of VMs and workers, and what a VM asks of a worker's.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::schema::{full_text, object, words};
use crate::yaml::{Key, Keys, Node, Value as Written, Walk};

/// Labels by key.
pub type Labels = BTreeMap<String, String>;

/// Label of every worker: its architecture.
pub const ARCH_LABEL: &str = "stead/arch";
/// Label of every worker: its operating system.
pub const OS_LABEL: &str = "stead/os";
/// Label of every worker: its name.
pub const WORKER_LABEL: &str = "stead/worker";

/// The most labels one VM or worker may have.
const MOST: usize = 64;
/// The most characters of a label's value.
const LONGEST_VALUE: usize = 63;

/// How a label is compared, in the order of the words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Operator {
    /// The label is there.
    Exists,
    /// It is there and has one of the values.
    In,
    /// It is not there.
    NotExists,
    /// It is not there, or has none of the values.
    NotIn,
}

impl Operator {
    /// Every operator with its word.
    pub const WORDS: [(&'static str, Self); 4] =
        [("in", Self::In), ("notIn", Self::NotIn), ("exists", Self::Exists), ("notExists", Self::NotExists)];

    /// Returns its word.
    pub const fn word(self) -> &'static str {
        match self {
            Self::In => "in",
            Self::NotIn => "notIn",
            Self::Exists => "exists",
            Self::NotExists => "notExists",
        }
    }
}

/// What has to hold of one label.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Requirement {
    /// The label.
    pub key: String,
    /// How it is compared.
    pub op: Operator,
    /// With what.
    pub values: BTreeSet<String>,
}

impl Requirement {
    /// Whether it holds where the label has this value, or is not there.
    pub fn holds(&self, value: Option<&str>) -> bool {
        let is_listed = value.is_some_and(|value| self.values.contains(value));
        match self.op {
            Operator::In => is_listed,
            Operator::NotIn => !is_listed,
            Operator::Exists => value.is_some(),
            Operator::NotExists => value.is_none(),
        }
    }

    /// Returns it in words: `disk=ssd`.
    pub fn describe(&self) -> String {
        let values: Vec<&str> = self.values.iter().map(String::as_str).collect();
        let values = values.join("|");
        match self.op {
            Operator::In => format!("{}={values}", self.key),
            Operator::NotIn => format!("{}!={values}", self.key),
            Operator::Exists => self.key.clone(),
            Operator::NotExists => format!("!{}", self.key),
        }
    }

    /// Returns its canonical form.
    pub fn to_json(&self) -> Value {
        let mut json = json!({"key": self.key, "op": self.op.word()});
        if !self.values.is_empty() {
            json["values"] = json!(self.values);
        }
        json
    }
}

/// The keys of a requirement.
pub const REQUIREMENT_KEYS: Keys = Keys {
    what: "a requirement",
    keys: &[
        Key::new("key", key_schema, "the label of the worker").required(),
        Key::new("op", || words(&Operator::WORDS), "`in`, `notIn`, `exists` or `notExists`").required(),
        Key::new("values", || json!({"type": "array", "items": full_text()}), "of `in` and `notIn`"),
    ],
    hints: &[("operator", "op"), ("label", "key"), ("value", "values: [VALUE]")],
};

fn key_schema() -> Value {
    json!({"type": "string", "pattern": "^[A-Za-z0-9]([A-Za-z0-9._/-]{0,61}[A-Za-z0-9])?$"})
}

/// Returns the JSON Schema of labels.
pub fn labels_schema() -> Value {
    json!({
        "type": "object", "maxProperties": MOST, "propertyNames": key_schema(),
        "additionalProperties": {"type": "string", "maxLength": LONGEST_VALUE},
    })
}

/// Returns the JSON Schema of a selector.
pub fn selector_schema() -> Value {
    json!({"anyOf": [labels_schema(), {"type": "array", "items": object(&REQUIREMENT_KEYS)}]})
}

/// Whether `text` can be the key of a label.
pub fn is_label_key(text: &str) -> bool {
    let bytes = text.as_bytes();
    bytes.len() <= 63
        && bytes.first().is_some_and(u8::is_ascii_alphanumeric)
        && bytes.last().is_some_and(u8::is_ascii_alphanumeric)
        && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || b"._/-".contains(byte))
}

/// Reads the key of a label.
pub(super) fn read_key(walk: &mut Walk<'_>, node: Node<'_>) -> Option<String> {
    let text = walk.text(node)?;
    if is_label_key(text) {
        return Some(text.to_owned());
    }
    walk.report(
        node.error("fleet/bad-name", format!("{} is not the key of a label", node.describe())).help(
            "letters, digits, `.`, `_`, `/` and `-`, at most 63 in all, a letter or digit at either end",
        ),
    );
    None
}

fn read_value(walk: &mut Walk<'_>, node: Node<'_>) -> Option<String> {
    let text = walk.text(node)?;
    if text.chars().count() <= LONGEST_VALUE {
        return Some(text.to_owned());
    }
    let message = format!("the value of a label has at most {LONGEST_VALUE} characters");
    walk.report(node.error("fleet/out-of-range", message));
    None
}

/// Reads labels.
pub(super) fn read_labels(walk: &mut Walk<'_>, node: Node<'_>) -> Labels {
    let mut labels = Labels::new();
    let Some(entries) = node.as_map() else {
        walk.report(node.bad(format!("expected a map of labels, found {}", node.describe())));
        return labels;
    };
    if entries.len() > MOST {
        let message = format!("{} labels; at most {MOST} are kept", entries.len());
        walk.report(node.error("fleet/out-of-range", message));
    }
    for (key, value) in entries {
        let (key, value) = (read_key(walk, key), read_value(walk, value));
        if let (Some(key), Some(value)) = (key, value) {
            labels.insert(key, value);
        }
    }
    labels
}

/// Reads labels of a worker: none of those that Stead itself gives it.
pub(super) fn read_worker_labels(walk: &mut Walk<'_>, node: Node<'_>) -> Labels {
    let labels = read_labels(walk, node);
    let is_own = |key: &Node<'_>| key.as_text().is_some_and(|key| key.starts_with("stead/"));
    for (key, _) in node.as_map().into_iter().flatten().filter(|(key, _)| is_own(key)) {
        let problem = key.error("fleet/conflict", "labels of `stead/` are set by Stead");
        walk.report(problem.help("leave it out"));
    }
    labels
}

/// Reads a selector, as a list or in its short form.
pub(super) fn read_selector(walk: &mut Walk<'_>, node: Node<'_>) -> Vec<Requirement> {
    let mut selector = Vec::new();
    match node.value() {
        Written::Map(_) => {
            for (key, value) in read_labels(walk, node) {
                selector.push(Requirement { key, op: Operator::In, values: BTreeSet::from([value]) });
            }
        }
        Written::List(items) => {
            for item in items {
                selector.extend(read_requirement(walk, item));
            }
        }
        Written::Null | Written::Bool(_) | Written::Number(_) | Written::Text(_) => {
            walk.report(
                node.bad(format!("expected a list of requirements, found {}", node.describe()))
                    .help("write `{disk: ssd}` or `[{key: disk, op: in, values: [ssd]}]`"),
            );
        }
    }
    selector.sort();
    selector
}

fn read_requirement(walk: &mut Walk<'_>, node: Node<'_>) -> Option<Requirement> {
    let fields = walk.map(node, &REQUIREMENT_KEYS)?;
    let key = fields.get("key").and_then(|node| read_key(walk, node));
    let op = fields.get("op").and_then(|node| walk.choice(node, &Operator::WORDS));
    let mut values = BTreeSet::new();
    if let Some(items) = fields.get("values").and_then(|node| walk.list(node, "values")) {
        for item in items {
            values.extend(read_value(walk, item));
        }
    }
    let op = op?;
    match op {
        Operator::In | Operator::NotIn if values.is_empty() => {
            walk.report(
                node.error("fleet/missing-field", format!("`{}` needs at least one of `values`", op.word())),
            );
        }
        Operator::Exists | Operator::NotExists if !values.is_empty() => {
            walk.report(node.error("fleet/conflict", format!("`{}` has no `values`", op.word())));
        }
        Operator::In | Operator::NotIn | Operator::Exists | Operator::NotExists => {}
    }
    Some(Requirement { key: key?, op, values })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requirements_mind_what_is_absent() {
        let of = |op| Requirement { key: "disk".to_owned(), op, values: BTreeSet::from(["ssd".to_owned()]) };
        for (op, there, other, absent) in [
            (Operator::In, true, false, false),
            (Operator::NotIn, false, true, true),
            (Operator::Exists, true, true, false),
            (Operator::NotExists, false, false, true),
        ] {
            let requirement = of(op);
            let holds = [Some("ssd"), Some("hdd"), None].map(|value| requirement.holds(value));
            assert_eq!(holds, [there, other, absent], "{op:?}");
        }
    }
}
