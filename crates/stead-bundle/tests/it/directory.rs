//! Making and filling run directories.

use std::error::Error as _;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::json;
use stead_bundle::{CreateError, LoadError, LockError, OpenError, RunDirectory, load_meta, load_plan};
use stead_model::event::Stream;
use stead_model::time::Timestamp;
use stead_model::{HostName, TaskName};

use crate::fixture::{PLAN, SOURCE, create, create_with, meta};

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

fn later() -> Timestamp {
    Timestamp::parse("2026-01-02T04:00:00Z").unwrap()
}

#[test]
fn a_new_run_directory_has_its_files_and_modes() {
    let state = tempfile::tempdir().unwrap();
    let run = create(&state.path().join("deep/.stead"), "r1");
    let path = run.path();
    assert!(path.ends_with("deep/.stead/runs/r1"));
    assert_eq!(fs::read(path.join("plan.yaml")).unwrap(), SOURCE);
    assert_eq!(fs::read(path.join("plan.json")).unwrap(), PLAN);
    let stored = load_meta(path).unwrap();
    assert_eq!(stored, meta("r1", "2026-01-02T03:04:05.678901Z"));
    assert_eq!(load_plan(path, &stored).unwrap(), PLAN);
    let text = fs::read_to_string(path.join("run_meta.json")).unwrap();
    assert!(text.starts_with("{\n  \"schema\": 1,\n") && text.ends_with("}\n"), "{text}");
    let lock: serde_json::Value = serde_json::from_slice(&fs::read(path.join("lock")).unwrap()).unwrap();
    assert_eq!(lock["pid"], std::process::id());
    assert_eq!(lock["since"], "2026-01-02T03:04:05.678901Z");

    let task = TaskName::parse("p[eu]").unwrap();
    let host = HostName::parse("web@10.0.0.1:22").unwrap();
    let mut log = run.log_file(&task, Some(&host), 2, Stream::Stderr);
    assert!(!path.join("logs").exists(), "nothing before the first byte");
    log.write(b"hello").unwrap();
    let log_path = path.join("logs/p[eu]/web@10.0.0.1:22.2.stderr");
    assert_eq!(path.join(log.relative_path()), log_path);
    let data = run.write_data(&task, Some(&host), 2, &json!({"a": 1})).unwrap();
    assert_eq!(data, "artifacts/p[eu]/web@10.0.0.1:22.2.json");

    assert_eq!(mode(&log_path), 0o600);
    for directory in ["", "logs", "logs/p[eu]", "artifacts"] {
        assert_eq!(mode(&path.join(directory)), 0o755, "{directory}");
    }
    for file in ["run_meta.json", "versions.json", "plan.json", "plan.yaml", &data] {
        assert_eq!(mode(&path.join(file)), 0o644, "{file}");
    }
    run.sync().unwrap();
}

#[test]
fn logs_say_where_their_bytes_are_and_go_on_where_a_dead_driver_stopped() {
    let state = tempfile::tempdir().unwrap();
    let run = create(state.path(), "r1");
    let task = TaskName::parse("t").unwrap();
    let mut log = run.log_file(&task, None, 1, Stream::Stdout);
    assert_eq!(log.write(b"abc").unwrap(), 0);
    assert_eq!(log.write(b"de").unwrap(), 3);
    drop(log);

    let mut log = run.log_file(&task, None, 1, Stream::Stdout);
    assert_eq!(log.write(b"f").unwrap(), 5);
    assert_eq!(fs::read(run.path().join("logs/t/_.1.stdout")).unwrap(), b"abcdef");
}

#[test]
fn long_names_fit_the_file_system() {
    let state = tempfile::tempdir().unwrap();
    let run = create(state.path(), "r1");
    let task = TaskName::parse(&format!("{}[{}]", "t".repeat(128), "k".repeat(128))).unwrap();
    let host = HostName::parse(&"h".repeat(253)).unwrap();
    let mut log = run.log_file(&task, Some(&host), 1000, Stream::Stdout);
    log.write(b"x").unwrap();
    assert_eq!(fs::read(run.path().join(log.relative_path())).unwrap(), b"x");
}

#[test]
fn artifacts_cannot_leave_the_bundle() {
    let state = tempfile::tempdir().unwrap();
    let run = create(state.path(), "r1");
    for bad in ["", ".", "..", "../x", "/etc/x", "a/../../../x"] {
        assert!(run.write_artifact(bad, b"x").is_err(), "{bad:?}");
    }
    assert!(!run.path().join("artifacts").exists());
}

#[test]
fn a_taken_id_is_told_apart_and_nothing_is_touched() {
    let state = tempfile::tempdir().unwrap();
    drop(create(state.path(), "r1"));
    let again = create_with(state.path(), &meta("r1", "2027-01-01T00:00:00Z"));
    assert!(matches!(again, Err(CreateError::Exists { .. })), "{again:?}");
    fs::create_dir(state.path().join("runs/empty")).unwrap();
    let empty = create_with(state.path(), &meta("empty", "2027-01-01T00:00:00Z"));
    assert!(matches!(empty, Err(CreateError::Exists { .. })), "{empty:?}");
    let left: Vec<_> =
        fs::read_dir(state.path().join("runs")).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left.len(), 2, "{left:?}");
    let stored = load_meta(&state.path().join("runs/r1")).unwrap();
    assert_eq!(stored.started_at, Timestamp::parse("2026-01-02T03:04:05.678901Z").unwrap());
}

/// Case 24: many processes at once never collide, and of those that want one id exactly one gets it.
#[test]
fn a_hundred_processes_create_their_runs_at_once() {
    const VARIABLE: &str = "STEAD_TEST_CREATE_IN";
    if let Some(state) = std::env::vars_os().find(|(name, _)| name == VARIABLE).map(|(_, value)| value) {
        let own = format!("run-{}", std::process::id());
        let mine = create_with(Path::new(&state), &meta(&own, "2026-01-02T03:04:05Z"));
        let same = create_with(Path::new(&state), &meta("the-same", "2026-01-02T03:04:05Z"));
        assert!(mine.is_ok(), "{mine:?}");
        match same {
            Ok(run) => fs::write(run.path().join("winner"), own).unwrap(),
            Err(CreateError::Exists { .. }) => {}
            Err(other) => panic!("{other:?}"),
        }
        return;
    }
    let state = tempfile::tempdir().unwrap();
    let test = "directory::a_hundred_processes_create_their_runs_at_once";
    let children: Vec<_> = (0..100)
        .map(|_| {
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.args(["--exact", test]).env(VARIABLE, state.path());
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
        })
        .collect();
    for child in children {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    }
    let names: Vec<_> =
        fs::read_dir(state.path().join("runs")).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(names.len(), 101);
    assert!(names.iter().all(|name| !name.as_encoded_bytes().starts_with(b".")), "{names:?}");
    assert!(state.path().join("runs/the-same/winner").exists());
}

/// Case 23: resuming a running run is refused, naming its process; afterwards it can be taken.
#[test]
fn only_one_process_owns_a_run() {
    let state = tempfile::tempdir().unwrap();
    let run = create(state.path(), "r1");
    let path = run.path().to_owned();
    match RunDirectory::reopen(&path, later()) {
        Err(OpenError::Lock(LockError::Held { holder: Some(holder), .. })) => {
            assert_eq!((holder.run.as_str(), holder.pid), ("r1", std::process::id()));
        }
        other => panic!("{other:?}"),
    }
    fs::write(path.join("hashes.txt"), "x").unwrap();
    drop(run);
    let (again, stored) = RunDirectory::reopen(&path, later()).unwrap();
    assert_eq!(stored.run_id, *again.run_id());
    assert!(!path.join("hashes.txt").exists(), "it is unsealed");
}

#[test]
fn a_directory_that_is_no_run_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let error = RunDirectory::reopen(dir.path(), later()).unwrap_err();
    assert!(matches!(error, OpenError::Load(LoadError::NotABundle { .. })), "{error:?}");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn a_changed_plan_is_refused() {
    let state = tempfile::tempdir().unwrap();
    let run = create(state.path(), "r1");
    fs::write(run.path().join("plan.json"), "{}").unwrap();
    let stored = load_meta(run.path()).unwrap();
    assert!(matches!(load_plan(run.path(), &stored), Err(LoadError::PlanChanged { .. })));
    run.replace_plan(PLAN, &[("plan.yaml", b"new")]).unwrap();
    assert_eq!(load_plan(run.path(), &stored).unwrap(), PLAN);
    assert_eq!(fs::read(run.path().join("plan.yaml")).unwrap(), b"new");
}

/// An unwritable state directory is an error that names path and cause; a file in its place is one for root too.
#[test]
fn an_unusable_state_directory_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("state");
    fs::write(&state, "a file").unwrap();
    let error = create_with(&state, &meta("r1", "2026-01-02T03:04:05Z")).unwrap_err();
    assert!(error.to_string().contains("state/runs"), "{error}");
    let cause = error.source().expect("a cause").to_string();
    assert!(cause.contains("directory"), "{cause}");
}

/// A full disk is an error that names path and cause, and leaves no half-made run.
#[test]
fn a_full_disk_is_named_and_leaves_nothing_half_made() {
    let dir = tempfile::tempdir().unwrap();
    let mount =
        Command::new("mount").args(["-t", "tmpfs", "-o", "size=16k", "tmpfs"]).arg(dir.path()).output();
    if !mount.is_ok_and(|mount| mount.status.success()) {
        eprintln!("skipped: mounting a small tmpfs needs root");
        return;
    }
    let failed = create_with(dir.path(), &meta("r1", "2026-01-02T03:04:05Z"));
    let left = fs::read_dir(dir.path().join("runs")).map(Iterator::count);
    let unmounted = Command::new("umount").arg("-l").arg(dir.path()).status().unwrap();
    assert!(unmounted.success());
    let Err(CreateError::Record(error)) = failed else { panic!("{failed:?}") };
    assert_eq!(error.source.kind(), std::io::ErrorKind::StorageFull, "{error}");
    assert!(error.path.starts_with(dir.path()));
    assert_eq!(left.unwrap(), 0);
}

/// What a process left that was killed while it made its run directory goes when the next run is made.
#[test]
fn directories_of_killed_makers_are_swept_and_none_in_use() {
    let state = tempfile::tempdir().unwrap();
    let runs = state.path().join("runs");
    let mut dead = Command::new("/bin/true").spawn().unwrap();
    let dead_pid = dead.id();
    dead.wait().unwrap();
    let place = |pid: u32, name: &str| {
        let path = runs.join(format!(".tmp-{pid}-0-{name}"));
        fs::create_dir_all(&path).unwrap();
        path
    };
    let (bare, whole) = (place(dead_pid, "bare"), place(dead_pid, "whole"));
    for file in ["lock", "run_meta.json", "plan.json"] {
        fs::write(whole.join(file), "left").unwrap();
    }
    let alive = place(std::process::id(), "alive");
    // A maker in another process namespace has a number that says nothing here; its lock does.
    let locked = place(dead_pid, "locked");
    let lock = fs::File::create(locked.join("lock")).unwrap();
    lock.lock().unwrap();
    let strange = runs.join(".tmp-mine");
    fs::create_dir(&strange).unwrap();
    drop(create(state.path(), "r1"));
    let left = [&bare, &whole, &alive, &locked, &strange].map(|path| path.exists());
    assert_eq!(left, [false, false, true, true, true]);
    drop(lock);
    drop(create(state.path(), "r2"));
    assert!(!locked.exists() && alive.exists() && runs.join("r1/run_meta.json").exists());
}
