//! `stead config observe` and `confirm`: what this machine is, for those who compare it with its spec, and that they
//! have reached it.

use stead_drivers::config::observation;
use stead_drivers::site::read_bounded;
use stead_model::ExitCode;
use stead_model::node::spec_file;

use crate::args::{ConfigConfirmArgs, ConfigObserveArgs};
use crate::commands::site;
use crate::failure::{Failure, FailureKind};
use crate::output::Output;
use crate::settings::Settings;

pub(crate) fn run(
    args: &ConfigObserveArgs,
    settings: &Settings,
    output: &mut Output,
) -> Result<ExitCode, Failure> {
    let read = |place: &String| {
        let bytes = match place.as_str() {
            "-" => site::read_stdin()?,
            path => read_bounded(&settings.current_dir.join(path))
                .map_err(|error| Failure::unreadable(path, &error))?,
        };
        spec_file::read(place, bytes).map_err(Failure::invalid)
    };
    let spec = args.spec.as_ref().map(read).transpose()?;
    let seen = observation(spec.as_ref(), &settings.root(), &args.reach)
        .map_err(|error| Failure::new(FailureKind::Work, error.message))?;
    output.out.print_line(&serde_json::to_string(&seen).expect("an observation is always JSON"));
    Ok(ExitCode::Success)
}

pub(crate) fn confirm(args: &ConfigConfirmArgs) -> Result<ExitCode, Failure> {
    match stead_drivers::confirm_network_changes(&args.run) {
        Ok(0) => Err(Failure::new(FailureKind::Work, "there is no such change, or it was undone already")),
        Ok(_) => Ok(ExitCode::Success),
        Err(error) => Err(Failure::caused_by(FailureKind::Work, error)),
    }
}
