//! `stead config observe`: what this machine is, for those who compare it with its spec.

use stead_drivers::config::observation;
use stead_drivers::site::read_bounded;
use stead_model::ExitCode;
use stead_model::node::spec_file;

use crate::args::ConfigObserveArgs;
use crate::commands::site;
use crate::failure::{Failure, FailureKind};
use crate::output::Output;
use crate::settings::Settings;

pub(crate) fn run(
    args: &ConfigObserveArgs,
    settings: &Settings,
    output: &mut Output,
) -> Result<ExitCode, Failure> {
    let bytes = match args.spec.as_str() {
        "-" => site::read_stdin()?,
        path => read_bounded(&settings.current_dir.join(path))
            .map_err(|error| Failure::new(FailureKind::Invalid, format!("cannot read {path}: {error}")))?,
    };
    let spec = spec_file::read(&args.spec, bytes).map_err(Failure::invalid)?;
    let seen = observation(&spec, &settings.root(), &args.reach)
        .map_err(|error| Failure::new(FailureKind::Work, error.message))?;
    output.out.print_line(&serde_json::to_string(&seen).expect("an observation is always JSON"));
    Ok(ExitCode::Success)
}
