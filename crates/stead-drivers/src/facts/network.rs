//! Interfaces and the address others reach a host by.

use std::net::IpAddr;

use stead_model::facts::{Address, AddressFamily, Interface, InterfaceAddress};

#[cfg(target_os = "linux")]
use super::netlink::{self, DefaultRoute, Link, LinkAddress};

/// Returns the network interfaces of this machine, by name.
pub fn interfaces() -> Vec<Interface> {
    read().0
}

#[cfg(not(target_os = "linux"))]
pub(super) fn read() -> (Vec<Interface>, Address) {
    Default::default()
}

#[cfg(target_os = "linux")]
pub(super) fn read() -> (Vec<Interface>, Address) {
    // Where the kernel does not answer (a filtered container) nothing is known, and that is no error.
    let links = netlink::links().unwrap_or_default();
    let addresses = netlink::addresses().unwrap_or_default();
    let routes = netlink::default_routes().unwrap_or_default();
    (join(&links, &addresses), primary(&links, &addresses, &routes))
}

#[cfg(target_os = "linux")]
fn join(links: &[Link], addresses: &[LinkAddress]) -> Vec<Interface> {
    let mut interfaces: Vec<Interface> = links
        .iter()
        .map(|link| Interface {
            name: link.name.clone(),
            mac: mac(&link.hardware),
            mtu: link.mtu.map(u64::from),
            up: link.up,
            addresses: addresses
                .iter()
                .filter(|address| address.link == link.index)
                .map(|address| InterfaceAddress {
                    address: address.address.to_string(),
                    prefix: address.prefix,
                    family: match address.address {
                        IpAddr::V4(_) => AddressFamily::Inet,
                        IpAddr::V6(_) => AddressFamily::Inet6,
                    },
                })
                .collect(),
        })
        .collect();
    interfaces.sort_by(|one, other| one.name.cmp(&other.name));
    interfaces
}

/// Returns a hardware address as people write it; a tunnel's is no such address.
#[cfg(target_os = "linux")]
fn mac(hardware: &[u8]) -> Option<String> {
    let is_mac = matches!(hardware.len(), 6 | 8 | 20);
    is_mac.then(|| hardware.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(":"))
}

/// Returns the source addresses of the default routes with the lowest metric.
#[cfg(target_os = "linux")]
fn primary(links: &[Link], addresses: &[LinkAddress], routes: &[DefaultRoute]) -> Address {
    let best =
        |is_v4: bool| routes.iter().filter(|route| route.is_v4 == is_v4).min_by_key(|route| route.metric);
    let (v4, v6) = (best(true), best(false));
    let name = |route: &DefaultRoute| {
        links.iter().find(|link| Some(link.index) == route.link).map(|link| link.name.clone())
    };
    Address {
        primary4: v4.and_then(|route| source(route, addresses)).map(|address| address.to_string()),
        primary6: v6.and_then(|route| source(route, addresses)).map(|address| address.to_string()),
        interface: v4.and_then(name).or_else(|| v6.and_then(name)),
        gateway4: v4
            .and_then(|route| route.gateway)
            .filter(IpAddr::is_ipv4)
            .map(|gateway| gateway.to_string()),
    }
}

/// Returns the address the kernel sends from over a route: the route's own, else one of the interface, that of the
/// gateway's network first.
#[cfg(target_os = "linux")]
fn source(route: &DefaultRoute, addresses: &[LinkAddress]) -> Option<IpAddr> {
    let candidates = || {
        addresses.iter().filter(|address| {
            Some(address.link) == route.link && address.global && address.address.is_ipv4() == route.is_v4
        })
    };
    let beside_gateway = || {
        let gateway = route.gateway?;
        candidates().find(|address| same_network(address.address, gateway, address.prefix))
    };
    route.source.or_else(|| beside_gateway().or_else(|| candidates().next()).map(|address| address.address))
}

#[cfg(target_os = "linux")]
fn same_network(one: IpAddr, other: IpAddr, prefix: u8) -> bool {
    let bits = |address: IpAddr| match address {
        IpAddr::V4(address) => (u128::from(address.to_bits()) << 96, 32),
        IpAddr::V6(address) => (address.to_bits(), 128),
    };
    let ((one, width), (other, other_width)) = (bits(one), bits(other));
    let kept = u32::from(prefix).min(width);
    width == other_width && (kept == 0 || (one ^ other) >> (128 - kept) == 0)
}

#[cfg(target_os = "linux")]
#[cfg(test)]
mod tests {
    use super::*;

    fn at(link: u32, address: &str, prefix: u8, global: bool) -> LinkAddress {
        LinkAddress { link, address: address.parse().unwrap(), prefix, global }
    }

    #[test]
    fn the_source_of_the_default_route_is_the_primary_address() {
        let link = |index, name: &str| Link {
            index,
            name: name.to_owned(),
            hardware: vec![2, 0, 0, 0, 0, 10],
            mtu: Some(1500),
            up: true,
        };
        let links = [link(1, "lo"), link(2, "eth0"), link(3, "eth1")];
        let addresses = [
            at(2, "10.1.0.5", 24, true),
            at(3, "192.0.2.9", 24, true),
            at(3, "198.51.100.7", 25, true),
            at(3, "fe80::1", 64, false),
            at(3, "2001:db8::7", 64, true),
        ];
        let route = |is_v4, link, gateway: &str, metric| DefaultRoute {
            is_v4,
            link: Some(link),
            gateway: gateway.parse().ok(),
            source: None,
            metric,
        };
        let routes = [
            route(true, 2, "10.1.0.1", 200),
            route(true, 3, "198.51.100.1", 100),
            route(false, 3, "fe80::ff", 0),
        ];
        let found = primary(&links, &addresses, &routes);
        assert_eq!(found.primary4.as_deref(), Some("198.51.100.7"), "that of the gateway's network");
        assert_eq!(found.primary6.as_deref(), Some("2001:db8::7"), "no link-local one");
        assert_eq!(
            (found.interface.as_deref(), found.gateway4.as_deref()),
            (Some("eth1"), Some("198.51.100.1"))
        );
        let fixed = DefaultRoute { source: "192.0.2.9".parse().ok(), ..routes[1].clone() };
        assert_eq!(primary(&links, &addresses, &[fixed]).primary4.as_deref(), Some("192.0.2.9"));
        assert_eq!(primary(&links, &addresses, &[]), Address::default());
    }

    #[test]
    fn networks_are_compared_by_their_prefix() {
        let same = |one: &str, other: &str, prefix| {
            same_network(one.parse().unwrap(), other.parse().unwrap(), prefix)
        };
        assert!(same("10.0.0.1", "10.0.0.254", 24) && !same("10.0.0.1", "10.0.1.1", 24));
        assert!(same("10.0.0.1", "192.0.2.1", 0) && !same("10.0.0.1", "::1", 0));
        assert!(same("2001:db8::1", "2001:db8::2", 64) && !same("2001:db8::1", "2001:db8::2", 128));
    }
}
