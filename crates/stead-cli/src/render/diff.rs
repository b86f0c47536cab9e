//! Shows what differs: the `diff` of a host's result, as lines.

use serde_json::Value;

use super::text;

/// Returns the lines of a difference, safe to show: its unified diff, else one line per field.
pub(crate) fn lines(diff: &Value) -> Vec<String> {
    let unified = diff.as_str().or_else(|| diff.get("text").and_then(Value::as_str));
    if let Some(unified) = unified {
        return unified.lines().map(|line| text::clean(line).into_owned()).collect();
    }
    let side = |name: &str| diff.get(name).and_then(Value::as_object);
    let (before, after) = (side("before"), side("after"));
    if before.is_none() && after.is_none() {
        return vec![text::one_line(&diff.to_string()).into_owned()];
    }
    let mut names: Vec<&String> =
        before.iter().chain(after.iter()).flat_map(|fields| fields.keys()).collect();
    names.sort();
    names.dedup();
    let shown = |value: Option<&Value>| match value {
        None | Some(Value::Null) => "(none)".to_owned(),
        Some(Value::String(text)) => text::one_line(text).into_owned(),
        Some(other) => text::one_line(&other.to_string()).into_owned(),
    };
    names
        .into_iter()
        .map(|name| {
            let of = |fields: Option<&serde_json::Map<String, Value>>| {
                shown(fields.and_then(|fields| fields.get(name)))
            };
            format!("{}: {} -> {}", text::one_line(name), of(before), of(after))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn text_wins_over_fields() {
        assert_eq!(lines(&json!({"before": {}, "after": {}, "text": "-a\n+b\n"})), ["-a", "+b"]);
        assert_eq!(
            lines(&json!({"before": {"mode": "0644"}, "after": {"mode": "0600", "owner": "web"}})),
            ["mode: 0644 -> 0600", "owner: (none) -> web"]
        );
        assert_eq!(lines(&json!(7)), ["7"]);
    }
}
