//! Stead's drivers: the operations, each implemented once, for the machine it runs on.
//!
//! [`operations`] is the standard registry. Every module here acts and reports; none decides order or retries.

mod command;
mod disk;
mod ranges;

use stead_runner::operation::Registry;

/// Returns the standard registry: every operation there is.
pub fn operations() -> Registry {
    let mut registry = Registry::new();
    registry.add_action(command::Exec);
    registry.add_action(command::Shell);
    registry
}
