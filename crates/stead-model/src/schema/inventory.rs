//! The JSON Schema of inventories.

use serde_json::{Value, json};

use super::{DIALECT, object};
use crate::inventory::{HOST_KEYS, INVENTORY_KEYS};

/// Returns the JSON Schema (draft 2020-12) of inventories.
pub fn inventory_schema() -> Value {
    let mut inventory = object(&INVENTORY_KEYS);
    inventory["$schema"] = json!(DIALECT);
    inventory["title"] = json!("Stead inventory");
    inventory["$defs"] = json!({"host": object(&HOST_KEYS)});
    inventory
}
