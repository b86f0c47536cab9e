//! A difference for people.

use serde_json::Value;

use super::captures::{CaptureDiff, CaptureFigures, Service};
use super::generic::{Change, Generic};
use super::metrics::Metric;
use super::{DiffSummary, RoleDiff, RunDiff, ThresholdResult};
use crate::sections::{Section, Style, render};

/// How many metrics that changed are shown; the JSON form has all.
const SHOWN_METRICS: usize = 50;

/// Returns the whole difference, for people.
pub fn render_diff(diff: &RunDiff, style: Style) -> String {
    let mut sections = Vec::new();
    match diff {
        RunDiff::One(diff) => {
            sections.extend(capture_sections("", diff));
            sections.extend(generic_sections(&diff.generic));
            sections.push(summary("Summary", &diff.summary));
        }
        RunDiff::All(all) => {
            for (role, diff) in &all.roles {
                sections.extend(capture_sections(role, diff));
            }
            // The same for every role.
            sections.extend(
                all.roles.values().next().into_iter().flat_map(|diff| generic_sections(&diff.generic)),
            );
            sections.push(summary("Summary of the role that differs most", &all.summary));
        }
    }
    sections.push(thresholds(diff.thresholds()));
    render(&title(diff), &sections, style)
}

/// Returns only what concerns captures, for people.
pub fn render_captures(diff: &RunDiff, style: Style) -> String {
    let sections: Vec<Section> = match diff {
        RunDiff::One(diff) => capture_sections("", diff),
        RunDiff::All(all) => all.roles.iter().flat_map(|(role, diff)| capture_sections(role, diff)).collect(),
    };
    render(&title(diff), &sections, style)
}

fn title(diff: &RunDiff) -> String {
    let (baseline, compare, role) = match diff {
        RunDiff::One(diff) => (&diff.baseline_bundle, &diff.compare_bundle, diff.role.as_deref()),
        RunDiff::All(all) => (&all.baseline_bundle, &all.compare_bundle, None),
    };
    match role {
        Some(role) => format!("{baseline} → {compare}, role {role}"),
        None => format!("{baseline} → {compare}"),
    }
}

fn capture_sections(role: &str, diff: &RoleDiff) -> Vec<Section> {
    let titled = |title: &str| if role.is_empty() { title.to_owned() } else { format!("{role}: {title}") };
    let Some(captures) = &diff.pcap_diff else {
        let section = Section::new(titled("Captures"), &[]);
        return vec![section.note("Neither side has a capture; only the rest is compared.")];
    };
    let mut services = Section::new(titled("Services"), &["change", "service", "name", "class", "direction"]);
    let changes = [
        ("added", &captures.added_services),
        ("removed", &captures.removed_services),
        ("common", &captures.common_services),
    ];
    for (change, list) in changes {
        for service in list {
            services.row(service_row(change, service));
        }
    }
    let mut classes = Section::new(titled("Classes"), &["change", "class"]);
    let changes = [
        ("added", &captures.added_classes),
        ("removed", &captures.removed_classes),
        ("common", &captures.common_classes),
    ];
    for (change, list) in changes {
        for class in list {
            classes.row([change.to_owned(), format!("0x{class:02X}")]);
        }
    }
    vec![figures(titled("Captures"), captures), services, classes]
}

fn service_row(change: &str, service: &Service) -> [String; 5] {
    [
        change.to_owned(),
        format!("0x{:02X}", service.service),
        service.name.clone(),
        format!("0x{:02X}", service.class),
        if service.response { "reply" } else { "request" }.to_owned(),
    ]
}

fn figures(title: String, captures: &CaptureDiff) -> Section {
    let mut section = Section::new(title, &["figure", "BASE", "NEW", "change", "%"]);
    let mut row = |name: &str, figure: &dyn Fn(&CaptureFigures) -> Option<f64>| {
        let metric = Metric::of_floats(figure(&captures.baseline), figure(&captures.compare));
        if metric.baseline.is_some() || metric.compare.is_some() {
            section.row(metric_row(name, &metric));
        }
    };
    row("packets", &|side| Some(side.packets as f64));
    row("CIP messages", &|side| Some(side.cip.messages as f64));
    row("latency P50 ms", &|side| side.latency_ms.as_ref()?.p50);
    row("latency P95 ms", &|side| side.latency_ms.as_ref()?.p95);
    row("latency P99 ms", &|side| side.latency_ms.as_ref()?.p99);
    row("latency mean ms", &|side| side.latency_ms.as_ref()?.mean);
    row("latency max ms", &|side| side.latency_ms.as_ref()?.max);
    row("interval mean ms", &|side| side.intervals_ms.as_ref()?.mean);
    row("interval jitter ms", &|side| side.intervals_ms.as_ref()?.jitter);
    row("interval violations", &|side| Some(side.intervals_ms.as_ref()?.violations as f64));
    section
}

fn metric_row(name: &str, metric: &Metric) -> [String; 5] {
    let number = |number: Option<f64>| number.map_or_else(|| "-".to_owned(), |number| number.to_string());
    let side = |side: &Option<serde_json::Number>| number(side.as_ref().and_then(serde_json::Number::as_f64));
    let signed = |delta: Option<f64>| delta.map_or_else(|| "-".to_owned(), signed);
    [
        name.to_owned(),
        side(&metric.baseline),
        side(&metric.compare),
        signed(metric.delta),
        signed(metric.delta_pct),
    ]
}

/// Returns `number` with its sign, to at most six decimals.
fn signed(number: f64) -> String {
    let number = crate::analysis::rounded(number);
    if number > 0.0 { format!("+{number}") } else { number.to_string() }
}

fn generic_sections(generic: &Generic) -> Vec<Section> {
    let mut outcomes = Section::new("Outcomes", &["of", "what", "BASE", "NEW"]);
    let mut change = |of: &str, what: &str, change: &Change| {
        if change.changed {
            outcomes.row([of.to_owned(), what.to_owned(), shown(&change.baseline), shown(&change.compare)]);
        }
    };
    change("run", "status", &generic.run.status);
    change("run", "exit code", &generic.run.exit_code);
    for (what, version) in &generic.run.versions {
        change("run", what, version);
    }
    for (role, role_change) in &generic.roles {
        change(role, "status", &role_change.status);
        change(role, "exit code", &role_change.exit_code);
        change(role, "signal", &role_change.signal);
        change(role, "argv", &role_change.argv);
        for (what, version) in &role_change.versions {
            change(role, what, version);
        }
    }
    let mut durations = Section::new("Durations in s", &["of", "BASE", "NEW", "change", "%"]);
    let run = [("run", &generic.run.duration_s)].into_iter();
    for (name, metric) in
        run.chain(generic.roles.iter().map(|(name, role)| (name.as_str(), &role.duration_s)))
    {
        if metric.delta.is_some() {
            durations.row(metric_row(name, metric));
        }
    }
    let mut sections = vec![outcomes, durations, files(generic), metrics(generic)];
    sections.extend(generic.text.iter().map(|change| {
        let section = Section::new(format!("{}: {} lines", change.path, change.lines_changed), &[]);
        section.verbatim(change.diff.as_deref().unwrap_or("(too many lines to show)"))
    }));
    sections
}

fn files(generic: &Generic) -> Section {
    let mut section = Section::new("Files", &["change", "file"]);
    let changes = [
        ("added", &generic.files_added),
        ("removed", &generic.files_removed),
        ("changed", &generic.files_changed),
    ];
    for (change, list) in changes {
        for file in list {
            section.row([change.to_owned(), file.clone()]);
        }
    }
    section
}

fn metrics(generic: &Generic) -> Section {
    let mut section = Section::new("Metrics", &["metric", "BASE", "NEW", "change", "%"]);
    let changed = || generic.metrics.iter().filter(|(_, metric)| metric.baseline != metric.compare);
    for (name, metric) in changed().take(SHOWN_METRICS) {
        section.row(metric_row(name, metric));
    }
    match changed().count().checked_sub(SHOWN_METRICS) {
        None | Some(0) => section,
        Some(more) => section.note(format!("and {more} more")),
    }
}

fn shown(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => value.to_string(),
    }
}

fn summary(title: &str, summary: &DiffSummary) -> Section {
    let mut section = Section::new(title, &["figure", "value"]);
    let fields = serde_json::to_value(summary).unwrap_or_default();
    for key in DiffSummary::KEYS {
        section.row([key.to_owned(), fields.get(key).map_or_else(|| "-".to_owned(), shown)]);
    }
    section
}

fn thresholds(results: &[ThresholdResult]) -> Section {
    let mut section = Section::new("Conditions", &["condition", "value", "result"]);
    for result in results {
        section.row([
            result.expr.clone(),
            result.value.map_or_else(|| "-".to_owned(), |value| value.to_string()),
            if result.failed { "failed" } else { "ok" }.to_owned(),
        ]);
    }
    section
}
