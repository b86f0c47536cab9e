//! What a machine is called and where it is: `hostname`, `hosts.entry`, `timezone`.

pub(crate) mod hostname;
pub(crate) mod hosts;
mod hosts_entry;
mod timezone;

use stead_runner::operation::Registry;

use crate::setup::Configured;

/// Adds the operations of this module.
pub(crate) fn add_to(registry: &mut Registry) {
    registry.add_operation(Configured(hostname::Hostname));
    registry.add_operation(Configured(hosts_entry::HostsEntry));
    registry.add_operation(Configured(timezone::Timezone));
}
