//! Which facts are wanted: paths such as `os.family`, or all.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use super::Facts;
use crate::diagnostic::suggest;

/// The facts somebody wants.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    /// None: all.
    paths: Option<BTreeSet<Vec<String>>>,
}

/// A path that no fact has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no fact `{path}`; {help}")]
pub struct UnknownFact {
    /// The path.
    pub path: String,
    /// What is nearest, or all there are.
    pub help: String,
}

impl Selection {
    /// Returns the selection of everything.
    pub fn all() -> Self {
        Self::default()
    }

    /// Returns the selection of these dotted paths; none: everything.
    ///
    /// # Errors
    /// If a path is of no fact. Below `custom` any name is fine: what is there only the host knows.
    pub fn parse<S: AsRef<str>>(paths: &[S]) -> Result<Self, UnknownFact> {
        if paths.is_empty() {
            return Ok(Self::all());
        }
        let shape = Facts::default().to_json();
        let mut parsed = BTreeSet::new();
        for path in paths {
            let path = path.as_ref();
            let steps: Vec<String> = path.split('.').map(str::to_owned).collect();
            check(&shape, &steps, path)?;
            parsed.insert(steps);
        }
        Ok(Self { paths: Some(parsed) })
    }

    /// Whether anything of the top-level fact `name` is wanted.
    pub fn wants(&self, name: &str) -> bool {
        self.paths.as_ref().is_none_or(|paths| paths.iter().any(|path| path[0] == name))
    }

    /// Whether the custom fact `name` is wanted.
    pub fn wants_custom(&self, name: &str) -> bool {
        self.paths.as_ref().is_none_or(|paths| {
            paths.iter().any(|path| path[0] == "custom" && path.get(1).is_none_or(|custom| custom == name))
        })
    }

    /// Returns the wanted part of `facts`, in its own shape.
    pub fn take(&self, facts: Value) -> Value {
        let Some(paths) = &self.paths else { return facts };
        let mut taken = Map::new();
        for path in paths {
            let mut from = &facts;
            let mut found = true;
            for step in path {
                match from.get(step) {
                    Some(next) => from = next,
                    None => found = false,
                }
            }
            if found {
                put(&mut taken, path, from.clone());
            }
        }
        Value::Object(taken)
    }
}

/// Puts `value` at `path`, whose last step is new or holds a part of it.
fn put(into: &mut Map<String, Value>, path: &[String], value: Value) {
    let [last] = path else {
        let [first, rest @ ..] = path else { return };
        let below = into.entry(first.clone()).or_insert_with(|| Value::Object(Map::new()));
        if let Value::Object(below) = below {
            put(below, rest, value);
        }
        return;
    };
    into.insert(last.clone(), value);
}

fn check(shape: &Value, steps: &[String], path: &str) -> Result<(), UnknownFact> {
    let mut here = shape;
    for (i, step) in steps.iter().enumerate() {
        if i > 0 && steps[0] == "custom" {
            if step.is_empty() {
                break;
            }
            return Ok(());
        }
        let Value::Object(members) = here else {
            let whole = steps[..i].join(".");
            let help = format!("`{whole}` has no members: name it whole");
            return Err(UnknownFact { path: path.to_owned(), help });
        };
        match members.get(step) {
            Some(next) => here = next,
            None => {
                let names: BTreeMap<String, ()> = members
                    .keys()
                    .map(|name| ([&steps[..i], std::slice::from_ref(name)].concat().join("."), ()))
                    .collect();
                let help = suggest(path, names.keys().map(String::as_str));
                return Err(UnknownFact { path: path.to_owned(), help });
            }
        }
    }
    if steps.last().is_some_and(String::is_empty) {
        let help = "write it without the final dot".to_owned();
        return Err(UnknownFact { path: path.to_owned(), help });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_selection_takes_its_paths_in_their_own_shape() {
        let facts = json!({"os": {"family": "debian", "name": "x"}, "arch": "x86_64", "custom": {"a": {"b": 1}, "c": 2}});
        let take = |paths: &[&str]| Selection::parse(paths).unwrap().take(facts.clone());
        assert_eq!(take(&[]), facts);
        assert_eq!(take(&["os.family", "arch"]), json!({"os": {"family": "debian"}, "arch": "x86_64"}));
        assert_eq!(take(&["os", "os.family"]), json!({"os": {"family": "debian", "name": "x"}}));
        assert_eq!(take(&["custom.a.b"]), json!({"custom": {"a": {"b": 1}}}));
        // What the host does not have is not there.
        assert_eq!(take(&["custom.zz", "arch"]), json!({"arch": "x86_64"}));
    }

    #[test]
    fn only_what_is_wanted_needs_to_be_gathered() {
        let selection = Selection::parse(&["os.family", "custom.a.b"]).unwrap();
        assert!(selection.wants("os") && selection.wants("custom") && !selection.wants("disks"));
        assert!(selection.wants_custom("a") && !selection.wants_custom("c"));
        assert!(Selection::parse(&["custom"]).unwrap().wants_custom("c"));
        assert!(Selection::all().wants("disks") && Selection::all().wants_custom("c"));
    }

    #[test]
    fn an_unknown_path_names_the_nearest() {
        for (path, part) in [
            ("os.famly", "os.family"),
            ("hostnam", "hostname"),
            ("arch.x", "`arch` has no members"),
            ("disks.sda", "`disks` has no members"),
            ("", "os"),
            ("os.", "os.family"),
            ("custom.", "final dot"),
        ] {
            let error = Selection::parse(&[path]).unwrap_err().to_string();
            assert!(error.contains(part), "{path}: {error}");
        }
    }
}
