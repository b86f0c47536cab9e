//! `ntp`: whom the machine asks for the time, by chrony or systemd-timesyncd, whichever is installed.

use stead_model::Descriptor;
use stead_model::operation::{ParamKind, ParamSpec};
use stead_runner::operation::{OpError, Params};

use crate::file::edit::Lines;
use crate::setup::settle::Settle;
use crate::setup::{CONFIGURE, Configure, Setup, input};

const TIMESYNCD: &str = "/etc/systemd/timesyncd.conf.d/60-stead.conf";
/// Before the number of those names of `NTP=` that are servers; the rest are pools.
const SERVERS: &str = "# servers: ";

static DESCRIPTOR: Descriptor = Descriptor {
    name: "ntp",
    summary: "Makes sure the machine asks time servers: by a drop-in of chrony or systemd-timesyncd.",
    params: &[
        ParamSpec::new(
            "servers",
            ParamKind::TextList,
            "Names or addresses of single servers; default: those that were given before.",
        ),
        ParamSpec::new(
            "pools",
            ParamKind::TextList,
            "Names that stand for many servers; default: those that were given before.",
        ),
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
        let given = |name: &str| params.get(name).map(|_| params.texts(name));
        let wish = Wish { servers: given("servers"), pools: given("pools") };
        for (name, list) in [("servers", &wish.servers), ("pools", &wish.pools)] {
            for text in list.iter().flatten() {
                if text.parse::<std::net::IpAddr>().is_err() {
                    input::host_name(name, text)?;
                }
            }
        }
        if [&wish.servers, &wish.pools].into_iter().flatten().all(Vec::is_empty) {
            return Err(OpError::invalid("`servers` and `pools` are both empty"));
        }
        for (program, main, directory) in [
            ("/usr/sbin/chronyd", "/etc/chrony/chrony.conf", "/etc/chrony/conf.d"),
            ("/usr/sbin/chronyd", "/etc/chrony.conf", "/etc/chrony.d"),
        ] {
            if setup.exists(program)? && setup.exists(main)? {
                return chrony(setup, main, directory, &wish);
            }
        }
        for program in ["/usr/lib/systemd/systemd-timesyncd", "/lib/systemd/systemd-timesyncd"] {
            if setup.exists(program)? {
                let old = setup.read(TIMESYNCD.as_ref())?.unwrap_or_default();
                setup.content(TIMESYNCD, wish.timesyncd(&String::from_utf8_lossy(&old)).into_bytes())?;
                setup.settle(Settle::Restart(vec!["systemd-timesyncd.service".to_owned()]));
                return Ok(());
            }
        }
        Err(OpError::unsupported("ntp needs chrony or systemd-timesyncd; neither is installed"))
    }
}

/// Whom to ask; a list that is not given stays as it is.
struct Wish {
    servers: Option<Vec<String>>,
    pools: Option<Vec<String>>,
}

impl Wish {
    /// Returns the drop-in of chrony; what is not given stays as the old one has it.
    fn chrony(&self, old: &str) -> String {
        let mut content = String::new();
        for (word, given) in [("server", &self.servers), ("pool", &self.pools)] {
            let kept = || {
                let names = old.lines().filter_map(|line| line.strip_prefix(word)?.strip_prefix(' '));
                names.filter_map(|rest| rest.split(' ').next()).map(str::to_owned).collect()
            };
            let names: Vec<String> = given.clone().unwrap_or_else(kept);
            names.iter().for_each(|name| content.push_str(&format!("{word} {name} iburst\n")));
        }
        content
    }

    /// Returns the drop-in of timesyncd, which has one list for both: a comment says how many of it are servers.
    fn timesyncd(&self, old: &str) -> String {
        let value = |start: &str| old.lines().find_map(|line| line.strip_prefix(start));
        let all: Vec<String> =
            value("NTP=").unwrap_or_default().split_whitespace().map(str::to_owned).collect();
        // Without a count they are servers all.
        let count = value(SERVERS).and_then(|text| text.trim().parse().ok()).unwrap_or(all.len());
        let (servers, pools) = all.split_at(count.min(all.len()));
        let servers = self.servers.as_deref().unwrap_or(servers);
        let pools = self.pools.as_deref().unwrap_or(pools);
        let all = [servers, pools].concat().join(" ");
        let count = if pools.is_empty() { String::new() } else { format!("{SERVERS}{}\n", servers.len()) };
        format!("[Time]\n{count}NTP={all}\n")
    }
}

fn chrony(setup: &mut Setup<'_>, main: &str, directory: &str, wish: &Wish) -> Result<(), OpError> {
    let file = format!("{directory}/stead.conf");
    let old = setup.read(file.as_ref())?.unwrap_or_default();
    setup.content(file, wish.chrony(&String::from_utf8_lossy(&old)).into_bytes())?;
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
    fn a_list_that_is_not_given_is_kept() {
        let list = |items: &[&str]| Some(items.iter().map(|item| (*item).to_owned()).collect::<Vec<_>>());
        let servers = Wish { servers: list(&["a", "b"]), pools: None };
        let pools = Wish { servers: None, pools: list(&["p"]) };
        let one = servers.chrony("");
        assert_eq!(one, "server a iburst\nserver b iburst\n");
        let two = pools.chrony(&one);
        assert_eq!(two, "server a iburst\nserver b iburst\npool p iburst\n");
        assert_eq!(servers.chrony(&two), two);
        assert_eq!(Wish { servers: list(&[]), pools: None }.chrony(&two), "pool p iburst\n");
        let one = servers.timesyncd("");
        assert_eq!(one, "[Time]\nNTP=a b\n");
        let two = pools.timesyncd(&one);
        assert_eq!(two, "[Time]\n# servers: 2\nNTP=a b p\n");
        assert_eq!(
            Wish { servers: list(&["c"]), pools: None }.timesyncd(&two),
            "[Time]\n# servers: 1\nNTP=c p\n"
        );
    }

    #[test]
    fn the_directory_is_read_once() {
        let text = "pool x iburst\nconfdir /etc/chrony/conf.d\n";
        assert_eq!(with_directory(text.as_bytes(), "/etc/chrony/conf.d"), text.as_bytes());
        let made = with_directory(b"pool x\n", "/etc/chrony.d");
        assert_eq!(made, b"pool x\nconfdir /etc/chrony.d\n");
        assert_eq!(with_directory(&made, "/etc/chrony.d"), made);
    }
}
