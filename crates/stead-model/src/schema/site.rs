//! The JSON Schemas of the files of a site.

use serde_json::{Value, json};

use super::{DIALECT, object};
use crate::site::FileKind;
use crate::site::host::{HOST_KEYS, INSTANCE_KEYS};
use crate::site::keyring::KEYRING_KEYS;
use crate::site::manifest::MANIFEST_KEYS;
use crate::site::posture::POSTURE_KEYS;
use crate::site::preset::PRESET_KEYS;
use crate::site::secrets::SECRETS_KEYS;
use crate::site::settings::SITE_KEYS;
use crate::site::spec::SPEC_KEYS;

/// Returns the JSON Schema (draft 2020-12) of a kind of site file.
pub fn site_schema(kind: FileKind) -> Value {
    let (keys, title) = match kind {
        FileKind::Site => (&SITE_KEYS, "Stead site"),
        FileKind::Secrets => (&SECRETS_KEYS, "Stead secrets"),
        FileKind::Keyring => (&KEYRING_KEYS, "Stead keyring"),
        FileKind::Host => (&HOST_KEYS, "Stead host"),
        FileKind::Instance => (&INSTANCE_KEYS, "Stead Proxmox instance"),
        FileKind::Preset => (&PRESET_KEYS, "Stead preset"),
        FileKind::Posture => (&POSTURE_KEYS, "Stead posture"),
        FileKind::Spec => (&SPEC_KEYS, "Stead spec"),
        FileKind::Manifest => (&MANIFEST_KEYS, "Stead manifest"),
    };
    let mut schema = object(keys);
    schema["$schema"] = json!(DIALECT);
    schema["title"] = json!(title);
    if kind == FileKind::Instance {
        schema["required"] = json!(["datastore"]);
    }
    schema
}

/// The kinds that `stead schema` prints and `stead init nodes` writes, by their words.
pub const SITE_SCHEMAS: [(&str, FileKind); 8] = [
    ("site", FileKind::Site),
    ("secrets", FileKind::Secrets),
    ("host", FileKind::Host),
    ("instance", FileKind::Instance),
    ("spec", FileKind::Spec),
    ("preset", FileKind::Preset),
    ("posture", FileKind::Posture),
    ("manifest", FileKind::Manifest),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_schemas_are_schemas_and_closed() {
        for (_, kind) in SITE_SCHEMAS.into_iter().chain([("keyring", FileKind::Keyring)]) {
            let schema = site_schema(kind);
            assert!(jsonschema::meta::is_valid(&schema), "{kind:?}");
            assert_eq!(schema["additionalProperties"], false);
        }
    }

    /// What the reader refuses for its shape, the schema refuses too.
    #[test]
    fn manifests_that_are_wrong_do_not_fit() {
        let manifest = jsonschema::validator_for(&site_schema(FileKind::Manifest)).unwrap();
        let node = json!({"name": "a", "type": "vm"});
        assert!(manifest.is_valid(&json!({"schema_version": 2, "name": "m", "nodes": [node]})));
        for wrong in [
            json!({"schema_version": 1, "name": "m", "nodes": [node]}),
            json!({"schema_version": 2, "name": "m", "nodes": []}),
            json!({"schema_version": 2, "name": "..", "nodes": [node]}),
            json!({"schema_version": 2, "name": "m", "nodes": [{"name": "a"}]}),
            json!({"schema_version": 2, "name": "m", "nodes": [{"name": "a-", "type": "vm"}]}),
            json!({"schema_version": 2, "name": "m", "nodes": [{"name": "a", "type": "vm", "count": 0}]}),
            json!({"schema_version": 2, "name": "m", "nodes": [{"name": "a", "type": "vm", "imagee": "x"}]}),
        ] {
            assert!(!manifest.is_valid(&wrong), "{wrong}");
        }
    }
}
