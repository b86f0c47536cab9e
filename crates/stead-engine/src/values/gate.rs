//! Judging gates.

use std::fmt;

use stead_model::catalogue::{Condition, Gate};

use super::{ValueSource, Values};

/// Whether a gate holds, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Whether it holds.
    pub holds: bool,
    /// The values that decided it, in written order, each name once.
    pub deciding: Vec<Deciding>,
}

/// A value that decided a gate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deciding {
    /// The name.
    pub name: String,
    /// Its value as it may be shown; none if it is unset.
    pub value: Option<String>,
    /// Where the value comes from; none if it is unset.
    pub source: Option<ValueSource>,
}

impl fmt::Display for Deciding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.value, &self.source) {
            (Some(value), Some(source)) if value.is_empty() => write!(f, "empty from {source}"),
            (Some(value), Some(source)) => write!(f, "{value} from {source}"),
            (Some(_) | None, _) => f.write_str("unset"),
        }
    }
}

impl Verdict {
    /// Returns the gate and what decided it: `FEAT_VERIFY: false from config.env:12`, and for a gate of more than a
    /// name `A && !B: A is true from default, B is true from config.env:3`.
    pub fn reason(&self, gate: &Gate) -> String {
        let because = match (gate.condition(), self.deciding.as_slice()) {
            (Condition::Name(_), [deciding]) => deciding.to_string(),
            (_, deciding) => {
                let parts: Vec<String> =
                    deciding.iter().map(|deciding| format!("{} is {deciding}", deciding.name)).collect();
                parts.join(", ")
            }
        };
        format!("{}: {because}", gate.text())
    }
}

impl Values {
    /// Returns whether `gate` holds and what decided it. Unset compares as empty; a bare name holds if it is `true`.
    pub fn judge(&self, gate: &Gate) -> Verdict {
        let (holds, names) = self.decide(gate.condition());
        let mut deciding: Vec<Deciding> = Vec::new();
        for name in names {
            if deciding.iter().all(|known| known.name != name) {
                deciding.push(self.deciding(name));
            }
        }
        Verdict { holds, deciding }
    }

    fn deciding(&self, name: &str) -> Deciding {
        let effective = self.get(name);
        Deciding {
            name: name.to_owned(),
            value: effective.map(|effective| effective.shown().to_owned()),
            source: effective.map(|effective| effective.source.clone()),
        }
    }

    fn text(&self, name: &str) -> &str {
        self.get(name).map_or("", |effective| &effective.value)
    }

    /// Returns whether the condition holds and the names it hangs on. It recurses as deep as a gate may nest.
    fn decide<'g>(&self, condition: &'g Condition) -> (bool, Vec<&'g str>) {
        match condition {
            Condition::Name(name) => (self.text(&name.value) == "true", vec![&name.value]),
            Condition::Equals(name, word) => (self.text(&name.value) == word, vec![&name.value]),
            Condition::Differs(name, word) => (self.text(&name.value) != word, vec![&name.value]),
            Condition::Not(inner) => {
                let (holds, names) = self.decide(inner);
                (!holds, names)
            }
            Condition::And(parts) => self.decide_all(parts, false),
            Condition::Or(parts) => self.decide_all(parts, true),
        }
    }

    /// Returns `decisive` if one of `parts` is, with the names of those that are; else the other, with all names.
    fn decide_all<'g>(&self, parts: &'g [Condition], decisive: bool) -> (bool, Vec<&'g str>) {
        let judged: Vec<(bool, Vec<&str>)> = parts.iter().map(|part| self.decide(part)).collect();
        let is_decided = judged.iter().any(|(holds, _)| *holds == decisive);
        let holds = if is_decided { decisive } else { !decisive };
        let names = judged.into_iter().filter(|(part, _)| !is_decided || *part == decisive);
        (holds, names.flat_map(|(_, names)| names).collect())
    }
}
