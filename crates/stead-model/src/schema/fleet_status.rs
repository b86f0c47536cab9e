//! The JSON Schema of a fleet's status.

use serde_json::{Map, Value, json};

use super::DIALECT;
use crate::fleet::Code;
use crate::fleet::state::{InstanceState, WorkerState};
use crate::fleet::vm::Driver;

/// Returns the JSON Schema (draft 2020-12) of what `stead fleet status --json` prints.
pub fn fleet_status_schema() -> Value {
    let mut schema = closed(
        &[
            ("schema", json!({"const": 1})),
            ("fleet", text()),
            ("seq", count()),
            ("at", text()),
            ("state", one_of(&["converged", "converging", "degraded"])),
            ("convergence_percent", json!({"type": "integer", "minimum": 0, "maximum": 100})),
            ("generation", count()),
            ("commit", or_null(commit())),
            ("leader", closed(&[("name", text()), ("epoch", count())], &[])),
            ("store", store()),
            ("watcher", watcher()),
            ("groups", list(group())),
            ("counts", counts()),
            ("workers", list(worker())),
            ("instances", list(instance())),
            ("rollouts", list(rollout())),
            ("brake", closed(&[("active", yes_or_no())], &[("message", text())])),
            ("holds", list(hold())),
        ],
        &[],
    );
    schema["$schema"] = json!(DIALECT);
    schema["title"] = json!("Stead fleet status");
    schema
}

fn closed(required: &[(&str, Value)], optional: &[(&str, Value)]) -> Value {
    let properties: Map<String, Value> =
        required.iter().chain(optional).map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
    let names: Vec<&str> = required.iter().map(|(name, _)| *name).collect();
    json!({"type": "object", "properties": properties, "required": names, "additionalProperties": false})
}

fn text() -> Value {
    json!({"type": "string"})
}

fn count() -> Value {
    json!({"type": "integer", "minimum": 0})
}

fn yes_or_no() -> Value {
    json!({"type": "boolean"})
}

fn list(item: Value) -> Value {
    json!({"type": "array", "items": item})
}

fn one_of(words: &[&str]) -> Value {
    json!({"enum": words})
}

fn or_null(schema: Value) -> Value {
    json!({"anyOf": [schema, {"type": "null"}]})
}

fn commit() -> Value {
    json!({"type": "string", "pattern": "^([0-9a-f]{40}|[0-9a-f]{64})$"})
}

fn hash() -> Value {
    json!({"type": "string", "pattern": "^[0-9a-f]{64}$"})
}

fn code() -> Value {
    one_of(&Code::ALL.iter().map(|code| code.word()).collect::<Vec<_>>())
}

fn store() -> Value {
    closed(
        &[("kind", one_of(&["embedded", "distributed"])), ("state", one_of(&["ok", "stale", "rebuilding"]))],
        &[("code", code()), ("message", text())],
    )
}

fn watcher() -> Value {
    closed(
        &[("ref", text()), ("state", text()), ("last_poll", or_null(text()))],
        &[("error", text()), ("rejected", commit())],
    )
}

fn group() -> Value {
    let evaluated = closed(
        &[("commit", commit()), ("stage", text())],
        &[
            ("contains", list(commit())),
            ("class", one_of(&["permanent", "transient", "resource"])),
            ("vm", text()),
            ("error", text()),
            ("log", text()),
        ],
    );
    let active = closed(
        &[
            ("generation", count()),
            ("commit", commit()),
            ("intentHash", hash()),
            ("specsHash", hash()),
            ("since", or_null(text())),
        ],
        &[],
    );
    let held = closed(
        &[
            ("generation", count()),
            ("commit", commit()),
            ("code", one_of(&["empty-set", "too-many-stops", "suspended", "duplicate-id", "moves-together"])),
            ("stops", count()),
            ("running", count()),
            ("message", text()),
            ("approve", hash()),
        ],
        &[],
    );
    closed(
        &[
            ("group", text()),
            ("head", or_null(commit())),
            ("evaluated", or_null(evaluated)),
            ("active", or_null(active)),
            ("suspended", yes_or_no()),
            ("why", text()),
        ],
        &[("held", held), ("notes", json!({"type": "array", "items": text()}))],
    )
}

fn counts() -> Value {
    let names = ["desired", "converged", "converging", "failed", "unschedulable", "orphans"];
    closed(&names.map(|name| (name, count())), &[])
}

fn resources(required: &[&str]) -> Value {
    let mut schema = closed(&[], &["cpuMilli", "memMiB", "diskMiB"].map(|name| (name, count())));
    schema["required"] = json!(required);
    schema
}

fn worker() -> Value {
    let mut states: Vec<&str> = WorkerState::WORDS.iter().map(|(word, _)| *word).collect();
    states.push("absent");
    let drivers: Vec<&str> = Driver::WORDS.iter().map(|(word, _)| *word).collect();
    closed(
        &[
            ("id", text()),
            ("state", one_of(&states)),
            ("since", or_null(text())),
            ("seen_generation", count()),
            ("instances", count()),
            ("capacity", or_null(resources(&["cpuMilli", "memMiB"]))),
            ("allocated", resources(&[])),
            ("used", resources(&[])),
            ("labels", json!({"type": "object", "additionalProperties": text()})),
            ("drivers", list(one_of(&drivers))),
        ],
        &[("code", code()), ("message", text())],
    )
}

fn instance() -> Value {
    let states: Vec<&str> = InstanceState::WORDS.iter().map(|(word, _)| *word).collect();
    closed(
        &[
            ("key", text()),
            ("group", or_null(text())),
            ("worker", or_null(text())),
            ("desired_hash", or_null(hash())),
            ("observed_hash", or_null(hash())),
            ("state", one_of(&states)),
            ("ready", yes_or_no()),
            ("uptime_ms", count()),
            ("generation", count()),
            ("attempts", count()),
            ("drifted", yes_or_no()),
            ("leaving", yes_or_no()),
            ("driver", or_null(text())),
        ],
        &[("code", code()), ("message", text())],
    )
}

fn rollout() -> Value {
    closed(
        &[
            ("vm", text()),
            ("from", or_null(hash())),
            ("to", or_null(hash())),
            ("updated", count()),
            ("total", count()),
            ("state", one_of(&["running", "held", "paused", "done"])),
        ],
        &[("code", code()), ("message", text())],
    )
}

fn hold() -> Value {
    closed(&["id", "target", "until", "by", "reason"].map(|name| (name, text())), &[])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_schema_is_a_schema() {
        assert!(jsonschema::meta::is_valid(&fleet_status_schema()));
    }
}
