//! The report as JUnit XML: one testcase per task, or per task and host where there are several.

use std::fmt::Write as _;

use stead_model::report::{HostRow, TaskRow};
use stead_model::{ErrorClass, Report, Status};

/// One testcase.
struct Case {
    name: String,
    status: Status,
    millis: u64,
    class: Option<ErrorClass>,
    message: String,
}

/// Returns the document.
pub fn to_xml(report: &Report) -> String {
    let cases: Vec<Case> = report.tasks().iter().flat_map(cases_of).collect();
    let count = |wanted: &[Status]| cases.iter().filter(|case| wanted.contains(&case.status)).count();
    let counts = format!(
        "tests=\"{}\" failures=\"{}\" errors=\"{}\" skipped=\"{}\" time=\"{}\"",
        cases.len(),
        count(&[Status::Failed]),
        count(&[Status::Cancelled]),
        count(&[Status::Skipped, Status::NotRun, Status::Unknown]),
        seconds(report.duration_ms)
    );
    let plan = escape(report.plan.as_str());
    let mut xml = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
    let written = write_document(&mut xml, report, &cases, &plan, &counts);
    debug_assert!(written.is_ok(), "writing to memory does not fail");
    xml
}

fn write_document(
    xml: &mut String,
    report: &Report,
    cases: &[Case],
    plan: &str,
    counts: &str,
) -> std::fmt::Result {
    writeln!(xml, "<testsuites name=\"{plan}\" {counts}>")?;
    writeln!(xml, "  <testsuite name=\"{plan}\" {counts} timestamp=\"{}\">", report.started_at)?;
    for case in cases {
        let name = escape(&case.name);
        write!(xml, "    <testcase classname=\"{plan}\" name=\"{name}\" time=\"{}\"", seconds(case.millis))?;
        let message = escape(&case.message);
        match case.status {
            Status::Changed | Status::Unchanged => writeln!(xml, "/>")?,
            Status::Failed | Status::Cancelled => {
                let element = if case.status == Status::Failed { "failure" } else { "error" };
                let kind = case.class.map_or(case.status.as_str(), ErrorClass::as_str);
                writeln!(xml, ">")?;
                writeln!(
                    xml,
                    "      <{element} message=\"{message}\" type=\"{kind}\">{message}</{element}>"
                )?;
                writeln!(xml, "    </testcase>")?;
            }
            Status::Skipped | Status::NotRun | Status::Unknown => {
                writeln!(xml, ">")?;
                writeln!(xml, "      <skipped message=\"{message}\"/>")?;
                writeln!(xml, "    </testcase>")?;
            }
        }
    }
    writeln!(xml, "  </testsuite>")?;
    writeln!(xml, "</testsuites>")
}

fn cases_of(row: &TaskRow) -> Vec<Case> {
    if row.hosts.len() > 1 {
        return row.hosts.iter().map(|host| host_case(row, host)).collect();
    }
    let millis = u64::try_from(row.duration.as_millis()).unwrap_or(u64::MAX);
    let message = message(row.status, row.error.as_deref(), row.reason.as_deref());
    vec![Case { name: row.name.to_string(), status: row.status, millis, class: row.class, message }]
}

fn host_case(row: &TaskRow, host: &HostRow) -> Case {
    Case {
        name: format!("{}@{}", row.name, host.host),
        status: host.status,
        millis: host.duration_ms,
        class: host.class,
        message: message(host.status, host.error.as_deref(), host.reason.as_deref()),
    }
}

fn message(status: Status, error: Option<&str>, reason: Option<&str>) -> String {
    super::plain::explanation(status, error, reason).unwrap_or(status.as_str()).to_owned()
}

fn seconds(millis: u64) -> String {
    format!("{}.{:03}", millis / 1_000, millis % 1_000)
}

/// Returns `text` for an attribute or element. What XML 1.0 cannot hold, not even escaped, is replaced.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '&' => escaped.push_str("&amp;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&apos;"),
            // Literal ones would be normalised to spaces in an attribute.
            '\n' => escaped.push_str("&#10;"),
            '\r' => escaped.push_str("&#13;"),
            '\t' => escaped.push_str("&#9;"),
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => escaped.push('\u{fffd}'),
            c => escaped.push(c),
        }
    }
    escaped
}
