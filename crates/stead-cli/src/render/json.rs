//! The one JSON document that `--json` prints, whatever happens.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;
use stead_model::{ExitCode, Report};

/// Version of the documents that are no reports.
const SCHEMA: u32 = 1;

/// Returns the report document, newline included.
pub fn report(report: &Report) -> String {
    document(report)
}

/// Returns the document of a command that failed without a report, with what else is `known`, newline included.
pub fn failure(
    exit_code: ExitCode,
    error: Value,
    diagnostics: Vec<Value>,
    known: &[(&'static str, Value)],
) -> String {
    #[derive(Serialize)]
    struct Document<'a> {
        schema: u32,
        exit_code: ExitCode,
        error: Value,
        diagnostics: Vec<Value>,
        #[serde(flatten)]
        known: BTreeMap<&'a str, &'a Value>,
    }
    let known = known.iter().map(|(key, value)| (*key, value)).collect();
    document(&Document { schema: SCHEMA, exit_code, error, diagnostics, known })
}

/// Returns any value as an indented document, newline included. Every object says which version of it this is.
pub fn document(value: &impl Serialize) -> String {
    let text = bare(value);
    // Keys of the document itself are indented by two blanks, and a text has no line breaks.
    let is_said = || text.lines().any(|line| line.starts_with("  \"schema\":"));
    match text.strip_prefix("{\n") {
        Some(rest) if !is_said() => format!("{{\n  \"schema\": {SCHEMA},\n{rest}"),
        Some(_) | None => text,
    }
}

/// Returns any value as an indented document without more, newline included.
pub fn bare(value: &impl Serialize) -> String {
    let mut text = serde_json::to_string_pretty(value).expect("our documents have text keys and cannot fail");
    text.push('\n');
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use stead_model::Diagnostic;
    use stead_model::diagnostic::Place;

    #[test]
    fn a_document_says_its_version_once() {
        assert_eq!(document(&json!({"a": {"schema": 7}})).matches("\"schema\": 1").count(), 1);
        assert_eq!(document(&json!({"schema": 2})), "{\n  \"schema\": 2\n}\n");
        assert_eq!(document(&json!([1])), "[\n  1\n]\n");
        let told: Value = serde_json::from_str(&document(&json!({"a": "  \"schema\":"}))).unwrap();
        assert_eq!(told["schema"], 1);
    }

    #[test]
    fn failures_list_every_diagnostic() {
        let place = || Place::Named("p.yaml".into());
        let diagnostics = vec![
            Diagnostic::error("plan/cycle", place(), "a -> a").help("cut it").to_json(),
            Diagnostic::warning("plan/never-runs", place(), "b").to_json(),
        ];
        let known = [("tasks", Value::from(3))];
        let text = failure(ExitCode::Invalid, json!({"code": "plan/cycle"}), diagnostics, &known);
        let value: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value["schema"], 1);
        assert_eq!(value["exit_code"], 3);
        assert_eq!(value["error"]["code"], "plan/cycle");
        assert_eq!(value["tasks"], 3);
        assert_eq!(value["diagnostics"][0]["help"], "cut it");
        assert_eq!(value["diagnostics"][1]["severity"], "warning");
    }
}
