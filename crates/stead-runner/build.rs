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
    // A release must know its commit. While developing, every commit would compile half of everything anew.
    if std::env::var_os("PROFILE").is_some_and(|profile| profile == "release") {
        let branch = first_line(Command::new("git").args(["symbolic-ref", "HEAD"]));
        for name in branch.iter().map(String::as_str).chain(["HEAD"]) {
            if let Some(path) = first_line(Command::new("git").args(["rev-parse", "--git-path", name])) {
                println!("cargo:rerun-if-changed={path}");
            }
        }
    }
}

fn first_line(command: &mut Command) -> Option<String> {
    let output = command.output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8_lossy(&output.stdout).lines().next()?.to_owned())
}
