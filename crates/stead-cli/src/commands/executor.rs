//! `stead executor`: what a driver elsewhere starts on this machine.

use std::path::PathBuf;

use stead_drivers::{Drivers, executor};
use stead_model::ExitCode;

use crate::args::ExecutorArgs;
use crate::commands::agent;
use crate::failure::{Failure, FailureKind};
use crate::settings::Settings;

pub(super) fn run(args: &ExecutorArgs, settings: &Settings) -> Result<ExitCode, Failure> {
    let base = settings.current_dir.join(&args.base);
    match (&args.attach, &args.session) {
        (_, Some(run)) => {
            // An account may have none: it begins where a login would.
            let home = settings.environment.get("HOME").map(PathBuf::from).filter(|home| home.is_dir());
            let home = home.unwrap_or_else(|| PathBuf::from("/"));
            let workdirs = agent::workdirs(settings);
            executor::serve(Drivers::on_target(), run.clone(), &base, home, workdirs)
                .map_err(|error| Failure::caused_by(FailureKind::Work, error))?;
            Ok(ExitCode::Success)
        }
        (Some(run), None) => {
            let well = executor::attach(run, &base, args.clean);
            Ok(if well { ExitCode::Success } else { ExitCode::Failed })
        }
        (None, None) => Err(Failure::new(FailureKind::Usage, "`--attach RUN` is needed")),
    }
}
