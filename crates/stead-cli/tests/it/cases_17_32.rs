//! Acceptance cases 17 to 30 and 32 of the plan contract, through the built binary.
//!
//! Real processes, signals, locks and terminals. Every [`lab::Lab`] checks, when it goes, that each journal made
//! in it keeps the rules and that no process of it is left.

pub(crate) mod journal_rules;
pub(crate) mod lab;

pub(crate) mod accounts;
mod choosing;
mod commands;
mod crash_sweep;
mod damaged_journals;
mod documents;
mod fault_sweep;
mod identities;
mod locking;
mod predicting;
mod prediction_table;
mod reports;
mod resuming;
mod secrets;
mod sizes;
mod storage;
mod terminals;
mod writing;

/// Fails when a file of the directory is no module, so that no test is silently left out.
#[test]
fn every_file_of_the_cases_is_a_module() {
    let modules = include_str!("cases_17_32.rs");
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/cases_17_32");
    for entry in std::fs::read_dir(dir).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let module = name.strip_suffix(".rs").unwrap();
        assert!(modules.contains(&format!("mod {module};")), "{name} is not a module");
    }
}
