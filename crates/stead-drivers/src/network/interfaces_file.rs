//! What ifupdown reads: stanzas of our own making, from values that were checked. Pure.

use std::net::IpAddr;

use super::interface::Wanted;
use super::prefix::Prefix;

/// Returns the file of an interface.
pub(super) fn interface(wanted: &Wanted) -> String {
    let mut stanzas: Vec<(&str, &str, Vec<String>)> = Vec::new();
    let static_of =
        |ipv4: bool| wanted.addresses.iter().filter(move |prefix| prefix.address.is_ipv4() == ipv4);
    if wanted.dhcp4 == Some(true) {
        stanzas.push(("inet", "dhcp", Vec::new()));
    }
    let gateways = [(true, "inet", wanted.gateway4), (false, "inet6", wanted.gateway6)];
    for (ipv4, family, mut gateway) in gateways {
        if !ipv4 && wanted.dhcp6 == Some(true) {
            stanzas.push(("inet6", "dhcp", Vec::new()));
        }
        for address in static_of(ipv4) {
            let mut lines = vec![format!("address {address}")];
            lines.extend(gateway.take().map(|gateway| format!("gateway {gateway}")));
            stanzas.push((family, "static", lines));
        }
    }
    if stanzas.is_empty() {
        stanzas.push(("inet", "manual", Vec::new()));
    }
    if let Some((_, _, lines)) = stanzas.first_mut() {
        let servers: Vec<String> = wanted.dns.iter().map(IpAddr::to_string).collect();
        lines.extend((!servers.is_empty()).then(|| format!("dns-nameservers {}", servers.join(" "))));
        lines.extend(wanted.mtu.map(|mtu| format!("mtu {mtu}")));
        lines.extend(wanted.mac.as_ref().map(|mac| format!("hwaddress ether {mac}")));
    }
    let name = &wanted.name;
    let mut text = format!("auto {name}\n");
    for (family, method, lines) in stanzas {
        text.push_str(&format!("iface {name} {family} {method}\n"));
        lines.iter().for_each(|line| text.push_str(&format!("    {line}\n")));
    }
    text
}

/// Returns the file of a route: commands that ifupdown runs with the interface.
pub(super) fn route(interface: &str, add: &[String], delete: &[String]) -> String {
    let family = if add.first().is_some_and(|family| family == "-6") { "inet6" } else { "inet" };
    format!(
        "iface {interface} {family} manual\n    up ip {}\n    down ip {} || true\n",
        add.join(" "),
        delete.join(" ")
    )
}

/// Returns the addresses and gateways that a file of ours gives an interface.
pub(super) fn old(text: &str) -> (Vec<Prefix>, Vec<IpAddr>) {
    let value = |name: &'static str| {
        text.lines().filter_map(move |line| line.trim().strip_prefix(name)?.strip_prefix(' ').map(str::trim))
    };
    (
        value("address").filter_map(Prefix::parse).collect(),
        value("gateway").filter_map(|via| via.parse().ok()).collect(),
    )
}
