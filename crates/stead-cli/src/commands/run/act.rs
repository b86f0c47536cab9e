//! Starting a run of roles: one way, for the command line and for the screen.
//!
//! ```text
//!  RunRequest, observers ──▶ prepare ──▶ Prepared ──▶ run ──▶ Ended
//!                                           └──▶ stopper: signals, or a key
//! ```

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use stead_bundle::{ArchiveFormat, SigningKey};
use stead_drivers::Drivers;
use stead_drivers::roles::LocalAgent;
use stead_drivers::run::{self, AgentOpener, AgentWish, Opening, RunParts, RunStopper, RunSurroundings};
use stead_engine::compile::runs::CompiledRun;
use stead_model::bundle::{PlanMeta, RoleMeta, RunMeta};
use stead_model::event::RunKind;
use stead_model::inventory::Host;
use stead_model::plan::Plan;
use stead_model::run_plan::{BundleFormat, Distribution, PROFILE_FILE, RunPlan};
use stead_model::transport::TransportSpec;
use stead_model::{ExitCode, Report};
use stead_runner::agent::Agent;
use stead_runner::remote::{RemoteAgent, RemoteAgentSettings};
use stead_runner::{CheckedPlan, Observer, Provenance, Runner, Taken, Warner, clock, versions};

use crate::commands::agent;
use crate::commands::plan::drive::Boxed;
use crate::failure::{Failure, FailureKind};
use crate::reach;
use crate::settings::Settings;

/// A run that is wanted.
pub(crate) struct RunRequest {
    /// What runs.
    pub(crate) compiled: CompiledRun,
    /// The manifest, absolute.
    pub(crate) source: PathBuf,
    /// Its bytes.
    pub(crate) bytes: Vec<u8>,
    /// Variables that were given, for the record.
    pub(crate) vars: BTreeMap<String, serde_json::Value>,
    /// Where bundles go.
    pub(crate) bundle_dir: PathBuf,
    /// Whether a bundle that has the run's id is moved away.
    pub(crate) force: bool,
    /// What the bundle is signed with.
    pub(crate) signing: Option<SigningKey>,
}

/// A run that can start.
pub(crate) struct Prepared {
    runner: Runner,
    plan: CheckedPlan,
    surroundings: Arc<RunSurroundings>,
    meta: Arc<Mutex<Option<RunMeta>>>,
}

/// A run that has ended.
pub(crate) struct Ended {
    /// What its phases did.
    pub(crate) report: Report,
    /// What its bundle says of it.
    pub(crate) meta: RunMeta,
    /// What its bundle says of its roles.
    pub(crate) roles: BTreeMap<String, RoleMeta>,
}

/// Returns the run that `request` wants, its events seen by `observers`.
pub(crate) fn prepare(
    request: RunRequest,
    observers: Vec<Box<dyn Observer>>,
    settings: &Settings,
) -> Result<Prepared, Failure> {
    let RunRequest { compiled, source, bytes, vars, bundle_dir, force, signing } = request;
    let CompiledRun { compiled, run } = compiled;
    let base_dir = run.manifest_dir.clone();
    let environment = settings.environment.to_map();
    let secrets =
        stead_runner::read_secrets(&compiled.plan, &environment, &base_dir).map_err(Failure::invalid)?;
    let (runner, surroundings) = connected(&compiled.plan, secrets, false, settings)?;
    let taken = match (&run.run_id, force) {
        (None, _) => Taken::CountOn,
        (Some(_), true) => Taken::MoveAway,
        (Some(_), false) => Taken::Refuse,
    };
    let now = clock::now();
    let id = run.run_id.clone().unwrap_or_else(|| clock::run_id_of_second(now));
    let meta = PlanMeta {
        plan: compiled.plan.name.to_string(),
        source: Some(source.display().to_string()),
        argv: settings.argv.clone(),
        vars,
        segments: 1,
        ..PlanMeta::default()
    };
    let mut sources = vec![("manifest.yaml".to_owned(), bytes)];
    if let Some(content) = run
        .profile
        .as_ref()
        .filter(|profile| profile.distribution != Distribution::Preinstalled)
        .and_then(|profile| profile.content.as_ref())
    {
        sources.push((PROFILE_FILE.to_owned(), content.to_vec()));
    }
    let resolved = Arc::clone(&run);
    let mut runner = runner
        .record_below(bundle_dir, taken)
        .run_id(id)
        .provenance(Provenance { meta, sources, steps: None })
        .sources_of(move |id| {
            let text = resolved.to_resolved_manifest(id, now, &versions());
            vec![("manifest_resolved.yaml".to_owned(), text.into_bytes())]
        });
    for warning in &run.warnings {
        runner = runner.warn_of(warning.code.clone(), warning.text.clone(), warning.role.clone());
    }
    if let Some(key) = signing {
        runner = runner.sign(key);
    }
    runner = packing(runner, run.bundle_format);
    for observer in observers {
        runner = runner.observe(Boxed(observer));
    }
    let (runner, meta) = keeping_meta(runner, &run, &surroundings);
    let plan = CheckedPlan::from(compiled).with_base_dir(base_dir);
    Ok(Prepared { runner, plan, surroundings, meta })
}

/// Returns the runner with the bundle's format set.
pub(super) fn packing(runner: Runner, format: BundleFormat) -> Runner {
    match format {
        BundleFormat::Dir => runner,
        BundleFormat::Zip => runner.archive(ArchiveFormat::Zip),
        BundleFormat::TarZst => runner.archive(ArchiveFormat::TarZst),
    }
}

/// Returns a runner for the phases of `plan`, and what they share.
pub(super) fn connected(
    plan: &Arc<Plan>,
    secrets: BTreeMap<String, String>,
    afterwards: bool,
    settings: &Settings,
) -> Result<(Runner, Arc<RunSurroundings>), Failure> {
    let environment = settings.environment.to_map();
    let base_dir = plan.run.as_ref().map(|run| run.manifest_dir.clone()).unwrap_or_default();
    // The registry needs what the runner gives, and the runner the registry: it is handed over below.
    let runner = Runner::new(Default::default()).kind(RunKind::Run).environment(environment);
    let parts = RunParts {
        opener: opener(runner.warner(), base_dir, settings)?,
        secrets,
        announcer: runner.announcer(),
        known: runner.known_hashes(),
        afterwards,
    };
    let surroundings = RunSurroundings::new(Arc::clone(plan), parts)
        .map_err(|error| Failure::caused_by(FailureKind::Invalid, error))?;
    Ok((runner.registry(Drivers::with_run(&surroundings)), surroundings))
}

/// Returns the runner with metadata completed, and where it is when the run has ended.
pub(super) fn keeping_meta(
    runner: Runner,
    run: &Arc<RunPlan>,
    surroundings: &Arc<RunSurroundings>,
) -> (Runner, Arc<Mutex<Option<RunMeta>>>) {
    let kept = Arc::new(Mutex::new(None));
    let (run, surroundings, keep) = (Arc::clone(run), Arc::clone(surroundings), Arc::clone(&kept));
    let runner = runner.complete_meta(move |report, meta| {
        run::complete_meta(&run, &surroundings.ending(), report, meta);
        *keep.lock().unwrap_or_else(PoisonError::into_inner) = Some(meta.clone());
    });
    (runner, kept)
}

impl Prepared {
    /// Returns what stops the run.
    pub(crate) fn stopper(&self) -> RunStopper {
        self.surroundings.stopper(self.runner.canceller())
    }

    /// Runs it to its end.
    ///
    /// # Errors
    /// If it could not start: then there is no bundle.
    pub(crate) async fn run(self) -> Result<Ended, Failure> {
        let Self { runner, plan, surroundings, meta } = self;
        let report = runner.run(plan).await;
        finish(report, &surroundings, &meta).await
    }
}

/// Returns a run that has ended, its connections closed.
pub(super) async fn finish(
    report: Report,
    surroundings: &RunSurroundings,
    meta: &Mutex<Option<RunMeta>>,
) -> Result<Ended, Failure> {
    surroundings.end().await;
    let meta = meta.lock().unwrap_or_else(PoisonError::into_inner).take();
    let Some(meta) = meta else {
        let message = report.errors.first().map_or("the run could not start", |error| error.message.as_str());
        let code = if report.exit_code == ExitCode::Success { ExitCode::Failed } else { report.exit_code };
        let failure = Failure::new(FailureKind::of(code), message);
        let is_taken = code == ExitCode::Invalid;
        return Err(if is_taken {
            failure.hint("choose another run_id, or move the old one away with --force")
        } else {
            failure
        });
    };
    let roles = surroundings.role_metas();
    Ok(Ended { report, meta, roles })
}

/// Returns what opens agents from this process; secrets of theirs are read as `environment` and `base_dir` have them.
fn opener(warner: Warner, base_dir: PathBuf, settings: &Settings) -> Result<AgentOpener, Failure> {
    let reach = reach::reach(warner, settings)?;
    let (places, environment) = (agent::workdirs(settings), settings.environment.to_map());
    Ok(AgentOpener::new(move |wish: AgentWish| -> Opening {
        let mut reach = reach.clone();
        reach.lease = wish.lease;
        let (places, environment, base_dir) = (places.clone(), environment.clone(), base_dir.clone());
        Box::pin(async move {
            let AgentWish { id, plan, work, .. } = wish;
            let agent: Arc<dyn Agent> = match &plan.host.transport {
                TransportSpec::Local => {
                    let places = plan.workdir.map_or(places, |given| vec![PathBuf::from(given)]);
                    Arc::new(LocalAgent::new(reach.executable, places))
                }
                TransportSpec::Ssh(_) => {
                    let host = Host { workdir: plan.workdir, ..plan.host };
                    let settings = RemoteAgentSettings { reach, host, name: id, work, environment, base_dir };
                    Arc::new(RemoteAgent::connect(settings).await?)
                }
            };
            Ok(agent)
        })
    }))
}
