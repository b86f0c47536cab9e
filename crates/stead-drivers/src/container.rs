//! `container.present` and `container.absent`: containers of podman or docker, by their command lines.
//!
//! What is given is compared with what the engine says of the container; where something differs the container is
//! replaced under the same name, with what was not given taken over from the old one. The old one is kept aside until
//! the new one is up: whoever finds one aside brings it back, or finishes what was begun. Containers that Stead made
//! carry the label `dev.stead`; others are not touched unless `adopt`.

mod absent;
mod engine;
mod inspected;
mod present;
mod settings;
mod wish;

use stead_model::operation::{ParamDefault, ParamKind, ParamSpec, RootSupport, judge_texts};
use stead_model::{Descriptor, Effect};
use stead_runner::operation::{OpError, Registry};

use crate::setup::input;

/// Adds both operations.
pub(crate) fn add_to(registry: &mut Registry) {
    registry.add_operation(present::Present);
    registry.add_operation(absent::Absent);
}

/// What marks a container that Stead made.
const LABEL: &str = "dev.stead";
/// The mark of one that Stead can make again as it is.
const MADE: &str = "true";
/// The mark of one that took over from another what Stead has no parameter for.
const ADOPTED: &str = "adopted";
/// What is added to the name of a container while another takes its place.
const ASIDE: &str = ".stead-old";
/// What is added to the name of a container that shows what an engine makes of settings.
const TRIAL: &str = ".stead-new";

const WRITE: Descriptor = Descriptor {
    name: "",
    summary: "",
    effect: Effect::Write,
    idempotent: true,
    check: true,
    undo: true,
    platforms: &[],
    root: RootSupport::None,
    needs_root: false,
    params: &[],
    exclusive: &[],
    one_of: &[],
    result: &[],
};

const NAME: ParamSpec = ParamSpec::new("name", ParamKind::NonEmptyText, "Its name.")
    .required()
    .judged(|value| judge_texts(value, |text| input::problem(check_name(text))));
const ENGINE: ParamSpec = ParamSpec::new(
    "engine",
    ParamKind::Enum(&["auto", "podman", "docker"]),
    "Which engine; default: auto, podman before docker.",
)
.default(ParamDefault::Text("auto"));
const ADOPT: ParamSpec = ParamSpec::new(
    "adopt",
    ParamKind::Bool,
    "Also if it has no label `dev.stead`, so was made by somebody else; default: false.",
)
.default(ParamDefault::Flag(false));

/// Refuses what an engine would not take as a name.
fn check_name(name: &str) -> Result<&str, OpError> {
    if let Some(end) = [ASIDE, TRIAL].iter().find(|end| name.ends_with(**end)) {
        return Err(OpError::invalid(format!(
            "`{name}`: names that end in `{end}` are for what Stead puts aside"
        )));
    }
    let first = name.starts_with(|c: char| c.is_ascii_alphanumeric());
    if first && name.chars().all(|c| c.is_ascii_alphanumeric() || "_.-".contains(c)) {
        return Ok(name);
    }
    Err(OpError::invalid(format!("`{}` is not the name of a container", name.escape_debug())))
}

/// Returns the error of touching a container that is not ours.
fn foreign(name: &str) -> OpError {
    OpError::permanent(format!(
        "container `{name}` has no label `{LABEL}`: somebody else made it; `adopt: true` takes it over"
    ))
}
