//! Section 7 of reach, rule 5: what is too large for the journal is kept beside the run, and comes back.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use stead_drivers::Drivers;
use stead_model::plan::OnFailure;
use stead_model::{Report, Status};
use stead_runner::Runner;
use stead_runner::author::{OnError, Op, Plan, PlanBuilder, Task};

/// Bytes that no compression and no text could stand for.
fn noise(size: usize, seed: u64) -> Vec<u8> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u8
    };
    (0..size).map(|_| next()).collect()
}

/// Everything below `dir`: kind, mode, owner and content.
fn tree(dir: &Path) -> BTreeMap<PathBuf, (u32, u32, Vec<u8>)> {
    let mut found = BTreeMap::new();
    let mut todo = vec![dir.to_owned()];
    while let Some(path) = todo.pop() {
        let meta = path.symlink_metadata().unwrap();
        let content = if meta.is_dir() {
            todo.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
            Vec::new()
        } else if meta.is_symlink() {
            fs::read_link(&path).unwrap().into_os_string().into_encoded_bytes()
        } else {
            fs::read(&path).unwrap()
        };
        found.insert(path, (meta.mode(), meta.uid(), content));
    }
    found
}

/// A target with large files, and a place for state and copies.
struct Site {
    dir: tempfile::TempDir,
}

impl Site {
    fn new() -> Self {
        let site = Self { dir: tempfile::tempdir().unwrap() };
        let target = site.path("target");
        fs::create_dir_all(target.join("old/deep")).unwrap();
        fs::write(target.join("large"), noise(3 << 20, 1)).unwrap();
        fs::set_permissions(target.join("large"), fs::Permissions::from_mode(0o640)).unwrap();
        fs::write(target.join("old/deep/large"), noise(2 << 20, 2)).unwrap();
        symlink("deep/large", target.join("old/link")).unwrap();
        // Each is small; together they are not.
        for i in 0..30 {
            fs::write(target.join(format!("old/{i}")), vec![b'a' + i; 60 << 10]).unwrap();
        }
        fs::create_dir_all(target.join("copied")).unwrap();
        fs::write(target.join("copied/changed"), noise(1_500_000, 3)).unwrap();
        fs::write(target.join("copied/extra"), noise(1_500_000, 4)).unwrap();
        fs::create_dir_all(site.path("source")).unwrap();
        fs::write(site.path("source/changed"), noise(1_600_000, 5)).unwrap();
        site
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    /// Returns a plan of three tasks, whose handles the last can wait for.
    fn plan(&self) -> (PlanBuilder, [Task<Value>; 3]) {
        let mut plan = Plan::builder("large");
        plan.operations(&Drivers::standard()).on_failure(OnFailure::Rollback);
        let op = |name: &str| Op::new(name);
        let path = |name: &str| self.text(&format!("target/{name}"));
        let written = plan
            .op("written", op("file.present").param("path", path("large")).param("content", "small"))
            .undo_auto()
            .handle();
        let removed = plan
            .op("removed", op("file.absent").param("path", path("old")).param("recursive", true))
            .undo_auto()
            .handle();
        let copy = op("file.copy").param("path", path("copied")).param("source", self.text("source"));
        let copied = plan.op("copied", copy.param("delete", true)).undo_auto().handle();
        (plan, [written, removed, copied])
    }

    async fn run(&self, plan: PlanBuilder, base: &Path) -> Report {
        let runner = Runner::new(Drivers::standard()).record_in(self.path("state")).keep_undo_in(base);
        runner.run(plan.build().unwrap()).await
    }
}

/// Files of several MiB, and many small ones, are restored byte for byte with mode and owner.
#[tokio::test]
async fn a_rollback_brings_back_files_the_journal_cannot_hold() {
    let site = Site::new();
    let before = tree(&site.path("target"));
    let (mut plan, tasks) = site.plan();
    plan.op("failing", Op::new("assert").param("that", json!(["false"]))).after(tasks);
    let report = site.run(plan, &site.path("base")).await;
    for name in ["written", "removed", "copied"] {
        assert_eq!(report.task(name).unwrap().status, Status::Changed, "{report:?}");
    }
    let rollback = report.rollback.as_ref().unwrap();
    assert_eq!((rollback.done.len(), rollback.failed.len(), rollback.missing.len()), (3, 0, 0), "{report:?}");
    let after = tree(&site.path("target"));
    assert_eq!(before.keys().collect::<Vec<_>>(), after.keys().collect::<Vec<_>>());
    assert!(before == after, "some content, mode or owner differs");
    // Copies are the account's alone, and the journal holds none of them.
    let run = report.run_id.as_ref().unwrap();
    let kept = site.path("base/undo").join(run.as_str());
    assert_eq!(kept.metadata().unwrap().mode() & 0o777, 0o700);
    let copies: Vec<_> =
        fs::read_dir(&kept).unwrap().map(|entry| entry.unwrap().metadata().unwrap()).collect();
    assert!(copies.iter().all(|copy| copy.mode() & 0o777 == 0o600), "{copies:?}");
    assert!(copies.iter().any(|copy| copy.len() == 3 << 20));
    let journal =
        fs::read_to_string(Path::new(report.bundle.as_ref().unwrap()).join("events.jsonl")).unwrap();
    assert!(journal.lines().all(|line| line.len() < 2 << 20));
}

/// Without a place for the copy nothing is changed: `undo: auto` is a promise.
#[tokio::test]
async fn without_a_place_for_the_copy_nothing_is_changed() {
    let site = Site::new();
    let before = tree(&site.path("target"));
    fs::write(site.path("file"), "no directory").unwrap();
    let (mut plan, _) = site.plan();
    plan.on_error(OnError::Continue);
    let report = site.run(plan, &site.path("file/base")).await;
    let row = report.task("written").unwrap();
    assert_eq!((row.status, row.changed), (Status::Failed, false), "{row:?}");
    let error = row.error.as_ref().unwrap();
    assert!(error.contains("undo: auto") && error.contains(&site.text("file/base")), "{error}");
    assert!(before == tree(&site.path("target")));
}

/// A copy that went away is said, and the rest comes back.
#[tokio::test]
async fn a_copy_that_is_gone_is_named() {
    let site = Site::new();
    let (mut plan, tasks) = site.plan();
    let base = site.path("base");
    let gone = base.clone();
    plan.func("sweep", move |_| {
        let gone = gone.clone();
        async move {
            fs::remove_dir_all(gone)?;
            Err::<stead_runner::Done<()>, _>(stead_runner::Failure::new("on purpose"))
        }
    })
    .after(tasks);
    let report = site.run(plan, &base).await;
    let rollback = report.rollback.as_ref().unwrap();
    assert_eq!((rollback.done.len(), rollback.failed.len()), (0, 3), "{report:?}");
    let said = fs::read_to_string(Path::new(report.bundle.as_ref().unwrap()).join("events.jsonl")).unwrap();
    let said =
        said.lines().find(|line| line.contains("undo_finished") && line.contains("\"written\"")).unwrap();
    assert!(said.contains("kept for seven days") && said.contains(&site.text("target/large")), "{said}");
}
