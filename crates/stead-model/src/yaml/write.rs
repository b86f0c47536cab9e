//! Writing values as YAML: block style, for files that people read and programs read back.

use serde_json::Value;

use super::edit::is_plain_text;

/// Returns `value` as a YAML document.
pub fn to_yaml(value: &Value) -> String {
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
    Value { value: &'v Value, indent: usize, place: Place },
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
    value: &'v Value,
    indent: usize,
    place: Place,
    out: &mut String,
    open: &mut Vec<Step<'v>>,
) {
    let scalar = match value {
        Value::Object(map) if !map.is_empty() => {
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
        Value::Array(items) if !items.is_empty() => {
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
        Value::String(value) => text(value),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => {
            value.to_string()
        }
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
        let written = to_yaml(&value);
        let read: Value = serde_saphyr::from_str(&written).unwrap();
        assert_eq!(read, value, "{written}");
        assert!(written.contains("\n  deep:\n    - - 1\n"), "{written}");
    }

    #[test]
    fn documents_of_one_scalar_are_scalars() {
        assert_eq!(to_yaml(&json!("x")), "x\n");
        assert_eq!(to_yaml(&json!({})), "{}\n");
    }
}
