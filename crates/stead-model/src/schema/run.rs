//! The JSON Schemas of run manifests and kits.

use serde_json::{Value, json};

use super::{DIALECT, object};
use crate::run_manifest::keys::{KIT_KEYS, MANIFEST_KEYS, ROLE_KEYS};

/// Returns the JSON Schema (draft 2020-12) of run manifests.
pub fn run_schema() -> Value {
    let mut manifest = object(&MANIFEST_KEYS);
    manifest["$schema"] = json!(DIALECT);
    manifest["title"] = json!("Stead run manifest");
    let mut role = object(&ROLE_KEYS);
    role["type"] = json!(["object", "null"]);
    // A kit adds its own fields, which only its file knows.
    role["additionalProperties"] = json!(true);
    manifest["$defs"] = json!({ "role": role });
    manifest
}

/// Returns the JSON Schema (draft 2020-12) of kits.
pub fn kit_schema() -> Value {
    let mut kit = object(&KIT_KEYS);
    kit["$schema"] = json!(DIALECT);
    kit["title"] = json!("Stead kit of roles");
    kit
}
