//! Who may come in and do what: `ssh.authorized_key`, `ssh.daemon`, `sudo.rule`.

pub(crate) mod account;
mod authorized_key;
pub(crate) mod daemon;
mod key_line;
mod sshd_config;
mod sudo_rule;

use stead_runner::operation::Registry;

use crate::setup::Configured;

/// Adds the operations of this module.
pub(crate) fn add_to(registry: &mut Registry) {
    registry.add_operation(Configured(authorized_key::AuthorizedKey));
    registry.add_operation(Configured(daemon::Daemon));
    registry.add_operation(Configured(sudo_rule::SudoRule));
}
