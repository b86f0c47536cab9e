//! The cases of [`crate::operation_contract`] for systems: for every carrier there is, each inside a container
//! ([`crate::container::inside`]).

pub mod accounts;
pub mod configuration;
pub mod packages;
pub mod services;

use std::path::Path;

fn write(path: impl AsRef<Path>, text: &str) {
    std::fs::write(path, text).expect("a system of the test's own");
}

/// Runs a line of shell in `dir`.
fn sh(dir: &Path, script: &str) {
    let out = std::process::Command::new("/bin/sh").arg("-ec").arg(script).current_dir(dir).output();
    let out = out.expect("every system has a shell");
    assert!(out.status.success(), "{script}: {}", String::from_utf8_lossy(&out.stderr));
}
