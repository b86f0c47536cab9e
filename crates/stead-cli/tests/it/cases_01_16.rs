//! Cases 1 to 16 of the plan contract, and what they lean on, through the built binary: real shells, processes and
//! signals.

mod stage;

mod chains;
mod failing;
mod finals;
mod guards;
mod hosts;
mod interrupted;
mod limits;
mod questions;
mod retrying;
mod stopping;

/// Fails when a file of this directory is no module, so that no test is silently left out.
#[test]
fn every_case_file_is_a_module() {
    let parent = include_str!("cases_01_16.rs");
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/cases_01_16");
    for entry in std::fs::read_dir(dir).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let Some(module) = name.strip_suffix(".rs") else { continue };
        assert!(parent.contains(&format!("mod {module};")), "{name} is not a module of cases_01_16.rs");
    }
}
