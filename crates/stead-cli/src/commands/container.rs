//! `stead container`: the processes of one container, which its driver starts.

use stead_drivers::machine::oci;
use stead_model::ExitCode;

use crate::args::ContainerCommand;
use crate::failure::{Failure, FailureKind};

pub(super) fn run(command: &ContainerCommand) -> Result<ExitCode, Failure> {
    let lived = match command {
        ContainerCommand::Keep(args) => oci::keep(&args.machine, &args.ticket),
        ContainerCommand::Init => oci::init(),
        ContainerCommand::Restart => oci::restart(),
        ContainerCommand::Apart { of, argv } => oci::apart(*of, argv),
        ContainerCommand::Map { pid } => oci::map(*pid),
        ContainerCommand::Try => oci::try_namespaces().map_err(std::io::Error::other),
        ContainerCommand::Make => oci::make(),
        ContainerCommand::Remove { paths } => oci::remove(paths),
    };
    lived.map_err(|error| Failure::caused_by(FailureKind::Work, error))?;
    Ok(ExitCode::Success)
}
