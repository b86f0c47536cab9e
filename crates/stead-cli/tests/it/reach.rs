//! Transports, inventories, targets and `stead exec` of the reach contract, through the built binary.

mod executing;
mod inventories;
mod over_ssh;
mod schemas;
mod targets;

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::process::stead;

/// Fails when a file of this directory is no module, so that no test is silently left out.
#[test]
fn every_reach_file_is_a_module() {
    let parent = include_str!("reach.rs");
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/reach");
    for entry in std::fs::read_dir(dir).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let Some(module) = name.strip_suffix(".rs") else { continue };
        assert!(parent.contains(&format!("mod {module};")), "{name} is not a module of reach.rs");
    }
}

/// A directory with inventories in it.
struct Site {
    dir: tempfile::TempDir,
}

/// What a command did.
#[derive(Debug)]
struct Told {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

impl Site {
    /// Returns a site whose `inventory.yaml` has these hosts.
    fn of(hosts: &str) -> Self {
        let site = Self { dir: tempfile::tempdir().unwrap() };
        site.write("inventory.yaml", &format!("api_version: v1\nhosts:\n{hosts}"));
        site
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    fn file(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        let path = self.file(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = stead(self.path());
        command.args(args);
        command
    }

    fn run(&self, args: &[&str]) -> Told {
        Told::of(self.command(args))
    }

    /// Returns the names of the hosts that a target means.
    #[track_caller]
    fn names(&self, args: &[&str]) -> String {
        let told = self.run(&[&["exec", "--list", "--json"], args].concat()).exits(0);
        let hosts = told.json()["hosts"].as_array().unwrap().clone();
        hosts.iter().map(|host| host["name"].as_str().unwrap()).collect::<Vec<_>>().join(" ")
    }
}

impl Told {
    fn of(mut command: Command) -> Self {
        let output = command.output().unwrap();
        Self {
            code: output.status.code(),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }

    #[track_caller]
    fn exits(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "{}\n{}", self.stdout, self.stderr);
        self
    }

    #[track_caller]
    fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {}", self.stdout))
    }

    /// Returns exit code and both streams in the form of the snapshots, durations left out.
    fn transcript(&self) -> String {
        let stderr: String = self
            .stderr
            .lines()
            .map(|line| match line.split_once(" in ") {
                Some((head, tail)) if tail.ends_with('s') && line.contains(" host") => {
                    format!("{head} in TIME\n")
                }
                Some(_) | None => format!("{line}\n"),
            })
            .collect();
        let code = self.code.map_or("signal".to_owned(), |code| code.to_string());
        format!("--- exit {code}\n--- stdout\n{}--- stderr\n{stderr}", self.stdout)
    }
}
