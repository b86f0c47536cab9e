//! One test binary for the command. Modules run the built binary, or a renderer with hand-made events.

#![expect(clippy::unwrap_used, reason = "a test that panics has failed, helpers included")]

mod events;
mod process;

mod agents;
mod asking;
mod beginning;
mod bundles;
mod cases_01_16;
mod cases_17_32;
mod codes;
mod conformance;
mod doctor;
mod executor;
mod facts;
mod fleet;
mod homelab_stubs;
mod intents;
mod interrupting;
mod large_undo;
mod nodes;
mod oci;
mod packaging;
mod plain;
mod plans;
mod reach;
mod record;
mod report;
mod roles;
mod run_plans;
mod running;
mod runs;
mod sandbox;
mod site;
mod steps;
mod system;
mod terminal;
mod tui;
mod ui;
mod unsupported;
mod usage;

/// Fails when a file of this directory is no module, so that no test is silently left out.
#[test]
fn every_file_is_a_module() {
    let main = include_str!("main.rs");
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it");
    for entry in std::fs::read_dir(dir).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let Some(module) = name.strip_suffix(".rs").filter(|module| *module != "main") else { continue };
        assert!(main.contains(&format!("mod {module};")), "{name} is not a module of main.rs");
    }
}
