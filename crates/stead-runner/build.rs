//! Tells the crate which compiler and commit it is built from, for `versions.json`.

use std::process::Command;

fn main() {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let version = first_line(Command::new(rustc).arg("--version")).unwrap_or_else(|| "unknown".to_owned());
    println!("cargo:rustc-env=STEAD_RUST_VERSION={version}");
    if let Some(commit) = first_line(Command::new("git").args(["rev-parse", "HEAD"])) {
        println!("cargo:rustc-env=STEAD_GIT_COMMIT={commit}");
    }
    println!("cargo:rerun-if-changed=build.rs");
}

fn first_line(command: &mut Command) -> Option<String> {
    let output = command.output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8_lossy(&output.stdout).lines().next()?.to_owned())
}
