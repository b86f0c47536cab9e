//! Writing values as YAML: block style, for files that people read and programs read back.

use serde_json::Value;

use super::edit::is_plain_text;
use super::tree::Node;

/// A value whose maps keep the order of their keys.
#[derive(Clone, Debug, PartialEq)]
pub enum Ordered {
    /// What is neither a list nor a map.
    Scalar(Value),
    /// A list.
    List(Vec<Ordered>),
    /// A map; no key is there twice.
    Map(Vec<(String, Ordered)>),
}

impl Default for Ordered {
    fn default() -> Self {
        Self::Scalar(Value::Null)
    }
}

impl From<Value> for Ordered {
    fn from(value: Value) -> Self {
        Self::like(value, None)
    }
}

impl Ordered {
    /// Returns `value`, its keys in the order that `written` has them; those it does not have follow, sorted. It
    /// recurses as deep as `value`.
    pub fn like(value: Value, written: Option<Node<'_>>) -> Self {
        match value {
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Self::Scalar(value),
            Value::Array(items) => {
                let mut nodes = written.and_then(Node::as_list).into_iter().flatten();
                Self::List(items.into_iter().map(|item| Self::like(item, nodes.next())).collect())
            }
            Value::Object(mut map) => {
                let mut entries = Vec::with_capacity(map.len());
                for (key, node) in written.and_then(Node::as_map).into_iter().flatten() {
                    let Some(key) = key.as_text() else { continue };
                    if let Some(value) = map.remove(key) {
                        entries.push((key.to_owned(), Self::like(value, Some(node))));
                    }
                }
                entries.extend(map.into_iter().map(|(key, value)| (key, Self::from(value))));
                Self::Map(entries)
            }
        }
    }

    /// Sets a key of a map, in its place if it is there already.
    pub fn set(&mut self, key: &str, value: impl Into<Self>) {
        let Self::Map(entries) = self else { return };
        match entries.iter_mut().find(|(name, _)| name == key) {
            Some((_, held)) => *held = value.into(),
            None => entries.push((key.to_owned(), value.into())),
        }
    }
}

/// Returns `value` as a YAML document.
pub fn to_yaml(value: &Ordered) -> String {
    let mut out = String::new();
    let mut open = vec![Step::Value { value, indent: 0, place: Place::Line }];
    // No recursion: values may be as deep as what a user wrote.
    while let Some(step) = open.pop() {
        match step {
            Step::Key { key, indent, inline } => {
                if !inline {
                    out.push_str(&" ".repeat(indent));
                }
                out.push_str(&text(key));
                out.push(':');
            }
            Step::Dash { indent, inline } => {
                if !inline {
                    out.push_str(&" ".repeat(indent));
                }
                out.push('-');
            }
            Step::Value { value, indent, place } => write_value(value, indent, place, &mut out, &mut open),
        }
    }
    out
}

enum Step<'v> {
    Key { key: &'v str, indent: usize, inline: bool },
    Dash { indent: usize, inline: bool },
    Value { value: &'v Ordered, indent: usize, place: Place },
}

/// What stands before a value.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// Nothing: it is the document.
    Line,
    /// A key and its colon.
    Key,
    /// A dash.
    Dash,
}

fn write_value<'v>(
    value: &'v Ordered,
    indent: usize,
    place: Place,
    out: &mut String,
    open: &mut Vec<Step<'v>>,
) {
    let scalar = match value {
        Ordered::Map(map) if !map.is_empty() => {
            // Behind a dash the first key stands on the same line.
            let starts_inline = place == Place::Dash;
            out.push_str(match place {
                Place::Line => "",
                Place::Key => "\n",
                Place::Dash => " ",
            });
            for (i, (key, value)) in map.iter().enumerate().rev() {
                open.push(Step::Value { value, indent: indent + 2, place: Place::Key });
                open.push(Step::Key { key, indent, inline: starts_inline && i == 0 });
            }
            return;
        }
        Ordered::List(items) if !items.is_empty() => {
            let starts_inline = place == Place::Dash;
            out.push_str(match place {
                Place::Line => "",
                Place::Key => "\n",
                Place::Dash => " ",
            });
            for (i, value) in items.iter().enumerate().rev() {
                open.push(Step::Value { value, indent: indent + 2, place: Place::Dash });
                open.push(Step::Dash { indent, inline: starts_inline && i == 0 });
            }
            return;
        }
        Ordered::Map(_) => "{}".to_owned(),
        Ordered::List(_) => "[]".to_owned(),
        Ordered::Scalar(Value::String(value)) => text(value),
        Ordered::Scalar(value) => value.to_string(),
    };
    if place != Place::Line {
        out.push(' ');
    }
    out.push_str(&scalar);
    out.push('\n');
}

/// Returns a text as it is if every reader takes it for this text, else in double quotes.
fn text(value: &str) -> String {
    if is_plain_text(value) { value.to_owned() } else { Value::from(value).to_string() }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_written_is_read_back() {
        let value = json!({
            "a": {"empty": {}, "none": [], "deep": [[1, [2]], {"x": [{"y": null}], "z": true}]},
            "texts": ["plain", "yes", "1", "a: b", "x\ny\t\u{1}", "", "# no", "{{ roles.x }}", "ü", "-", "null"],
            "numbers": [0, -1, 2.9, 1e300],
            "key: odd": "v",
        });
        let written = to_yaml(&value.clone().into());
        let read: Value = serde_saphyr::from_str(&written).unwrap();
        assert_eq!(read, value, "{written}");
        assert!(written.contains("\n  deep:\n    - - 1\n"), "{written}");
    }

    #[test]
    fn documents_of_one_scalar_are_scalars() {
        assert_eq!(to_yaml(&json!("x").into()), "x\n");
        assert_eq!(to_yaml(&json!({}).into()), "{}\n");
    }
    #[test]
    fn keys_keep_the_order_they_are_written_in() {
        let text = "z: 1\na: [{x: 1, b: 2}]\nm: {k: 1, c: {}}\n";
        let source = crate::yaml::source("x", text.into(), crate::yaml::Codes::RUN).unwrap();
        let tree = crate::yaml::read(&source, crate::yaml::Codes::RUN, &mut Default::default()).unwrap();
        let value = json!({"a": [{"b": 2, "new": 0, "x": 1}], "m": {"c": {}, "k": 1}, "z": 1, "added": 3});
        let mut ordered = Ordered::like(value, Some(tree.root()));
        ordered.set("z", json!(9));
        let written = "z: 9\na:\n  - x: 1\n    b: 2\n    new: 0\nm:\n  k: 1\n  c: {}\nadded: 3\n";
        assert_eq!(to_yaml(&ordered), written);
    }
}
