//! Flags of the verbs that act, given to one that only looks: one set of flags does for all verbs of nodes.

use stead_engine::nodes::{SelfAddressGiven, self_address};

use crate::args::{ActFlags, Sink};
use crate::commands::plan::present;
use crate::failure::{Failure, FailureKind};
use crate::output::{Handle, Output};
use crate::settings::Settings;

/// Checks them as the verbs that act do, and writes the event log of a verb that is no run: there is nothing in it.
pub(in crate::commands) fn check(
    flags: &ActFlags,
    settings: &Settings,
    output: &Output,
) -> Result<(), Failure> {
    check_self_addr(flags.self_addr.as_deref())?;
    present::events(flags.events.as_ref(), settings, output).map(drop)
}

/// Checks an address that nobody is told.
pub(super) fn check_self_addr(flag: Option<&str>) -> Result<(), Failure> {
    if flag.is_none() {
        return Ok(());
    }
    // Who would be told it is not known: what is of use to sandboxes may be meant for them.
    let given = SelfAddressGiven { flag, all_sandboxes: true, ..SelfAddressGiven::default() };
    self_address(&given).map(drop).map_err(|error| Failure::caused_by(FailureKind::Usage, error))
}

/// Returns where what people read goes: standard output, unless that is the event log.
pub(in crate::commands) fn shown<'o>(flags: &ActFlags, output: &'o Output) -> &'o Handle {
    match flags.events {
        Some(Sink::Stdout) => &output.err,
        Some(Sink::File(_)) | None => &output.out,
    }
}
