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
    // The key is for trying and known to everybody; those who only run it are not told.
    let codes: Vec<_> =
        valid["warnings"].as_array().unwrap().iter().map(|warning| &warning["code"]).collect();
    assert_eq!(codes, ["node/tracked-secrets"]);
    let tried = lab.run(["create", "-M", "lab", "-H", "local", "--site", shipped, "--dry-run"]).exits(0);
    assert!(!tried.stderr.contains("secrets"), "{tried:?}");
}

/// A site as `init` wrote it, whose nodes go when the test ends, however it ends.
struct Begun(Lab);

impl Drop for Begun {
    fn drop(&mut self) {
        self.0.run(["destroy", "-M", "first", "-H", "local", "--yes"]);
    }
}

/// Section 1: whoever starts a site can make its nodes at once, by push without a server or a key.
#[test]
fn the_nodes_of_a_new_site_are_made_as_it_stands() {
    for (persona, mode) in [("homelab", "push"), ("managed", "pull"), ("enterprise", "hybrid")] {
        let begun = Begun(Lab::new(""));
        let lab = &begun.0;
        lab.run(["init", "nodes", "--persona", persona]).exits(0);
        if persona == "homelab" {
            assert!(!lab.read("site-config/secrets.yaml").contains("signing_key"));
        } else {
            // The usual port is one for the whole machine, and other tests have servers too.
            let site = lab.read("site-config/site.yaml");
            lab.write("site-config/site.yaml", format!("{site}server: {{port: 0, bind: 127.0.0.1}}\n"));
        }
        let on_local = |verb: &'static str| {
            let yes = (verb == "destroy").then_some("--yes");
            lab.run([verb, "-M", "first", "-H", "local", "--json"].into_iter().chain(yes))
        };
        let made = on_local("create").exits(0).document();
        let rows: Vec<[&str; 3]> = made["nodes"]
            .as_array()
            .unwrap()
            .iter()
            .map(|row| ["name", "status", "mode"].map(|key| row[key].as_str().unwrap()))
            .collect();
        assert_eq!(rows, [["one", "completed", mode], ["two", "completed", mode]], "{persona}");
        assert_eq!(lab.path("state/server").exists(), mode != "push", "{persona}: push starts no server");
        on_local("status").exits(0);
        on_local("drift").exits(0);
        on_local("destroy").exits(0);
        assert!(!lab.path("state/nodes/local/first/state.json").exists(), "{persona}");
    }
}
