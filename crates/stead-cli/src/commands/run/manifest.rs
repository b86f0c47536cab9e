//! `stead run manifest FILE`.

use std::path::Path;

use stead_bundle::SigningKey;
use stead_model::ExitCode;

use super::act::{self, RunRequest};
use super::shown::{self, Wanted, Where};
use super::{drive, load};
use crate::args::RunManifestArgs;
use crate::failure::{Failure, FailureKind};
use crate::output::Output;
use crate::settings::Settings;

pub(crate) fn run(
    args: &RunManifestArgs,
    settings: &Settings,
    output: &mut Output,
) -> Result<ExitCode, Failure> {
    let loaded = load::load(args, settings)?;
    if !args.dry_run && !args.print_plan {
        return act(args, loaded, settings, output);
    }
    let run = &loaded.run;
    if args.json {
        output.out.print(&String::from_utf8_lossy(&run.compiled.plan.to_json()));
        output.out.print("\n");
    } else if args.print_plan {
        output.out.print(&run.whole_text());
    } else {
        output.out.print(&run.phases_text());
    }
    Ok(ExitCode::Success)
}

/// Returns the key that the bundle is to be signed with; one that cannot be used is said before anything starts.
fn signing_key(args: &RunManifestArgs, settings: &Settings) -> Result<Option<SigningKey>, Failure> {
    let Some(path) = &args.sign else { return Ok(None) };
    let agent = settings.environment.get("SSH_AUTH_SOCK").filter(|socket| !socket.is_empty()).map(Path::new);
    let key = SigningKey::load(&settings.current_dir.join(path), agent);
    key.map(Some).map_err(|error| Failure::caused_by(FailureKind::Invalid, error))
}

fn act(
    args: &RunManifestArgs,
    loaded: load::Loaded,
    settings: &Settings,
    output: &Output,
) -> Result<ExitCode, Failure> {
    let wanted = Wanted { json: args.json, events: args.events.clone(), verbose: args.verbose };
    let observers = shown::observers(&wanted, Where::Below(args.bundle_dir.clone()), settings, output)?;
    let request = RunRequest {
        compiled: loaded.run,
        source: loaded.path,
        bytes: loaded.bytes,
        vars: loaded.given,
        bundle_dir: args.bundle_dir.clone(),
        force: args.force,
        signing: signing_key(args, settings)?,
    };
    let prepared = act::prepare(request, observers, settings)?;
    let ended = drive::drive(prepared.stopper(), prepared.run())?;
    Ok(shown::finish(&ended, &wanted, settings, output))
}
