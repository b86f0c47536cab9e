//! How the program is linked.

use std::env;

#[expect(clippy::disallowed_methods, reason = "it is how Cargo tells a build script what is built")]
fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // Half of the program are copies of generic functions with the same instructions. The linker that rustc brings along
    // for this target keeps one of each; elsewhere the linker may not know how.
    let variable = |name| env::var(name).unwrap_or_default();
    if variable("PROFILE") == "release" && variable("TARGET") == "x86_64-unknown-linux-gnu" {
        println!("cargo::rustc-link-arg-bins=-Wl,--icf=all");
    }
}
