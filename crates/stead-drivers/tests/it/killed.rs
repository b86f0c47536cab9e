//! Configuration operations that are killed midway: what is there is old or new, and the next run finishes.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};

use stead_runner::operation::OpContext;
use stead_testkit::context::context;
use stead_testkit::operation_contract::Case;
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
