//! Reports as JUnit, Markdown, JSON and summary.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use quick_xml::Reader;
use quick_xml::events::Event as Xml;
use stead_cli::output::Paint;
use stead_cli::render::{json, junit, markdown, summary};
use stead_model::event::{Counts, Mode};
use stead_model::plan::{Digest, Section};
use stead_model::report::{ErrorRow, HostRow, Report, Rollback, TaskRow, Warning, summarize};
use stead_model::time::Timestamp;
use stead_model::{Cause, ErrorClass, ExitCode, PlanName, RunId, RunStatus, Status};

use crate::events::{host, task};

const NASTY: &str = "bad <&\"'> \u{1}\u{1b}[31m\u{fffe} | `tick`\nline 2";

pub(crate) fn task_row(name: &str, status: Status) -> TaskRow {
    TaskRow {
        name: task(name),
        section: Section::Main,
        status,
        changed: status == Status::Changed,
        partial: false,
        cause: None,
        reason: None,
        class: None,
        error: None,
        attempts: 1,
        started_at: None,
        duration: Duration::from_millis(1_234),
        data: None,
        undo: None,
        prediction: None,
        step: None,
        hosts: Vec::new(),
    }
}

fn host_row(name: &str, status: Status, error: Option<&str>) -> HostRow {
    HostRow {
        host: host(name),
        status,
        changed: status == Status::Changed,
        attempts: 1,
        class: error.map(|_| ErrorClass::Exit),
        error: error.map(str::to_owned),
        reason: None,
        exit_code: None,
        data: None,
        diff: None,
        duration_ms: 12,
        parts: Vec::new(),
    }
}

pub(crate) fn report_of(status: RunStatus, tasks: Vec<TaskRow>) -> Report {
    let mut counts = Counts::default();
    tasks.iter().for_each(|row| counts.add(row.status));
    Report {
        schema: 1,
        run_id: Some(RunId::parse("2026-01-02_03-04-05.678-k3f9q2ma").unwrap()),
        bundle: Some(".stead/runs/2026-01-02_03-04-05.678-k3f9q2ma".to_owned()),
        plan: PlanName::parse("web").unwrap(),
        plan_hash: Digest::default(),
        mode: Mode::Run,
        status,
        exit_code: ExitCode::Failed,
        started_at: Timestamp::parse("2026-01-02T03:04:05.678901Z").unwrap(),
        finished_at: Timestamp::parse("2026-01-02T03:04:07.000000Z").unwrap(),
        duration_ms: 1_321,
        segments: 1,
        summary: summarize(counts, Mode::Run, 1_321),
        counts,
        tasks,
        errors: Vec::new(),
        warnings: Vec::new(),
        rollback: None,
        steps: None,
    }
}

fn mixed() -> Report {
    let mut failed = task_row("nasty", Status::Failed);
    failed.error = Some(NASTY.to_owned());
    failed.class = Some(ErrorClass::Exit);
    let mut hosts = task_row("fleet", Status::Changed);
    hosts.partial = true;
    hosts.hosts = vec![
        host_row("h2", Status::Changed, None),
        host_row("h1", Status::Failed, Some("no route")),
        host_row("h3", Status::Unchanged, None),
    ];
    let mut one_host = task_row("single", Status::Unchanged);
    one_host.hosts = vec![host_row("local", Status::Unchanged, None)];
    let mut skipped = task_row("later", Status::Skipped);
    skipped.cause = Some(Cause::Guard);
    skipped.reason = Some("guard is false: a | b".to_owned());
    let mut not_run = task_row("never", Status::NotRun);
    not_run.reason = Some("task nasty failed".to_owned());
    let tasks = vec![hosts, one_host, failed, skipped, task_row("stopped", Status::Cancelled), not_run];
    let mut report = report_of(RunStatus::Failed, tasks);
    report.errors = vec![
        ErrorRow {
            task: Some(task("nasty")),
            host: Some(host("local")),
            class: Some(ErrorClass::Exit),
            message: NASTY.to_owned(),
        },
        ErrorRow {
            task: None,
            host: None,
            class: Some(ErrorClass::Journal),
            message: "disk full".to_owned(),
        },
    ];
    report.warnings = vec![Warning::new("plan/never-runs", "x never runs")];
    report
}

/// Cases 15 and 28: host rows in target order; errors holding `<&"` and control bytes parse.
#[test]
fn junit_parses_and_has_a_case_per_task_or_host() {
    let xml = junit::to_xml(&mixed());
    let mut reader = Reader::from_str(&xml);
    let mut seen: Vec<(String, Vec<String>)> = Vec::new();
    loop {
        match reader.read_event().unwrap() {
            Xml::Eof => break,
            Xml::Start(element) | Xml::Empty(element) => {
                let tag = element.name().as_ref().to_owned();
                let attribute = |name: &str| {
                    let found = element.try_get_attribute(name).unwrap();
                    found.map(|found| {
                        found.normalized_value(quick_xml::XmlVersion::Implicit1_0).unwrap().into_owned()
                    })
                };
                match tag.as_str() {
                    "testcase" => seen.push((attribute("name").unwrap(), Vec::new())),
                    "testsuites" | "testsuite" => {
                        assert_eq!(attribute("tests").as_deref(), Some("8"));
                        assert_eq!(attribute("failures").as_deref(), Some("2"));
                        assert_eq!(attribute("errors").as_deref(), Some("1"));
                        assert_eq!(attribute("skipped").as_deref(), Some("2"));
                    }
                    _ => {
                        let message = attribute("message").unwrap();
                        seen.last_mut().unwrap().1.extend([tag, message]);
                    }
                }
            }
            Xml::End(_)
            | Xml::Text(_)
            | Xml::CData(_)
            | Xml::Comment(_)
            | Xml::Decl(_)
            | Xml::PI(_)
            | Xml::DocType(_)
            | Xml::GeneralRef(_) => {}
        }
    }
    let wanted: Vec<(&str, Vec<&str>)> = vec![
        ("fleet@h2", vec![]),
        ("fleet@h1", vec!["failure", "no route"]),
        ("fleet@h3", vec![]),
        ("single", vec![]),
        ("nasty", vec!["failure", "bad <&\"'> \u{fffd}\u{fffd}[31m\u{fffd} | `tick`\nline 2"]),
        ("later", vec!["skipped", "guard is false: a | b"]),
        ("stopped", vec!["error", "cancelled"]),
        ("never", vec!["skipped", "task nasty failed"]),
    ];
    let seen: Vec<(&str, Vec<&str>)> = seen
        .iter()
        .map(|(name, inner)| (name.as_str(), inner.iter().map(String::as_str).collect()))
        .collect();
    assert_eq!(seen, wanted);
}

#[test]
fn junit_is_well_formed_for_xmllint() {
    let child =
        Command::new("xmllint").args(["--noout", "-"]).stdin(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let Ok(mut child) = child else {
        eprintln!("xmllint is not installed: JUnit output was not checked with it");
        return;
    };
    child.stdin.take().unwrap().write_all(junit::to_xml(&mixed()).as_bytes()).unwrap();
    let result = child.wait_with_output().unwrap();
    assert!(result.status.success(), "{}", String::from_utf8_lossy(&result.stderr));
}

#[test]
fn markdown_tables_hold_any_text() {
    let mut report = mixed();
    report.rollback = Some(Rollback { done: vec![task("a")], failed: vec![], missing: vec![task("b")] });
    insta::assert_snapshot!(markdown::to_markdown(&report));
}

#[test]
fn the_summary_says_what_failed_and_what_to_do() {
    insta::assert_snapshot!(summary::to_text(&mixed(), Path::new("/"), Paint::None), @r#"
    failed: nasty: bad <&"'> �� | `tick` | line 2
    error[failed/journal]: disk full
    6 tasks: 1 changed, 1 unchanged, 1 skipped, 1 failed, 1 cancelled, 1 not_run
    Total duration: 1.3s
    Bundle: .stead/runs/2026-01-02_03-04-05.678-k3f9q2ma
    hint: stead resume 2026-01-02_03-04-05.678-k3f9q2ma
    "#);
    let success = report_of(RunStatus::Success, vec![task_row("a", Status::Changed)]);
    insta::assert_snapshot!(summary::to_text(&success, Path::new("/"), Paint::None), @r"
    1 task: 1 changed
    Total duration: 1.3s
    Bundle: .stead/runs/2026-01-02_03-04-05.678-k3f9q2ma
    ");
}

#[test]
fn a_run_that_was_rolled_back_is_not_to_be_resumed() {
    let mut report = mixed();
    report.rollback = Some(Rollback::default());
    assert!(!summary::to_text(&report, Path::new("/"), Paint::None).contains("stead resume"));
}

#[test]
fn the_json_report_reads_back() {
    let report = mixed();
    let text = json::report(&report);
    assert!(text.ends_with("}\n"));
    assert_eq!(serde_json::from_str::<Report>(&text).unwrap(), report);
}
