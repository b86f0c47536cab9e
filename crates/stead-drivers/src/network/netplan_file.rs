//! What netplan reads: YAML of our own making, from values that were checked. Pure.

use std::net::IpAddr;

use super::interface::Wanted;
use super::prefix::Prefix;

/// Returns the file of an interface.
pub(super) fn interface(wanted: &Wanted) -> String {
    let mut text = head(&wanted.name);
    for (name, dhcp) in [("dhcp4", wanted.dhcp4), ("dhcp6", wanted.dhcp6)] {
        if let Some(dhcp) = dhcp {
            text.push_str(&format!("      {name}: {dhcp}\n"));
        }
    }
    if !wanted.addresses.is_empty() {
        text.push_str("      addresses:\n");
        for address in &wanted.addresses {
            text.push_str(&format!("        - \"{address}\"\n"));
        }
    }
    if !wanted.dns.is_empty() {
        text.push_str(&format!("      nameservers: {{addresses: {}}}\n", list(&wanted.dns)));
    }
    if wanted.gateway4.is_some() || wanted.gateway6.is_some() {
        text.push_str("      routes:\n");
        for (to, via) in [("0.0.0.0/0", wanted.gateway4), ("::/0", wanted.gateway6)] {
            if let Some(via) = via {
                text.push_str(&route_line(to, Some(via), None));
            }
        }
    }
    if let Some(mtu) = wanted.mtu {
        text.push_str(&format!("      mtu: {mtu}\n"));
    }
    if let Some(mac) = &wanted.mac {
        text.push_str(&format!("      macaddress: \"{mac}\"\n"));
    }
    text
}

/// Returns the file of a route.
pub(super) fn route(interface: &str, to: &str, via: Option<IpAddr>, metric: Option<u32>) -> String {
    format!("{}      routes:\n{}", head(interface), route_line(to, via, metric))
}

/// Returns the file of an interface's name servers.
///
/// A list that is empty is left out: netplan would read it as the wish for none.
pub(super) fn dns(interface: &str, servers: &[String], search: &[String]) -> String {
    let quoted =
        |items: &[String]| items.iter().map(|item| format!("\"{item}\"")).collect::<Vec<_>>().join(", ");
    let lists = [("addresses", servers), ("search", search)];
    let lists = lists.iter().filter(|(_, items)| !items.is_empty());
    let lists: Vec<String> = lists.map(|(name, items)| format!("{name}: [{}]", quoted(items))).collect();
    format!("{}      nameservers: {{{}}}\n", head(interface), lists.join(", "))
}

/// Returns the servers and the domains to search that a file of [`dns`] gives an interface.
pub(super) fn old_dns(text: &str) -> (Vec<String>, Vec<String>) {
    let line = text.lines().find_map(|line| line.strip_prefix("      nameservers: "));
    let list = |name: &str| -> Vec<String> {
        let start = format!("{name}: [");
        let items =
            line.and_then(|line| line.split_once(&start)).and_then(|(_, rest)| rest.split(']').next());
        let items = items.into_iter().flat_map(|items| items.split(", "));
        items.map(|item| item.trim_matches('"').to_owned()).filter(|item| !item.is_empty()).collect()
    };
    (list("addresses"), list("search"))
}

fn head(interface: &str) -> String {
    format!("network:\n  version: 2\n  ethernets:\n    \"{interface}\":\n")
}

fn route_line(to: &str, via: Option<IpAddr>, metric: Option<u32>) -> String {
    let via = match via {
        Some(via) => format!(", via: \"{via}\""),
        None => ", scope: link".to_owned(),
    };
    let metric = metric.map(|metric| format!(", metric: {metric}")).unwrap_or_default();
    format!("        - {{to: \"{to}\"{via}{metric}}}\n")
}

fn list(addresses: &[IpAddr]) -> String {
    let quoted: Vec<String> = addresses.iter().map(|address| format!("\"{address}\"")).collect();
    format!("[{}]", quoted.join(", "))
}

/// Returns the addresses and gateways that a file of ours gives an interface.
pub(super) fn old(text: &str) -> (Vec<Prefix>, Vec<IpAddr>) {
    let items = text.lines().filter_map(|line| line.strip_prefix("        - "));
    let addresses = items.clone().filter_map(|item| Prefix::parse(item.trim().trim_matches('"')));
    let gateways = items.filter_map(|item| item.split_once("via: \"")?.1.split('"').next()?.parse().ok());
    (addresses.collect(), gateways.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_servers_are_read_back_as_they_were_written() {
        let list = |items: &[&str]| items.iter().map(|item| (*item).to_owned()).collect::<Vec<_>>();
        let (servers, search) = (list(&["1.1.1.1", "fd00::1"]), list(&["a.b", "c.d"]));
        for (servers, search) in
            [(servers.clone(), search.clone()), (servers, list(&[])), (list(&[]), search)]
        {
            let text = dns("eth0", &servers, &search);
            assert_eq!(old_dns(&text), (servers, search), "{text}");
            assert!(!text.contains("[]"), "{text}");
        }
        assert_eq!(old_dns(""), (list(&[]), list(&[])));
    }
}
