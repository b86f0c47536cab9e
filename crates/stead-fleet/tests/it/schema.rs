//! The generated code is that of the schema.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn generate(into: &Path) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    capnpc::CompilerCommand::new()
        .src_prefix(root.join("schema"))
        .file(root.join("schema/fleet.capnp"))
        .default_parent_module(vec!["wire".to_owned()])
        .output_path(into)
        .run()
        .unwrap();
    fs::read_to_string(into.join("fleet_capnp.rs")).unwrap()
}

fn checked_in() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src/wire/fleet_capnp.rs")
}

/// Section 12: the code is checked in, and nobody needs `capnp` to build.
#[test]
fn the_generated_code_is_that_of_the_schema() {
    if Command::new("capnp").arg("--version").output().is_err() {
        println!("skipped: `capnp` is not installed (package capnproto)");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let is_same = generate(dir.path()) == fs::read_to_string(checked_in()).unwrap();
    assert!(
        is_same,
        "src/wire/fleet_capnp.rs is not made from schema/fleet.capnp; make it with\n    \
         cargo nextest run -p stead-fleet --run-ignored only writes_the_generated_code"
    );
}

#[test]
#[ignore = "changes the source; run it after a change of the schema"]
fn writes_the_generated_code() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(checked_in(), generate(dir.path())).unwrap();
}
