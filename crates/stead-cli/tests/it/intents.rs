//! Acceptance cases 21 to 24 of the contract of steps: intents, through the built binary, with the real Git and make.

mod committing;
mod crashing;
mod editing;
mod listing;
mod recording;
mod refusing;

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use crate::cases_17_32::lab::Ended;
use crate::steps::homelab::Homelab;

const INFRASTRUCTURE: &str = "clusters/home/infrastructure.yaml";
const PLATFORM: &str = "clusters/home/platform.yaml";
const TENANTS: &str = "clusters/home/tenants.yaml";

/// A catalogue whose intents are followed by nothing.
const SMALL: &str = "
api_version: v1
name: small
layers: []
controls: { DRY_RUN: {} }
steps: { a: { run: a.sh } }
apply: [ { phase: one, steps: [a] } ]
intents:
  flip:
    params: { V: { enum: [old, new], default: new } }
    edits:
      - { file: a.yaml, path: v, value: \"${V}\" }
      - { file: b.yaml, path: v, value: \"${V}\" }
  other:
    params: { V: { enum: [x, z] } }
    edits: [ { file: c.yaml, path: v, value: \"${V}\" } ]
";

/// Returns a place with [`SMALL`] and its files.
fn small() -> Homelab {
    let lab = Homelab::with(SMALL);
    lab.script("a.sh", "exit 0\n");
    for (name, value) in [("a.yaml", "old"), ("b.yaml", "old"), ("c.yaml", "x")] {
        lab.write(name, format!("v: {value} # keep\n"));
    }
    lab
}

/// Makes the place a repository with one commit of everything.
fn commit_all(lab: &Homelab) {
    lab.write(".gitignore", ".stead\n.lab\n");
    for args in [
        &["init", "--quiet"][..],
        &["config", "user.name", "test"],
        &["config", "user.email", "test@example.com"],
        &["add", "."],
        &["commit", "--quiet", "-m", "first"],
    ] {
        git(lab, args);
    }
}

#[track_caller]
fn git(lab: &Homelab, args: &[&str]) -> String {
    let ended: Ended = lab.command("git", args).output().unwrap().into();
    ended.exits(0).stdout
}

/// Returns every file of the place with its content, but for those of Git.
fn tree(lab: &Homelab) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut open = vec![lab.root()];
    while let Some(path) = open.pop() {
        if path.is_dir() {
            if path.file_name().is_some_and(|name| name != ".git") {
                open.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
                found.insert(path, Vec::new());
            }
        } else {
            let content = fs::read(&path).unwrap();
            found.insert(path, content);
        }
    }
    found
}

/// Fails when a file of the directory is no module, so that no test is silently left out.
#[test]
fn every_file_of_intents_is_a_module() {
    let main = include_str!("intents.rs");
    for entry in fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/intents")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let module = name.strip_suffix(".rs").unwrap();
        assert!(main.contains(&format!("mod {module};")), "{name} is not a module of intents.rs");
    }
}
