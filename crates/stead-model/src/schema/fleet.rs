//! The JSON Schemas of the files of a fleet.

use serde_json::{Value, json};

use super::{DIALECT, object};
use crate::fleet::fleet_file::FLEET_KEYS;
use crate::fleet::services::{MASTER_KEYS, PUBLISHER_KEYS, WORKER_FILE_KEYS};
use crate::yaml::Keys;

/// A file of a fleet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FleetFileKind {
    /// `fleet.yaml`.
    Fleet,
    /// `publisher.yaml`.
    Publisher,
    /// `master.yaml`.
    Master,
    /// `worker.yaml`.
    Worker,
}

/// The files that `stead schema` prints, by their words.
pub const FLEET_SCHEMAS: [(&str, FleetFileKind); 4] = [
    ("fleet", FleetFileKind::Fleet),
    ("publisher", FleetFileKind::Publisher),
    ("master", FleetFileKind::Master),
    ("worker", FleetFileKind::Worker),
];

/// Returns the JSON Schema (draft 2020-12) of a file of a fleet.
pub fn fleet_schema(kind: FleetFileKind) -> Value {
    let (keys, title): (&Keys, &str) = match kind {
        FleetFileKind::Fleet => (&FLEET_KEYS, "Stead fleet"),
        FleetFileKind::Publisher => (&PUBLISHER_KEYS, "Stead publisher"),
        FleetFileKind::Master => (&MASTER_KEYS, "Stead master"),
        FleetFileKind::Worker => (&WORKER_FILE_KEYS, "Stead worker"),
    };
    let mut schema = object(keys);
    schema["$schema"] = json!(DIALECT);
    schema["title"] = json!(title);
    schema
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_schemas_are_schemas_and_closed() {
        for (_, kind) in FLEET_SCHEMAS {
            let schema = fleet_schema(kind);
            assert!(jsonschema::meta::is_valid(&schema), "{kind:?}");
            assert_eq!(schema["additionalProperties"], false);
        }
    }
}
