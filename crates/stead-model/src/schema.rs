//! The JSON Schemas that `stead schema` prints, made from the key tables the readers use.

use serde_json::{Map, Value, json};

use crate::yaml::{Key, Keys};

mod fleet;
mod fleet_status;
mod inventory;
mod plan;
mod run;
mod site;
mod steps;

pub use fleet::{FLEET_SCHEMAS, FleetFileKind, fleet_schema};
pub use fleet_status::fleet_status_schema;
pub use inventory::inventory_schema;
pub use plan::plan_schema;
pub use run::{kit_schema, run_schema};
pub use site::{SITE_SCHEMAS, site_schema};
pub use steps::steps_schema;

/// The durations [`crate::duration::parse`] reads, as a regular expression.
pub const DURATION_PATTERN: &str = "^(?=.)([0-9]+h)?([0-9]+m)?([0-9]+s)?([0-9]+ms)?$";

/// The names of tasks and plans, as a regular expression.
pub const NAME_PATTERN: &str = "^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$";

/// The dialect every schema is written in.
const DIALECT: &str = "https://json-schema.org/draft/2020-12/schema";

/// Returns the closed schema of a map with these keys.
pub fn object(keys: &Keys) -> Value {
    let properties: Map<String, Value> =
        keys.keys.iter().map(|key| (key.name.to_owned(), property(key))).collect();
    let required: Vec<&str> = keys.keys.iter().filter(|key| key.required).map(|key| key.name).collect();
    let mut schema = json!({"type": "object", "properties": properties, "additionalProperties": false});
    if !required.is_empty() {
        schema["required"] = json!(required);
    }
    schema
}

fn property(key: &Key) -> Value {
    let mut schema = (key.schema)();
    schema["description"] = json!(key.doc);
    schema
}

/// Any text.
pub fn text() -> Value {
    json!({"type": "string"})
}

/// A text that is not empty.
pub fn full_text() -> Value {
    json!({"type": "string", "minLength": 1})
}

/// True or false.
pub fn boolean() -> Value {
    json!({"type": "boolean"})
}

/// A duration.
pub fn duration() -> Value {
    json!({"type": "string", "pattern": DURATION_PATTERN})
}

/// A name of a task or plan.
pub fn name() -> Value {
    json!({"type": "string", "pattern": NAME_PATTERN})
}

/// One of these words.
pub fn words<T>(words: &[(&str, T)]) -> Value {
    json!({"enum": words.iter().map(|(word, _)| *word).collect::<Vec<_>>()})
}

/// A whole number in these bounds.
pub fn integer(low: i64, high: i64) -> Value {
    json!({"type": "integer", "minimum": low, "maximum": high})
}

/// One of these or a list of them.
pub fn one_or_many(item: &Value) -> Value {
    json!({"anyOf": [item, {"type": "array", "items": item}]})
}

/// The version every file begins with.
pub fn api_version() -> Value {
    json!({"const": "v1"})
}

#[cfg(test)]
mod tests;
