//! `user.*` and `group.*`: accounts, by the system's own programs (`useradd`, `usermod`, `groupadd`, …).
//!
//! What is there is read from the account files themselves, so a root prefix shows its own users and `changed` is
//! exact; what is written goes through the programs, which know about locks, aging, subordinate ids and skeletons. A
//! password hash goes over standard input, never in an argument list.

mod absent;
mod database;
mod group;
mod password;
mod present;
mod restored;
mod sandbox;
mod wish;

use stead_model::operation::{ParamKind, ParamSpec, RootSupport, judge_texts};
use stead_model::{Descriptor, Effect};
use stead_runner::operation::{OpContext, OpError, Registry};

use crate::command::blocking::Said;
use crate::setup::input;
use crate::system::{Tool, need};

/// Adds every `user.*` and `group.*` operation.
pub(crate) fn add_to(registry: &mut Registry) {
    registry.add_operation(present::Present);
    registry.add_operation(absent::Absent);
    registry.add_operation(restored::Restored);
    registry.add_operation(group::Present);
    registry.add_operation(group::Absent);
    registry.add_operation(group::Restored);
}

/// What the descriptors share.
const WRITE: Descriptor = Descriptor {
    name: "",
    summary: "",
    effect: Effect::Write,
    idempotent: true,
    check: true,
    undo: true,
    platforms: &["linux"],
    root: RootSupport::Full,
    needs_root: true,
    params: &[],
    exclusive: &[],
    one_of: &[],
    result: &[],
};

/// The largest id: the one above means "none" to the system.
const LARGEST_ID: i64 = 4_294_967_294;

const NAME: ParamSpec = ParamSpec::new("name", ParamKind::NonEmptyText, "Its name.")
    .required()
    .judged(|value| judge_texts(value, |text| input::problem(check_name(text))));

/// Returns the name, if account files can hold it.
fn check_name(name: &str) -> Result<&str, OpError> {
    let odd = |c: char| c.is_whitespace() || c.is_control() || matches!(c, ':' | ',' | '/');
    if name.is_empty() || name.len() > 32 || name.starts_with('-') || name.contains(odd) {
        return Err(OpError::invalid(format!(
            "`{}` is not a name for an account: up to 32 letters, digits, `_`, `-` or `.`",
            name.escape_debug()
        )));
    }
    Ok(name)
}

/// Returns an account program, pointed at the root prefix.
fn tool<'a>(cx: &'a OpContext, name: &'a str) -> Result<Tool<'a>, OpError> {
    need(name, "passwd")?;
    // `gpasswd` is the only one whose option is called otherwise.
    Ok(Tool::new(cx, name).root(if name == "gpasswd" { "-Q" } else { "-R" }))
}

/// Whether an account program failed because another one was at work.
fn is_busy(said: &Said) -> bool {
    said.stderr.contains("cannot lock") || said.stderr.contains("try again later")
}
