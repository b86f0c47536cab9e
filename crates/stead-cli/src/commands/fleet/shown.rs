//! A fleet's status for people.

use serde_json::Value;
use stead_model::ExitCode;

use crate::output::{Paint, Style};
use crate::render::table;
use crate::render::text::counted;

/// Returns how `status` ends: converged, converging or degraded.
pub(super) fn exit_code(status: &Value) -> ExitCode {
    match text(status, "state") {
        "converged" => ExitCode::Success,
        "converging" => ExitCode::Converging,
        _ => ExitCode::Degraded,
    }
}

/// Returns a status for people: how far it is, then everything that is not as it should be, then what there is.
pub(super) fn to_text(status: &Value, paint: Paint) -> String {
    let mut shown = head(status, paint);
    shown.push_str(&workers(status));
    shown.push_str(&instances(status));
    for rollout in list(status, "rollouts").filter(|rollout| text(rollout, "state") != "done") {
        let (vm, state) = (text(rollout, "vm"), text(rollout, "state"));
        let (updated, total) = (number(rollout, "updated"), number(rollout, "total"));
        let why = Some(why(rollout)).filter(|why| !why.is_empty()).map(|why| format!(": {why}"));
        let why = why.unwrap_or_default();
        shown.push_str(&format!("rollout of {vm}: {state}, {updated} of {total}{why}\n"));
    }
    shown
}

/// Returns how far it is, with what is wrong with commits and what holds it up.
pub(crate) fn head(status: &Value, paint: Paint) -> String {
    let mut shown = line(status, paint);
    if let Some(message) = status.pointer("/brake/message").and_then(Value::as_str) {
        shown.push_str(&format!("{} {message}\n", paint.apply(Style::Warn, "brake:")));
    }
    for hold in list(status, "holds") {
        let words = ["id", "by", "reason"].map(|key| text(hold, key));
        let target = hold.get("target").map(target_word).unwrap_or_default();
        let [id, by, reason] = words;
        shown
            .push_str(&format!("{} {id} on {target} by {by}: {reason}\n", paint.apply(Style::Warn, "hold:")));
    }
    shown
}

/// Returns how far it is, with what is wrong with commits, in a few lines.
pub(super) fn line(status: &Value, paint: Paint) -> String {
    let mut shown = headline(status, paint);
    let watcher = status.get("watcher").unwrap_or(&Value::Null);
    if text(watcher, "ref").is_empty() {
        // A publisher tells where it looks a moment after its first publication.
        if list(status, "groups").next().is_none() {
            shown.push_str("no publisher has told anything yet\n");
        }
    } else if text(watcher, "state") != "ok" {
        let label = paint.apply(Style::Bad, "repository:");
        shown.push_str(&format!("{label} {} at {}", text(watcher, "state"), text(watcher, "ref")));
        if let Some(error) = watcher.get("error").and_then(Value::as_str) {
            shown.push_str(&format!(": {error}"));
        }
        shown.push('\n');
    }
    for group in list(status, "groups") {
        shown.push_str(&group_lines(group, paint));
    }
    shown
}

fn headline(status: &Value, paint: Paint) -> String {
    let state = text(status, "state");
    let style = match state {
        "converged" => Style::Good,
        "converging" => Style::Warn,
        _ => Style::Bad,
    };
    let counts = status.get("counts").unwrap_or(&Value::Null);
    let commit: String = text(status, "commit").chars().take(12).collect();
    let state = paint.apply(style, state);
    if commit.is_empty() {
        return format!("{state}  nothing is published yet\n");
    }
    format!(
        "{state} {} %  {} of {}  generation {} at {commit}\n",
        number(status, "convergence_percent"),
        number(counts, "converged"),
        counted(number(counts, "desired"), "instance"),
        number(status, "generation"),
    )
}

fn group_lines(group: &Value, paint: Paint) -> String {
    let name = text(group, "group");
    let mut lines = String::new();
    let evaluated = group.get("evaluated").unwrap_or(&Value::Null);
    if let Some(error) = evaluated.get("error").and_then(Value::as_str) {
        let commit: String = text(evaluated, "commit").chars().take(12).collect();
        let vm = evaluated.get("vm").and_then(Value::as_str).map(|vm| format!(" ({vm})")).unwrap_or_default();
        let stage = text(evaluated, "stage");
        let failed = paint.apply(Style::Bad, "failed:");
        lines.push_str(&format!("{failed} {name} at {commit}, {stage}{vm}: {error}\n"));
        if let Some(log) = evaluated.get("log").and_then(Value::as_str) {
            lines.push_str(&format!("  log: {log}\n"));
        }
    }
    if let Some(held) = group.get("held").filter(|held| !held.is_null()) {
        let (generation, code) = (number(held, "generation"), text(held, "code"));
        let label = paint.apply(Style::Bad, "held:");
        let is_guarded = matches!(code, "empty-set" | "too-many-stops");
        let why = if is_guarded {
            let (stops, running) = (number(held, "stops"), number(held, "running"));
            format!("{code}: {stops} of {running} running instances would stop")
        } else {
            code.to_owned()
        };
        lines.push_str(&format!("{label} generation {generation} of {name} ({why})"));
        if let Some(approve) = held.get("approve").and_then(Value::as_str).filter(|_| is_guarded) {
            lines.push_str(&format!("; to let it pass put this into `approve` of fleet.yaml: {approve}"));
        }
        lines.push('\n');
    }
    for note in list(group, "notes").filter_map(Value::as_str) {
        lines.push_str(&format!("{} fleet.yaml: {note}\n", paint.apply(Style::Warn, "note:")));
    }
    if group.get("suspended").and_then(Value::as_bool) == Some(true) {
        lines.push_str(&format!(
            "{} new generations of {name} wait\n",
            paint.apply(Style::Warn, "suspended:")
        ));
    }
    lines
}

fn workers(status: &Value) -> String {
    let count = list(status, "workers").count();
    let rows: Vec<[String; 4]> = list(status, "workers")
        .map(|worker| {
            let instances = counted(number(worker, "instances"), "instance");
            // What one does without is told to who asks for that one; of many it would hide what is wrong.
            let is_told = count == 1 || worker.get("code").is_some();
            let why = if is_told { why(worker) } else { String::new() };
            [text(worker, "id").to_owned(), text(worker, "state").to_owned(), instances, why]
        })
        .collect();
    table::to_text(&rows)
}

fn instances(status: &Value) -> String {
    let rows: Vec<[String; 4]> = list(status, "instances")
        .map(|instance| {
            let is_ready = instance.get("ready").and_then(Value::as_bool) == Some(true);
            let state = match (text(instance, "state"), is_ready) {
                ("running", true) => "ready".to_owned(),
                (state, _) => state.to_owned(),
            };
            let worker = instance.get("worker").and_then(Value::as_str).unwrap_or("-");
            [text(instance, "key").to_owned(), worker.to_owned(), state, why(instance)]
        })
        .collect();
    table::to_text(&rows)
}

/// Returns what is wrong with an item and what to do.
pub(crate) fn why(item: &Value) -> String {
    match (item.get("code").and_then(Value::as_str), item.get("message").and_then(Value::as_str)) {
        (Some(code), Some(message)) => format!("{code}: {message}"),
        (Some(code), None) => code.to_owned(),
        (None, Some(message)) => message.to_owned(),
        (None, None) => String::new(),
    }
}

fn target_word(target: &Value) -> String {
    if let Some(word) = target.as_str() {
        return word.to_owned();
    }
    let pair = target.as_object().and_then(|target| target.iter().next());
    pair.map(|(kind, name)| format!("{kind}/{}", name.as_str().unwrap_or_default())).unwrap_or_default()
}

pub(crate) fn list<'a>(value: &'a Value, key: &str) -> impl Iterator<Item = &'a Value> {
    value.get(key).and_then(Value::as_array).into_iter().flatten()
}

pub(crate) fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value.get(key).and_then(Value::as_str).unwrap_or_default()
}

pub(crate) fn number(value: &Value, key: &str) -> u64 {
    value.get(key).and_then(Value::as_u64).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn shown(groups: &Value) -> String {
        let status =
            json!({"state": "converging", "generation": 1, "watcher": {"ref": ""}, "groups": groups});
        line(&status, Paint::None)
    }

    #[test]
    fn a_publisher_that_has_published_has_told_something() {
        assert!(shown(&json!([])).contains("no publisher has told anything yet"));
        let active = json!([{"group": "default", "active": {"generation": 1}}]);
        assert!(!shown(&active).contains("no publisher"), "{}", shown(&active));
    }

    #[test]
    fn without_a_publication_nothing_is_counted() {
        assert!(shown(&json!([])).starts_with("converging  nothing is published yet\n"));
    }
}
