//! The phases of a run as the tasks of a plan.
//!
//! ```text
//!  main:     init ─▶ stage ─▶ R_start ─▶ R_ready | R_done ─▶ (those that need R) ─▶ until
//!  finally:  R_stop, last started first ─▶ collect ─▶ bundle ─▶ analyze ─▶ diff
//! ```

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use stead_model::diagnostic::Place;
use stead_model::plan::SecretRef;
use stead_model::plan::{
    Action, Digest, Expression, Guard, Limits, OnError, Op, Param, Part, Plan, Section, Settings, Task,
    TaskIndex, TriggerRule,
};
use stead_model::run_plan::{AgentPlan, Analyze, ProfilePlan, RoleKind, RunPlan, RunWarning, Until, phases};
use stead_model::{Diagnostics, OperationName, PlanName, TaskName};

use super::roles::{Draft, Roles};
use super::{CompiledRun, DEFAULT_TIMEOUT, RunInputs, diff, resolved};
use crate::compile::{Catalogue, Explicit, check};

/// The name of every plan of a run.
const NAME: &str = "run";

/// What stopping, collecting and analysing may take together. Each of them has limits of its own.
const FINALLY_TIMEOUT: Duration = Duration::from_secs(24 * 3600);

/// Returns the compiled run, or every problem.
pub(super) fn compile(
    inputs: &RunInputs<'_>,
    roles: Roles<'_>,
    profile: Option<ProfilePlan>,
    problems: Diagnostics,
) -> Result<CompiledRun, Diagnostics> {
    let manifest = inputs.manifest;
    let mut plan = Plan::new(PlanName::parse(NAME).expect("a word is a plan name"));
    plan.vars = roles.resolved.vars.clone();
    plan.env = roles.resolved.env.clone();
    plan.secrets = manifest.secrets.clone();
    plan.timeout = timeout(inputs, roles.until);
    plan.finally_timeout = FINALLY_TIMEOUT;
    // A run locks its own directory; agents hold any number of runs.
    plan.lock = false;
    let run = Arc::new(run_plan(inputs, roles, profile, plan.timeout));
    plan.tasks = tasks(&run);
    // Phases wait; they must not wait for each other's slots.
    let main = plan.tasks.iter().filter(|task| task.section == Section::Main).count();
    let parallel = u32::try_from(main).unwrap_or(u32::MAX);
    plan.limits = Limits { parallel, per_target: Some(parallel) };
    plan.run = Some(Arc::clone(&run));
    let catalogue = Catalogue::new(&phases::OPERATIONS);
    let whole = |_: TaskIndex, _: &str| Place::Named(manifest.tree().source().name.to_string());
    let compiled = check(plan, &Explicit::default(), &catalogue, &whole, problems)?;
    Ok(CompiledRun { compiled, run })
}

fn timeout(inputs: &RunInputs<'_>, until: Until) -> Option<Duration> {
    match (inputs.timeout, until) {
        (Some(limit), _) => Some(limit).filter(|limit| !limit.is_zero()),
        (None, Until::Signal) => None,
        (None, Until::Tasks | Until::Duration) => Some(DEFAULT_TIMEOUT),
    }
}

fn run_plan(
    inputs: &RunInputs<'_>,
    roles: Roles<'_>,
    profile: Option<ProfilePlan>,
    timeout: Option<Duration>,
) -> RunPlan {
    let manifest = inputs.manifest;
    let resolved = resolved::manifest(inputs, &roles);
    let mut warnings = roles.warnings;
    warnings.extend(
        roles.agents.values().flat_map(|host| host.transport.warnings()).map(|(code, text)| RunWarning {
            code: code.to_owned(),
            text,
            role: None,
        }),
    );
    let agents = roles.agents.into_iter().map(|(id, host)| {
        let agent = AgentPlan { transport: host.transport.to_string(), workdir: host.workdir.clone(), host };
        (id, agent)
    });
    let mut ports: Vec<u16> =
        manifest.network.target_port.into_iter().chain(manifest.ports.iter().copied()).collect();
    ports.sort_unstable();
    ports.dedup();
    let hidden = manifest.secrets.values().filter_map(|secret| match secret {
        SecretRef::Env(name) => Some(name.clone()),
        SecretRef::File(_) => None,
    });
    let mut hidden_env: Vec<String> = hidden.collect();
    hidden_env.sort_unstable();
    hidden_env.dedup();
    RunPlan {
        run_id: manifest.run_id.clone(),
        seed: manifest.seed,
        until: roles.until,
        timeout,
        lease_seconds: manifest.lease_seconds,
        keep_workdir: manifest.keep_workdir,
        profile,
        network: roles.network,
        agents: agents.collect(),
        start_order: roles.instances.iter().map(|draft| draft.name.clone()).collect(),
        roles: roles.instances.into_iter().map(|Draft { name, plan, .. }| (name, plan)).collect(),
        max_bytes: manifest.max_bytes,
        bundle_format: manifest.bundle_format,
        analyze: if inputs.analyze { manifest.analyze } else { Analyze::No },
        ports,
        diff: diff(inputs),
        kits: roles.kits,
        warnings,
        manifest_sha256: inputs.manifest_sha256,
        hidden_env,
        manifest: Arc::new(resolved),
        manifest_dir: inputs.manifest_dir.to_owned(),
    }
}

/// Returns the tasks of a run, in plan order.
fn tasks(run: &RunPlan) -> Vec<Task> {
    let main = Arc::new(Settings { target: local(), ..Settings::default() });
    let mut tasks = vec![
        task(phases::INIT, Section::Main, &[], phases::RUN_INIT, None, &main),
        task(phases::STAGE, Section::Main, &[phases::INIT.to_owned()], phases::RUN_STAGE, None, &main),
    ];
    let reached = |name: &str| match run.roles.get(name).map(|role| role.kind) {
        Some(RoleKind::Service) => phases::ready_of(name),
        Some(RoleKind::Task) | None => phases::done_of(name),
    };
    for (name, role) in run.in_start_order() {
        let start = phases::start_of(name);
        let before: Vec<String> = match role.needs.is_empty() {
            true => vec![phases::STAGE.to_owned()],
            false => role.needs.iter().map(|need| reached(need)).collect(),
        };
        tasks.push(task(&start, Section::Main, &before, phases::RUN_START, Some(name), &main));
        let operation = match role.kind {
            RoleKind::Service => phases::RUN_READY,
            RoleKind::Task => phases::RUN_DONE,
        };
        tasks.push(task(&reached(name), Section::Main, &[start], operation, Some(name), &main));
    }
    if run.until != Until::Tasks {
        // Not behind tasks: it is what ends those that would go on.
        let services = run.in_start_order().filter(|(_, role)| role.kind == RoleKind::Service);
        let mut before: Vec<String> = services.map(|(name, _)| phases::ready_of(name)).collect();
        if before.is_empty() {
            before.push(phases::STAGE.to_owned());
        }
        tasks.push(task(phases::UNTIL, Section::Main, &before, phases::RUN_UNTIL, None, &main));
    }
    tasks.extend(finally(run));
    tasks
}

/// Returns what follows every outcome: each phase after the one before, however that ended.
fn finally(run: &RunPlan) -> Vec<Task> {
    let always = Settings {
        target: local(),
        trigger_rule: TriggerRule::AllDone,
        on_error: OnError::Continue,
        ..Settings::default()
    };
    let asked = |is_asked: bool| match is_asked {
        true => Arc::new(always.clone()),
        false => {
            let expr = Expression("false".into());
            let when = vec![Guard::Expr { expr, reason: Some("not asked for".to_owned()) }];
            Arc::new(Settings { when, ..always.clone() })
        }
    };
    let mut tasks: Vec<Task> = Vec::new();
    let mut before: Vec<String> = Vec::new();
    let mut add = |name: &str, operation: &str, role: Option<&str>, settings: &Arc<Settings>| {
        tasks.push(task(name, Section::Finally, &before, operation, role, settings));
        before = vec![name.to_owned()];
    };
    for (name, role) in run.in_start_order().rev() {
        if role.kind == RoleKind::Service {
            add(&phases::stop_of(name), phases::RUN_STOP, Some(name), &asked(true));
        }
    }
    add(phases::COLLECT, phases::RUN_COLLECT, None, &asked(true));
    add(phases::BUNDLE, phases::RUN_BUNDLE, None, &asked(true));
    add(phases::ANALYZE, phases::RUN_ANALYZE, None, &asked(run.analyze != Analyze::No));
    add(phases::DIFF, phases::RUN_DIFF, None, &asked(run.diff.is_some()));
    tasks
}

fn local() -> Vec<String> {
    vec!["local".to_owned()]
}

fn task(
    name: &str,
    section: Section,
    depends_on: &[String],
    operation: &str,
    role: Option<&str>,
    settings: &Arc<Settings>,
) -> Task {
    let name_of =
        |name: &str| TaskName::parse(name).expect("phases are named by words, roles by at most 40 bytes");
    let operation = OperationName::parse(operation).expect("phases have operations with names");
    let params: BTreeMap<String, Param> =
        role.into_iter().map(|role| ("role".to_owned(), Param::from(role))).collect();
    let part = Part {
        name: None,
        op: Op { operation, params },
        when_host: Vec::new(),
        changed_when: None,
        failed_when: None,
    };
    Task {
        name: name_of(name),
        section,
        depends_on: depends_on.iter().map(|name| name_of(name)).collect(),
        action: Action::Op(Arc::new(part)),
        settings: Arc::clone(settings),
        item: None,
        hash: Digest::default(),
    }
}
