//! `stead errand`: what a level above asks of this machine, which hosts the nodes below.

use std::io::{Read, Write as _};
use std::path::Path;

use serde_json::json;
use stead_drivers::errand::{self, Begun, ErrandError, Errands};
use stead_model::ExitCode;
use stead_model::node::{Errand, path};
use stead_model::site::parcel::{MAX_BYTES, ParcelError};

use crate::args::ErrandCommand;
use crate::failure::{Failure, FailureKind};
use crate::output::Output;
use crate::render::json as render_json;
use crate::settings::{Layer, Settings};

pub(super) fn run(
    command: &ErrandCommand,
    settings: &Settings,
    output: &mut Output,
) -> Result<ExitCode, Failure> {
    let errands = errands(settings);
    let program = || std::env::current_exe().map_err(|error| Failure::caused_by(FailureKind::Work, error));
    match command {
        ErrandCommand::Begin => {
            let program = program()?;
            let begun = errands.begin(&read()?, &program).map_err(failure)?;
            // Programs that were brought are in directories named after them.
            let sha256 = program.parent().and_then(Path::file_name).map(|name| name.to_string_lossy());
            let document = json!({"lost": begun == Begun::Lost, "sha256": sha256.unwrap_or_default()});
            output.out.print(&render_json::document(&document));
        }
        ErrandCommand::Keep(args) => errand::keep(&errands, &args.run, &program()?).map_err(failure)?,
        ErrandCommand::Follow { errand, after } => {
            let mut out = std::io::stdout().lock();
            let followed = errand::follow(&errands, &errand.run, *after, &mut out);
            followed.and_then(|()| out.flush().map_err(ErrandError::Unheard)).map_err(failure)?;
        }
        ErrandCommand::Stop(args) => errands.stop(&args.run).map_err(failure)?,
    }
    Ok(ExitCode::Success)
}

/// Returns the errands of this machine: of the directory that was named, or of the node's own.
fn errands(settings: &Settings) -> Errands {
    if settings.state_dir.layer == Layer::Flag {
        return Errands::of(&settings.state_dir.path);
    }
    let root = settings.environment.get("STEAD_ROOT").map_or_else(|| Path::new("/").to_owned(), Into::into);
    Errands::of(root.join(path::STATE.trim_start_matches('/')))
}

/// Returns the errand on standard input.
fn read() -> Result<Errand, Failure> {
    let mut bytes = Vec::new();
    let most = MAX_BYTES as u64 + 1;
    let read = std::io::stdin().lock().take(most).read_to_end(&mut bytes);
    read.map_err(|error| Failure::caused_by(FailureKind::Invalid, error))?;
    Errand::parse(&bytes).map_err(|error: ParcelError| Failure::caused_by(FailureKind::Invalid, error))
}

fn failure(error: ErrandError) -> Failure {
    let kind = match &error {
        ErrandError::Malformed(_) | ErrandError::Unknown(_) => FailureKind::Invalid,
        ErrandError::Unheard(_) => FailureKind::Output,
        ErrandError::Site(_) | ErrandError::File { .. } | ErrandError::NotBegun(_) => FailureKind::Work,
    };
    Failure::caused_by(kind, error)
}
