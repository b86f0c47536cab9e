//! What `stead exec` tells when all hosts have ended.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};
use stead_model::duration::Short;
use stead_model::report::HostRow;
use stead_model::{ErrorClass, ExitCode, Report, Status};

use crate::args::ExecArgs;
use crate::output::{Output, Style};
use crate::render::hosts::Written;
use crate::render::{WAIT_LOCK, diff, json, one_line};
use crate::settings::Settings;

/// What was asked for; each has its own document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    /// A command.
    Command,
    /// An operation.
    Operation,
    /// Facts.
    Facts,
}

/// How many bytes of a stream a result keeps: the last of them.
const KEPT: u64 = 1 << 20;

/// Shows the results and returns the exit code.
pub(super) fn show(
    report: &Report,
    asked: Asked,
    args: &ExecArgs,
    written: &Written,
    settings: &Settings,
    output: &Output,
) -> ExitCode {
    let rows: Vec<&HostRow> = report.tasks().iter().flat_map(|task| &task.hosts).collect();
    let code = exit_code(report.exit_code, &rows);
    // A run that could not start has no rows; why is said in the report alone.
    for error in report.errors.iter().filter(|error| error.host.is_none()) {
        let message = one_line(&error.message);
        let word = crate::render::error_word(report, error.class, settings.stderr_paint);
        output.err.print_line(&format!("{word} {message}"));
        output.err.print(&crate::render::lock_hint(report));
    }
    if args.json {
        let success = code == ExitCode::Success;
        let list = |row: &dyn Fn(&HostRow) -> Value| rows.iter().map(|host| row(host)).collect::<Vec<_>>();
        let mut document = match asked {
            Asked::Command if !args.dry_run => {
                json!({"success": success, "results": list(&|row| command_row(row, written))})
            }
            Asked::Command | Asked::Operation => json!({"success": success, "results": list(&operation_row)}),
            Asked::Facts => facts(&rows),
        };
        if let (true, Some(error)) = (rows.is_empty(), refusal(report)) {
            document["exit_code"] = json!(code);
            document["error"] = error;
        }
        output.out.print(&json::document(&document));
    } else {
        match asked {
            Asked::Command if !args.dry_run => {}
            Asked::Command | Asked::Operation => rows.iter().for_each(|row| say_operation(row, args, output)),
            Asked::Facts => rows.iter().for_each(|row| say_facts(row, output)),
        }
        let failed = rows.iter().filter(|row| row.status == Status::Failed);
        for row in failed.take(MOST_FAILED) {
            let what = settings.stderr_paint.apply(Style::Bad, "failed:");
            output.err.print_line(&format!("{what} {}: {}", row.host, one_line(&error_of(row))));
        }
        output.err.print_line(&summary(&rows, asked, report));
    }
    code
}

/// Returns why the run could not start, in the form that every failure has in documents.
fn refusal(report: &Report) -> Option<Value> {
    let error = report.errors.iter().find(|error| error.host.is_none())?;
    let code = crate::render::error_code(report, error.class);
    let help = (report.exit_code == ExitCode::Locked).then_some(WAIT_LOCK);
    Some(json!({"code": code, "message": error.message, "help": help}))
}

/// How many failed hosts are listed; the document has all.
const MOST_FAILED: usize = 20;

/// 0 if every host succeeded, 7 if the only failures are hosts that cannot be reached, 5 if they are hosts that another
/// run holds, else 1.
///
/// A run that was stopped or could not start has a code of its own.
fn exit_code(of_run: ExitCode, rows: &[&HostRow]) -> ExitCode {
    let is_failed =
        |row: &&&HostRow| matches!(row.status, Status::Failed | Status::Cancelled | Status::NotRun);
    let all_are = |class: ErrorClass| rows.iter().filter(is_failed).all(|row| row.class == Some(class));
    if of_run == ExitCode::Cancelled || rows.is_empty() {
        return of_run;
    }
    match rows.iter().filter(is_failed).count() {
        0 => ExitCode::Success,
        _ if all_are(ErrorClass::Unreachable) => ExitCode::Unreachable,
        _ if all_are(ErrorClass::Locked) => ExitCode::Locked,
        _ => ExitCode::Failed,
    }
}

fn error_of(row: &HostRow) -> String {
    row.error.clone().or_else(|| row.reason.clone()).unwrap_or_else(|| row.status.to_string())
}

fn command_row(row: &HostRow, written: &Written) -> Value {
    let text = |name: &str| row.data.as_ref().and_then(|data| data.get(name)).cloned().unwrap_or(json!(""));
    // Milliseconds are exact in a float of seconds up to many thousand years.
    #[expect(clippy::cast_precision_loss, reason = "a duration of one command is far below 2^53 ms")]
    let seconds = row.duration_ms as f64 / 1000.0;
    json!({
        "target": row.host, "rc": row.exit_code, "stdout": text("stdout"), "stderr": text("stderr"),
        "truncated": written.most(&row.host) > KEPT, "duration": seconds,
        "class": row.class, "error": row.error.clone().or_else(|| reason_of(row)),
    })
}

fn operation_row(row: &HostRow) -> Value {
    json!({
        "target": row.host, "status": row.status, "changed": row.changed, "data": row.data, "diff": row.diff,
        "class": row.class, "error": row.error.clone().or_else(|| reason_of(row)), "reason": row.reason,
        "duration_ms": row.duration_ms,
    })
}

/// Returns why a host was left out; why nothing had to be done is no error.
fn reason_of(row: &HostRow) -> Option<String> {
    row.reason.clone().filter(|_| matches!(row.status, Status::NotRun | Status::Skipped | Status::Cancelled))
}

fn facts(rows: &[&HostRow]) -> Value {
    let mut facts = Map::new();
    let mut unreachable = Vec::new();
    let mut errors = Map::new();
    for row in rows {
        match (&row.data, row.class) {
            (_, Some(ErrorClass::Unreachable)) => {
                unreachable.push(row.host.clone());
                errors.insert(row.host.to_string(), error_of(row).into());
            }
            (Some(data), None) => {
                facts.insert(row.host.to_string(), data.clone());
            }
            (Some(_) | None, _) => {
                errors.insert(row.host.to_string(), error_of(row).into());
            }
        }
    }
    let mut document = json!({"facts": facts, "unreachable": unreachable});
    if !errors.is_empty() {
        document["errors"] = errors.into();
    }
    document
}

fn say_operation(row: &HostRow, args: &ExecArgs, output: &Output) {
    let mut text = format!("{} {}", row.host, row.status);
    if let Some(reason) = row.reason.as_deref().filter(|_| row.status != Status::Failed) {
        text.push_str(&format!(": {}", one_line(reason)));
    }
    text.push('\n');
    if args.diff
        && let Some(difference) = &row.diff
    {
        diff::lines(difference).iter().for_each(|line| text.push_str(&format!("  {line}\n")));
    }
    output.out.print(&text);
}

fn say_facts(row: &HostRow, output: &Output) {
    if let (Some(data), None) = (&row.data, row.class) {
        output.out.print(&format!("{} {}", row.host, json::bare(data)));
    }
}

fn summary(rows: &[&HostRow], asked: Asked, report: &Report) -> String {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for row in rows {
        // Whether a command changed something is not known, and facts change nothing.
        let is_ok = matches!(row.status, Status::Changed | Status::Unchanged) && asked != Asked::Operation;
        let word = if row.class == Some(ErrorClass::Unreachable) {
            "unreachable"
        } else if is_ok {
            "ok"
        } else {
            row.status.as_str()
        };
        *counts.entry(word).or_default() += 1;
    }
    let order =
        ["ok"].into_iter().chain(Status::ALL.iter().map(|status| status.as_str())).chain(["unreachable"]);
    let parts: Vec<String> =
        order.filter_map(|word| counts.get(word).map(|count| format!("{count} {word}"))).collect();
    let noun = if rows.len() == 1 { "host" } else { "hosts" };
    let parts = if parts.is_empty() { String::new() } else { format!(": {}", parts.join(", ")) };
    format!("{} {noun}{parts} in {}", rows.len(), Short::from_millis(report.duration_ms))
}

#[cfg(test)]
mod tests {
    use stead_model::HostName;

    use super::*;

    fn row(host: &str, status: Status, class: Option<ErrorClass>) -> HostRow {
        HostRow {
            host: HostName::parse(host).unwrap(),
            status,
            changed: false,
            attempts: 1,
            class,
            error: class.map(|class| format!("it is {class}")),
            reason: None,
            exit_code: None,
            data: (status == Status::Unchanged).then(|| json!({"arch": "x86_64"})),
            diff: None,
            duration_ms: 1,
            parts: Vec::new(),
        }
    }

    /// Nodes, section 12: 0 if every one is well, 7 if the only trouble is that hosts are not reached, else 1.
    #[test]
    fn the_exit_code_tells_unreachable_hosts_from_failed_ones() {
        let ok = row("a", Status::Unchanged, None);
        let gone = row("b", Status::Failed, Some(ErrorClass::Unreachable));
        let failed = row("c", Status::Failed, Some(ErrorClass::Exit));
        let code = |rows: &[&HostRow]| exit_code(ExitCode::Failed, rows);
        assert_eq!(code(&[&ok]), ExitCode::Success);
        assert_eq!(code(&[&gone]), ExitCode::Unreachable);
        assert_eq!(code(&[&ok, &gone]), ExitCode::Unreachable);
        assert_eq!(code(&[&ok, &gone, &failed]), ExitCode::Failed);
        assert_eq!(code(&[&failed]), ExitCode::Failed);
        let held = row("d", Status::Failed, Some(ErrorClass::Locked));
        assert_eq!(code(&[&ok, &held]), ExitCode::Locked);
        assert_eq!(code(&[&gone, &held]), ExitCode::Failed);
        assert_eq!(exit_code(ExitCode::Locked, &[]), ExitCode::Locked);
        assert_eq!(exit_code(ExitCode::Cancelled, &[&failed]), ExitCode::Cancelled);
    }

    /// Section 5: the document of facts.
    #[test]
    fn facts_are_by_host_and_those_not_reached_are_named() {
        let rows = [
            row("a", Status::Unchanged, None),
            row("b", Status::Failed, Some(ErrorClass::Unreachable)),
            row("c", Status::Failed, Some(ErrorClass::Permanent)),
        ];
        let document = facts(&rows.iter().collect::<Vec<_>>());
        let expected = json!({"facts": {"a": {"arch": "x86_64"}}, "unreachable": ["b"],
            "errors": {"b": "it is unreachable", "c": "it is permanent"}});
        assert_eq!(document, expected);
        assert_eq!(facts(&[&rows[0]]), json!({"facts": {"a": {"arch": "x86_64"}}, "unreachable": []}));
    }
}
