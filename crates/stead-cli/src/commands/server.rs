//! `stead server …`: the server of a site.

pub(super) mod start;
pub(super) mod status;
pub(super) mod stop;

use stead_server::{ServeError, ServerError, ServerPlace, SnapshotError};

use crate::args::SiteArgs;
use crate::commands::site;
use crate::failure::{Failure, FailureKind};
use crate::settings::Settings;

/// Returns whose server is meant.
pub(super) fn place(args: &SiteArgs, settings: &Settings) -> Result<ServerPlace, Failure> {
    let site = site::find(args, settings)?.path;
    let state = settings.state_dir.from(&site).path;
    Ok(ServerPlace { site, state })
}

/// Returns the failure of a server that could not be started, stopped or asked.
pub(super) fn failure(error: ServerError) -> Failure {
    let kind = match &error {
        ServerError::Site(diagnostics) => return Failure::invalid(diagnostics.clone()),
        ServerError::Load(_) => FailureKind::Invalid,
        ServerError::Refused { exit_code: Some(3), .. } => FailureKind::Invalid,
        ServerError::Refused { .. }
        | ServerError::File { .. }
        | ServerError::NotReady { .. }
        | ServerError::Immortal { .. } => FailureKind::Work,
        ServerError::Silent { .. } => FailureKind::Unreachable,
    };
    Failure::caused_by(kind, error)
}

/// Returns the failure of a server that did not start in this process.
fn serve_failure(error: ServeError) -> Failure {
    let kind = match &error {
        ServeError::Snapshot(SnapshotError::Site(diagnostics)) => {
            return Failure::invalid(diagnostics.clone());
        }
        ServeError::Snapshot(_) => FailureKind::Invalid,
        ServeError::Journal(_)
        | ServeError::File { .. }
        | ServeError::Held { .. }
        | ServeError::Listen { .. }
        | ServeError::Running { .. }
        | ServeError::Process(_) => FailureKind::Work,
    };
    Failure::caused_by(kind, error)
}
