//! `stead init nodes` and `stead schema` of site files.

use std::os::unix::fs::PermissionsExt as _;

use crate::cases_17_32::lab::Lab;

/// Every persona's site works as it is written, and is not overwritten.
#[test]
fn a_new_site_is_valid_for_every_persona() {
    for (persona, mode) in [("homelab", "push"), ("managed", "pull"), ("enterprise", "hybrid")] {
        let lab = Lab::new("");
        lab.run(["init", "nodes", "--persona", persona]).exits(0);
        let document = lab.run(["validate", "-M", "first", "-H", "local", "--json"]).exits(0).document();
        assert_eq!(document["nodes"][0]["mode"], mode);
        assert_eq!(document["warnings"], serde_json::json!([]));
        assert!(document["nodes"][0]["spec_digest"].is_string());
        lab.run(["validate"]).exits(0);
        let secrets = lab.path("site-config/secrets.yaml");
        assert_eq!(secrets.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        let minted = lab.run(["token", "mint", "--node", "one", "--spec", "base"]);
        assert_eq!(minted.code, if persona == "homelab" { 3 } else { 0 });
        let before = lab.read("site-config/secrets.yaml");
        lab.run(["init", "nodes", "--persona", persona]).exits(3).says("is there already");
        assert_eq!(lab.read("site-config/secrets.yaml"), before);
        let printed = lab.run(["schema", "manifest"]).exits(0).document();
        let written: serde_json::Value =
            serde_json::from_str(&lab.read("site-config/defs/manifest.schema.json")).unwrap();
        assert_eq!(written, printed);
    }
}

#[test]
fn every_kind_of_file_has_a_schema() {
    let lab = Lab::new("");
    for word in ["site", "secrets", "host", "instance", "spec", "preset", "posture", "manifest"] {
        let schema = lab.run(["schema", word]).exits(0).document();
        assert!(jsonschema::meta::is_valid(&schema), "{word}");
        assert_eq!(schema["additionalProperties"], false);
    }
}

/// A site that cannot be written whole leaves nothing behind, and the next try may do it.
#[test]
fn a_site_is_started_whole_or_not_at_all() {
    let lab = Lab::new("");
    lab.write("site-config/specs", "in the way");
    lab.run(["init", "nodes"]).exits(1);
    let left: Vec<_> =
        std::fs::read_dir(lab.path("site-config")).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left, ["specs"]);
    std::fs::remove_file(lab.path("site-config/specs")).unwrap();
    lab.run(["init", "nodes"]).exits(0);
}

/// The lab that is shipped needs nothing: whoever cloned it can try it at once.
#[test]
fn the_shipped_lab_is_valid_as_it_is() {
    let shipped = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/lab");
    let lab = Lab::new("");
    let valid = lab.run(["validate", "-H", "local", "--site", shipped, "--json"]).exits(0).document();
    assert_eq!(valid["errors"], serde_json::json!([]));
    // A clone cannot say that only its owner may read the key, which is for trying and known to everybody.
    let warnings = valid["warnings"].as_array().unwrap();
    assert!(warnings.iter().all(|warning| warning["code"] == "node/readable-secrets"), "{warnings:?}");
}
