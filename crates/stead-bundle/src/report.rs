//! What a run was, on one page: outcome, phases, roles, warnings, last words and captures. Any kind, any state.
//!
//! Reads generously: a bundle of a run that died has less to show, and what is there is shown.

use std::collections::{BTreeMap, VecDeque};
use std::io::Read;
use std::path::Path;

use serde::Serialize;
use serde_json::Value;
use stead_model::time::Timestamp;

use crate::analysis::{
    AnalysisOptions, CaptureError, Drops, Summary, analyze_bundle, recorded_ports, summary_sections,
};
use crate::layout::{REPORT, RUN_META, shown};
use crate::list::parsed;
use crate::roles::{RoleFiles, in_role, is_role_meta, roles_of};
use crate::sections::{Section, Style, render};
use crate::source::{Files, Source, read_held};
use crate::stored::LoadError;

const SUMMARY: &str = "analysis/summary.json";
/// How many bytes a failed role's last lines are searched in.
const TAIL: usize = 64 << 10;
/// What is held of metadata, at most.
const MOST_METADATA: u64 = 64 << 20;

/// The report of one bundle. Its JSON form is what `bundle report --json` prints.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RunReport {
    /// Version of this format: 1.
    pub schema: u32,
    /// The bundle.
    pub path: String,
    /// The run.
    pub run_id: Option<String>,
    /// Which front door; null in bundles of CIPDIP.
    pub kind: Option<String>,
    /// How it ended.
    pub status: String,
    /// What the process exited with.
    pub exit_code: Option<i64>,
    /// When it began.
    pub started_at: Option<String>,
    /// How long it took.
    pub duration_seconds: Option<f64>,
    /// What ended it.
    pub ended_by: Option<String>,
    /// The phase that failed.
    pub failed_phase: Option<String>,
    /// Why it failed.
    pub error: Option<String>,
    /// Phases, or tasks, in plan order.
    pub phases: Vec<PhaseRow>,
    /// Each role.
    pub roles: BTreeMap<String, RoleRow>,
    /// What a person should know.
    pub warnings: Vec<ReportWarning>,
    /// The captures, if they were analysed.
    pub analysis: Option<Summary>,
    /// Whether packets of the client are missing at the server.
    pub drops: Option<Drops>,
}

/// One phase or task.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct PhaseRow {
    /// Its name.
    pub name: String,
    /// How it ended.
    pub status: String,
    /// How long it took.
    pub duration_seconds: Option<f64>,
    /// Why it failed.
    pub error: Option<String>,
}

/// One role.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct RoleRow {
    /// `service` or `task`.
    pub kind: Option<String>,
    /// Where it ran.
    pub agent_id: Option<String>,
    /// How it ended.
    pub status: Option<String>,
    /// What it exited with.
    pub exit_code: Option<i64>,
    /// The signal that ended it.
    pub signal: Option<String>,
    /// How long it ran.
    pub duration_seconds: Option<f64>,
    /// How many artifacts it left.
    pub artifacts: u64,
    /// The last lines it wrote to standard error, if it failed.
    pub stderr_tail: Vec<String>,
}

/// A warning.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ReportWarning {
    /// A stable word.
    pub code: String,
    /// One sentence.
    pub text: String,
    /// The role it is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
}

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// The bundle cannot be read.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// Captures cannot be analysed.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Captures(Vec<CaptureError>),
}

/// Returns the report of the bundle at `path`, a directory or an archive.
///
/// The recorded analysis is shown, or with `analysis`, options and how many captures are read at a time, a fresh one.
pub fn report(path: &Path, analysis: Option<(&AnalysisOptions, usize)>) -> Result<RunReport, ReportError> {
    let source = Source::open(path)?;
    let (files, mut roles) = read(&source)?;
    let meta = parsed(&source, &files, RUN_META)?;
    let meta = meta.ok_or_else(|| LoadError::NotABundle { path: path.to_owned() })?;
    let summary = match analysis {
        None => recorded(&files),
        Some((options, jobs)) => {
            let mut options = options.clone();
            options.ports.extend(recorded_ports(path)?);
            let summary = analyze_bundle(path, &options, jobs).map_err(ReportError::Captures)?;
            (!summary.roles.is_empty()).then_some(summary)
        }
    };
    for role in roles.values_mut().filter(|role| !has_failed(role)) {
        role.stderr_tail.clear();
    }
    let text = |key: &str| meta.get(key).and_then(Value::as_str).map(str::to_owned);
    Ok(RunReport {
        schema: 1,
        path: shown(path).into_owned(),
        run_id: text("run_id"),
        kind: text("kind"),
        status: text("status").unwrap_or_else(|| "unknown".to_owned()),
        exit_code: meta.get("exit_code").and_then(Value::as_i64),
        started_at: text("started_at"),
        duration_seconds: meta.get("duration_seconds").and_then(Value::as_f64),
        ended_by: text("ended_by"),
        failed_phase: text("failed_phase"),
        error: text("error"),
        phases: phases(&meta, &files),
        roles,
        warnings: warnings(&meta),
        drops: summary.as_ref().and_then(|summary| summary.compare.as_ref()?.drops()),
        analysis: summary,
    })
}

/// Returns the metadata of a bundle, and its roles with the end of their standard error.
fn read(source: &Source) -> Result<(Files, BTreeMap<String, RoleRow>), LoadError> {
    let own = [RUN_META, REPORT, SUMMARY];
    let mut files = Files::new();
    let mut left = MOST_METADATA;
    let mut tails = BTreeMap::new();
    let listing = source.visit(&mut |path, _, content| {
        if is_role_meta(path) || own.iter().any(|name| path == Path::new(name)) {
            files.insert(path.to_owned(), read_held(content, &mut left));
        } else if let Some((role, name)) = in_role(path)
            && name == Path::new("stderr.log")
        {
            tails.insert(shown(role).into_owned(), last_lines(content));
        }
    })?;
    let roles = roles_of(&files, &listing).into_iter().map(|(name, files)| {
        let tail = tails.remove(&name).unwrap_or_default();
        (name, role_row(&files, tail))
    });
    Ok((files, roles.collect()))
}

/// Returns the last lines of `content`, which may be endless.
fn last_lines(content: &mut dyn Read) -> Vec<String> {
    let mut tail: VecDeque<u8> = VecDeque::new();
    let mut buffer = vec![0; TAIL];
    while let Ok(len @ 1..) = content.read(&mut buffer) {
        tail.extend(&buffer[..len]);
        tail.drain(..tail.len().saturating_sub(TAIL));
    }
    let text = String::from_utf8_lossy(tail.make_contiguous()).into_owned();
    stead_model::tail::last_lines(&text).into_iter().map(str::to_owned).collect()
}

fn role_row(files: &RoleFiles, stderr_tail: Vec<String>) -> RoleRow {
    let empty = Value::Null;
    let meta = files.meta.as_ref().unwrap_or(&empty);
    let text = |key: &str| meta.get(key).and_then(Value::as_str).map(str::to_owned);
    RoleRow {
        kind: text("kind"),
        agent_id: text("agent_id"),
        status: text("status"),
        exit_code: meta.get("exit_code").and_then(Value::as_i64),
        signal: text("signal"),
        duration_seconds: seconds_between(meta),
        artifacts: files.artifacts().count() as u64,
        stderr_tail,
    }
}

fn has_failed(role: &RoleRow) -> bool {
    match role.status.as_deref() {
        Some(status) => !matches!(status, "success" | "not_started"),
        // Bundles of CIPDIP have exit codes only.
        None => role.exit_code.is_some_and(|code| code != 0),
    }
}

fn seconds_between(value: &Value) -> Option<f64> {
    let time = |key: &str| Timestamp::parse(value.get(key)?.as_str()?);
    let micros = time("finished_at")?.as_micros().checked_sub(time("started_at")?.as_micros())?;
    Some(micros as f64 / 1e6)
}

/// Returns the phases of a run of roles, or the tasks of any other.
fn phases(meta: &Value, files: &Files) -> Vec<PhaseRow> {
    let list = |value: Option<&Value>| value.and_then(Value::as_array).cloned().unwrap_or_default();
    let row = |phase: &Value, duration_seconds: Option<f64>| {
        let text = |key: &str| phase.get(key).and_then(Value::as_str).map(str::to_owned);
        let (name, status) = (text("name").unwrap_or_default(), text("status").unwrap_or_default());
        PhaseRow { name, status, duration_seconds, error: text("error") }
    };
    if meta.get("phases").is_some() {
        return list(meta.get("phases")).iter().map(|phase| row(phase, seconds_between(phase))).collect();
    }
    let report = files.get(Path::new(REPORT)).and_then(|read| read.as_ref().ok());
    let report = report.and_then(|bytes| serde_json::from_slice::<Value>(bytes).ok());
    let tasks = list(report.as_ref().and_then(|report| report.get("tasks")));
    let seconds = |task: &Value| task.get("duration_ms").and_then(Value::as_f64).map(|millis| millis / 1e3);
    tasks.iter().map(|task| row(task, seconds(task))).collect()
}

fn warnings(meta: &Value) -> Vec<ReportWarning> {
    let list = meta.get("warnings").and_then(Value::as_array).into_iter().flatten();
    list.map(|warning| {
        let text = |key: &str| warning.get(key).and_then(Value::as_str).map(str::to_owned);
        // In a bundle of another program a warning may be a sentence.
        let sentence = text("text").or_else(|| warning.as_str().map(str::to_owned));
        ReportWarning {
            code: text("code").unwrap_or_default(),
            text: sentence.unwrap_or_default(),
            role: text("role"),
        }
    })
    .collect()
}

fn recorded(files: &Files) -> Option<Summary> {
    let bytes = files.get(Path::new(SUMMARY))?.as_ref().ok()?;
    serde_json::from_slice(bytes).ok()
}

impl RunReport {
    /// Returns the report for people.
    pub fn render(&self, style: Style) -> String {
        let mut sections = vec![self.overview(), self.phase_table(), self.role_table(), self.warning_table()];
        for (name, role) in self.roles.iter().filter(|(_, role)| !role.stderr_tail.is_empty()) {
            let section = Section::new(format!("Last lines of {name} on standard error"), &[]);
            sections.push(section.verbatim(role.stderr_tail.join("\n")));
        }
        sections.extend(self.analysis.iter().flat_map(summary_sections));
        render(&format!("Run {}", self.run_id.as_deref().unwrap_or("unknown")), &sections, style)
    }

    fn overview(&self) -> Section {
        let mut section = Section::new("Overview", &["what", "value"]);
        let mut row = |what: &str, value: Option<String>| {
            if let Some(value) = value {
                section.row([what.to_owned(), value]);
            }
        };
        row("kind", self.kind.clone());
        row("status", Some(self.status.clone()));
        row("exit code", self.exit_code.map(|code| code.to_string()));
        row("started", self.started_at.clone());
        row("duration", self.duration_seconds.map(seconds));
        row("ended by", self.ended_by.clone());
        row("failed phase", self.failed_phase.clone());
        row("error", self.error.as_deref().map(first_line));
        section
    }

    fn phase_table(&self) -> Section {
        let title = if self.kind.as_deref() == Some("run") { "Phases" } else { "Tasks" };
        let mut section = Section::new(title, &["name", "status", "duration", "error"]);
        for phase in &self.phases {
            let duration = phase.duration_seconds.map_or_else(unknown, seconds);
            let error = phase.error.as_deref().map(first_line).unwrap_or_default();
            section.row([phase.name.clone(), phase.status.clone(), duration, error]);
        }
        section
    }

    fn role_table(&self) -> Section {
        let head = ["role", "kind", "agent", "status", "exit", "duration", "artifacts"];
        let mut section = Section::new("Roles", &head);
        for (name, role) in &self.roles {
            let exit = role.signal.as_ref().map(|signal| format!("signal {signal}"));
            let exit = exit.or_else(|| role.exit_code.map(|code| code.to_string()));
            section.row([
                name.clone(),
                role.kind.clone().unwrap_or_else(unknown),
                role.agent_id.clone().unwrap_or_else(unknown),
                role.status.clone().unwrap_or_else(unknown),
                exit.unwrap_or_else(unknown),
                role.duration_seconds.map_or_else(unknown, seconds),
                role.artifacts.to_string(),
            ]);
        }
        section
    }

    fn warning_table(&self) -> Section {
        let mut section = Section::new("Warnings", &["code", "role", "text"]);
        for warning in &self.warnings {
            let role = warning.role.clone().unwrap_or_else(unknown);
            section.row([warning.code.clone(), role, warning.text.clone()]);
        }
        section
    }
}

/// Returns what fits a cell of an error: what follows are lines of standard error, which have a section of their own.
fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().to_owned()
}

fn unknown() -> String {
    "-".to_owned()
}

fn seconds(seconds: f64) -> String {
    format!("{seconds:.3} s")
}
