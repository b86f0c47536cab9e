//! The JSON Schema of catalogues of steps.

use serde_json::{Value, json};

use super::{DIALECT, object};
use crate::catalogue::keys::CATALOGUE_KEYS;

/// Returns the JSON Schema (draft 2020-12) of catalogues.
pub fn steps_schema() -> Value {
    let mut catalogue = object(&CATALOGUE_KEYS);
    catalogue["$schema"] = json!(DIALECT);
    catalogue["title"] = json!("Stead catalogue of steps");
    catalogue
}
