//! What the bundle says of roles and phases.

use std::collections::BTreeMap;
use std::time::Duration;

use stead_model::bundle::{EndedBy, Phase, PhaseStatus, RoleMeta, RoleStatus, RoleVersions, RunMeta};
use stead_model::report::{Report, TaskRow};
use stead_model::run_plan::{Arg, RolePlan, RunPlan, phases};
use stead_model::time::Timestamp;
use stead_model::{ErrorClass, RunStatus, Status};

use super::compare::STOPPED;
use super::state::{Inner, RoleState, Stage};

/// Returns what the bundle says of the role instance `name`.
pub(super) fn role_meta(name: &str, role: &RolePlan, state: Option<&RoleState>) -> RoleMeta {
    let state = state.cloned().unwrap_or_default();
    let exit = state.exit.unwrap_or_default();
    let status = match (state.status, state.stage) {
        (Some(status), _) => status,
        (None, Stage::Waiting) => RoleStatus::NotStarted,
        (None, Stage::Ended) if state.pid.is_none() => RoleStatus::NotStarted,
        (None, Stage::Starting | Stage::Running | Stage::Ended) => RoleStatus::Lost,
    };
    let has_ended = exit != Default::default();
    RoleMeta {
        role: name.to_owned(),
        kind: role.kind,
        agent_id: role.agent_id.to_string(),
        transport: role.transport.clone(),
        argv: state
            .argv
            .unwrap_or_else(|| role.argv.iter().flat_map(Arg::as_written).map(str::to_owned).collect()),
        env_names: role.env_names.clone(),
        workdir: state.workdir,
        status,
        pid: state.pid,
        started_at: state.started_at,
        ready: state.ready,
        finished_at: has_ended.then_some(exit.at),
        exit_code: exit.exit_code,
        signal: exit.signal,
        stop: state.stop,
        stdout_bytes: exit.stdout_bytes,
        stderr_bytes: exit.stderr_bytes,
        pcap_files: state
            .artifacts
            .iter()
            .filter(|file| file.is_capture())
            .map(|file| file.path.clone())
            .collect(),
        artifacts: state.artifacts,
        bind_ip: role.bind_ip,
        target_ip: role.target_ip,
        matrix: role.matrix.clone(),
        repeat_index: role.repeat_index,
        max_rss_bytes: exit.max_rss_bytes,
        cpu_ms: exit.cpu_ms,
    }
}

/// What is known of the agent of a role.
#[derive(Clone, Debug, Default)]
pub(super) struct AgentFacts {
    pub(super) host: String,
    pub(super) os: String,
    pub(super) arch: String,
    pub(super) clock_offset_ms: f64,
    pub(super) stead_sha256: Option<String>,
}

/// Returns what `versions.json` says of a role.
pub(super) fn role_versions(
    role: &RolePlan,
    state: &Inner,
    name: &str,
    agent: Option<&AgentFacts>,
) -> RoleVersions {
    let program = state.roles.get(name).and_then(|role| role.program.clone());
    RoleVersions {
        agent_id: role.agent_id.to_string(),
        transport: role.transport.clone(),
        host: agent.map(|agent| agent.host.clone()),
        os: agent.map(|agent| agent.os.clone()),
        arch: agent.map(|agent| agent.arch.clone()),
        stead_sha256: agent.and_then(|agent| agent.stead_sha256.clone()),
        clock_offset_ms: agent.map(|agent| agent.clock_offset_ms),
        program: program.as_ref().map(|program| program.path.clone()),
        program_sha256: program.and_then(|program| program.sha256),
    }
}

/// What is known of a run's end besides its report.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunEnding {
    /// What ended a run that went well before its tasks did.
    pub ended_by: Option<EndedBy>,
    /// The role that went wrong first.
    pub failed_role: Option<String>,
}

/// Adds what a run of roles adds to `run_meta.json`.
pub fn complete_meta(run: &RunPlan, ending: &RunEnding, report: &Report, meta: &mut RunMeta) {
    let roles = roles_of_phases(run);
    meta.seed = Some(run.seed);
    meta.phases = report.tasks.iter().map(|row| phase(row, &roles)).collect();
    let failed = |phase: &&Phase| phase.status == PhaseStatus::Failed;
    let is_other = |phase: &Phase| phase.role != ending.failed_role;
    let order = |phase: &&Phase| (is_other(phase), phase.finished_at, phase.started_at);
    let first = meta.phases.iter().filter(failed).min_by_key(order);
    let first = first.map(|phase| (phase.name.clone(), phase.error.clone()));
    let decides = matches!(report.status, RunStatus::Failed | RunStatus::Timeout);
    let mut was_interrupted = false;
    if let Some((name, error)) = first {
        let mut rows = report.tasks.iter().filter(|row| row.class == Some(ErrorClass::Interrupted));
        was_interrupted = rows.any(|row| row.name.as_str() == name);
        meta.failed_phase = decides.then_some(name);
        meta.error = error.or(meta.error.take());
    }
    if report.segments > 1 {
        // Roles ran on after their driver was lost.
        let lasted = Duration::from_millis(report.finished_at.millis_since(meta.started_at));
        meta.duration_seconds = lasted.as_secs_f64();
        // That a phase was cut off by the loss is no failure before it.
        let before = meta.error.take().filter(|_| !was_interrupted);
        let before = before.map(|error| format!("; before that: {error}")).unwrap_or_default();
        meta.error = Some(format!("the driver was lost, what was left was collected afterwards{before}"));
    }
    if meta.error.is_none() {
        meta.error = match report.status {
            RunStatus::Timeout => Some("the run took longer than its timeout".to_owned()),
            RunStatus::Cancelled => Some("stopped by a signal".to_owned()),
            RunStatus::Running | RunStatus::Success | RunStatus::Failed => None,
        };
    }
    if report.status == RunStatus::Success {
        meta.ended_by = ending.ended_by.or(meta.ended_by);
    }
}

fn phase(row: &TaskRow, roles: &BTreeMap<String, String>) -> Phase {
    let millis = i64::try_from(row.duration.as_micros()).unwrap_or(i64::MAX);
    let end = |start: Timestamp| Timestamp::from_micros(start.as_micros().saturating_add(millis));
    Phase {
        name: row.name.to_string(),
        role: roles.get(row.name.as_str()).cloned(),
        status: match row.status {
            Status::Changed | Status::Unchanged => PhaseStatus::Done,
            Status::Failed => PhaseStatus::Failed,
            Status::Skipped if row.cause == Some(stead_model::status::Cause::Dependency) => {
                PhaseStatus::NotRun
            }
            Status::Skipped if row.reason.as_deref() == Some(STOPPED) => PhaseStatus::Cancelled,
            Status::Skipped => PhaseStatus::Skipped,
            Status::Cancelled => PhaseStatus::Cancelled,
            Status::NotRun | Status::Unknown => PhaseStatus::NotRun,
        },
        started_at: row.started_at,
        finished_at: row.started_at.map(end),
        error: row.error.clone(),
    }
}

/// Returns the role of every phase that has one.
fn roles_of_phases(run: &RunPlan) -> BTreeMap<String, String> {
    let of = |name: &String| {
        [phases::start_of(name), phases::ready_of(name), phases::done_of(name), phases::stop_of(name)]
            .map(|phase| (phase, name.clone()))
    };
    run.roles.keys().flat_map(of).collect()
}
