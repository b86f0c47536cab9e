//! The JSON Schema of plan files.

use serde_json::{Value, json};

use super::{DIALECT, object};
use crate::plan_file::keys::{PART_KEYS, PLAN_KEYS, TASK_KEYS, UNDO_KEYS};

/// Returns the JSON Schema (draft 2020-12) of plan files.
pub fn plan_schema() -> Value {
    let mut plan = object(&PLAN_KEYS);
    plan["$schema"] = json!(DIALECT);
    plan["title"] = json!("Stead plan");
    let mut task = object(&TASK_KEYS);
    task["oneOf"] = one_action(&["op", "exec", "shell", "sequence"]);
    let mut part = object(&PART_KEYS);
    part["oneOf"] = one_action(&["op", "exec", "shell"]);
    let mut undo = object(&UNDO_KEYS);
    undo["oneOf"] = one_action(&["op", "exec", "shell"]);
    plan["$defs"] = json!({"task": task, "part": part, "undo": undo, "guard": guard()});
    plan
}

fn one_action(keys: &[&str]) -> Value {
    keys.iter().map(|key| json!({"required": [key]})).collect()
}

/// A condition: an expression, a boolean, or a combination.
fn guard() -> Value {
    let guard = json!({"$ref": "#/$defs/guard"});
    let only = |key: &str, schema: Value| json!({"type": "object", "properties": {key: schema}, "required": [key], "additionalProperties": false});
    json!({"anyOf": [
        {"type": ["string", "boolean"]},
        only("all", json!({"type": "array", "items": guard})),
        only("any", json!({"type": "array", "items": guard})),
        only("not", guard.clone()),
        {"type": "object", "properties": {"expr": {"type": ["string", "boolean"]}, "reason": {"type": "string"}},
         "required": ["expr"], "additionalProperties": false},
    ]})
}
