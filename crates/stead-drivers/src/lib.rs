//! Stead's drivers: the operations, each implemented once, for the machine it runs on.
//!
//! [`operations`] is the standard registry. Every module here acts and reports; none decides order or retries.

mod archive;
mod assert;
mod command;
mod disk;
mod file;
mod git;
mod http;
mod ranges;
mod wait;

use stead_runner::operation::Registry;

/// Returns the standard registry: every operation there is.
pub fn operations() -> Registry {
    let mut registry = Registry::new();
    registry.add_action(command::Exec);
    registry.add_action(command::Shell);
    file::add_to(&mut registry);
    registry.add_operation(archive::Unpacked);
    registry.add_action(assert::Assert);
    registry.add_operation(git::Checkout);
    registry.add_action(http::HttpRequest);
    registry.add_action(wait::WaitPort);
    registry.add_action(wait::WaitHttp);
    registry.add_action(wait::WaitFile);
    registry
}
