//! The one JSON document that `--json` prints, whatever happens.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;
use stead_model::{Diagnostic, ExitCode, Report};

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
    diagnostics: &[Diagnostic],
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
    let diagnostics = diagnostics.iter().map(Diagnostic::to_json).collect();
    let known = known.iter().map(|(key, value)| (*key, value)).collect();
    document(&Document { schema: SCHEMA, exit_code, error, diagnostics, known })
}

/// Returns any value as an indented document, newline included.
pub fn document(value: &impl Serialize) -> String {
    let mut text = serde_json::to_string_pretty(value).expect("our documents have text keys and cannot fail");
    text.push('\n');
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use stead_model::diagnostic::Place;

    #[test]
    fn failures_list_every_diagnostic() {
        let diagnostics = [
            Diagnostic::error("plan/cycle", Place::Named("p.yaml".into()), "a -> a").help("cut it"),
            Diagnostic::warning("plan/never-runs", Place::Named("p.yaml".into()), "b"),
        ];
        let known = [("tasks", Value::from(3))];
        let text = failure(ExitCode::Invalid, json!({"code": "plan/cycle"}), &diagnostics, &known);
        let value: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value["schema"], 1);
        assert_eq!(value["exit_code"], 3);
        assert_eq!(value["error"]["code"], "plan/cycle");
        assert_eq!(value["tasks"], 3);
        assert_eq!(value["diagnostics"][0]["help"], "cut it");
        assert_eq!(value["diagnostics"][1]["severity"], "warning");
    }
}
