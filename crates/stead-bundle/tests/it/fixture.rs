//! A run to record.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use stead_bundle::{CreateError, NewRun, RunDirectory, seal};
use stead_model::bundle::{PlanMeta, RunMeta, Versions};
use stead_model::event::RunKind;
use stead_model::plan::Digest;
use stead_model::time::Timestamp;
use stead_model::{RunId, RunStatus};

pub(crate) const PLAN: &[u8] = b"{\"tasks\":[]}\n";
pub(crate) const SOURCE: &[u8] = b"api_version: v1 # as written\n";

pub(crate) fn meta(run_id: &str, started_at: &str) -> RunMeta {
    RunMeta {
        schema: 1,
        kind: RunKind::Plan,
        run_id: RunId::parse(run_id).unwrap(),
        status: RunStatus::Running,
        exit_code: None,
        started_at: Timestamp::parse(started_at).unwrap(),
        finished_at: None,
        duration_seconds: 0.0,
        ended_by: None,
        driver_host: "here".to_owned(),
        plan_hash: Digest::of(PLAN),
        seed: None,
        phases_completed: vec![],
        phases: vec![],
        failed_phase: None,
        error: None,
        warnings: vec![],
        plan: PlanMeta { plan: "web".to_owned(), segments: 1, ..PlanMeta::default() },
        steps: None,
        extra: BTreeMap::new(),
    }
}

fn versions() -> Versions {
    Versions {
        stead_version: "0.1.0".to_owned(),
        git_commit: None,
        rust_version: "1.95".to_owned(),
        driver_os: "linux".to_owned(),
        driver_arch: "x86_64".to_owned(),
        roles: BTreeMap::new(),
    }
}

pub(crate) fn create_with(state: &Path, meta: &RunMeta) -> Result<RunDirectory, CreateError> {
    let new = NewRun {
        meta,
        versions: &versions(),
        plan: &|out| out.write_all(PLAN),
        sources: &[("plan.yaml", SOURCE)],
    };
    RunDirectory::create(state, &new)
}

pub(crate) fn create(state: &Path, run_id: &str) -> RunDirectory {
    create_with(state, &meta(run_id, "2026-01-02T03:04:05.678901Z")).unwrap()
}

/// Returns the path of a finished, sealed bundle.
pub(crate) fn sealed(state: &Path, run_id: &str) -> PathBuf {
    let run = create(state, run_id);
    std::fs::write(run.events_path(), "{}\n").unwrap();
    std::fs::write(run.path().join("report.json"), "{}\n").unwrap();
    run.write_artifact("out/result.json", b"[1]").unwrap();
    let mut ended = meta(run_id, "2026-01-02T03:04:05.678901Z");
    ended.status = RunStatus::Failed;
    run.update_meta(&ended).unwrap();
    seal(run.path()).unwrap();
    run.path().to_owned()
}
