//! `dns.servers`: whom the machine asks for names, by whatever manages that.

use stead_model::Descriptor;
use stead_model::operation::{ParamKind, ParamSpec};
use stead_runner::operation::{OpError, Params};

use super::{netplan_file, resolv_conf};
use crate::disk::seen::Kind;
use crate::file::entry::Want;
use crate::setup::settle::Settle;
use crate::setup::{CONFIGURE, Configure, Setup, input};

const RESOLV_CONF: &str = "/etc/resolv.conf";
const RESOLVED: &str = "/etc/systemd/resolved.conf.d/60-stead.conf";
const RESOLVCONF: &str = "/etc/resolvconf/resolv.conf.d";

static DESCRIPTOR: Descriptor = Descriptor {
    name: "dns.servers",
    summary: "Makes sure the machine asks these name servers: by systemd-resolved, netplan, resolvconf or /etc/resolv.conf.",
    params: &[
        ParamSpec::new(
            "servers",
            ParamKind::Addresses,
            "Addresses, in order; default: those that are there.",
        ),
        ParamSpec::new("search", ParamKind::TextList, "Domains to search; default: those that are there."),
        ParamSpec::new(
            "interface",
            ParamKind::NonEmptyText,
            "Ask them through this interface; only where systemd-resolved or netplan manages names.",
        ),
    ],
    one_of: &[&["servers", "search"]],
    ..CONFIGURE
};

/// Who manages names on a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Manager {
    Resolved,
    Netplan,
    Resolvconf,
    File,
}

pub(super) struct DnsServers;

impl Configure for DnsServers {
    fn descriptor(&self) -> &'static Descriptor {
        &DESCRIPTOR
    }

    fn setup(&self, setup: &mut Setup<'_>, params: &Params) -> Result<(), OpError> {
        let mut servers = params.get("servers").map(|_| params.texts("servers"));
        if servers.as_ref().is_some_and(Vec::is_empty) {
            return Err(OpError::invalid("`servers` is empty: without any no name is found"));
        }
        for server in servers.iter_mut().flatten() {
            *server = input::address("servers", server)?.to_string();
        }
        let search = params.get("search").map(|_| params.texts("search"));
        for domain in search.iter().flatten() {
            input::host_name("search", domain.strip_prefix("~").unwrap_or(domain))?;
        }
        let interface =
            params.text("interface").map(|name| super::links::name("interface", name)).transpose()?;
        let manager = Manager::of(setup, interface.is_some())?;
        if let (Some(interface), Manager::Resolvconf | Manager::File) = (interface, manager) {
            return Err(OpError::permanent(format!(
                "`interface`, `{interface}`: names are managed by {} here, for all interfaces alike; leave it out",
                if manager == Manager::File { RESOLV_CONF } else { "resolvconf" }
            )));
        }
        match manager {
            Manager::Resolved => {
                let old = setup.read(RESOLVED.as_ref())?.unwrap_or_default();
                let content = resolved(
                    &String::from_utf8_lossy(&old),
                    servers.as_deref(),
                    search.as_deref(),
                    interface,
                );
                setup.content(RESOLVED, content.into_bytes())?;
                setup.settle(Settle::Restart(vec!["systemd-resolved.service".to_owned()]));
            }
            Manager::Netplan => {
                let interface = interface.unwrap_or_default();
                let path = format!("/etc/netplan/90-stead-dns-{interface}.yaml");
                let old = setup.read(path.as_ref())?.unwrap_or_default();
                let kept = netplan_file::old_dns(&String::from_utf8_lossy(&old));
                let content =
                    netplan_file::dns(interface, &servers.unwrap_or(kept.0), &search.unwrap_or(kept.1));
                let want = Want::new(Kind::File).content(content.into_bytes()).mode(0o600);
                setup.file(path, want)?;
                setup.settle(Settle::Netplan);
            }
            Manager::Resolvconf => {
                let head = format!("{RESOLVCONF}/head");
                let old = setup.read(head.as_ref())?.unwrap_or_default();
                setup.content(head, resolv_conf::edit(&old, servers.as_deref(), search.as_deref()))?;
                setup.settle(Settle::Resolvconf);
            }
            Manager::File => {
                let old = setup.read(RESOLV_CONF.as_ref())?.unwrap_or_default();
                setup.content(RESOLV_CONF, resolv_conf::edit(&old, servers.as_deref(), search.as_deref()))?;
            }
        }
        Ok(())
    }
}

impl Manager {
    fn of(setup: &Setup<'_>, has_interface: bool) -> Result<Self, OpError> {
        let (_, seen) = setup.look(RESOLV_CONF.as_ref())?;
        let to = seen.to.unwrap_or_default();
        Ok(if to.contains("systemd/resolve") {
            Self::Resolved
        } else if has_interface && setup.exists("/etc/netplan")? {
            Self::Netplan
        } else if setup.exists(RESOLVCONF)? {
            Self::Resolvconf
        } else {
            Self::File
        })
    }
}

/// Returns the drop-in of systemd-resolved; what is not given stays as the old one has it.
fn resolved(
    old: &str,
    servers: Option<&[String]>,
    search: Option<&[String]>,
    interface: Option<&str>,
) -> String {
    let kept = |name: &str| {
        let line = old.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
        line.map(str::to_owned)
    };
    let through = |server: &String| match interface {
        Some(interface) => format!("{server}%{interface}"),
        None => server.clone(),
    };
    let servers = servers.map(|servers| servers.iter().map(through).collect::<Vec<_>>().join(" "));
    let search = search.map(|search| search.join(" "));
    let mut content = "[Resolve]\n".to_owned();
    for (name, value) in
        [("DNS", servers.or_else(|| kept("DNS"))), ("Domains", search.or_else(|| kept("Domains")))]
    {
        if let Some(value) = value {
            content.push_str(&format!("{name}={value}\n"));
        }
    }
    content
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_drop_in_keeps_what_is_not_given() {
        let list = |items: &[&str]| items.iter().map(|item| (*item).to_owned()).collect::<Vec<_>>();
        let one = resolved("", Some(&list(&["1.1.1.1", "fd00::1"])), None, Some("eth0"));
        assert_eq!(one, "[Resolve]\nDNS=1.1.1.1%eth0 fd00::1%eth0\n");
        let two = resolved(&one, None, Some(&list(&["a.b", "~."])), None);
        assert_eq!(two, "[Resolve]\nDNS=1.1.1.1%eth0 fd00::1%eth0\nDomains=a.b ~.\n");
    }
}
