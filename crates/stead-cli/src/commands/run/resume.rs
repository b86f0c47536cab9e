//! `stead resume RUN` of a run of roles: nothing is started; what agents still hold is collected and the bundle sealed.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use stead_drivers::run::RunSurroundings;
use stead_engine::compile::CompiledPlan;
use stead_model::bundle::{RoleMeta, RunMeta};
use stead_model::inventory::Host;
use stead_model::run_plan::{BundleFormat, RunPlan};
use stead_model::transport::TransportSpec;
use stead_model::{Diagnostics, Event, ExitCode, Plan, Report};
use stead_runner::{CheckedPlan, Observer, Provenance, ResumeOptions};

use super::act::{self, Ended};
use super::drive;
use super::shown::{self, Wanted, Where};
use crate::args::{Progress, ResumeArgs};
use crate::commands::plan::drive::Boxed;
use crate::commands::resume::{refuse_flags, refused, stored_plan};
use crate::failure::{Failure, FailureKind};
use crate::output::Output;
use crate::settings::Settings;

/// Finishes the run of roles recorded in `bundle`.
pub(crate) fn recorded(
    bundle: PathBuf,
    meta: &RunMeta,
    args: &ResumeArgs,
    settings: &Settings,
    output: &Output,
) -> Result<ExitCode, Failure> {
    refuse_other_flags(args)?;
    if stead_bundle::is_sealed(&bundle) {
        tell_what_is_missing(&bundle, meta, output);
        output.err.print_line(&format!("{} has ended already; this is how:", meta.run_id));
        return show_sealed(&bundle, meta, &wanted_of(args), settings, output);
    }
    let CompiledPlan { plan, graph, hash, warnings } = stored_plan(&bundle, meta)?;
    let (plan, unreadable) = with_hosts(&plan, meta);
    let (plan, secrets, unread) = with_readable_secrets(plan, settings);
    let run = plan
        .run
        .clone()
        .ok_or_else(|| Failure::new(FailureKind::Verification, "plan.json names no roles"))?;
    let (mut runner, surroundings) = act::connected(&plan, secrets, true, settings)?;
    for (agent, why) in unreadable {
        runner =
            runner.warn("run/collect-incomplete", format!("agent `{agent}` cannot be reached again: {why}"));
    }
    for problem in &unread.0 {
        let text = format!("{}; what is masked with it was masked when it was written", problem.message);
        runner = runner.warn("run/secret-unreadable", text);
    }
    if was_to_be_signed(meta) {
        let text = "the seal is not signed: the key of --sign is not known to a resume";
        runner = runner.warn("run/seal-unsigned", text);
    }
    runner = act::packing(runner, run.bundle_format);
    let wanted = wanted_of(args);
    for observer in shown::observers(&wanted, Where::In(bundle.clone()), settings, output)? {
        runner = runner.observe(Boxed(observer));
    }
    runner = runner
        .observe(Recall(Arc::clone(&surroundings)))
        .provenance(Provenance { meta: meta.plan.clone(), ..Provenance::default() });
    let (runner, kept) = act::keeping_meta(runner, &run, &surroundings);
    let stopper = surroundings.stopper(runner.canceller());
    let checked = CheckedPlan::from(CompiledPlan { plan, graph, hash, warnings });
    let ended = drive::drive(stopper, async move {
        let report = runner.resume_at(&bundle, checked, ResumeOptions::default()).await.map_err(refused)?;
        act::finish(report, &surroundings, &kept).await
    })?;
    Ok(shown::finish(&ended, &wanted, settings, output))
}

/// A run of roles never starts again: flags about what runs, and where, mean nothing to it.
fn refuse_other_flags(args: &ResumeArgs) -> Result<(), Failure> {
    let ResumeArgs { run: _, rerun, assume_done, force, yes, wait_lock, confirm, values, inventory, output } =
        args;
    let flags = [
        ("--rerun", !rerun.is_empty()),
        ("--assume-done", !assume_done.is_empty()),
        ("--force", *force),
        ("--yes", *yes),
        ("--wait-lock", wait_lock.is_some()),
        ("--confirm", confirm.is_some()),
        ("--profile", values.profile.is_some()),
        ("--host-env", values.host_env.is_some()),
        ("--set", !values.set.is_empty()),
        ("--inventory", !inventory.inventory.is_empty()),
        ("--agents", !inventory.agents.is_empty()),
        ("--limit", inventory.limit.is_some()),
        ("--junit", output.junit.is_some()),
        ("--markdown", output.markdown.is_some()),
        ("--progress", output.progress != Progress::Auto),
    ];
    refuse_flags(&flags, "runs of plans and steps", "a run of roles, which never starts again")
}

/// Whether the lost driver was asked to sign the bundle.
fn was_to_be_signed(meta: &RunMeta) -> bool {
    meta.plan.argv.iter().any(|argument| argument == "--sign" || argument.starts_with("--sign="))
}

/// Returns the plan without the secrets that cannot be read here, all their values, and what is wrong with those.
/// Nothing is started any more: templates that read them need some value, nobody sees which.
fn with_readable_secrets(
    plan: Arc<Plan>,
    settings: &Settings,
) -> (Arc<Plan>, BTreeMap<String, String>, Diagnostics) {
    let base_dir = plan.run.as_ref().map(|run| run.manifest_dir.clone()).unwrap_or_default();
    let (mut values, problems) =
        stead_runner::readable_secrets(&plan.secrets, &settings.environment.to_map(), &base_dir);
    let mut readable = Arc::unwrap_or_clone(plan);
    let names: Vec<String> = readable.secrets.keys().cloned().collect();
    readable.secrets.retain(|name, _| values.contains_key(name));
    for name in names {
        values.entry(name).or_default();
    }
    (Arc::new(readable), values, problems)
}

fn wanted_of(args: &ResumeArgs) -> Wanted {
    Wanted { json: args.output.json, events: args.output.events.clone(), verbose: args.output.verbose }
}

/// Tells what the driver of a sealed bundle was still to do when it was lost.
fn tell_what_is_missing(bundle: &Path, meta: &RunMeta, output: &Output) {
    if was_to_be_signed(meta) && !bundle.join(stead_bundle::SIGNATURE).exists() {
        let text = "warning: the seal is not signed: the key of --sign is not known to a resume";
        output.err.print_line(text);
    }
    let format =
        stored_plan(bundle, meta).ok().and_then(|compiled| Some(compiled.plan.run.as_ref()?.bundle_format));
    if format.is_some_and(|format| format != BundleFormat::Dir) {
        let text = format!(
            "warning: the bundle was not packed before its driver was lost; `stead bundle export {}` does it",
            bundle.display()
        );
        output.err.print_line(&text);
    }
}

/// Shows a run whose bundle is finished; there is nothing left to do.
fn show_sealed(
    bundle: &Path,
    meta: &RunMeta,
    wanted: &Wanted,
    settings: &Settings,
    output: &Output,
) -> Result<ExitCode, Failure> {
    let unreadable = |error: serde_json::Error| Failure::caused_by(FailureKind::Verification, error);
    let read = |path: &Path| {
        std::fs::read(path).map_err(|error| {
            Failure::new(FailureKind::Verification, format!("cannot read {}: {error}", path.display()))
        })
    };
    let mut report: Report =
        serde_json::from_slice(&read(&bundle.join(stead_bundle::REPORT))?).map_err(unreadable)?;
    report.bundle = Some(bundle.display().to_string());
    let names = std::fs::read_dir(bundle.join("roles")).into_iter().flatten().flatten();
    let mut roles = BTreeMap::new();
    for entry in names {
        let role: RoleMeta =
            serde_json::from_slice(&read(&entry.path().join("role_meta.json"))?).map_err(unreadable)?;
        roles.insert(role.role.clone(), role);
    }
    let ended = Ended { report, meta: meta.clone(), roles };
    Ok(shown::finish(&ended, wanted, settings, output))
}

/// Tells the phases what the lost driver recorded.
struct Recall(Arc<RunSurroundings>);

impl Observer for Recall {
    fn on_event(&mut self, _: &Event) {}

    fn on_recorded(&mut self, event: &Event) {
        self.0.recall(event);
    }
}

/// Returns the recorded plan with ways to its agents again, and the agents to which there are none, with why.
fn with_hosts(plan: &Plan, meta: &RunMeta) -> (Arc<Plan>, Vec<(String, String)>) {
    let mut plan = plan.clone();
    let Some(run) = &plan.run else { return (Arc::new(plan), Vec::new()) };
    let mut run: RunPlan = (**run).clone();
    let mut without = Vec::new();
    let mut agents = std::mem::take(&mut run.agents);
    agents.retain(|id, agent| {
        let parsed: Result<TransportSpec, _> = agent.transport.parse();
        let why = match parsed {
            Ok(_) if agent.transport.contains("***") => "its password was not recorded".to_owned(),
            Ok(transport) => {
                agent.host = Host { transport, ..Host::default() };
                return true;
            }
            Err(error) => error.to_string(),
        };
        without.push((id.to_string(), why));
        false
    });
    run.agents = agents;
    let source = meta.plan.source.as_ref().map(PathBuf::from);
    run.manifest_dir = source.and_then(|path| path.parent().map(PathBuf::from)).unwrap_or_default();
    plan.run = Some(Arc::new(run));
    (Arc::new(plan), without)
}
