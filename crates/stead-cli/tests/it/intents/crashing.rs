//! A switch of several files that is killed, or fails, at any of its system calls: all files are old, or all are new.

use std::fs;
use std::process::{Command, Stdio};

use super::{commit_all, git, small};
use crate::cases_17_32::lab::{Ended, program, wait_until};
use crate::steps::homelab::Homelab;

/// What the switch does to files: each is a place to die at.
const CALLS: [&str; 12] = [
    "openat",
    "write",
    "fsync",
    "flock",
    "fchmod",
    "rename",
    "renameat",
    "renameat2",
    "unlink",
    "unlinkat",
    "mkdir",
    "copy_file_range",
];

/// Returns `stead ARGS` under strace, which does `what` at the `count`th call of `call` that touches the files.
fn traced(
    lab: &Homelab,
    strace: &std::path::Path,
    call: &str,
    what: &str,
    count: u32,
    args: &[&str],
) -> Command {
    let root = lab.root().canonicalize().unwrap();
    let mut command = lab.command(strace, &["-f", "-qq", "-o", "/dev/null"]);
    let beside =
        ["", "a.yaml", "b.yaml", ".a.yaml.stead-tmp", ".b.yaml.stead-tmp"].map(|name| root.join(name));
    let journal = [
        ".stead/intents",
        ".stead/intents/switch.json",
        ".stead/intents/switch.json.tmp",
        ".stead/intents/lock",
    ];
    for path in beside.into_iter().chain(journal.map(|name| root.join(name))) {
        command.arg("-P").arg(path.to_str().unwrap().trim_end_matches('/'));
    }
    command.args(["-e", &format!("trace={call}"), "-e", &format!("inject={call}:{what}:when={count}")]);
    command.arg(env!("CARGO_BIN_EXE_stead")).args(args);
    command
}

/// Returns strace, if it is there and may trace.
fn strace() -> Option<std::path::PathBuf> {
    let strace = program("strace")?;
    let works =
        Command::new(&strace).args(["-f", "-qq", "-o", "/dev/null", "true"]).status().unwrap().success();
    works.then_some(strace)
}

fn values(lab: &Homelab) -> (String, String) {
    (lab.read("a.yaml"), lab.read("b.yaml"))
}

/// All old or all new, and nothing left beside.
#[track_caller]
fn is_whole(lab: &Homelab, at: &str) -> bool {
    let (a, b) = values(lab);
    assert_eq!(a, b, "{at}");
    assert!(a == "v: old # keep\n" || a == "v: new # keep\n", "{at}: {a}");
    let left: Vec<String> = fs::read_dir(lab.root())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.contains("stead-tmp"))
        .collect();
    assert!(left.is_empty(), "{at}: {left:?}");
    assert!(!lab.path(".stead/intents/switch.json").exists(), "{at}");
    a.contains("new")
}

/// Kills `stead ARGS` at every call; after the next command, which says so, the files are whole.
fn sweep(prepare: fn() -> Homelab, args: &[&str], whole: fn(&Homelab, bool, &str)) {
    let Some(strace) = strace() else { return };
    let mut said = 0;
    let mut kills = 0;
    for call in CALLS {
        for count in 1.. {
            let lab = prepare();
            let ended = traced(&lab, &strace, call, "signal=SIGKILL", count, args).output().unwrap();
            if ended.status.success() {
                assert!(is_whole(&lab, call));
                break;
            }
            kills += 1;
            let at = format!("killed at {call} {count}: {}", String::from_utf8_lossy(&ended.stderr));
            let half_done = lab.path(".stead/intents/switch.json").exists();
            // One of the two commands that undo it.
            let next = match kills % 2 {
                0 => lab.stead(&["steps", "check"]),
                _ => lab.stead(&["intent", "other", "V=z"]),
            };
            assert_eq!(next.code, 0, "{at}: {next:?}");
            if half_done {
                let told = format!("{}{}", next.stdout, next.stderr);
                assert!(told.contains("half"), "{at}: {next:?}");
                said += 1;
            }
            let is_new = is_whole(&lab, &at);
            whole(&lab, is_new, &at);
        }
    }
    assert!(kills > 20 && said > 5, "{kills} kills, {said} half done");
}

/// Section 10: after a kill at any system call of the switch, all files are old or all are new.
#[test]
fn a_switch_killed_anywhere_is_undone_by_the_next_command() {
    sweep(small, &["intent", "flip"], |_, _, _| ());
}

/// The same with a commit: what is not committed is not edited.
#[test]
fn a_switch_with_a_commit_killed_anywhere_is_committed_or_undone() {
    fn repository() -> Homelab {
        let lab = small();
        commit_all(&lab);
        lab
    }
    sweep(repository, &["intent", "flip", "--commit"], |lab, is_new, at| {
        assert_eq!(git(lab, &["status", "--porcelain", "a.yaml", "b.yaml"]), "", "{at}");
        assert_eq!(
            git(lab, &["log", "--format=%s", "-1", "--", "a.yaml"]) == "intent flip V=new\n",
            is_new,
            "{at}"
        );
    });
}

/// What undoes a half-done switch may be killed as well: the one after it goes on.
#[test]
fn an_undoing_killed_anywhere_is_gone_on_with() {
    let Some(strace) = strace() else { return };
    let mut kills = 0;
    for call in ["openat", "write", "fsync", "renameat", "unlink", "unlinkat"] {
        for count in 1.. {
            let lab = small();
            let half =
                traced(&lab, &strace, "renameat", "signal=SIGKILL", 2, &["intent", "flip"]).output().unwrap();
            assert!(!half.status.success());
            assert_ne!(lab.read("a.yaml"), lab.read("b.yaml"));
            let undoing =
                traced(&lab, &strace, call, "signal=SIGKILL", count, &["steps", "check"]).output().unwrap();
            if undoing.status.success() {
                assert!(!is_whole(&lab, call));
                break;
            }
            kills += 1;
            lab.stead(&["steps", "check"]).exits(0);
            assert!(!is_whole(&lab, &format!("killed at {call} {count}")));
        }
    }
    assert!(kills > 8, "{kills} kills");
}

/// A `git` that outlives us goes on with its commit: nothing is undone under it.
#[test]
fn the_commit_of_a_killed_run_is_waited_for() {
    let lab = small();
    commit_all(&lab);
    lab.script(".git/hooks/pre-commit", "touch .git/started\nuntil [ -e .git/go ]; do sleep 0.05; done\n");
    let mut command = lab.command(env!("CARGO_BIN_EXE_stead"), &["intent", "flip", "--commit"]);
    let mut running = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    wait_until("the hook", || lab.path(".git/started").exists());
    running.kill().unwrap();
    running.wait().unwrap();
    // It is at work, and healthy: nothing is bad.
    lab.stead(&["steps", "check"]).exits(0).says("is at work");
    lab.stead(&["intent", "other", "V=z"]).exits(5);
    lab.write(".git/go", "");
    let is_done = || lab.stead(&["steps", "check"]).exits(0).stdout.contains("its files were committed");
    wait_until("the commit", is_done);
    assert!(is_whole(&lab, "after the commit"));
    assert_eq!(git(&lab, &["status", "--porcelain"]), "");
    assert_eq!(git(&lab, &["log", "--format=%s", "-1"]), "intent flip V=new\n");
}

/// Section 10: a rename that fails puts all back, 1.
#[test]
fn a_failing_rename_puts_all_back() {
    let Some(strace) = strace() else { return };
    let mut failed = 0;
    for call in ["renameat", "renameat2"] {
        for count in [1, 2] {
            let lab = small();
            let ended: Ended =
                traced(&lab, &strace, call, "error=EIO", count, &["intent", "flip"]).output().unwrap().into();
            if ended.code == 0 {
                continue;
            }
            failed += 1;
            ended.exits(1).says("all files are as they were");
            assert!(!is_whole(&lab, call));
        }
    }
    assert_eq!(failed, 2);
}
