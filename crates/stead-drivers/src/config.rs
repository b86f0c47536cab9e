//! The config phase, on the node itself: a resolved spec becomes what the machine is.
//!
//! ```text
//!   ResolvedSpec ──▶ engine::compile::config ──▶ Plan ──▶ Runner ──▶ operations, below the node's root
//!        │                                                               │
//!        └── spec.yaml, spec.yaml.prev            observe ◀──────────────┘
//!                                                    └──▶ state.json, drift, config-complete.json | config-failed.json
//! ```
//! Push calls [`apply`] by `stead config apply`, the agent calls it in its own process: one way, so that one spec gives
//! one state. Nothing is recorded but these files: an apply can simply be made again.

mod files;
mod observation;
mod observe;

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::FlockOperation;
use serde_json::Value;
use stead_engine::compile::Catalogue;
use stead_engine::compile::config::{ConfigSurroundings, config, is_about};
use stead_engine::nodes::drift::differences;
use stead_model::inventory::{Host, Inventory};
use stead_model::node::marker::{MarkedPhase, MarkedStatus};
use stead_model::node::{
    Applied, ApplyFailure, Change, ConfigComplete, ConfigFailed, Drift, NodeState, path,
};
use stead_model::site::ResolvedSpec;
use stead_model::site::manifest::Mode;
use stead_model::time::Timestamp;
use stead_model::{HostName, Report, RunId, RunStatus};
use stead_runner::operation::OpError;
use stead_runner::{Canceller, CheckedPlan, Observer, Runner, clock};

use crate::machine::sandbox::{self, Phase};
use crate::{Drivers, facts, system};

pub use files::ConfigFiles;
pub use observation::observation;
pub use observe::observe;
pub use stead_engine::nodes::drift::{drift, expected};

/// How a spec is applied.
#[derive(Default)]
pub struct ApplyOptions {
    /// How the spec came.
    pub mode: Mode,
    /// Only say what would change.
    pub dry_run: bool,
    /// The server it came from, if it did.
    pub server: Option<String>,
    /// Leave it to the caller to confirm changes of the network, by having reached the node or its server since.
    pub confirmed_by_caller: bool,
    /// Readers of the events.
    pub observers: Vec<Box<dyn Observer>>,
    /// Is given what stops it.
    pub connect: Option<Box<dyn FnOnce(Canceller) + Send>>,
}

/// Why nothing can be said of an apply.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// The node's own files cannot be used.
    #[error("cannot use {}", path.display())]
    Files {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// It was cut off on purpose: nothing was written about it.
    #[error("{0}")]
    Crashed(String),
}

/// Makes the node below `root` (`/`: this machine) what `spec` wants, and writes down how that went.
///
/// What is as it should be is not touched: a second call changes nothing, the marker included. Calls at once wait for
/// each other.
///
/// # Errors
/// If the node's own files cannot be written. That the spec cannot be applied is no error: [`Applied::error`] says it.
pub async fn apply(spec: &ResolvedSpec, root: &Path, options: ApplyOptions) -> Result<Applied, ApplyError> {
    let (started, since) = (clock::now(), clock::instant());
    let files = ConfigFiles::below(root);
    let about = |path: &'static str| {
        let path = files.place(path);
        move |source: io::Error| ApplyError::Files { path, source }
    };
    let _held = if options.dry_run { None } else { Some(hold(&files).await.map_err(about(path::CONFIG))?) };
    let (mode, dry_run, server) = (options.mode, options.dry_run, options.server.clone());
    if !dry_run {
        files.put_spec(spec).map_err(about(path::SPEC))?;
    }
    let done = work(spec, root, options).await?;
    let drifted = done.state.as_ref().map(|state| drift(spec, state)).unwrap_or_default();
    let error = done.error.or_else(|| still_different(&drifted).filter(|_| !dry_run));
    let services = &spec.platform.services;
    let applied = Applied {
        phase: MarkedPhase::Config,
        success: error.is_none(),
        dry_run,
        node: spec.node.clone(),
        spec: spec.spec.clone(),
        spec_digest: spec.digest(),
        state_digest: done.state.as_ref().map(NodeState::digest),
        duration_seconds: since.elapsed().as_secs_f64(),
        packages: spec.platform.packages.len(),
        services_enabled: services.enable.len(),
        services_disabled: services.disable.len(),
        users: spec.access.users.len(),
        changed: done.changes.len(),
        changes: done.changes,
        error,
        unconfirmed: done.unconfirmed,
    };
    if !dry_run {
        if let Some(state) = &done.state {
            files.put_state(state).map_err(about(path::OBSERVED))?;
        }
        match &applied.error {
            None => mark_complete(&files, &applied, mode, started).map_err(about(path::COMPLETE))?,
            Some(failure) => {
                let failed = failed_marker(&files, &applied, failure, server, started, done.log);
                files.put_failed(&failed).map_err(about(path::FAILED))?;
            }
        }
    }
    Ok(applied)
}

/// Waits until nobody else configures this node.
async fn hold(files: &ConfigFiles) -> io::Result<File> {
    let directory = files.place(path::CONFIG);
    let locked = tokio::task::spawn_blocking(move || {
        std::fs::create_dir_all(&directory)?;
        let mut options = File::options();
        let lock =
            options.create(true).truncate(false).write(true).mode(0o600).open(directory.join(".lock"))?;
        rustix::fs::flock(&lock, FlockOperation::LockExclusive)?;
        Ok(lock)
    });
    locked.await.unwrap_or_else(|error| Err(io::Error::other(error)))
}

/// What came of the work itself.
#[derive(Default)]
struct Done {
    state: Option<NodeState>,
    changes: Vec<Change>,
    error: Option<ApplyFailure>,
    unconfirmed: Option<RunId>,
    log: Vec<String>,
}

impl Done {
    fn failed(code: &str, message: String) -> Self {
        let log = vec![format!("{code}: {message}")];
        Self { error: Some(ApplyFailure { code: code.to_owned(), message }), log, ..Self::default() }
    }
}

async fn work(spec: &ResolvedSpec, root: &Path, options: ApplyOptions) -> Result<Done, ApplyError> {
    let below = (root != Path::new("/")).then(|| root.to_owned());
    if let Some(struck) = below.as_deref().and_then(|root| sandbox::strike(root, Phase::Config)) {
        tokio::time::sleep(struck.delay).await;
        match struck.message() {
            Some(message) if struck.crash => return Err(ApplyError::Crashed(message)),
            Some(message) => return Ok(Done::failed("fault", message)),
            None => {}
        }
    }
    let registry = Drivers::standard();
    let around = ConfigSurroundings {
        interface: interface(below.as_deref()),
        missing: missing(below.as_deref()),
        restarts: below.is_none(),
    };
    let plan = match config(spec, &around, &Catalogue::new(registry.descriptors())) {
        Ok(plan) => plan,
        Err(diagnostics) => return Ok(Done::failed("spec", diagnostics.to_string())),
    };
    let before = match look(spec, below.clone()).await {
        Ok(state) => state,
        Err(error) => return Ok(Done::failed("observe", error.message)),
    };
    let run_id = clock::new_run_id(clock::now());
    let mut runner = Runner::new(registry).run_id(run_id.clone()).inventory(this_machine(below.as_deref()));
    for observer in options.observers {
        runner = runner.observe(Boxed(observer));
    }
    if let Some(connect) = options.connect {
        connect(runner.canceller());
    }
    if options.confirmed_by_caller && below.is_none() {
        crate::leave_network_changes_to_driver();
    }
    let plan = CheckedPlan::from(plan).with_base_dir("/");
    let report = if options.dry_run { runner.dry_run(plan).await } else { runner.run(plan).await };
    let has_changed = |row: &&stead_model::report::TaskRow| row.changed;
    let is_changed = report.tasks.iter().any(|row| has_changed(&row));
    let after = match (options.dry_run, is_changed || report.status != RunStatus::Success) {
        (true, _) => expected(spec),
        (false, false) => before.clone(),
        (false, true) => match look(spec, below.clone()).await {
            Ok(state) => state,
            Err(error) => return Ok(Done::failed("observe", error.message)),
        },
    };
    let network = report.tasks.iter().any(|row| row.changed && row.name.as_str() == "network");
    Ok(Done {
        changes: changes(&before, &after, &report),
        error: failure(&report),
        unconfirmed: (network && below.is_none() && options.confirmed_by_caller && !options.dry_run)
            .then_some(run_id),
        log: log(&report),
        state: Some(if options.dry_run { before } else { after }),
    })
}

/// Observes on a thread of its own: programs may be asked.
async fn look(spec: &ResolvedSpec, root: Option<PathBuf>) -> Result<NodeState, OpError> {
    let spec = spec.clone();
    system::off_thread(move || observe(&spec, root.as_deref())).await
}

/// Returns the network interface that a spec's address is for: that of the default route.
fn interface(root: Option<&Path>) -> String {
    let found = if root.is_some() { None } else { facts::primary_interface() };
    found.unwrap_or_else(|| "eth0".to_owned())
}

/// Returns the packages whose programs this machine does not have; a root that runs nothing needs none.
fn missing(root: Option<&Path>) -> Vec<&'static str> {
    let packages = [("openssh-server", "sshd"), ("sudo", "visudo")];
    let is_missing = |program: &str| root.is_none() && !system::has(program);
    packages.into_iter().filter(|(_, program)| is_missing(program)).map(|(package, _)| package).collect()
}

fn this_machine(root: Option<&Path>) -> Inventory {
    let Some(root) = root else { return Inventory::default() };
    let host = Host { root: Some(root.display().to_string()), ..Host::local() };
    Inventory { hosts: BTreeMap::from([(HostName::local(), host)]) }
}

/// Returns what is different, as states show it, and what changed without being seen there.
fn changes(before: &NodeState, after: &NodeState, report: &Report) -> Vec<Change> {
    let seen = differences(before, after).into_iter();
    let mut changes: Vec<Change> = seen.map(|(path, before, after)| Change { path, before, after }).collect();
    for row in report.tasks.iter().filter(|row| row.changed) {
        if changes.iter().any(|change| is_about(row.name.as_str(), &change.path)) {
            continue;
        }
        let diff = row.hosts.first().and_then(|host| host.diff.clone());
        changes.push(Change {
            path: row.name.to_string(),
            before: Value::Null,
            after: diff.unwrap_or(Value::Bool(true)),
        });
    }
    changes
}

/// Returns why a run failed, if it did.
fn failure(report: &Report) -> Option<ApplyFailure> {
    if report.status == RunStatus::Success {
        return None;
    }
    let first = report.errors.first();
    let code =
        first.and_then(|error| error.task.as_ref()).map_or_else(|| "run".to_owned(), ToString::to_string);
    let message =
        first.map_or_else(|| format!("the run ended as {}", report.status), |error| error.message.clone());
    Some(ApplyFailure { code, message })
}

/// Returns the failure of an apply that went well and yet left something different.
fn still_different(drift: &[Drift]) -> Option<ApplyFailure> {
    let first = drift.first()?;
    let more = match drift.len() - 1 {
        0 => String::new(),
        more => format!(", and {more} more"),
    };
    let message = format!("{} is {} and should be {}{more}", first.path, first.observed, first.expected);
    Some(ApplyFailure { code: "drift".to_owned(), message })
}

fn log(report: &Report) -> Vec<String> {
    let name = |error: &stead_model::report::ErrorRow| {
        error.task.as_ref().map_or_else(|| "run".to_owned(), ToString::to_string)
    };
    let errors = report.errors.iter().map(|error| format!("{}: {}", name(error), error.message));
    errors
        .chain(report.warnings.iter().map(|warning| format!("{}: {}", warning.code, warning.text)))
        .collect()
}

/// Writes the marker of success, unless one stands that says the same.
fn mark_complete(files: &ConfigFiles, applied: &Applied, mode: Mode, now: Timestamp) -> io::Result<()> {
    let state_digest = applied.state_digest.clone().unwrap_or_default();
    let stands = files.own_complete().is_some_and(|marker| {
        applied.changed == 0
            && marker.spec_digest == applied.spec_digest
            && marker.state_digest == state_digest
    });
    if stands {
        return files.forget_failure();
    }
    files.put_complete(&ConfigComplete {
        phase: MarkedPhase::Config,
        status: MarkedStatus::Complete,
        timestamp: now,
        node: applied.node.clone(),
        spec: applied.spec.clone(),
        spec_digest: applied.spec_digest.clone(),
        state_digest,
        mode,
        packages: applied.packages,
        services_enabled: applied.services_enabled,
        services_disabled: applied.services_disabled,
        users: applied.users,
        changed: applied.changed,
        duration_seconds: applied.duration_seconds,
    })
}

fn failed_marker(
    files: &ConfigFiles,
    applied: &Applied,
    failure: &ApplyFailure,
    server: Option<String>,
    now: Timestamp,
    log: Vec<String>,
) -> ConfigFailed {
    let earlier = files.failed().filter(|failed| failed.spec_digest.as_ref() == Some(&applied.spec_digest));
    ConfigFailed {
        phase: MarkedPhase::Config,
        status: MarkedStatus::Failed,
        error: "apply-failed".to_owned(),
        code: failure.code.clone(),
        message: failure.message.clone(),
        node: Some(applied.node.clone()),
        spec: Some(applied.spec.clone()),
        spec_digest: Some(applied.spec_digest.clone()),
        server,
        attempts: earlier.as_ref().map_or(0, |failed| failed.attempts).saturating_add(1),
        first_attempt: earlier.map_or(now, |failed| failed.first_attempt),
        last_attempt: now,
        log,
    }
}

/// How long a changed network may take to show that the server is still reached.
pub const NETWORK_PATIENCE: Duration = Duration::from_secs(60);

/// An observer of any kind, as the runner takes them.
struct Boxed(Box<dyn Observer>);

impl Observer for Boxed {
    fn on_recorded(&mut self, event: &stead_model::Event) {
        self.0.on_recorded(event);
    }

    fn on_event(&mut self, event: &stead_model::Event) {
        self.0.on_event(event);
    }

    fn on_output(
        &mut self,
        task: &stead_model::TaskName,
        host: Option<&HostName>,
        stream: stead_model::event::Stream,
        bytes: &[u8],
    ) {
        self.0.on_output(task, host, stream, bytes);
    }

    fn on_lines(&mut self, lines: &[u8]) {
        self.0.on_lines(lines);
    }

    fn wants_output(&self) -> bool {
        self.0.wants_output()
    }

    fn wants_lines(&self) -> bool {
        self.0.wants_lines()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use stead_model::plan::OnlyIfChanged;

    #[test]
    fn fail2ban_reads_its_jail_again_where_services_really_run() {
        let spec = |enabled: bool| -> ResolvedSpec {
            let security = json!({"fail2ban": {"enabled": enabled}, "sudo": {"nopasswd": true},
                "ssh": {"password_authentication": "no", "permit_root_login": "no", "port": 2222}});
            let text = json!({"access": {"posture": "prod", "security": security, "users": []}, "config": {"timezone": "UTC"},
                "identity": {"hostname": "edge"}, "node": "edge", "run": {"trigger": "manual"}, "schema_version": 1, "spec": "base",
                "platform": {"packages": [], "services": {"disable": [], "enable": []}}});
            serde_json::from_value(text).unwrap()
        };
        let registry = Drivers::standard();
        let restart = |enabled: bool, restarts: bool| {
            let around = ConfigSurroundings { interface: "eth0".to_owned(), restarts, ..Default::default() };
            let plan = config(&spec(enabled), &around, &Catalogue::new(registry.descriptors())).unwrap().plan;
            let found = plan.tasks.iter().find(|task| task.name.as_str() == "security.fail2ban.restart");
            found.map(|task| (task.settings.only_if_changed, task.depends_on.len()))
        };
        assert_eq!(
            restart(true, true),
            Some((OnlyIfChanged::Any, 2)),
            "only if the jail or its state changed"
        );
        assert_eq!((restart(true, false), restart(false, true)), (None, None));
    }
}
