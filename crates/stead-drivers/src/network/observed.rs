//! What Stead's own file gives an interface, for those who compare it with a spec.

use std::path::Path;

use stead_model::node::observed::ObservedNetwork;
use stead_runner::operation::{OpContext, OpError};

use super::manager::Manager;
use super::{interfaces_file, links, netplan_file};
use crate::disk::Disk;

/// Returns what the interface called `name` has by Stead; none if Stead gives it nothing.
pub(crate) fn observe(cx: &OpContext, disk: &Disk, name: &str) -> Result<Option<ObservedNetwork>, OpError> {
    for manager in [Manager::Netplan, Manager::Interfaces] {
        let Some(text) = disk.text(Path::new(&manager.path(name)))? else { continue };
        let mut seen = in_text(manager, &text);
        if let (None, Some(ip)) = (&cx.root, seen.ip.as_deref().filter(|ip| *ip != "dhcp"))
            && links::read_address(cx, name, ip)? == false
        {
            seen.ip = None;
        }
        return Ok(Some(seen));
    }
    Ok(None)
}

/// Returns what a file of ours says. Pure.
fn in_text(manager: Manager, text: &str) -> ObservedNetwork {
    let (addresses, gateways) = match manager {
        Manager::Netplan => netplan_file::old(text),
        Manager::Interfaces => interfaces_file::old(text),
    };
    let lines = || text.lines().map(str::trim);
    let (has_dhcp, dns): (bool, Vec<&str>) = match manager {
        Manager::Netplan => {
            let list =
                lines().find_map(|line| line.strip_prefix("nameservers: {addresses: [")?.split(']').next());
            let items = list.unwrap_or_default().split(',').map(|item| item.trim().trim_matches('"'));
            (lines().any(|line| line == "dhcp4: true"), items.collect())
        }
        Manager::Interfaces => {
            let list = lines().find_map(|line| line.strip_prefix("dns-nameservers "));
            let is_dhcp = |line: &str| line.starts_with("iface ") && line.ends_with(" inet dhcp");
            (lines().any(is_dhcp), list.unwrap_or_default().split_whitespace().collect())
        }
    };
    let address = addresses.first().map(ToString::to_string);
    ObservedNetwork {
        dns: dns.into_iter().filter(|server| !server.is_empty()).map(str::to_owned).collect(),
        gateway: gateways.first().map(ToString::to_string),
        ip: if has_dhcp { Some("dhcp".to_owned()) } else { address },
    }
}

#[cfg(test)]
mod tests {
    use super::super::interface::Wanted;
    use super::super::prefix::Prefix;
    use super::*;

    #[test]
    fn both_files_are_read_as_they_are_written() {
        let fixed = Wanted {
            name: "eth0".to_owned(),
            addresses: vec![Prefix::parse("10.0.0.7/24").unwrap()],
            gateway4: Some("10.0.0.1".parse().unwrap()),
            dns: vec!["1.1.1.1".parse().unwrap(), "fd00::1".parse().unwrap()],
            ..Wanted::default()
        };
        let seen = ObservedNetwork {
            dns: vec!["1.1.1.1".to_owned(), "fd00::1".to_owned()],
            gateway: Some("10.0.0.1".to_owned()),
            ip: Some("10.0.0.7/24".to_owned()),
        };
        assert_eq!(in_text(Manager::Netplan, &netplan_file::interface(&fixed)), seen);
        assert_eq!(in_text(Manager::Interfaces, &interfaces_file::interface(&fixed)), seen);
        let dhcp = Wanted { name: "eth0".to_owned(), dhcp4: Some(true), ..Wanted::default() };
        let seen = ObservedNetwork { ip: Some("dhcp".to_owned()), ..ObservedNetwork::default() };
        assert_eq!(in_text(Manager::Netplan, &netplan_file::interface(&dhcp)), seen);
        assert_eq!(in_text(Manager::Interfaces, &interfaces_file::interface(&dhcp)), seen);
    }
}
