//! What is printed of a run of nodes: one document for programs, a table for people.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use stead_engine::compile::nodes::{NodeAction, NodesVerb};
use stead_model::diagnostic::Place;
use stead_model::node::{NodeChange, NodeStatus};
use stead_model::report::TaskRow;
use stead_model::site::manifest::Mode;
use stead_model::{
    Diagnostic, Diagnostics, ErrorClass, ExitCode, NodeName, Report, Severity, Status, TaskName,
};

use super::act::Prepared;
use super::load::{Loaded, Note, RemovedToo};
use super::seen::Seen;
use crate::commands::validate;
use crate::failure::{Failure, Source};
use crate::output::{Paint, Style};

/// What became of a node.
pub(super) struct NodeRow {
    name: NodeName,
    status: NodeStatus,
    error: Option<String>,
    change: Option<NodeChange>,
    mode: &'static str,
    parent: Option<NodeName>,
    depth: usize,
    spec_digest: Option<String>,
}

/// Returns a row for every node, in the order of creation; for destroy in the reverse.
pub(super) fn rows(prepared: &Prepared, report: Option<&Report>, seen: &Seen) -> Vec<NodeRow> {
    let loaded = &prepared.loaded;
    let tasks: BTreeMap<&str, &TaskRow> =
        report.iter().flat_map(|report| &report.tasks).map(|row| (row.name.as_str(), row)).collect();
    let trees = loaded.forest.trees();
    let hosts = loaded.hosts_of_roots();
    let mut rows: Vec<NodeRow> = Vec::new();
    for &index in loaded.forest.order() {
        let node = &loaded.forest.nodes[index];
        if prepared.verb == NodesVerb::Destroy && prepared.orphans.contains(&node.name) {
            // It is not where the manifest has it.
            continue;
        }
        let known = &loaded.checked.nodes[index];
        let root = &loaded.forest.nodes[trees[index]].name;
        let change = seen.of(&node.name);
        let failure = || seen.failure(&node.name);
        let (status, error) = match (loaded.selection.selected[index], hosts.get(root), node.parent) {
            (false, _, _) => (NodeStatus::Skipped, Some("not selected".to_owned())),
            (true, Some(host), _) => {
                inner_status(prepared.verb, &format!("host_{host}"), change.as_ref(), failure(), &tasks)
            }
            (true, None, None) => level_status(prepared.verb, &node.name, &tasks),
            (true, None, Some(_)) => {
                inner_status(prepared.verb, &format!("{root}.children"), change.as_ref(), failure(), &tasks)
            }
        };
        rows.push(NodeRow {
            name: node.name.clone(),
            status,
            error,
            change,
            mode: known.modes.config.word(),
            parent: node.parent.map(|parent| loaded.forest.nodes[parent].name.clone()),
            depth: node.depth,
            spec_digest: known.spec_digest.clone(),
        });
    }
    if prepared.verb == NodesVerb::Destroy {
        for removed in &prepared.removed_too {
            let change = seen.of(&removed.name);
            let (status, error) = match removed.whom == removed.name.as_str() {
                true => level_status(prepared.verb, &removed.name, &tasks),
                false => inner_status(prepared.verb, &removed.whom, change.as_ref(), None, &tasks),
            };
            rows.push(NodeRow {
                name: removed.name.clone(),
                status,
                error,
                change,
                mode: removed.mode.word(),
                parent: removed.parent.clone(),
                depth: removed.depth,
                spec_digest: None,
            });
        }
        rows.reverse();
    }
    rows
}

type Ending = (NodeStatus, Option<String>);

/// Returns how a node of this level ended, by its tasks.
fn level_status(verb: NodesVerb, name: &NodeName, tasks: &BTreeMap<&str, &TaskRow>) -> Ending {
    let phases: &[&str] = match verb {
        NodesVerb::Create => &["create", "config", "hosting"],
        NodesVerb::Destroy => &["destroy"],
        NodesVerb::Test => &["create", "config", "hosting", "verify", "destroy"],
        NodesVerb::Verify => &["verify"],
    };
    let own: Vec<&TaskRow> =
        phases.iter().filter_map(|phase| tasks.get(format!("{name}.{phase}").as_str()).copied()).collect();
    let ended = match verb {
        NodesVerb::Create | NodesVerb::Verify => NodeStatus::Completed,
        NodesVerb::Destroy | NodesVerb::Test => NodeStatus::Destroyed,
    };
    if own.is_empty() {
        return (NodeStatus::Pending, None);
    }
    let broken = own.iter().find(|row| matches!(row.status, Status::Failed | Status::Cancelled));
    if let Some(row) = broken {
        let error = match row.status {
            Status::Cancelled => Some("cancelled".to_owned()),
            Status::Changed
            | Status::Unchanged
            | Status::Skipped
            | Status::Failed
            | Status::NotRun
            | Status::Unknown => row.error.clone(),
        };
        return (NodeStatus::Failed, error);
    }
    if own.first().is_some_and(|row| row.undo == Some(Status::Changed)) {
        return (NodeStatus::Destroyed, None);
    }
    let skipped = own.iter().find(|row| row.status == Status::Skipped);
    if let Some(row) = skipped.filter(|_| verb != NodesVerb::Test) {
        return (NodeStatus::Skipped, row.reason.clone());
    }
    let unstarted = own.iter().filter(|row| row.status == Status::NotRun).count();
    let is_gone = own.last().is_some_and(|row| matches!(row.status, Status::Changed | Status::Unchanged));
    match unstarted {
        0 => (ended, None),
        // A test removes what was made, however far it came.
        _ if verb == NodesVerb::Test && is_gone => (ended, None),
        all if all == own.len() => (NodeStatus::Pending, None),
        _ => (NodeStatus::Failed, Some("cancelled".to_owned())),
    }
}

/// Returns how a node ended that another machine made: as its own run said, or as the task of `whom` that had it done.
fn inner_status(
    verb: NodesVerb,
    whom: &str,
    change: Option<&NodeChange>,
    failure: Option<String>,
    tasks: &BTreeMap<&str, &TaskRow>,
) -> Ending {
    let makes = matches!(verb, NodesVerb::Create | NodesVerb::Test);
    if let Some(change) = change {
        // That it was removed afterwards does not make it good.
        if makes && change.entry.status == NodeStatus::Destroyed && failure.is_some() {
            return (NodeStatus::Failed, failure);
        }
        return (change.entry.status, change.entry.error.clone());
    }
    let task = match verb {
        NodesVerb::Create | NodesVerb::Test => format!("{whom}.create"),
        NodesVerb::Destroy => format!("{whom}.destroy"),
        NodesVerb::Verify => format!("{whom}.verify"),
    };
    let Some(row) = tasks.get(task.as_str()) else { return (NodeStatus::Pending, None) };
    match row.status {
        Status::NotRun | Status::Unknown => (NodeStatus::Pending, None),
        Status::Skipped => (NodeStatus::Skipped, row.reason.clone()),
        Status::Failed | Status::Cancelled => {
            (NodeStatus::Skipped, row.error.clone().or_else(|| Some("cancelled".to_owned())))
        }
        Status::Changed | Status::Unchanged => match verb {
            NodesVerb::Create | NodesVerb::Verify => (NodeStatus::Completed, None),
            NodesVerb::Destroy | NodesVerb::Test => (NodeStatus::Destroyed, None),
        },
    }
}

impl NodeRow {
    fn to_json(&self) -> Value {
        let entry = self.change.as_ref().map(|change| &change.entry);
        let mut row = json!({
            "name": self.name, "status": self.status,
            "changed": self.change.as_ref().is_some_and(|change| change.changed),
            "mode": self.mode, "parent": self.parent, "depth": self.depth,
        });
        let duration = self.change.as_ref().and_then(|change| change.duration_ms);
        let spec_digest =
            entry.and_then(|entry| entry.spec_digest.clone()).or_else(|| self.spec_digest.clone());
        let optional = [
            ("vm_id", entry.and_then(|entry| entry.vm_id).map(|id| json!(id))),
            ("ip", entry.and_then(|entry| entry.ip.clone()).map(|ip| json!(ip))),
            ("spec_digest", spec_digest.map(|digest| json!(digest))),
            ("state_digest", entry.and_then(|entry| entry.state_digest.clone()).map(|digest| json!(digest))),
            ("duration", duration.map(|millis| json!(seconds(millis)))),
            ("error", self.error.as_ref().map(|error| json!(error))),
        ];
        for (key, value) in optional {
            if let Some(value) = value {
                row[key] = value;
            }
        }
        row
    }
}

fn seconds(millis: u64) -> f64 {
    // Milliseconds of a run are far below what a float counts exactly.
    #[expect(clippy::cast_precision_loss)]
    let seconds = millis as f64 / 1000.0;
    seconds
}

/// Returns the document of a run that has ended.
pub(super) fn of_run(prepared: &Prepared, report: &Report, seen: &Seen) -> Value {
    let success = report.exit_code == ExitCode::Success;
    let nodes: Vec<Value> = rows(prepared, Some(report), seen).iter().map(NodeRow::to_json).collect();
    let mut document = head(prepared.verb, &prepared.loaded, success, false);
    document["exit_code"] = json!(report.exit_code);
    document["run"] = json!(report.run_id);
    document["bundle"] = json!(report.bundle);
    document["duration_seconds"] = json!(seconds(report.duration_ms));
    document["nodes"] = Value::Array(nodes);
    if let Some(path) = seen.report() {
        document["report"] = json!(path);
    }
    let notes = &prepared.loaded.notes;
    document["diagnostics"] =
        report.warnings.iter().map(|warning| warning_row(notes, &warning.code, &warning.text)).collect();
    if !success {
        let first = report.errors.first().map(|error| error.message.clone());
        let message = first.unwrap_or_else(|| format!("the run ended as {}", report.status));
        let help = help_of(prepared, report);
        document["error"] = json!({"code": code_of(report.exit_code), "message": message, "help": help});
        if let Some(list) = document["diagnostics"].as_array_mut() {
            list.extend(report.errors.iter().map(|error| {
                let path = error.task.as_ref().map_or("", TaskName::as_str);
                placeless("node/failed", Severity::Error, path, &error.message)
            }));
        }
    }
    document
}

/// Returns what to do about a run that failed, by its first error.
fn help_of(prepared: &Prepared, report: &Report) -> String {
    match report.errors.first().and_then(|error| error.class) {
        Some(ErrorClass::Permanent | ErrorClass::Invalid) => {
            "do what the message says: until then the same command fails the same way".to_owned()
        }
        Some(ErrorClass::Journal) => unrecorded_help(prepared),
        Some(_) | None => "the same command goes on where it stopped".to_owned(),
    }
}

/// Returns what to do about a run that could not be written down.
fn unrecorded_help(prepared: &Prepared) -> String {
    let runs = prepared.loaded.state_dir.join("runs");
    format!(
        "what a run does is written down first: make room for that, or let it be written; runs that have ended may be \
         removed from {}, then the same command goes on",
        runs.display()
    )
}

/// Returns the line with what to do about a run that did not begin because it could not be written down; nothing for others.
pub(super) fn unrecorded_hint(prepared: &Prepared, report: &Report) -> String {
    let is_unrecorded = report.errors.iter().any(|error| error.class == Some(ErrorClass::Journal));
    if is_unrecorded { format!("  = help: {}\n", unrecorded_help(prepared)) } else { String::new() }
}

/// Returns the document of a dry run.
pub(super) fn of_plan(prepared: &Prepared) -> Value {
    let nodes: Vec<Value> = rows(prepared, None, &Seen::default()).iter().map(NodeRow::to_json).collect();
    let mut document = head(prepared.verb, &prepared.loaded, true, true);
    document["nodes"] = Value::Array(nodes);
    document["plan"] = Value::Array(plan_rows(prepared));
    let notes = &prepared.loaded.notes;
    document["diagnostics"] = notes.iter().map(|note| warning_row(notes, note.code, &note.text)).collect();
    document
}

/// Returns what is done, in order: of the nodes that the manifest has, and of those that are removed although it does not.
fn plan_rows(prepared: &Prepared) -> Vec<Value> {
    let loaded = &prepared.loaded;
    let task = |removed: &RemovedToo| format!("{}.destroy", removed.name);
    let of_removed = |removed: &RemovedToo| {
        json!({
            "task": task(removed), "node": removed.name, "phase": "destroy", "mode": Mode::Push.word(),
            "action": NodeAction::Remove.word(), "at": removed.at, "depends_on": [],
        })
    };
    let Value::Array(described) = loaded.rows.to_json(&loaded.forest, &loaded.hosts_of_roots()) else {
        return Vec::new();
    };
    let mut inner: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for removed in &prepared.removed_too {
        inner.entry(removed.parent.as_ref().map_or("", NodeName::as_str)).or_default().push(task(removed));
    }
    // One that is not where the manifest has it is removed where it is.
    let moved: BTreeSet<&str> = prepared.removed_too.iter().map(|removed| removed.name.as_str()).collect();
    let described =
        described.into_iter().filter(|row| !row["node"].as_str().is_some_and(|name| moved.contains(name)));
    let mut rows: Vec<Value> = prepared.removed_too.iter().rev().map(of_removed).chain(described).collect();
    for row in rows.iter_mut().filter(|row| row["phase"] == "destroy") {
        let before = row["node"].as_str().and_then(|name| inner.remove(name)).unwrap_or_default();
        if let Some(depends_on) = row["depends_on"].as_array_mut() {
            depends_on.extend(before.into_iter().map(Value::from));
        }
    }
    rows
}

/// Returns a warning as `validate` shows problems: with its place, if it is one of the `notes` about a file.
fn warning_row(notes: &[Note], code: &str, text: &str) -> Value {
    let note = notes.iter().find(|note| note.code == code && note.text == text);
    let Some(problem) = note.and_then(|note| note.problem.as_ref()) else {
        return placeless(code, Severity::Warning, "", text);
    };
    // What is wrong with files does not keep nodes from going.
    let mut row = validate::row(problem);
    row["severity"] = json!(Severity::Warning);
    row
}

/// Returns a problem that is in no file, with all the keys of those that are.
fn placeless(code: &str, severity: Severity, path: &str, message: &str) -> Value {
    json!({
        "code": code, "severity": severity, "file": null, "line": null, "column": null, "path": path,
        "message": message, "help": "", "candidates": [],
    })
}

fn head(verb: NodesVerb, loaded: &Loaded, success: bool, dry_run: bool) -> Value {
    json!({
        "schema": 1, "exit_code": ExitCode::Success, "verb": verb.word(), "success": success, "dry_run": dry_run, "manifest": loaded.name,
        "host": loaded.host.name, "run": null, "bundle": null, "duration_seconds": 0.0, "nodes": [],
        "pattern": loaded.checked.pattern.map(|pattern| pattern.word()), "pattern_inferred": loaded.checked.is_inferred,
    })
}

/// Returns the document of a command that failed before anything began.
pub(super) fn of_failure(
    verb: &str,
    manifest: Option<&str>,
    host: Option<&str>,
    dry_run: bool,
    failure: &Failure,
) -> Value {
    let diagnostics = match &failure.source {
        Source::Diagnostics(diagnostics) => diagnostics.clone(),
        Source::Message(_) | Source::Error(_) => {
            let place = Place::Named(format!("stead {verb}"));
            Diagnostics(vec![Diagnostic::error(code_of(failure.exit_code()), place, failure.message())])
        }
    };
    let mut error = failure.to_error();
    if failure.code.is_none() && !matches!(failure.source, Source::Diagnostics(_)) {
        error["code"] = json!(code_of(failure.exit_code()));
    }
    let rows: Vec<Value> = diagnostics.iter().map(validate::row).collect();
    let mut document = json!({
        "schema": 1, "exit_code": failure.exit_code(), "verb": verb, "success": false, "dry_run": dry_run,
        "manifest": manifest, "host": host, "run": null, "bundle": null, "duration_seconds": 0.0, "nodes": [],
        "diagnostics": rows, "error": error,
    });
    for (key, value) in &failure.known {
        document[*key] = value.clone();
    }
    document
}

/// Returns the code of an error that has none of its own.
pub(in crate::commands) fn code_of(exit_code: ExitCode) -> &'static str {
    match exit_code {
        ExitCode::Success | ExitCode::Failed | ExitCode::Converging | ExitCode::Degraded => "node/failed",
        ExitCode::Usage => "node/usage",
        ExitCode::Invalid => "node/invalid",
        ExitCode::Verification => "node/verification",
        ExitCode::Locked => "node/locked",
        ExitCode::Confirmation => "node/confirmation",
        ExitCode::Unreachable => "node/unreachable",
        ExitCode::TimedOut => "node/timeout",
        ExitCode::Cancelled => "node/cancelled",
    }
}

/// Returns the line that names a pattern which the manifest does not say; nothing where it does, and where nodes only go.
fn inferred_pattern(prepared: &Prepared) -> String {
    let checked = &prepared.loaded.checked;
    let makes = matches!(prepared.verb, NodesVerb::Create | NodesVerb::Test);
    let pattern = checked.pattern.filter(|_| checked.is_inferred && makes);
    pattern.map_or_else(String::new, |pattern| format!("pattern: {} (inferred)\n", pattern.word()))
}

/// Returns the nodes for people, and how it all ended.
pub(super) fn to_text(prepared: &Prepared, report: &Report, seen: &Seen, paint: Paint) -> String {
    let mut text = inferred_pattern(prepared);
    for row in rows(prepared, Some(report), seen) {
        let style = match row.status {
            NodeStatus::Completed | NodeStatus::Destroyed => Style::Good,
            NodeStatus::Failed => Style::Bad,
            NodeStatus::Pending | NodeStatus::Running | NodeStatus::Skipped => Style::Strong,
        };
        let mut line = format!("  {} {}", row.name, paint.apply(style, row.status.word()));
        if row.change.as_ref().is_some_and(|change| change.changed) {
            line.push_str(", changed");
        }
        if let Some(ip) = row.change.as_ref().and_then(|change| change.entry.ip.as_ref())
            && row.status == NodeStatus::Completed
        {
            line.push_str(&format!(", {ip}"));
        }
        if let Some(error) = &row.error {
            line.push_str(&format!(": {}", crate::render::one_line(error)));
        }
        text.push_str(&line);
        text.push('\n');
    }
    let status = paint.apply(Style::of_run(report.status), report.status.as_str());
    text.push_str(&format!(
        "{} {} on {}: {status}\n",
        prepared.verb.word(),
        prepared.loaded.name,
        prepared.loaded.host.name
    ));
    text
}

/// Returns the rows of a dry run for people.
pub(super) fn plan_to_text(prepared: &Prepared) -> String {
    let mut text = inferred_pattern(prepared);
    for row in plan_rows(prepared) {
        let field = |key: &str| row[key].as_str().unwrap_or_default();
        text.push_str(&format!(
            "  {} {} {} at {}\n",
            field("task"),
            field("action"),
            field("mode"),
            field("at")
        ));
    }
    text.push_str("Dry run: nothing was done.\n");
    text
}
