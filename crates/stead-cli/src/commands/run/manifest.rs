//! `stead run manifest FILE`.

use stead_model::ExitCode;

use super::act::{self, RunRequest};
use super::shown::{self, Wanted, Where};
use super::{drive, load};
use crate::args::RunManifestArgs;
use crate::commands::bundle::signing_key;
use crate::failure::Failure;
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
        signing: args.sign.as_deref().map(|path| signing_key(path, settings)).transpose()?,
    };
    let prepared = act::prepare(request, observers, settings)?;
    let ended = drive::drive(prepared.stopper(), prepared.run())?;
    Ok(shown::finish(&ended, &wanted, settings, output))
}
