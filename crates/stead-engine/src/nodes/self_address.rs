//! The self address: what nodes are told to find their level's server by.

use core::net::IpAddr;

use stead_model::site::address::{Authority, Reach};
use stead_model::site::host::DriverKind;

/// Where the address came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// `defaults.server_url`.
    ServerUrl,
    /// `--self-addr`.
    Flag,
    /// `STEAD_SELF_ADDR` or its older name, with the name it has.
    Environment,
    /// `self_addr` of the host.
    Host,
    /// Where the network that machines are plugged into has this machine.
    Network,
    /// The address of the default route.
    Route,
    /// This machine itself: all nodes are sandboxes here.
    Loopback,
}

/// What is known of this level.
#[derive(Clone, Copy, Debug, Default)]
pub struct Given<'a> {
    /// `defaults.server_url`, at level 1 only.
    pub server_url: Option<&'a str>,
    /// `--self-addr`.
    pub flag: Option<&'a str>,
    /// `STEAD_SELF_ADDR`.
    pub environment: Option<(&'static str, &'a str)>,
    /// `self_addr` of the host.
    pub host: Option<&'a str>,
    /// Where the network that all nodes are plugged into has this machine, if that is known.
    pub network: Option<IpAddr>,
    /// The address of the default route.
    pub route: Option<IpAddr>,
    /// Whether all nodes of the level are sandboxes on this machine.
    pub all_sandboxes: bool,
}

/// What nodes are told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SelfAddress {
    /// The address, or the whole URL if it is the site's.
    pub address: String,
    /// Where it came from.
    pub source: Source,
    /// What was given and is ignored, to be told.
    pub notice: Option<String>,
}

/// Why there is no address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SelfAddressError {
    /// It was given, and is empty.
    #[error("{0} is empty; give an address that the nodes can reach, or leave it out")]
    Empty(&'static str),
    /// It was given, and no other machine can use it.
    #[error("{0} is {1}, which other machines cannot reach; give one that the nodes reach this machine by")]
    Unreachable(&'static str, String),
    /// It was given, and is neither an address nor a name.
    #[error(
        "{0} is {1}, which is neither an address nor a name, with a port or without; give one, such as 10.0.0.1"
    )]
    Malformed(&'static str, String),
    /// Nothing was given, and there is no default route.
    #[error("this machine has no default route; give the address that nodes reach it by with --self-addr")]
    Unknown,
}

/// Returns what nodes of a level are told.
pub fn self_address(given: &Given<'_>) -> Result<SelfAddress, SelfAddressError> {
    if let Some(url) = given.server_url.filter(|url| is_routable_url(url)) {
        let notice = given
            .flag
            .map(|flag| format!("--self-addr {flag} is ignored: site.yaml has the server_url {url}"));
        return Ok(SelfAddress { address: url.to_owned(), source: Source::ServerUrl, notice });
    }
    let named = |name: &'static str| move |text| (name, text);
    for (said, source) in [
        (given.flag.map(named("--self-addr")), Source::Flag),
        (given.environment, Source::Environment),
        (given.host.map(named("`self_addr` of the host")), Source::Host),
    ] {
        let Some((name, text)) = said else { continue };
        let address = text.trim();
        if address.is_empty() {
            return Err(SelfAddressError::Empty(name));
        }
        let unreachable = match Authority::parse(address).map(Authority::reach) {
            None => return Err(SelfAddressError::Malformed(name, address.to_owned())),
            Some(Reach::Nobody) => true,
            Some(Reach::Here) => !given.all_sandboxes,
            Some(Reach::Everybody) => false,
        };
        if unreachable {
            return Err(SelfAddressError::Unreachable(name, address.to_owned()));
        }
        return Ok(SelfAddress { address: address.to_owned(), source, notice: None });
    }
    let found = given.network.map(|address| (address, Source::Network));
    match found.or(given.route.map(|address| (address, Source::Route))) {
        Some((address, source)) => Ok(SelfAddress { address: address.to_string(), source, notice: None }),
        None if given.all_sandboxes => {
            Ok(SelfAddress { address: "127.0.0.1".to_owned(), source: Source::Loopback, notice: None })
        }
        None => Err(SelfAddressError::Unknown),
    }
}

/// Returns what a delegating run tells the machine that it reaches at `reached` of itself, if its nodes are made by
/// `below`; none: that machine knows better.
///
/// Who is reached through a port of this machine has no address that its own nodes reach, unless they are sandboxes.
pub fn address_below(reached: &str, below: DriverKind) -> Option<&str> {
    let is_here = Authority::parse(reached).is_none_or(|authority| authority.reach() == Reach::Here);
    (!is_here || below == DriverKind::Sandbox).then_some(reached)
}

fn is_routable_url(url: &str) -> bool {
    let authority = Authority::parse(url.strip_prefix("https://").unwrap_or(url));
    authority.is_some_and(|authority| authority.reach() == Reach::Everybody)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROUTE: Option<IpAddr> = Some(IpAddr::V4(core::net::Ipv4Addr::new(10, 0, 0, 7)));

    fn told(given: &Given<'_>) -> (String, Source) {
        let found = self_address(given).unwrap();
        (found.address, found.source)
    }

    /// Case 34: the flag wins over the environment, which wins over the host, which wins over the route.
    /// A virtual machine on QEMU's own network is reached at a port of this machine.
    #[test]
    fn a_machine_is_not_told_an_address_that_its_nodes_cannot_reach() {
        use DriverKind::{CloudHypervisor, Oci, Qemu, Sandbox};
        for (reached, below, told) in [
            ("127.0.0.1", Sandbox, true),
            ("127.0.0.1", Qemu, false),
            ("127.0.0.1", Oci, false),
            ("127.0.0.1", CloudHypervisor, false),
            ("::1", Oci, false),
            ("localhost", Oci, false),
            ("10.44.1.2", Qemu, true),
            ("10.44.1.2", Sandbox, true),
            ("fd00::7", Oci, true),
            ("quay.lab.example", Oci, true),
        ] {
            assert_eq!(address_below(reached, below), told.then_some(reached), "{reached} {below:?}");
        }
    }

    #[test]
    fn the_first_that_is_given_holds() {
        let all = Given {
            flag: Some("10.1.1.1"),
            environment: Some(("STEAD_SELF_ADDR", "10.2.2.2")),
            host: Some("box"),
            route: ROUTE,
            ..Given::default()
        };
        assert_eq!(told(&all), ("10.1.1.1".to_owned(), Source::Flag));
        assert_eq!(told(&Given { flag: None, ..all }), ("10.2.2.2".to_owned(), Source::Environment));
        assert_eq!(told(&Given { flag: None, environment: None, ..all }), ("box".to_owned(), Source::Host));
        assert_eq!(told(&Given { route: ROUTE, ..Given::default() }), ("10.0.0.7".to_owned(), Source::Route));
        let network = Some(IpAddr::V4(core::net::Ipv4Addr::new(10, 0, 2, 2)));
        let plugged = Given { network, route: ROUTE, ..Given::default() };
        assert_eq!(told(&plugged), ("10.0.2.2".to_owned(), Source::Network));
        assert_eq!(told(&Given { host: Some("box"), ..plugged }).1, Source::Host);
        assert_eq!(self_address(&Given::default()), Err(SelfAddressError::Unknown));
        assert_eq!(told(&Given { all_sandboxes: true, ..Given::default() }).0, "127.0.0.1");
    }

    /// Case 34: empty and unspecified are refused, loopback only where others have to come.
    #[test]
    fn addresses_that_lead_nowhere_are_refused() {
        for bad in
            ["", " ", "0.0.0.0", "::", "[::]", "0.0.0.0:1", "[::]:1", "a b", "10.0.0.1:99999", "https://x"]
        {
            for all_sandboxes in [false, true] {
                assert!(
                    self_address(&Given { flag: Some(bad), route: ROUTE, all_sandboxes, ..Given::default() })
                        .is_err(),
                    "{bad:?}"
                );
                assert!(
                    self_address(&Given {
                        environment: Some(("STEAD_SELF_ADDR", bad)),
                        route: ROUTE,
                        all_sandboxes,
                        ..Given::default()
                    })
                    .is_err(),
                    "{bad:?}"
                );
            }
        }
        for here in [
            "127.0.0.1",
            "127.0.0.1:44443",
            "127.9.9.9",
            "::1",
            "[::1]:1",
            "localhost",
            "localhost:1",
            "::ffff:127.0.0.1",
        ] {
            assert!(self_address(&Given { flag: Some(here), ..Given::default() }).is_err(), "{here}");
            assert!(
                self_address(&Given { flag: Some(here), all_sandboxes: true, ..Given::default() }).is_ok(),
                "{here}"
            );
        }
    }

    /// Case 34: a routable URL of the site wins, with a notice.
    #[test]
    fn a_routable_server_url_makes_the_flag_idle() {
        let given = Given {
            server_url: Some("https://lab.example:44443"),
            flag: Some("0.0.0.0"),
            ..Given::default()
        };
        let found = self_address(&given).unwrap();
        assert_eq!((found.address.as_str(), found.source), ("https://lab.example:44443", Source::ServerUrl));
        assert!(found.notice.unwrap().contains("--self-addr 0.0.0.0 is ignored"));
        for idle in ["https://127.0.0.1:1", "https://localhost", "https://[::1]:1", "https://0.0.0.0:1", ""] {
            let given = Given { server_url: Some(idle), flag: Some("10.1.1.1"), ..Given::default() };
            assert_eq!(told(&given).1, Source::Flag, "{idle}");
        }
    }
}
