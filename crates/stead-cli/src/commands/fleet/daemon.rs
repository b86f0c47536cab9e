//! `stead fleet publish`, `stead fleet master`, `stead fleet worker`: the daemons, in the foreground.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::json;
use stead_fleet::api::Master;
use stead_fleet::events::Events;
use stead_fleet::publisher::{self, PublishError};
use stead_fleet::service::{MasterOptions, MasterService, ServiceError};
use stead_fleet::store::StoreError;
use stead_fleet::wire::Client;
use stead_fleet::{master::MasterError, worker, worker::WorkerError};
use stead_model::fleet::peer::Role;
use stead_model::fleet::services::{MasterFile, PublisherFile, WorkerFile};
use stead_model::{ExitCode, WorkerName};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::{file, way};
use crate::args::{FleetMasterArgs, FleetPublishArgs, FleetWayArgs, FleetWorkerArgs};
use crate::commands::reach;
use crate::failure::{Failure, FailureKind};
use crate::output::Output;
use crate::render::json as render_json;
use crate::settings::Settings;
use crate::signals;

pub(crate) fn publish(
    args: &FleetPublishArgs,
    settings: &Settings,
    output: &mut Output,
) -> Result<ExitCode, Failure> {
    let directory = way::directory(settings);
    let file = file::read(
        args.config.as_deref(),
        directory.join("publisher.yaml"),
        &args.keys.given(),
        PublisherFile::read,
    )?;
    let masters = masters(&args.way, &file.masters);
    let stop = stop_on_signal()?;
    reach::block_on(async {
        let name = way::Name { given: None, fallback: way::Fallback::Like("publisher") };
        let joined = daemon(&args.way, settings, &masters, name, Role::Publisher).await?;
        let events = if args.once { events(&directory) } else { told(&directory) };
        events.say(&format!("publisher {} follows {} of {}", joined.name, file.reference, file.repo));
        let metrics = Arc::new(publisher::Metrics::default());
        let (commit, name) = (args.commit.clone(), joined.name.clone());
        let client = Arc::clone(&joined.master);
        let settings = publisher::Settings { file, directory, name, commit, events: Some(events), metrics };
        if !args.once {
            publisher::run(settings, client, stop).await.map_err(publish_failure)?;
            return Ok(ExitCode::Success);
        }
        let published = publisher::once(settings, client, stop).await.map_err(publish_failure)?;
        let exit_code = ExitCode::from_code(published.ending.exit_code()).unwrap_or(ExitCode::Failed);
        tell(&published, exit_code, args.way.json, output);
        Ok(exit_code)
    })?
}

fn tell(published: &publisher::Published, exit_code: ExitCode, json: bool, output: &Output) {
    if json {
        let document = json!({
            "schema": 1, "ending": published.ending.word(), "exit_code": exit_code.code(), "report": published.report,
        });
        output.out.print(&render_json::document(&document));
        return;
    }
    for group in &published.report.groups {
        let commit: String = group.commit.as_str().chars().take(12).collect();
        let failure =
            group.failure.as_ref().map(|failure| format!(": {}", failure.error)).unwrap_or_default();
        output.out.print_line(&format!("{} {commit} {}{failure}", group.group, group.stage));
    }
    if let Some(error) = &published.report.watcher.error {
        output.err.print_line(error);
    }
}

pub(super) fn publish_failure(error: PublishError) -> Failure {
    let kind = match &error {
        PublishError::Locked(_) => FailureKind::Locked,
        PublishError::Settings(_) => FailureKind::Invalid,
        PublishError::File { .. } | PublishError::Listen { .. } => FailureKind::Work,
    };
    Failure::caused_by(kind, error)
}

pub(crate) fn master(
    args: &FleetMasterArgs,
    settings: &Settings,
    output: &mut Output,
) -> Result<ExitCode, Failure> {
    let directory = way::directory(settings);
    let file = file::read(
        args.config.as_deref(),
        directory.join("master.yaml"),
        &args.keys.given(),
        MasterFile::read,
    )?;
    let stop = stop_on_signal()?;
    reach::block_on(async {
        let options = MasterOptions { directory, file, rebuild: args.rebuild, is_told: true };
        let service = MasterService::start(options).await.map_err(service_failure)?;
        let fleet = service.authority().fleet().to_owned();
        let document = json!({
            "fleet": fleet, "listen": service.address.to_string(), "observe": service.observe.to_string(),
        });
        if args.json {
            output.out.print_line(&document.to_string());
        } else {
            let (address, observe) = (service.address, service.observe);
            service.say(&format!("master of fleet {fleet} at {address}, its page at http://{observe}/"));
        }
        service.serve(stop).await.map_err(service_failure)?;
        Ok(ExitCode::Success)
    })?
}

pub(super) fn service_failure(error: ServiceError) -> Failure {
    let kind = match &error {
        ServiceError::Store(store) | ServiceError::Master(MasterError::Store(store)) => store_kind(store),
        ServiceError::Master(MasterError::Unreadable(_)) => FailureKind::Verification,
        ServiceError::Name(_) | ServiceError::Advertise(_) => FailureKind::Invalid,
        ServiceError::Identity(_)
        | ServiceError::Serve(_)
        | ServiceError::Listen { .. }
        | ServiceError::Events { .. }
        | ServiceError::Ended => FailureKind::Work,
    };
    Failure::caused_by(kind, error)
}

fn store_kind(error: &StoreError) -> FailureKind {
    match error {
        StoreError::Locked { .. } => FailureKind::Locked,
        StoreError::Corrupted { .. } | StoreError::Lost { .. } | StoreError::NoAuthority { .. } => {
            FailureKind::Verification
        }
        StoreError::Unavailable(_) => FailureKind::Unreachable,
        StoreError::File { .. }
        | StoreError::Compacted
        | StoreError::LeaseEnded
        | StoreError::Unfit { .. } => FailureKind::Work,
    }
}

pub(crate) fn worker(
    args: &FleetWorkerArgs,
    settings: &Settings,
    output: &mut Output,
) -> Result<ExitCode, Failure> {
    let directory = way::directory(settings);
    let file = file::read(
        args.config.as_deref(),
        directory.join("worker.yaml"),
        &args.keys.given(),
        WorkerFile::read,
    )?;
    let masters = masters(&args.way, &file.masters);
    let program = program()?;
    let mut worker = worker::Settings::new(settings.state_dir.path.clone(), file, program);
    worker.events = Some(told(&directory));
    worker.search_path = settings.environment.get("PATH").map(ToOwned::to_owned);
    let stop = stop_on_signal()?;
    reach::block_on(async {
        if args.stop_all {
            tokio::select! {
                stopped = worker::stop_all(worker) => stopped.map_err(worker_failure)?,
                () = stop.cancelled() => return Ok(ExitCode::Cancelled),
            }
            if args.way.json {
                output.out.print(&render_json::document(&json!({"schema": 1, "stopped": true})));
            } else {
                output.err.print_line("everything that ran here is stopped");
            }
            return Ok(ExitCode::Success);
        }
        let machine = worker.name().map_err(worker_failure)?;
        let given = worker.file.name.clone();
        let name = way::Name {
            given: given.as_ref().map(WorkerName::as_str),
            fallback: way::Fallback::Only(machine.as_str()),
        };
        let joined = daemon(&args.way, settings, &masters, name, Role::Worker).await?;
        let name = WorkerName::parse(&joined.name);
        worker.file.name = Some(name.map_err(|error| Failure::caused_by(FailureKind::Invalid, error))?);
        if let Some(events) = &worker.events {
            events.say(&format!("worker {} keeps what it is assigned", joined.name));
        }
        worker::run(worker, Arc::clone(&joined.master), stop).await.map_err(worker_failure)?;
        Ok(ExitCode::Success)
    })?
}

pub(super) fn worker_failure(error: WorkerError) -> Failure {
    let kind = match &error {
        WorkerError::Locked(_) => FailureKind::Locked,
        WorkerError::Name(_) | WorkerError::Renamed { .. } | WorkerError::Driver(_) => FailureKind::Invalid,
        WorkerError::Files { .. } | WorkerError::Listen { .. } => FailureKind::Work,
        // The unit does not start it again: it would take the identity back.
        WorkerError::Replaced => FailureKind::Verification,
    };
    Failure::caused_by(kind, error)
}

/// Returns where a daemon writes down what happens, once it has its lock; whoever looks at it sees that too.
fn told(directory: &Path) -> Arc<Events> {
    Arc::new(Events::at(&directory.join("events")).with_copy(Box::new(std::io::stderr())))
}

/// Returns where a component of the fleet in `directory` writes down what happens, once it has its lock.
pub(super) fn events(directory: &Path) -> Arc<Events> {
    Arc::new(Events::at(&directory.join("events")))
}

/// Returns the masters: of the flag, else of the file.
fn masters(way: &FleetWayArgs, file: &[String]) -> Vec<String> {
    if way.masters.is_empty() { file.to_vec() } else { way.masters.clone() }
}

/// Somebody who has joined a fleet. Their certificate is renewed for as long as this lives.
struct Joined {
    master: Arc<dyn Master>,
    /// The name in the certificate.
    name: String,
    _renewing: JoinSet<()>,
}

/// Joins if that has not been done.
async fn daemon(
    args: &FleetWayArgs,
    settings: &Settings,
    masters: &[String],
    name: way::Name<'_>,
    role: Role,
) -> Result<Joined, Failure> {
    let directory = match &args.identity {
        Some(given) => settings.current_dir.join(given),
        None => way::directory(settings).join(way::IDENTITY),
    };
    let identity = way::join(&directory, args, masters, name, Some(role)).await?;
    let peer = identity.peer();
    if peer.role != role {
        let (has, directory) = (peer.role, directory.display());
        let message = format!("{directory} is the certificate of the {has} {}, not of a {role}", peer.name);
        return Err(Failure::new(FailureKind::Invalid, message)
            .hint("give each daemon a --state-dir of its own, and a token of its role"));
    }
    let name = peer.name.clone();
    let client: Arc<Client> = way::client(identity, masters)?;
    let kept = Arc::clone(&client);
    let mut renewing = JoinSet::new();
    renewing.spawn(async move { kept.keep_renewed(&directory, CancellationToken::new()).await });
    Ok(Joined { master: client, name, _renewing: renewing })
}

/// Returns this program: it is started again for machines.
pub(super) fn program() -> Result<PathBuf, Failure> {
    std::env::current_exe().map_err(|error| Failure::caused_by(FailureKind::Work, error))
}

/// Returns what is cancelled by the first signal to end.
pub(super) fn stop_on_signal() -> Result<CancellationToken, Failure> {
    let mut signals = signals::listen().map_err(|error| Failure::caused_by(FailureKind::Work, error))?;
    let stop = CancellationToken::new();
    let told = stop.clone();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        if let Ok(runtime) = runtime {
            runtime.block_on(async { signals.changed().await.ok() });
        }
        told.cancel();
    });
    Ok(stop)
}
