//! The unit files that are shipped: their command lines are ours, and systemd takes them.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use stead_cli::args::Cli;

const SHIPPED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/systemd");

fn units() -> Vec<PathBuf> {
    let mut units: Vec<PathBuf> = fs::read_dir(SHIPPED).unwrap().map(|entry| entry.unwrap().path()).collect();
    units.sort_unstable();
    units
}

/// Sections 5 and 9 of nodes: what a unit starts is a command that there is.
#[test]
fn units_start_commands_that_there_are() {
    let mut names = Vec::new();
    for unit in units() {
        let text = fs::read_to_string(&unit).unwrap();
        let starts: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("ExecStart=")).collect();
        let [start] = starts.as_slice() else { panic!("{}: {starts:?}", unit.display()) };
        let argv: Vec<OsString> = start.split_ascii_whitespace().map(OsString::from).collect();
        assert_eq!(argv[0], "/usr/bin/stead", "{}", unit.display());
        if let Err(error) = Cli::parse_argv(&argv) {
            panic!("{}: {error}", unit.display());
        }
        names.push(unit.file_name().unwrap().to_str().unwrap().to_owned());
    }
    for name in ["stead-agent.service", "stead-server.service"] {
        assert!(names.iter().any(|known| known == name), "{name} is not shipped: {names:?}");
    }
}

/// Systemd reads the units without a word, once the program they start is there.
#[test]
fn systemd_takes_the_units() {
    // Where there is no systemd nobody uses units: that is no failure, on CI either.
    if !["/usr/bin", "/bin"].iter().any(|place| Path::new(place).join("systemd-analyze").exists()) {
        eprintln!("skipped: there is no systemd-analyze");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    for unit in units() {
        let name = unit.file_name().unwrap();
        let text = fs::read_to_string(&unit).unwrap();
        fs::write(dir.path().join(name), text.replace("/usr/bin/stead", env!("CARGO_BIN_EXE_stead")))
            .unwrap();
        let mut command = Command::new("systemd-analyze");
        // The empty element at the end stands for the usual directories.
        command.env("SYSTEMD_UNIT_PATH", format!("{}:", dir.path().display()));
        let said = command.args(["verify", "--man=no"]).arg(name).output().unwrap();
        let said = String::from_utf8_lossy(&[said.stdout, said.stderr].concat()).into_owned();
        let about_ours: Vec<&str> = said.lines().filter(|line| line.contains("stead")).collect();
        assert!(about_ours.is_empty(), "{}: {said}", unit.display());
    }
}
