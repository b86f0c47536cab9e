//! `stead intent list`.

use serde_json::json;

use super::{INFRASTRUCTURE, PLATFORM, TENANTS};
use crate::steps::homelab::Homelab;

/// Section 10: parameters, files and the combination that the files show.
#[test]
fn the_list_shows_what_the_files_say() {
    let lab = Homelab::new();
    let list = || lab.stead(&["intent", "list", "--json"]).exits(0).document();
    let said = list();
    assert_eq!(said["schema"], 1);
    let names: Vec<&str> =
        said["intents"].as_array().unwrap().iter().map(|intent| intent["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["app-test", "platform-certs"]);
    let certs = &said["intents"][1];
    assert_eq!(certs["params"][0]["enum"], json!(["staging", "prod"]));
    assert_eq!(certs["files"][0]["file"], INFRASTRUCTURE);
    assert_eq!(certs["current"], json!({"CERT_ENV": "staging"}));
    assert_eq!(said["intents"][0]["files"][0]["file"], TENANTS);

    lab.replace(PLATFORM, "overlays/home\n", "overlays/home-letsencrypt-prod\n");
    assert_eq!(list()["intents"][1]["current"], "mixed");
    lab.stead(&["intent", "list"]).exits(0).says("  current: mixed\n");
    lab.replace(PLATFORM, "overlays/home-letsencrypt-prod\n", "overlays/elsewhere\n");
    assert_eq!(list()["intents"][1]["current"], "unknown");
    lab.write(PLATFORM, "spec: [\n");
    assert_eq!(list()["intents"][1]["current"], "unknown");
    lab.stead(&["intent", "list", "CERT_ENV=prod"]).exits(2);
}
