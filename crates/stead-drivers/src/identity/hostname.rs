//! `hostname`: what the machine calls itself, running and after the next start.

use std::net::{IpAddr, Ipv4Addr};

use serde_json::Value;
use stead_model::Descriptor;
use stead_model::operation::{ParamKind, ParamSpec};
use stead_runner::operation::{OpError, Params};

use super::hosts::{self, Hosts};
use crate::disk::io_error;
use crate::file::edit::Lines;
use crate::setup::live::Live;
use crate::setup::{CONFIGURE, Configure, Setup, input};

const PATH: &str = "/etc/hostname";
/// The address that Debian gives a machine's own name.
const OWN: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 1, 1));

static DESCRIPTOR: Descriptor = Descriptor {
    name: "hostname",
    summary: "Makes sure the machine has a host name: running, in /etc/hostname and on the 127.0.1.1 line of /etc/hosts.",
    params: &[
        ParamSpec::new("name", ParamKind::FileName, "The host name.").required(),
        ParamSpec::new(
            "domain",
            ParamKind::NonEmptyText,
            "Domain of the full name in /etc/hosts; default: the one that is there.",
        ),
    ],
    ..CONFIGURE
};

pub(crate) struct Hostname;

impl Configure for Hostname {
    fn descriptor(&self) -> &'static Descriptor {
        &DESCRIPTOR
    }

    fn setup(&self, setup: &mut Setup<'_>, params: &Params) -> Result<(), OpError> {
        let name = input::host_name("name", params.required("name")?)?;
        if name.len() > 64 {
            return Err(OpError::invalid(format!("`name`, `{name}`: Linux has room for 64 characters")));
        }
        let domain = params.text("domain").map(|domain| input::host_name("domain", domain)).transpose()?;
        if domain.is_some() && name.contains('.') {
            return Err(OpError::invalid(format!(
                "`name`, `{name}`, has a domain already; leave `domain` out"
            )));
        }
        let content = setup.read(PATH.as_ref())?.unwrap_or_default();
        let mut lines = Lines::new(&content);
        let is_name = |text: &[u8]| !text.trim_ascii().is_empty() && !text.starts_with(b"#");
        let mut old = Vec::new();
        match lines.find(is_name).first() {
            Some(i) => {
                old.push(String::from_utf8_lossy(lines.text(*i).trim_ascii()).into_owned());
                lines.set(*i, name.as_bytes());
            }
            None => lines.insert(lines.len(), &[name.as_bytes()]),
        }
        if setup.is_running()
            && let Value::String(running) = Live::Hostname.read(setup.cx)?
        {
            old.push(running);
        }
        let table = setup.read(hosts::PATH.as_ref())?.unwrap_or_default();
        // First the table, where the old name is looked for, then the file that says the old name.
        setup.content(hosts::PATH, renamed(&table, &old, name, domain))?;
        setup.content(PATH, lines.into_bytes())?;
        setup.wish(Live::Hostname, name.into())
    }
}

/// Returns `/etc/hosts` with the new name on its own line, instead of the old ones. Pure.
fn renamed(table: &[u8], old: &[String], name: &str, domain: Option<&str>) -> Vec<u8> {
    let mut hosts = Hosts::new(table);
    let line = hosts.line_of(OWN);
    let known = line.map(|line| hosts.names(line)).unwrap_or_default();
    let short = name.split('.').next().unwrap_or(name);
    let own = |label: &str| label == short || old.iter().any(|old| old.split('.').next() == Some(label));
    let full = known.iter().filter_map(|known| known.split_once('.')).find(|(label, _)| own(label));
    let full = match (domain, full) {
        _ if name.contains('.') => Some(name.to_owned()),
        (Some(domain), _) | (None, Some((_, domain))) => Some(format!("{name}.{domain}")),
        (None, None) => None,
    };
    let names: Vec<&str> = full.as_deref().into_iter().chain([short]).collect();
    let Some(line) = line else {
        let after = hosts.line_of(IpAddr::V4(Ipv4Addr::LOCALHOST));
        hosts.insert(after, OWN, &names);
        return hosts.into_bytes();
    };
    hosts.lead(line, &names);
    for known in known.iter().filter(|known| !names.contains(&known.as_str())) {
        if own(known.split('.').next().unwrap_or(known)) {
            hosts.take_off(known, |i, _| i == line);
        }
    }
    hosts.into_bytes()
}

/// Returns the kernel's host name.
pub(crate) fn read() -> Result<Value, OpError> {
    Ok(rustix::system::uname().nodename().to_string_lossy().into_owned().into())
}

/// Gives the kernel a host name.
pub(crate) fn set(name: &str) -> Result<(), OpError> {
    rustix::system::sethostname(name.as_bytes())
        .map_err(|errno| io_error("/proc/sys/kernel/hostname".as_ref(), "set", errno))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn renamed_text(table: &str, old: &str, name: &str, domain: Option<&str>) -> String {
        let once = renamed(table.as_bytes(), &[old.to_owned()], name, domain);
        assert_eq!(renamed(&once, &[name.to_owned()], name, domain), once, "a second time changes again");
        String::from_utf8(once).unwrap()
    }

    #[test]
    fn the_own_line_gets_the_new_name_and_keeps_domain_aliases_and_comment() {
        assert_eq!(
            renamed_text("127.0.1.1 old.lan old alias # us\n", "old", "new", None),
            "127.0.1.1\tnew.lan new alias # us\n"
        );
        assert_eq!(
            renamed_text("127.0.1.1 old.lan old\n", "old", "new", Some("example.org")),
            "127.0.1.1\tnew.example.org new\n"
        );
        assert_eq!(
            renamed_text("127.0.0.1 localhost\n::1 localhost\n", "old", "new", None),
            "127.0.0.1 localhost\n127.0.1.1\tnew\n::1 localhost\n"
        );
        assert_eq!(renamed_text("", "old", "a.b.c", None), "127.0.1.1\ta.b.c a\n");
        assert_eq!(renamed_text("127.0.1.1 new\n", "new", "new", None), "127.0.1.1 new\n");
    }
}
