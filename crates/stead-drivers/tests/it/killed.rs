//! Operations that are killed midway: what is there is old or new, and the next run finishes.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};

use stead_runner::operation::OpContext;
use stead_testkit::container::inside;
use stead_testkit::context::context;
use stead_testkit::operation_contract::{Case, World};
use stead_testkit::tree::{Depth, snapshot};

use crate::configuration::cases;
use crate::state::run;

const MARK: &str = "STEAD_TEST_KILLED_SETUP";

/// Those that touch several paths, of every kind.
const MEANT: &[(&str, &str)] = &[
    ("ssh.authorized_key", "a key in a new file"),
    ("ssh.daemon", "settings before those of the main file"),
    ("hostname", "files and the running one"),
    ("timezone", "link and name"),
    ("kernel.module", "not at the start any more"),
    ("network.interface", "by ifupdown"),
    ("config.restored", "files, made directories and a running part"),
];

fn prepare(case: &Case, dir: &Path) -> OpContext {
    let (root, sources) = (dir.join("root"), dir.join("sources"));
    std::fs::create_dir_all(&root).unwrap();
    std::fs::create_dir_all(&sources).unwrap();
    (case.sources)(&sources);
    (case.fresh)(&root);
    under(dir)
}

fn under(dir: &Path) -> OpContext {
    OpContext { root: Some(dir.join("root")), ..context(&dir.join("sources")) }
}

fn files(dir: &Path) -> BTreeMap<String, String> {
    let mut found = snapshot(&dir.join("root"), Depth::State);
    found.retain(|_, state| !state.ends_with(" directory"));
    found
}

/// Case 17 of reach: a kill at each system call of `apply`, injected by strace.
#[test]
fn a_kill_at_each_system_call_leaves_old_or_new_files() {
    let cases: Vec<Case> =
        cases().into_iter().filter(|case| MEANT.contains(&(case.operation, case.name))).collect();
    if let Some(what) = std::env::var_os(MARK) {
        let what = what.into_string().unwrap();
        let (number, dir) = what.split_once(':').unwrap();
        let case = &cases[number.parse::<usize>().unwrap()];
        run(&under(Path::new(dir)), case.operation, (case.params)()).unwrap();
        return;
    }
    if !crate::configured::has("strace") || !rustix::process::geteuid().is_root() {
        return;
    }
    let mut killed = 0;
    for (number, case) in cases.iter().enumerate() {
        let whole = tempfile::tempdir().unwrap();
        let cx = prepare(case, whole.path());
        let old = files(whole.path());
        run(&cx, case.operation, (case.params)()).unwrap();
        let new = files(whole.path());
        for call in ["mkdirat", "renameat,renameat2", "symlinkat", "unlinkat", "fsync", "fchmod"] {
            for when in 1..=2 {
                let dir = tempfile::tempdir().unwrap();
                let cx = prepare(case, dir.path());
                let status = Command::new("strace")
                    .args(["-f", "-qq", "-o", "/dev/null", "-e", &format!("trace={call}")])
                    .args(["-e", &format!("inject={call}:signal=KILL:when={when}")])
                    .arg(std::env::current_exe().unwrap())
                    .args(["killed::a_kill_at_each_system_call_leaves_old_or_new_files", "--exact"])
                    .env(MARK, format!("{number}:{}", dir.path().display()))
                    .stdout(Stdio::null())
                    .stderr(Stdio::null())
                    .status()
                    .unwrap();
                killed += usize::from(!status.success());
                let at = format!("{}, {call} {when}", case.operation);
                for (path, state) in files(dir.path()).iter().filter(|(path, _)| !path.contains("stead-tmp"))
                {
                    let known = [old.get(path), new.get(path)];
                    assert!(known.contains(&Some(state)), "{at}: {path} is neither old nor new: {state}");
                }
                run(&cx, case.operation, (case.params)()).unwrap_or_else(|error| panic!("{at}: {error}"));
                assert_eq!(files(dir.path()), new, "{at}");
            }
        }
    }
    assert!(killed > 20, "only {killed} were killed: this shows nothing");
}

const PROGRAM: &str = "STEAD_TEST_KILLED_PROGRAM";
/// When who called a program is killed: while it goes on, and when it is done.
const MOMENTS: &[&str] = &["before", "after"];

/// Whether this process is the one that is to be killed.
pub(crate) fn is_victim() -> bool {
    std::env::var_os(PROGRAM).is_some()
}

/// Stands before a program of the system: at the call that is meant it ends who called it, before or after it does what
/// the real one does.
const KILLER: &str = r#"#!/bin/sh
case "$1" in CALLS) ;; *) exec REAL "$@" ;; esac
echo >>/run/killer/begun
turn=$(wc -l </run/killer/begun)
read -r meant moment </run/killer/meant
if [ "$turn" = "$meant" ] && [ "$moment" = before ]; then kill -KILL $PPID; fi
REAL "$@"
code=$?
if [ "$turn" = "$meant" ] && [ "$moment" = after ]; then kill -KILL $PPID; fi
echo >>/run/killer/ended
exit $code
"#;

/// Programs, and the calls of them that count, as a pattern of their first argument.
type Calls<'a> = (&'a [&'a str], &'a str);

/// Puts [`KILLER`] before these programs.
fn beset((programs, calls): Calls<'_>) {
    std::fs::create_dir_all("/run/killer").unwrap();
    for name in programs {
        let places =
            ["/usr/local/sbin", "/usr/sbin", "/usr/bin"].map(|directory| format!("{directory}/{name}"));
        let path = places.iter().find(|path| Path::new(path).exists()).unwrap();
        let real = format!("{path}.real");
        std::fs::rename(path, &real).unwrap();
        std::fs::write(path, KILLER.replace("REAL", &real).replace("CALLS", calls)).unwrap();
        std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    }
}

fn lines(path: &str) -> usize {
    std::fs::read_to_string(path).unwrap_or_default().lines().count()
}

/// Runs a case of a system in a process of its own that is killed at call `turn` of a program; returns whether it was.
/// What it had started goes on.
fn run_killed(test: &str, number: usize, turn: usize, moment: &str) -> bool {
    for file in ["begun", "ended"] {
        std::fs::write(format!("/run/killer/{file}"), "").unwrap();
    }
    std::fs::write("/run/killer/meant", format!("{turn} {moment}\n")).unwrap();
    let status = Command::new(std::env::current_exe().unwrap())
        .args([test, "--exact"])
        .env(PROGRAM, number.to_string())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .unwrap();
    crate::configured::wait_until("what was started has ended", || {
        lines("/run/killer/begun") == lines("/run/killer/ended")
    });
    std::fs::write("/run/killer/meant", "0 never\n").unwrap();
    assert!(
        status.success() || std::os::unix::process::ExitStatusExt::signal(&status) == Some(9),
        "{status}"
    );
    !status.success()
}

/// Kills the cases at every call of these programs: the next run brings each to where one that nobody killed does.
pub(crate) fn every_call_may_be_the_last(test: &str, cases: &[Case], programs: Calls<'_>, moments: &[&str]) {
    let (root, sources) = (Path::new("/"), Path::new("/run/killer/sources"));
    let state = |case: &Case| match case.world {
        World::System(state) => state(root, Depth::State),
        World::Directory => panic!("{} acts on a directory", case.operation),
    };
    if let Some(number) = std::env::var_os(PROGRAM) {
        let case = &cases[number.into_string().unwrap().parse::<usize>().unwrap()];
        run(&context(sources), case.operation, (case.params)()).unwrap();
        return;
    }
    beset(programs);
    std::fs::write("/run/killer/meant", "0 never\n").unwrap();
    for (number, case) in cases.iter().enumerate() {
        std::fs::create_dir_all(sources).unwrap();
        (case.sources)(sources);
        (case.fresh)(root);
        std::fs::write("/run/killer/begun", "").unwrap();
        run(&context(sources), case.operation, (case.params)()).unwrap();
        let (whole, calls) = (state(case), lines("/run/killer/begun"));
        assert!(calls > 0, "{} calls no program", case.operation);
        for (turn, moment) in (1..=calls).flat_map(|turn| moments.iter().map(move |moment| (turn, moment))) {
            (case.fresh)(root);
            let at = format!("{} ({}), killed {moment} call {turn} of {calls}", case.operation, case.name);
            assert!(run_killed(test, number, turn, moment), "{at}: it was not");
            run(&context(sources), case.operation, (case.params)())
                .unwrap_or_else(|error| panic!("{at}: {error}"));
            assert_eq!(state(case), whole, "{at}");
            assert!(!run(&context(sources), case.operation, (case.params)()).unwrap().changed, "{at}");
        }
    }
}

/// Case 17 of reach, for what the programs of the system do: users and groups.
#[test]
fn users_and_groups_are_finished_by_the_next_run() {
    let programs =
        ["useradd", "usermod", "userdel", "groupadd", "groupmod", "groupdel", "gpasswd", "chpasswd", "chage"];
    inside(|| {
        every_call_may_be_the_last(
            "killed::users_and_groups_are_finished_by_the_next_run",
            stead_testkit::system_cases::accounts::CASES,
            (&programs, "*"),
            MOMENTS,
        );
    });
}

/// Case 17 of reach: packages that come and go.
#[test]
fn packages_are_finished_by_the_next_run() {
    inside(|| {
        every_call_may_be_the_last(
            "killed::packages_are_finished_by_the_next_run",
            &stead_testkit::system_cases::packages::CASES[..1],
            (&["apt-get"], "*"),
            MOMENTS,
        );
    });
}

/// Case 17 of reach: the running system takes notice of files that a killed run has left as they should be.
#[test]
fn what_the_running_system_has_not_noticed_is_made_good() {
    let meant = |case: &&Case| case.operation == "certificate.ca";
    let cases: Vec<Case> =
        stead_testkit::system_cases::configuration::RUNNING.iter().filter(meant).cloned().collect();
    inside(|| {
        every_call_may_be_the_last(
            "killed::what_the_running_system_has_not_noticed_is_made_good",
            &cases,
            (&["update-ca-certificates"], "*"),
            MOMENTS,
        );
    });
}

/// Section 8: a container whose replacement is killed is brought to its end by the next run, with all it was made with.
#[test]
fn a_replacement_of_a_container_is_finished_by_the_next_run() {
    inside(|| {
        if !is_victim() {
            stead_testkit::stand_in::engine("podman");
        }
        every_call_may_be_the_last(
            "killed::a_replacement_of_a_container_is_finished_by_the_next_run",
            crate::containers::REPLACED,
            (&["podman"], "create|rename|rm|start|stop"),
            MOMENTS,
        );
    });
}
