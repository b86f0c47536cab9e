//! `ntp`: whom the machine asks for the time, by chrony or systemd-timesyncd, whichever is installed.

use stead_model::Descriptor;
use stead_model::operation::{ParamKind, ParamSpec};
use stead_runner::operation::{OpError, Params};

use crate::file::edit::Lines;
use crate::setup::settle::Settle;
use crate::setup::{CONFIGURE, Configure, Setup, input};

static DESCRIPTOR: Descriptor = Descriptor {
    name: "ntp",
    summary: "Makes sure the machine asks time servers: by a drop-in of chrony or systemd-timesyncd.",
    params: &[
        ParamSpec::new("servers", ParamKind::TextList, "Names or addresses of single servers."),
        ParamSpec::new("pools", ParamKind::TextList, "Names that stand for many servers."),
    ],
    one_of: &[&["servers", "pools"]],
    ..CONFIGURE
};

pub(super) struct Ntp;

impl Configure for Ntp {
    fn descriptor(&self) -> &'static Descriptor {
        &DESCRIPTOR
    }

    fn setup(&self, setup: &mut Setup<'_>, params: &Params) -> Result<(), OpError> {
        let (servers, pools) = (params.texts("servers"), params.texts("pools"));
        for (name, list) in [("servers", &servers), ("pools", &pools)] {
            for text in list {
                if text.parse::<std::net::IpAddr>().is_err() {
                    input::host_name(name, text)?;
                }
            }
        }
        if servers.is_empty() && pools.is_empty() {
            return Err(OpError::invalid("`servers` and `pools` are both empty"));
        }
        for (program, main, directory) in [
            ("/usr/sbin/chronyd", "/etc/chrony/chrony.conf", "/etc/chrony/conf.d"),
            ("/usr/sbin/chronyd", "/etc/chrony.conf", "/etc/chrony.d"),
        ] {
            if setup.exists(program)? && setup.exists(main)? {
                return chrony(setup, main, directory, &servers, &pools);
            }
        }
        for program in ["/usr/lib/systemd/systemd-timesyncd", "/lib/systemd/systemd-timesyncd"] {
            if setup.exists(program)? {
                let all = [servers, pools].concat().join(" ");
                setup.content(
                    "/etc/systemd/timesyncd.conf.d/60-stead.conf",
                    format!("[Time]\nNTP={all}\n").into_bytes(),
                )?;
                setup.settle(Settle::Restart(vec!["systemd-timesyncd.service".to_owned()]));
                return Ok(());
            }
        }
        Err(OpError::unsupported("ntp needs chrony or systemd-timesyncd; neither is installed"))
    }
}

fn chrony(
    setup: &mut Setup<'_>,
    main: &str,
    directory: &str,
    servers: &[String],
    pools: &[String],
) -> Result<(), OpError> {
    let servers = servers.iter().map(|server| format!("server {server} iburst\n"));
    let content: String = servers.chain(pools.iter().map(|pool| format!("pool {pool} iburst\n"))).collect();
    setup.content(format!("{directory}/stead.conf"), content.into_bytes())?;
    let old = setup.read(main.as_ref())?.unwrap_or_default();
    setup.content(main, with_directory(&old, directory))?;
    setup.settle(Settle::Restart(vec!["chrony.service".to_owned(), "chronyd.service".to_owned()]));
    Ok(())
}

/// Returns chrony's main file with the line that reads a directory of drop-ins.
fn with_directory(content: &[u8], directory: &str) -> Vec<u8> {
    let mut lines = Lines::new(content);
    let reads = |text: &[u8]| {
        let text = String::from_utf8_lossy(text);
        let words: Vec<&str> = text.split_whitespace().collect();
        words.first() == Some(&"confdir") && words.contains(&directory)
    };
    if lines.find(reads).is_empty() {
        lines.insert(lines.len(), &[format!("confdir {directory}").as_bytes()]);
    }
    lines.into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_directory_is_read_once() {
        let text = "pool x iburst\nconfdir /etc/chrony/conf.d\n";
        assert_eq!(with_directory(text.as_bytes(), "/etc/chrony/conf.d"), text.as_bytes());
        let made = with_directory(b"pool x\n", "/etc/chrony.d");
        assert_eq!(made, b"pool x\nconfdir /etc/chrony.d\n");
        assert_eq!(with_directory(&made, "/etc/chrony.d"), made);
    }
}
