//! `stead errand`: what a level above asks of this machine, which hosts the nodes below.

use std::io::{Read, Write as _};
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde_json::json;
use stead_drivers::errand::{self, Begun, ErrandError, Errands, Wanted, images};
use stead_drivers::node_agent::{self, AgentError, NodeFiles};
use stead_model::ExitCode;
use stead_model::node::{Errand, ErrandBegun, ImagesAsked, ImagesOffered, JobAsked, path};
use stead_model::site::FileKind;
use stead_model::site::parcel::{MAX_BYTES, ParcelError};

use crate::args::{ActFlags, ErrandCommand, ManifestArgs, SelectArgs, SiteArgs, StatusArgs};
use crate::commands::job::below::Here;
use crate::commands::{job, nodes, reach};
use crate::failure::{Failure, FailureKind};
use crate::output::Output;
use crate::render::json as render_json;
use crate::settings::{Layer, Settings, StateDir};

pub(super) fn run(
    command: &ErrandCommand,
    settings: &Settings,
    output: &mut Output,
) -> Result<ExitCode, Failure> {
    let errands = Errands::of(state_dir(settings));
    let program = || std::env::current_exe().map_err(|error| Failure::caused_by(FailureKind::Work, error));
    match command {
        ErrandCommand::Begin => {
            let program = program()?;
            let begun = errands.begin(&read()?, &program).map_err(failure)?;
            // Programs that were brought are in directories named after them.
            let sha256 = program.parent().and_then(Path::file_name).map(|name| name.to_string_lossy());
            let (lost, busy) = match begun {
                Begun::Going => (false, None),
                Begun::Lost => (true, None),
                Begun::Busy(other) => (false, Some(other)),
            };
            let answer = ErrandBegun { lost, busy, sha256: sha256.unwrap_or_default().into_owned() };
            output.out.print(&render_json::bare(&json!(answer)));
        }
        ErrandCommand::Keep(args) => errand::keep(&errands, &args.run, &program()?).map_err(failure)?,
        ErrandCommand::Follow { errand, after, most } => {
            let mut out = std::io::stdout().lock();
            let wanted = Wanted { after: *after, most: *most };
            let followed = errand::follow(&errands, &errand.run, wanted, &mut out);
            followed.and_then(|()| out.flush().map_err(ErrandError::Unheard)).map_err(failure)?;
        }
        ErrandCommand::Stop(args) => errands.stop(&args.run).map_err(failure)?,
        ErrandCommand::Absent => {
            let asked: ImagesAsked = read_json()?;
            let names = images::absent(&state_dir(settings).join(asked.directory), &asked.names);
            output.out.print(&render_json::bare(&json!(names)));
        }
        ErrandCommand::Fetch => {
            let offered: ImagesOffered = read_json()?;
            let invalid = |error| Failure::caused_by(FailureKind::Invalid, error);
            let told = node_agent::bootstrap(&NodeFiles::below(settings.root())).map_err(invalid)?;
            let told = told.ok_or(AgentError::NoBootstrap).map_err(invalid)?;
            let client = node_agent::client(&told).map_err(|error| invalid(AgentError::Server(error)))?;
            let directory = state_dir(settings).join(&offered.directory);
            reach::block_on(images::fetch(&client, &directory, &offered.files))?
                .map_err(|error| Failure::caused_by(FailureKind::of(error.exit_code()), error))?;
        }
        ErrandCommand::Job { of_site, manifest, host, from } => {
            let asked: JobAsked = read_json()?;
            let here = Here { site: errands.site(of_site, manifest), manifest, host };
            let state_dir = StateDir { path: state_dir(settings), layer: Layer::Flag };
            let settings = Settings { state_dir, ..settings.clone() };
            output.out.print(&job::below::answer(here, &asked, *from, &settings, output));
        }
        ErrandCommand::Status { of_site, manifest, host } => {
            let site = errands.site(of_site, manifest);
            if !site.join(FileKind::Site.place()).is_file() {
                // Nothing was ever handed down, or all of it has gone.
                output.out.print(&render_json::document(&json!({"nodes": []})));
                return Ok(ExitCode::Success);
            }
            let asked = StatusArgs {
                manifest: ManifestArgs { manifest: Some(manifest.to_string()), ..ManifestArgs::default() },
                host: Some(host.clone()),
                select: SelectArgs::default(),
                site: SiteArgs { site: Some(site) },
                json: true,
                act: ActFlags::default(),
            };
            let state_dir = StateDir { path: state_dir(settings), layer: Layer::Flag };
            return nodes::status::run(&asked, &Settings { state_dir, ..settings.clone() }, output);
        }
    }
    Ok(ExitCode::Success)
}

/// Returns the state directory of this machine: the one that was named, or the node's own.
fn state_dir(settings: &Settings) -> PathBuf {
    if settings.state_dir.layer == Layer::Flag {
        return settings.state_dir.path.clone();
    }
    settings.root().join(path::STATE.trim_start_matches('/'))
}

/// Returns the errand on standard input.
fn read() -> Result<Errand, Failure> {
    Errand::parse(&read_bytes()?)
        .map_err(|error: ParcelError| Failure::caused_by(FailureKind::Invalid, error))
}

/// Returns what the JSON on standard input says.
fn read_json<T: DeserializeOwned>() -> Result<T, Failure> {
    serde_json::from_slice(&read_bytes()?).map_err(|error| Failure::caused_by(FailureKind::Invalid, error))
}

fn read_bytes() -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::new();
    let most = MAX_BYTES as u64 + 1;
    let read = std::io::stdin().lock().take(most).read_to_end(&mut bytes);
    read.map_err(|error| Failure::caused_by(FailureKind::Invalid, error))?;
    Ok(bytes)
}

fn failure(error: ErrandError) -> Failure {
    let kind = match &error {
        ErrandError::Malformed(_) | ErrandError::OtherSite { .. } | ErrandError::Unknown(_) => {
            FailureKind::Invalid
        }
        ErrandError::Unheard(_) => FailureKind::Output,
        ErrandError::Site(_) | ErrandError::File { .. } | ErrandError::NotBegun(_) => FailureKind::Work,
    };
    Failure::caused_by(kind, error)
}
