//! The one JSON document that `--json` prints, whatever happens.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;
use stead_model::{Diagnostics, ExitCode, Report};

/// Version of the documents that are no reports.
const SCHEMA: u32 = 1;

/// Returns the report document, newline included.
pub fn report(report: &Report) -> String {
    document(report)
}

/// Returns the document of invalid input with what else is `known`, newline included.
pub fn input_errors(
    exit_code: ExitCode,
    diagnostics: &Diagnostics,
    known: &[(&'static str, Value)],
) -> String {
    #[derive(Serialize)]
    struct Document<'a> {
        schema: u32,
        exit_code: ExitCode,
        diagnostics: Vec<Value>,
        #[serde(flatten)]
        known: BTreeMap<&'a str, &'a Value>,
    }
    let diagnostics = diagnostics.iter().map(|diagnostic| diagnostic.to_json()).collect();
    let known = known.iter().map(|(key, value)| (*key, value)).collect();
    document(&Document { schema: SCHEMA, exit_code, diagnostics, known })
}

/// Returns the document of a command that failed without a report, newline included.
pub fn error(exit_code: ExitCode, message: &str, help: &str) -> String {
    #[derive(Serialize)]
    struct Document<'a> {
        schema: u32,
        exit_code: ExitCode,
        error: Error<'a>,
    }
    #[derive(Serialize)]
    struct Error<'a> {
        message: &'a str,
        help: &'a str,
    }
    document(&Document { schema: SCHEMA, exit_code, error: Error { message, help } })
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
    use stead_model::Diagnostic;
    use stead_model::diagnostic::Place;

    #[test]
    fn input_errors_list_every_diagnostic() {
        let diagnostics = Diagnostics(vec![
            Diagnostic::error("plan/cycle", Place::Named("p.yaml".into()), "a -> a").help("cut it"),
            Diagnostic::warning("plan/never-runs", Place::Named("p.yaml".into()), "b"),
        ]);
        let value: Value = serde_json::from_str(&input_errors(
            ExitCode::Invalid,
            &diagnostics,
            &[("tasks", Value::from(3))],
        ))
        .unwrap();
        assert_eq!(value["schema"], 1);
        assert_eq!(value["exit_code"], 3);
        assert_eq!(value["tasks"], 3);
        assert_eq!(value["diagnostics"][0]["help"], "cut it");
        assert_eq!(value["diagnostics"][1]["severity"], "warning");
    }
}
