//! Restarts of the machine behind SSH, in a container: which boot it is in is a file, and what restarts it is a
//! stand-in that ends every session and is away for a while.

use std::fs;
use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use stead_testkit::container::inside;
use stead_testkit::sshd::Sshd;
use stead_testkit::stand_in;

use super::direct::Place;
use super::over_ssh::{Driver, Site};

/// Ends the sessions, is away until it may come back, and has another boot then, unless `/run/same-boot` is there.
const RESTART: &str = r#"#!/bin/sh
echo restarted >>/run/restarts
listener=$(cat /run/listener)
kill -STOP "$listener"
pkill -KILL -f 'sshd[a-z-]*: root'
pkill -KILL -f 'executor --'
touch /run/down
while [ -e /run/stay-down ]; do sleep 0.1; done
[ -e /run/same-boot ] || echo "boot-$(wc -l </run/restarts)" >/run/boot_id
rm /run/down
kill -CONT "$listener"
"#;

/// Returns the machine in its first boot; only inside a container.
fn machine() -> Site {
    fs::write("/run/boot_id", "boot-0\n").unwrap();
    let mounted = std::process::Command::new("mount")
        .args(["--bind", "/run/boot_id", "/proc/sys/kernel/random/boot_id"])
        .status();
    assert!(mounted.unwrap().success());
    stand_in::program("reboot", RESTART);
    let site = Site::with(Sshd::start());
    fs::write("/run/listener", site.sshd.pid().to_string()).unwrap();
    site
}

fn plan(site: &Site, timeout: &str) {
    site.plan(&format!(
        "  - {{name: before, op: file.present, params: {{path: @/x, content: x}}}}\n\
         \x20 - {{name: boot, depends_on: before, op: reboot, params: {{timeout: {timeout}}}}}\n\
         \x20 - {{name: after, depends_on: boot, shell: 'cat /proc/sys/kernel/random/boot_id'}}\n"
    ));
}

fn restarts() -> usize {
    fs::read_to_string("/run/restarts").unwrap_or_default().lines().count()
}

/// Case 24: the run goes on when the machine is in another boot.
#[test]
fn a_restart_is_waited_for_and_the_run_goes_on() {
    inside(|| {
        let site = machine();
        plan(&site, "2m");
        let (code, report) = site.run(&[]);
        assert_eq!(code, 0, "{report:#}");
        let [_, boot, after] = report["tasks"].as_array().unwrap().as_slice() else { panic!("{report:#}") };
        assert_eq!((&boot["status"], &boot["changed"]), (&json!("changed"), &json!(true)));
        assert_eq!(boot["data"], json!({"boot_id": "boot-1", "before": "boot-0"}));
        assert_eq!((&after["data"]["stdout"], restarts()), (&json!("boot-1\n"), 1));
        assert_eq!(site.sessions_left(), 0);
    });
}

fn failure(report: &Value) -> String {
    let boot = &report["tasks"][1];
    assert_eq!((&boot["status"], &boot["class"]), (&json!("failed"), &json!("timeout")), "{report:#}");
    assert_eq!((&boot["changed"], restarts()), (&json!(true), 1), "{report:#}");
    assert_eq!(report["tasks"][2]["status"], "not_run", "{report:#}");
    boot["error"].as_str().unwrap().to_owned()
}

/// Case 24: a machine that stays away fails at the timeout.
#[test]
fn a_machine_that_does_not_come_back_fails_at_the_timeout() {
    inside(|| {
        let site = machine();
        fs::write("/run/stay-down", "").unwrap();
        plan(&site, "5s");
        let began = Instant::now();
        let (code, report) = site.run(&[]);
        assert_eq!(code, 8, "{report:#}");
        let error = failure(&report);
        assert!(error.contains("had not restarted 6s after"), "{error}");
        assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
    });
}

/// Case 24: sessions that end and a host that answers again are no restart.
#[test]
fn the_same_boot_is_not_taken_for_a_restart() {
    inside(|| {
        let site = machine();
        fs::write("/run/same-boot", "").unwrap();
        plan(&site, "5s");
        let (code, report) = site.run(&[]);
        assert_eq!(code, 8, "{report:#}");
        let error = failure(&report);
        assert!(error.contains("still in the boot boot-0"), "{error}");
    });
}

/// Case 24: a run that is killed while the machine is away and taken up again restarts nothing a second time.
#[test]
fn a_resumed_run_waits_on_without_a_second_restart() {
    inside(|| {
        let site = machine();
        fs::write("/run/stay-down", "").unwrap();
        plan(&site, "2m");
        let mut command = site.command(&["plan", "run", "p.yaml", "--run-id", "away"]);
        let mut driver = Driver(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
        Place::until("the machine is away", || fs::exists("/run/down").unwrap());
        driver.0.kill().unwrap();
        driver.0.wait().unwrap();
        fs::remove_file("/run/stay-down").unwrap();
        let (code, report) = site.report(&["resume", "away", "--json"]);
        assert_eq!(code, 0, "{report:#}");
        assert_eq!(
            report["tasks"][1]["data"],
            json!({"boot_id": "boot-1", "before": "boot-0"}),
            "{report:#}"
        );
        assert_eq!((&report["tasks"][2]["data"]["stdout"], restarts()), (&json!("boot-1\n"), 1));
    });
}
