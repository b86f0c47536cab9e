//! The operations against the real machine: processes, files, repositories and sockets.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod accounts;
mod command;
mod configuration;
mod configured;
mod containers;
mod contract;
mod facts;
mod fetched;
mod file;
mod intents;
mod killed;
mod machines;
mod managers;
mod network;
mod networking;
mod packages;
mod podman;
mod server;
mod services;
mod ssh;
mod state;
mod watched;

/// Every file beside this one must be a module of this binary, or its tests would silently not run.
#[test]
fn every_file_here_is_a_module() {
    let here = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it");
    let main = include_str!("main.rs");
    for entry in std::fs::read_dir(here).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let Some(module) = name.strip_suffix(".rs") else { continue };
        assert!(module == "main" || main.contains(&format!("mod {module};")), "{name} is not a module");
    }
}
