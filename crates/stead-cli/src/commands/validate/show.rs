//! What `stead validate` found, as text and as the one document.

use serde_json::{Value, json};
use stead_model::{Diagnostic, ExitCode, Severity};

use super::Validated;
use crate::args::ValidateArgs;
use crate::commands::nodes::only_looks;
use crate::commands::site;
use crate::failure::{Failure, Source};
use crate::output::{Output, Paint};
use crate::render::json as render_json;
use crate::settings::Settings;

/// Prints what was found and returns what the process exits with.
pub(super) fn print(
    args: &ValidateArgs,
    settings: &Settings,
    output: &mut Output,
    result: &Validated,
) -> ExitCode {
    let diagnostics = &result.checked.diagnostics;
    let is_valid = !diagnostics.has_errors();
    if args.json {
        output.out.print(&render_json::document(&document(result, is_valid)));
    } else {
        output.err.print(&diagnostics.render(settings.stderr_paint == Paint::Ansi));
        only_looks::shown(&args.act, output).print(&to_text(result, is_valid));
    }
    if is_valid { ExitCode::Success } else { ExitCode::Failed }
}

fn document(result: &Validated, is_valid: bool) -> Value {
    let diagnostics = &result.checked.diagnostics;
    let of = |severity: Severity| -> Vec<Value> {
        diagnostics.iter().filter(|problem| problem.severity == severity).map(row).collect()
    };
    let mut document = json!({
        "schema": 1, "exit_code": if is_valid { ExitCode::Success } else { ExitCode::Failed },
        "valid": is_valid, "site": result.site.path.display().to_string(), "manifest": result.manifest,
        "host": result.host.as_ref().map(|host| &host.name),
        "pattern": result.checked.pattern.map(|pattern| pattern.word()),
        "pattern_inferred": result.checked.is_inferred, "nodes": result.nodes,
        "errors": of(Severity::Error), "warnings": of(Severity::Warning),
    });
    if !is_valid {
        document["error"] = json!({
            "code": "node/invalid", "message": diagnostics.summary(), "help": "correct every problem in `errors`",
        });
        document["diagnostics"] = diagnostics.iter().map(row).collect();
    }
    document
}

/// Returns a problem with all the keys it may have.
pub(in crate::commands) fn row(problem: &Diagnostic) -> Value {
    let mut row = problem.to_json();
    row["candidates"] = json!(problem.candidates);
    row
}

/// Returns a failure whose document says that nothing is valid.
pub(super) fn with_document(failure: Failure) -> Failure {
    let failure = site::with_document(failure, "stead validate");
    let of = |severity: Severity| -> Vec<Value> {
        let Source::Diagnostics(problems) = &failure.source else { return Vec::new() };
        problems.iter().filter(|problem| problem.severity == severity).map(row).collect()
    };
    let (errors, warnings) = (of(Severity::Error), of(Severity::Warning));
    let mut failure = failure.knowing("valid", json!(false));
    for key in ["site", "manifest", "host", "pattern"] {
        failure = failure.knowing(key, Value::Null);
    }
    failure.knowing("nodes", json!([])).knowing("errors", json!(errors)).knowing("warnings", json!(warnings))
}

fn to_text(result: &Validated, is_valid: bool) -> String {
    let verdict = if is_valid { "valid" } else { "not valid" };
    let Some(manifest) = &result.manifest else {
        return format!("{}: {verdict}\n", result.site.path.display());
    };
    let pattern = result.checked.pattern.map_or_else(String::new, |pattern| {
        let inferred = if result.checked.is_inferred { " (inferred)" } else { "" };
        format!(", {}{inferred}", pattern.word())
    });
    let mut text = format!("{manifest}: {verdict}{pattern}, {} nodes\n", result.nodes.len());
    for node in &result.nodes {
        let field = |key: &str| node[key].as_str().unwrap_or("-").to_owned();
        let level = node["depth"].as_u64().unwrap_or_default() + 1;
        let mut line = format!("  {} {} {} level {level}", field("name"), field("type"), field("mode"));
        if let Some(parent) = node["parent"].as_str() {
            line.push_str(&format!(" in {parent}"));
        }
        if let Some(spec) = node["spec"].as_str() {
            line.push_str(&format!(" spec {spec}"));
        }
        text.push_str(&line);
        text.push('\n');
    }
    result.notes.iter().for_each(|note| text.push_str(&format!("  note: {note}\n")));
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::FailureKind;

    #[test]
    fn a_document_without_a_site_has_the_keys_of_one_with_it() {
        let failure =
            with_document(Failure::new(FailureKind::Invalid, "there is no site").code("node/not-found"));
        let document: Value = serde_json::from_str(&failure.to_json()).unwrap();
        for key in ["valid", "site", "manifest", "host", "pattern", "nodes", "errors", "warnings"] {
            assert!(document.get(key).is_some(), "{key}: {document}");
        }
        assert_eq!(document["errors"][0]["code"], "node/not-found");
        assert_eq!((&document["nodes"], &document["warnings"]), (&json!([]), &json!([])));
    }
}
