//! The report as Markdown tables.

use std::fmt::Write as _;

use stead_model::duration::Short;
use stead_model::report::TaskRow;
use stead_model::{Report, Status};

use super::plain::explanation;
use super::text;

/// Returns the document.
pub fn to_markdown(report: &Report) -> String {
    let mut out = String::new();
    let written = write_document(&mut out, report);
    debug_assert!(written.is_ok(), "writing to memory does not fail");
    out
}

fn write_document(out: &mut String, report: &Report) -> std::fmt::Result {
    writeln!(out, "# {}: {}\n", cell(report.plan.as_str()), report.status)?;
    for line in report.summary().lines() {
        writeln!(out, "{}  ", cell(line))?;
    }
    if let Some(run) = &report.run_id {
        writeln!(out, "Run: {}  ", cell(run.as_str()))?;
    }
    writeln!(out, "\n| task | status | changed | attempts | duration | detail |")?;
    writeln!(out, "|---|---|---|---:|---:|---|")?;
    for row in report.tasks() {
        let partial = if row.partial { " (partial)" } else { "" };
        let changed = if row.changed { "yes" } else { "no" };
        let detail = detail(row.status, row.error.as_deref(), row.reason.as_deref());
        let (name, attempts, duration) = (cell(row.name.as_str()), row.attempts, Short(row.duration));
        writeln!(
            out,
            "| {name} | {}{partial} | {changed} | {attempts} | {duration} | {detail} |",
            row.status
        )?;
    }
    for row in report.tasks().iter().filter(|row| row.hosts.len() > 1) {
        write_hosts(out, row)?;
    }
    if !report.errors.is_empty() {
        writeln!(out, "\n## Errors\n\n| task | host | class | error |\n|---|---|---|---|")?;
        for error in &report.errors {
            let task = error.task.as_ref().map_or("", |task| task.as_str());
            let host = error.host.as_ref().map_or("", |host| host.as_str());
            let class = error.class.map_or("", |class| class.as_str());
            writeln!(out, "| {} | {} | {class} | {} |", cell(task), cell(host), cell(&error.message))?;
        }
    }
    if !report.warnings.is_empty() {
        writeln!(out, "\n## Warnings\n\n| code | text |\n|---|---|")?;
        for warning in &report.warnings {
            writeln!(out, "| {} | {} |", cell(&warning.code), cell(&warning.text))?;
        }
    }
    if let Some(rollback) = &report.rollback {
        writeln!(out, "\n## Rollback\n\n| task | undo |\n|---|---|")?;
        for (word, tasks) in
            [("done", &rollback.done), ("failed", &rollback.failed), ("missing", &rollback.missing)]
        {
            for task in tasks {
                writeln!(out, "| {} | {word} |", cell(task.as_str()))?;
            }
        }
    }
    Ok(())
}

fn write_hosts(out: &mut String, row: &TaskRow) -> std::fmt::Result {
    writeln!(out, "\n## {}\n", cell(row.name.as_str()))?;
    writeln!(out, "| host | status | changed | attempts | duration | detail |")?;
    writeln!(out, "|---|---|---|---:|---:|---|")?;
    for host in &row.hosts {
        let changed = if host.changed { "yes" } else { "no" };
        let detail = detail(host.status, host.error.as_deref(), host.reason.as_deref());
        let (name, attempts, duration) =
            (cell(host.host.as_str()), host.attempts, Short::from_millis(host.duration_ms));
        writeln!(out, "| {name} | {} | {changed} | {attempts} | {duration} | {detail} |", host.status)?;
    }
    Ok(())
}

fn detail(status: Status, error: Option<&str>, reason: Option<&str>) -> String {
    cell(explanation(status, error, reason).unwrap_or_default())
}

/// Returns `text` as it must stand in a cell to be read as it is: one line, nothing of it Markdown.
fn cell(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    let mut lines = text.trim_end().lines();
    if let Some(first) = lines.next() {
        escape_line(first, &mut escaped);
    }
    for line in lines {
        escaped.push_str("<br>");
        escape_line(line, &mut escaped);
    }
    escaped
}

fn escape_line(line: &str, escaped: &mut String) {
    let line = text::clean(line);
    let mut before = ' ';
    let mut chars = line.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            // Inside a word it means nothing, and names are full of it.
            '_' if before.is_alphanumeric() && chars.peek().is_some_and(|next| next.is_alphanumeric()) => {
                escaped.push(c);
            }
            '|' | '`' | '*' | '_' | '\\' | '[' | ']' | '~' | '#' => {
                escaped.push('\\');
                escaped.push(c);
            }
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '&' => escaped.push_str("&amp;"),
            c => escaped.push(c),
        }
        before = c;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_hold_any_text() {
        assert_eq!(cell("a|b `c`\nd\x07"), "a\\|b \\`c\\`<br>d\u{fffd}");
        assert_eq!(cell("<script>&"), "&lt;script&gt;&amp;");
        assert_eq!(cell("not_run _x_"), "not_run \\_x\\_");
        assert_eq!(cell(""), "");
    }
}
