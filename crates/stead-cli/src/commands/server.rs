//! `stead server …`: the server of a site.

pub(super) mod start;
pub(super) mod status;
pub(super) mod stop;

use stead_model::ExitCode;
use stead_server::{ServeError, ServerError, ServerPlace, SnapshotError};

use crate::args::SiteArgs;
use crate::commands::site;
use crate::failure::{Failure, FailureKind};
use crate::output::Output;
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
        ServerError::Load(_) | ServerError::Snapshot(_) => FailureKind::Invalid,
        ServerError::Refused { exit_code: Some(3), .. } => FailureKind::Invalid,
        ServerError::Refused { .. }
        | ServerError::File { .. }
        | ServerError::NotReady { .. }
        | ServerError::Unchanged { .. }
        | ServerError::Certificate(_)
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

/// How the servers of a site took a change of its keys.
pub(super) struct Reloaded {
    /// The ports of those that know it.
    pub(super) known: Vec<u16>,
    is_complete: bool,
}

impl Reloaded {
    /// Returns how a command ends whose change only counts if every server knows it.
    pub(super) const fn exit_code(&self) -> ExitCode {
        if self.is_complete { ExitCode::Success } else { ExitCode::Failed }
    }

    /// Says so if there was no server to tell.
    pub(super) fn say_if_nobody(&self, place: &ServerPlace, output: &Output) {
        if self.is_complete && self.known.is_empty() {
            let directory = place.directory();
            output.err.print_line(&format!(
                "no running server was told: none has its files in {}\n  = help: one with another state directory \
                 (--state-dir) looks for itself every second",
                directory.display()
            ));
        }
    }
}

/// Lets running servers read a changed keyring; says so if one goes on without it.
pub(super) fn reload(place: &ServerPlace, output: &Output) -> Reloaded {
    let told = stead_server::reload_keys(place);
    let (known, failed) = match told {
        Ok(reloaded) => (reloaded.known, reloaded.failed),
        Err(error) => (Vec::new(), vec![error]),
    };
    let is_complete = failed.is_empty();
    for error in failed {
        let message = failure(error).message();
        output.err.print_line(&format!("warning: a server does not know of the change: {message}"));
    }
    Reloaded { known, is_complete }
}
