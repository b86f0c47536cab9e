//! `stead fleet dev`: a whole fleet in one process, from a local repository.

use std::collections::BTreeMap;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use stead_fleet::api::{Master, StatusFilter};
use stead_fleet::service::{MasterOptions, MasterService};
use stead_fleet::{publisher, worker};
use stead_model::diagnostic::Source;
use stead_model::fleet::services::worker::WorkerNix;
use stead_model::fleet::services::{MasterFile, PublisherFile, WorkerFile};
use stead_model::fleet::vm::Driver;
use stead_model::site::Host;
use stead_model::{Diagnostics, ExitCode, WorkerName};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::daemon::{events, program, publish_failure, service_failure, stop_on_signal, worker_failure};
use super::{call_failure, parsed, shown, way};
use crate::args::{FleetDevArgs, FleetDriverWord};
use crate::commands::reach;
use crate::failure::{Failure, FailureKind};
use crate::output::Output;
use crate::render::text::counted;
use crate::settings::Settings;

/// How long one question waits for a change.
const LONG: Duration = Duration::from_secs(30);

pub(crate) fn run(
    args: &FleetDevArgs,
    settings: &Settings,
    output: &mut Output,
) -> Result<ExitCode, Failure> {
    let repo = settings.current_dir.join(args.repo.clone().unwrap_or_default());
    let reference = checked_out(&repo)?;
    let directory = way::directory(settings);
    let bits = Bits::of(&directory)?;
    let publishing = publishing(&repo, &reference, &directory, &bits)?;
    let master_file = MasterFile {
        name: WorkerName::parse("dev").ok(),
        listen: "127.0.0.1:0".to_owned(),
        observe: "127.0.0.1:0".to_owned(),
        ..MasterFile::default()
    };
    let workers = workers(args, &directory, &bits, settings)?;
    let stop = stop_on_signal()?;
    reach::block_on(async {
        let options =
            MasterOptions { directory: directory.clone(), file: master_file, rebuild: false, is_told: false };
        let service = MasterService::start(options).await.map_err(service_failure)?;
        let master: Arc<dyn Master> = service.handle();
        announce(args, &repo, &service, output);
        let mut parts: JoinSet<Result<(), Failure>> = JoinSet::new();
        let serving = CancellationToken::new();
        let ending = serving.clone();
        parts.spawn(async move { service.serve(ending).await.map_err(service_failure) });
        let (publishing_master, ending) = (Arc::clone(&master), stop.child_token());
        parts.spawn(async move {
            publisher::run(publishing, publishing_master, ending).await.map_err(publish_failure)
        });
        for worker in workers.clone() {
            let (master, ending) = (Arc::clone(&master), stop.child_token());
            parts.spawn(async move { worker::run(worker, master, ending).await.map_err(worker_failure) });
        }
        let watching = watch(master.as_ref(), args.json, settings, output);
        let ended = tokio::select! {
            ended = watching => ended,
            () = stop.cancelled() => Ok(()),
            Some(part) = parts.join_next() => part.unwrap_or_else(|error| Err(broken(&error))),
        };
        stop.cancel();
        serving.cancel();
        let mut ended = ended.map(|()| ExitCode::Cancelled);
        while let Some(part) = parts.join_next().await {
            if let Err(failure) = part.unwrap_or_else(|error| Err(broken(&error))) {
                ended = ended.and(Err(failure));
            }
        }
        if !args.keep {
            output.err.print_line("stopping what runs");
            for worker in everybody(workers, &directory) {
                worker::stop_all(worker).await.map_err(worker_failure)?;
            }
        }
        ended
    })?
}

fn broken(error: &tokio::task::JoinError) -> Failure {
    Failure::new(FailureKind::Work, format!("a part of the fleet broke: {error}"))
}

/// Returns the workers, and those that an earlier fleet here had beside them.
fn everybody(workers: Vec<worker::Settings>, directory: &Path) -> Vec<worker::Settings> {
    let Some(first) = workers.first().cloned() else { return workers };
    let known: Vec<PathBuf> = workers.iter().map(|worker| worker.state_dir.clone()).collect();
    let found = std::fs::read_dir(directory.join("workers")).into_iter().flatten().flatten();
    let mut others: Vec<PathBuf> =
        found.map(|entry| entry.path()).filter(|path| !known.contains(path)).collect();
    others.sort();
    let others = others.into_iter().map(|state_dir| worker::Settings { state_dir, ..first.clone() });
    workers.into_iter().chain(others).collect()
}

/// Returns the full name of the branch that is checked out, which has a commit.
fn checked_out(repo: &Path) -> Result<String, Failure> {
    let failed = |why: String| {
        Failure::new(FailureKind::Invalid, format!("{} cannot be a fleet: {why}", repo.display()))
            .hint("`stead init fleet DIR` makes one; else name a Git repository with a branch checked out")
    };
    let ask = |words: &[&str], otherwise: &str| -> Result<String, Failure> {
        let mut git = Command::new("git");
        let output = git.args(words).current_dir(repo).stdin(Stdio::null()).output();
        let output = output.map_err(|error| failed(error.to_string()))?;
        let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
        match (output.status.success(), said(&output.stderr)) {
            (true, _) => Ok(said(&output.stdout)),
            (false, why) => Err(failed(if why.is_empty() { otherwise.to_owned() } else { why })),
        }
    };
    let inside = ask(&["rev-parse", "--show-prefix"], "it is no repository")?;
    if !inside.is_empty() {
        return Err(failed(format!("it is only the directory {inside} of a repository")));
    }
    let branch = ask(&["symbolic-ref", "--quiet", "HEAD"], "no branch is checked out")?;
    ask(&["rev-parse", "--quiet", "--verify", "HEAD^{commit}"], "its branch has no commit yet")?;
    // What has none of these will not be a fleet by the next commit: it is another repository.
    let parts = ask(
        &["ls-tree", "--name-only", "HEAD", "--", "flake.nix", "site.yaml", "manifests"],
        "it cannot be read",
    )?;
    if parts.is_empty() {
        return Err(failed("its commit has no flake.nix, and neither site.yaml nor manifests/".to_owned()));
    }
    Ok(branch)
}

/// Where the bits of a commit are put, and taken from: all below the state directory.
struct Bits {
    artifacts: String,
    /// The cache for what flakes build.
    nix_cache: String,
    secret_key: String,
    public_key: String,
}

impl Bits {
    fn of(directory: &Path) -> Result<Self, Failure> {
        let failed = |error: std::io::Error| Failure::caused_by(FailureKind::Work, error);
        let directory = std::path::absolute(directory).map_err(failed)?;
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&directory).map_err(failed)?;
        let secret_key = directory.join("nix-key");
        Ok(Self {
            artifacts: directory.join("artifacts").display().to_string(),
            nix_cache: format!("file://{}", directory.join("nix-cache").display()),
            public_key: publisher::ensure_key(&secret_key, "fleet-dev-1").map_err(failed)?,
            secret_key: secret_key.display().to_string(),
        })
    }
}

/// Returns what follows the repository's branch, each second.
fn publishing(
    repo: &Path,
    reference: &str,
    directory: &Path,
    bits: &Bits,
) -> Result<publisher::Settings, Failure> {
    let file = json!({
        "repo": repo.display().to_string(), "ref": reference, "poll": "1s", "debounce": "200ms",
        "rewrites": "allow", "artifacts": bits.artifacts, "masters": ["127.0.0.1:1"],
        "nix": {"cache": bits.nix_cache, "secret_key_file": bits.secret_key},
    });
    let source = Source { name: "fleet dev".into(), text: file.to_string().into() };
    let mut diagnostics = Diagnostics::default();
    let file = PublisherFile::read(&source, &mut diagnostics).filter(|_| diagnostics.0.is_empty());
    let file = file.ok_or_else(|| Failure::invalid(diagnostics))?;
    Ok(publisher::Settings {
        file,
        directory: directory.to_owned(),
        name: "dev".to_owned(),
        commit: None,
        events: Some(events(&directory.join("publisher"))),
        metrics: Arc::new(publisher::Metrics::default()),
    })
}

/// Returns the workers, each with a state directory of its own.
fn workers(
    args: &FleetDevArgs,
    directory: &Path,
    bits: &Bits,
    settings: &Settings,
) -> Result<Vec<worker::Settings>, Failure> {
    let stand_in = match args.driver {
        FleetDriverWord::Sandbox => Driver::Sandbox,
        FleetDriverWord::Oci => Driver::Oci,
        FleetDriverWord::Qemu => Driver::Qemu,
        FleetDriverWord::CloudHypervisor => Driver::CloudHypervisor,
    };
    let mapped = Driver::WORDS.iter().map(|(_, driver)| *driver).filter(|driver| *driver != stand_in);
    let map_driver = mapped.map(|driver| (driver, stand_in)).collect();
    // Only what is used is looked for.
    let drivers: BTreeMap<Driver, Host> =
        [(stand_in, Host { driver: Some(stand_in.kind()), ..Host::default() })].into();
    let program = program()?;
    (1..=args.workers)
        .map(|number| {
            let name = WorkerName::parse(&format!("w{number}"));
            let name = name.map_err(|error| Failure::caused_by(FailureKind::Work, error))?;
            let file = WorkerFile {
                artifacts: Some(bits.artifacts.clone()),
                nix: WorkerNix {
                    caches: vec![bits.nix_cache.clone()],
                    public_keys: vec![bits.public_key.clone()],
                    ..WorkerNix::default()
                },
                drift_interval: Duration::from_secs(5),
                // All of them share a disk that is used for other things too.
                min_free_disk_percent: 1,
                map_driver: BTreeMap::clone(&map_driver),
                drivers: drivers.clone(),
                ..WorkerFile { name: Some(name.clone()), ..WorkerFile::default() }
            };
            let place = directory.join("workers").join(name.as_str());
            let mut worker = worker::Settings::new(place, file, program.clone());
            worker.events = Some(events(&worker.state_dir.join("fleet")));
            worker.search_path = settings.environment.get("PATH").map(ToOwned::to_owned);
            Ok(worker)
        })
        .collect()
}

fn announce(args: &FleetDevArgs, repo: &Path, service: &MasterService, output: &Output) {
    if args.json {
        let document = json!({
            "ev": "listening", "listen": service.address.to_string(), "observe": service.observe.to_string(),
            "workers": args.workers,
        });
        output.out.print_line(&document.to_string());
        return;
    }
    let place = repo.display();
    output.out.print_line(&format!(
        "a fleet of {} from {place}; its page: http://{}/",
        counted(args.workers.into(), "worker"),
        service.observe
    ));
    output
        .out
        .print_line("change something there and `git commit`; `git revert HEAD` goes back; Ctrl-C ends it");
}

/// Prints every change that a person would notice.
async fn watch(master: &dyn Master, json: bool, settings: &Settings, output: &Output) -> Result<(), Failure> {
    let mut after = 0;
    let mut last = String::new();
    loop {
        let asked = master.status(after, LONG, &StatusFilter::default()).await;
        let (status, seq) = asked.map_err(call_failure)?;
        after = seq;
        let status: Value = parsed(&status)?;
        let line = if json { status.to_string() } else { shown::line(&status, settings.stdout_paint) };
        if line != last && !output.out.is_closed() {
            output.out.print_line(line.trim_end());
            last = line;
        }
    }
}
