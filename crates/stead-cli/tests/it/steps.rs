//! Acceptance cases of the contract of steps, through the built binary: real scripts, signals, locks and `kubectl`.

pub(crate) mod homelab;

mod configuring;
mod inputs;
mod kubectl;
mod machine;
mod needing;
mod planning;
mod records;
mod resuming;
mod selecting;
mod speaking;
mod stopping;

/// Fails when a file of the directory is no module, so that no test is silently left out.
#[test]
fn every_file_of_steps_is_a_module() {
    let main = include_str!("steps.rs");
    for entry in std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/steps")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let module = name.strip_suffix(".rs").unwrap();
        assert!(main.contains(&format!("mod {module};")), "{name} is not a module of steps.rs");
    }
}
