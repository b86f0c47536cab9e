//! How a machine talks to others: `dns.servers`, `network.interface`, `network.route`, `ntp`.

mod dns_servers;
mod interface;
mod interfaces_file;
pub(crate) mod links;
mod manager;
mod netplan_file;
mod ntp;
pub(crate) mod observed;
mod prefix;
mod resolv_conf;
mod route;
pub(crate) mod routes;
pub(crate) mod watch;

use stead_runner::operation::Registry;

use crate::setup::Configured;

/// Adds the operations of this module.
pub(crate) fn add_to(registry: &mut Registry) {
    registry.add_operation(Configured(dns_servers::DnsServers));
    registry.add_operation(Configured(interface::Interface));
    registry.add_operation(Configured(route::NetworkRoute));
    registry.add_operation(Configured(ntp::Ntp));
}
