//! Disks that are full, and places that cannot be written to.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use super::lab::{Lab, statuses, task};

/// A small file system in memory, gone with the guard. None where the test may not make one.
struct SmallDisk(PathBuf);

impl SmallDisk {
    #[expect(clippy::print_stderr, reason = "a check that is left out is said")]
    fn mount(at: PathBuf, size: &str) -> Option<Self> {
        fs::create_dir(&at).unwrap();
        let mount = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs"])
            .arg(&at)
            .output();
        if mount.is_ok_and(|ended| ended.status.success()) {
            return Some(Self(at));
        }
        eprintln!("this user may not mount a file system: the check of a full disk is left out");
        None
    }

    fn resize(&self, size: &str) {
        let options = format!("remount,size={size}");
        assert!(Command::new("mount").args(["-o", &options]).arg(&self.0).status().unwrap().success());
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        Command::new("umount").arg("-l").arg(&self.0).status().ok();
    }
}

const NOISY: &str = r#"api_version: v1
name: noisy
tasks:
  - {name: quiet, idempotent: true, shell: "echo quiet >> $STEAD_LAB/out"}
  - {name: noisy, depends_on: quiet, idempotent: true, shell: "echo noisy >> $STEAD_LAB/out; head -c 1000000 /dev/zero | tr '\\0' x"}
  - {name: after, depends_on: noisy, idempotent: true, shell: "echo after >> $STEAD_LAB/out"}
"#;

/// Section 6: the disk is full: the run says so, in one document, with a row for every task, and does not hang; with room
/// again it goes on.
#[test]
fn a_full_disk_is_told_and_the_run_goes_on_when_there_is_room() {
    let lab = Lab::for_damage(NOISY);
    let Some(disk) = SmallDisk::mount(lab.path("disk"), "300k") else { return };
    let state = disk.0.to_str().unwrap().to_owned();
    let run = |args: &[&str]| -> super::lab::Ended {
        let mut command = Command::new(env!("CARGO_BIN_EXE_stead"));
        command.env_clear().env("PATH", "/usr/bin:/bin").env("STEAD_LAB", lab.root()).current_dir(lab.root());
        command.args(["--state-dir", &state]).args(args).output().unwrap().into()
    };
    let ended = run(&["plan", "run", "p.yaml", "--run-id", "r1", "--json"]);
    assert!(matches!(ended.code, 1 | 4), "{ended:?}");
    let report = ended.document();
    assert_eq!(report["tasks"].as_array().unwrap().len(), 3);
    let said = format!("{}{}", report["errors"], report["warnings"]);
    assert!(said.contains("No space left"), "{said}");
    assert_eq!(task(&report, "quiet")["status"], "changed");
    assert!(!ended.stderr.contains("signal"), "nobody sent one: {ended:?}");
    if ended.code == 1 {
        assert!(report["errors"].to_string().contains("journal"), "{said}");
        assert!(ended.stderr.contains("[cancel] the run cannot be recorded any more"), "{ended:?}");
    }
    disk.resize("20m");
    let report = run(&["resume", "r1", "--json"]).exits(0).document();
    assert_eq!(statuses(&report), ["quiet:changed", "noisy:changed", "after:changed"]);
    let out = lab.read("out");
    assert_eq!(out.lines().filter(|line| *line == "quiet").count(), 1, "{out}");
    drop(disk);
}

/// Section 2: a state directory that cannot be made: a report in which nothing ran, and the reason.
#[test]
fn an_unwritable_state_directory_is_told_before_anything_runs() {
    let lab = Lab::new("{api_version: v1, name: u, tasks: [{name: t, shell: \"touch ran\"}]}");
    lab.write("state", "a file stands here");
    let report = lab.plan(&["--json"]).exits(1).document();
    assert_eq!(statuses(&report), ["t:not_run"]);
    assert!(report["errors"].to_string().contains("state"), "{}", report["errors"]);
    assert!(!lab.path("ran").exists());
    assert_eq!(lab.read("state"), "a file stands here");
    // Without a journal there is nothing to write.
    lab.plan(&["--no-journal"]).exits(0);
    assert!(lab.path("ran").exists());
    fs::remove_file(lab.path("state")).unwrap();
}

/// Section 6: a place of the bundle that cannot be written disturbs no task; the recording is incomplete, exit 4.
#[test]
fn a_log_that_cannot_be_written_disturbs_no_task() {
    let lab = Lab::for_damage(
        "{api_version: v1, name: l, tasks: [{name: a, shell: \"rm -rf state/runs/r1/logs; echo x > state/runs/r1/logs\"}, {name: b, depends_on: a, shell: \"echo heard; touch ran\"}]}",
    );
    let report = lab.plan_report(&["--run-id", "r1"], 4);
    assert_eq!(statuses(&report), ["a:changed", "b:changed"]);
    assert_eq!(report["status"], "success");
    assert!(report["warnings"].to_string().contains("record/incomplete"), "{}", report["warnings"]);
    assert_eq!(task(&report, "b")["data"]["stdout"], "heard\n");
    assert!(lab.path("ran").exists());
}
