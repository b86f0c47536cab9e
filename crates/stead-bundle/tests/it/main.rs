//! Bundles on a real file system, checked by real programs.
#![expect(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

mod directory;
mod exporting;
mod finding;
mod fixture;
mod hostile;
mod sealing;
mod signing;
mod verifying;

#[test]
fn every_file_here_is_a_module() {
    let main = include_str!("main.rs");
    for entry in std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        assert!(name == "main" || main.contains(&format!("mod {name};")), "{name} is not a module");
    }
}
