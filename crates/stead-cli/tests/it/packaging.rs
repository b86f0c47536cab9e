//! The unit files that are shipped: their command lines are ours, and systemd takes them.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use stead_cli::args::Cli;
use stead_testkit::container::inside_with_systemd;

const SHIPPED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/systemd");

macro_rules! unit {
    ($name:literal) => {
        (
            concat!("stead-", $name, ".service"),
            include_str!(concat!("../../../../packaging/systemd/stead-", $name, ".service")),
        )
    };
}

/// What is tried under systemd, in a container that need not see this directory.
const TRIED: [(&str, &str); 4] =
    [unit!("server"), unit!("fleet-master"), unit!("fleet-worker"), unit!("fleet-publisher")];

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

/// The units, under a real systemd where one can be init of a container: what they take from the daemons, the daemons do
/// not need. A server that answers and reads its site again; a fleet of a master, a worker and a publisher that keeps a
/// commit, and whose machines outlive the worker.
#[test]
fn daemons_do_their_work_as_their_units_confine_them() {
    inside_with_systemd(|| {
        fs::copy(env!("CARGO_BIN_EXE_stead"), "/usr/bin/stead").unwrap();
        for (unit, text) in TRIED {
            // There is no boot that would bring up a network.
            let lines = text.lines().filter(|line| !line.ends_with("=network-online.target"));
            let text =
                lines.collect::<Vec<_>>().join("\n").replace("[Unit]", "[Unit]\nDefaultDependencies=no");
            fs::write(Path::new("/etc/systemd/system").join(unit), text).unwrap();
        }
        sh("systemctl daemon-reload; mkdir -p /etc/stead");

        sh("stead init nodes /etc/stead/site --persona managed; systemctl start stead-server");
        let status = "stead server status --site /etc/stead/site --state-dir /var/lib/stead";
        wait_for("stead-server", status);
        let process = sh("systemctl show -P MainPID stead-server");
        sh("sed -i 's/htop/vim/' /etc/stead/site/specs/base.yaml; systemctl reload stead-server");
        wait_for("stead-server", "journalctl -u stead-server | grep -q '\"event\":\"reload\",\"ok\":true'");
        sh(status);
        assert_eq!(
            sh("systemctl show -P MainPID stead-server"),
            process,
            "it read its site again, and went on"
        );
        ends_well("stead-server");

        fs::write("/etc/stead/master.yaml", "name: m1\nlisten: 127.0.0.1:44444\n").unwrap();
        sh("systemctl start stead-fleet-master");
        let mint = "stead --state-dir /var/lib/stead/master fleet token mint --role";
        wait_for("stead-fleet-master", &format!("{mint} worker --name w1 >/etc/stead/worker.token"));
        sh(&format!("{mint} publisher --name p >/etc/stead/publisher.token"));
        sh("cd /srv && HOME=/root stead init fleet lab");
        let both = "masters: [127.0.0.1:44444]\nartifacts: /var/lib/stead/publisher/blobs\n";
        let room = "drivers: {sandbox: {}}\ncapacity: {cpuMilli: 4000, memMiB: 4096}\n";
        fs::write("/etc/stead/worker.yaml", format!("name: w1\n{both}{room}")).unwrap();
        fs::write("/etc/stead/publisher.yaml", format!("repo: /srv/lab\n{both}")).unwrap();
        for role in ["worker", "publisher"] {
            // As the unit says: with a token, the first time.
            let unit = format!("stead-fleet-{role}");
            let start = sh(&format!("sed -n s/^ExecStart=//p /etc/systemd/system/{unit}.service"));
            let joins =
                format!("[Service]\nExecStart=\nExecStart={start} --join-file /etc/stead/{role}.token\n");
            let place = format!("/etc/systemd/system/{unit}.service.d");
            fs::create_dir(&place).unwrap();
            fs::write(format!("{place}/join.conf"), joins).unwrap();
            sh(&format!("systemctl daemon-reload; systemctl start {unit}"));
        }
        let asks = "stead --state-dir /var/lib/stead/master fleet";
        wait_for("stead-fleet-publisher", &format!("cd /srv/lab && {asks} wait --commit HEAD --timeout 20s"));
        sh(&format!("{asks} status"));

        ends_well("stead-fleet-worker");
        let running = sh("cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -o '/stead [s]andbox' | wc -l");
        assert_eq!(running, "3", "machines outlive their worker");
        for unit in ["stead-fleet-publisher", "stead-fleet-master"] {
            ends_well(unit);
        }
    });
}

/// Runs a line of shell and returns what it printed.
#[track_caller]
fn sh(script: &str) -> String {
    let ended = Command::new("/bin/sh").args(["-ec", script]).output().unwrap();
    let said = String::from_utf8(ended.stdout).unwrap().trim().to_owned();
    assert!(ended.status.success(), "{script}: {said}{}", String::from_utf8_lossy(&ended.stderr));
    said
}

/// Waits until a line of shell succeeds; else says what the unit did.
#[track_caller]
fn wait_for(unit: &str, script: &str) {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let ended = Command::new("/bin/sh").args(["-ec", script]).output().unwrap();
        if ended.status.success() {
            return;
        }
        if Instant::now() > deadline {
            let did = sh(&format!("systemctl status --no-pager -l -n 30 {unit} || true"));
            panic!("{script}: {}\n{did}", String::from_utf8_lossy(&ended.stderr));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Stops a unit that was never started again by systemd.
#[track_caller]
fn ends_well(unit: &str) {
    sh(&format!("systemctl stop {unit}"));
    let shown = sh(&format!("systemctl show -p ActiveState -p Result -p NRestarts {unit} | sort"));
    assert_eq!(shown, "ActiveState=inactive\nNRestarts=0\nResult=success", "{unit}");
}
