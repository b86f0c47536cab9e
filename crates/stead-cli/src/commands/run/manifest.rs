//! `stead run manifest FILE`.

use stead_model::ExitCode;

use super::load;
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
        return Err(Failure::new(FailureKind::Work, "runs cannot be started yet"));
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
