//! Addresses as site files write them.

use core::net::{IpAddr, Ipv6Addr};
use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// An address with the length of its network's prefix: `10.0.0.5/24`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cidr {
    /// The address.
    pub address: IpAddr,
    /// How many of its bits name the network.
    pub prefix: u8,
}

/// Why a text is no address with prefix.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CidrError {
    /// There is no prefix.
    #[error("`{text}` has no prefix")]
    Bare {
        /// What was given.
        text: String,
    },
    /// The prefix is longer than the address.
    #[error("the prefix of `{text}` is more than {most}")]
    Prefix {
        /// What was given.
        text: String,
        /// The longest prefix of such an address.
        most: u8,
    },
    /// Anything else.
    #[error("`{text}` is not an address with prefix")]
    Malformed {
        /// What was given.
        text: String,
    },
}

impl Cidr {
    /// Returns the address with prefix that `text` is.
    pub fn parse(text: &str) -> Result<Self, CidrError> {
        let malformed = || CidrError::Malformed { text: text.to_owned() };
        let Some((address, prefix)) = text.split_once('/') else {
            return Err(match text.parse::<IpAddr>() {
                Ok(_) => CidrError::Bare { text: text.to_owned() },
                Err(_) => malformed(),
            });
        };
        let address: IpAddr = address.parse().map_err(|_| malformed())?;
        if prefix.is_empty() || prefix.len() > 3 || !prefix.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(malformed());
        }
        let most = if address.is_ipv4() { 32 } else { 128 };
        match prefix.parse::<u16>().ok().and_then(|prefix| u8::try_from(prefix).ok()) {
            Some(prefix) if prefix <= most => Ok(Self { address, prefix }),
            Some(_) | None => Err(CidrError::Prefix { text: text.to_owned(), most }),
        }
    }

    /// Whether `other` is in this address's network.
    pub fn contains(&self, other: IpAddr) -> bool {
        let network = |bits: u128, width: u32| bits.checked_shr(width - u32::from(self.prefix)).unwrap_or(0);
        match (self.address, other) {
            (IpAddr::V4(own), IpAddr::V4(other)) => {
                network(own.to_bits().into(), 32) == network(other.to_bits().into(), 32)
            }
            (IpAddr::V6(own), IpAddr::V6(other)) => {
                network(own.to_bits(), 128) == network(other.to_bits(), 128)
            }
            (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => false,
        }
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

/// How a node gets its address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeAddress {
    /// From the network it is in.
    Dhcp,
    /// This one.
    Static(Cidr),
}

impl fmt::Display for NodeAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dhcp => f.write_str("dhcp"),
            Self::Static(cidr) => cidr.fmt(f),
        }
    }
}

impl Serialize for NodeAddress {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for NodeAddress {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        if text == "dhcp" {
            return Ok(Self::Dhcp);
        }
        Cidr::parse(&text).map(Self::Static).map_err(serde::de::Error::custom)
    }
}

/// The JSON Schema of `dhcp` or an address with prefix.
pub(super) fn node_address_schema() -> serde_json::Value {
    serde_json::json!({"type": "string", "pattern": "^(dhcp|[0-9A-Fa-f.:]+/[0-9]{1,3})$"})
}

/// The JSON Schema of an address.
pub(super) fn ip_schema() -> serde_json::Value {
    serde_json::json!({"type": "string", "anyOf": [{"format": "ipv4"}, {"format": "ipv6"}]})
}

/// A host and the port it is asked at: `lab.example:44443`, `10.0.0.1`, `[fd00::1]:443`, `fd00::1`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Authority<'t> {
    /// An address without brackets, or a name.
    pub host: &'t str,
    /// The port, if one is given.
    pub port: Option<u16>,
}

impl<'t> Authority<'t> {
    /// Returns what `text` names, if it is an address or a name, with a port from 1 or none.
    pub fn parse(text: &'t str) -> Option<Self> {
        if text.parse::<Ipv6Addr>().is_ok() {
            return Some(Self { host: text, port: None });
        }
        let (host, port) = match text.strip_prefix('[').map(|rest| rest.split_once(']')) {
            Some(Some((host, rest))) if host.parse::<Ipv6Addr>().is_ok() => match rest {
                "" => (host, None),
                rest => (host, Some(rest.strip_prefix(':')?)),
            },
            Some(_) => return None,
            None => match text.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (text, None),
            },
        };
        if !host.contains(':') && !super::names::is_domain(host) {
            return None;
        }
        let port = match port {
            None => None,
            Some(digits) if digits.bytes().all(|byte| byte.is_ascii_digit()) => {
                Some(digits.parse().ok().filter(|port| *port != 0)?)
            }
            Some(_) => return None,
        };
        Some(Self { host, port })
    }

    /// Returns who can use it.
    pub fn reach(self) -> Reach {
        match self.host.parse::<IpAddr>().map(|ip| ip.to_canonical()) {
            Ok(ip) if ip.is_unspecified() => Reach::Nobody,
            Ok(ip) if ip.is_loopback() => Reach::Here,
            Ok(_) => Reach::Everybody,
            Err(_) if self.host.eq_ignore_ascii_case("localhost") => Reach::Here,
            Err(_) => Reach::Everybody,
        }
    }
}

/// Who can use an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Nobody: it stands for any address.
    Nobody,
    /// Only this machine.
    Here,
    /// Other machines too, as far as it shows.
    Everybody,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_may_have_a_port() {
        for (text, host, port) in [
            ("lab.example:44443", "lab.example", Some(44443)),
            ("10.0.0.1", "10.0.0.1", None),
            ("[fd00::1]:443", "fd00::1", Some(443)),
            ("[fd00::1]", "fd00::1", None),
            ("fd00::1", "fd00::1", None),
        ] {
            assert_eq!(Authority::parse(text), Some(Authority { host, port }), "{text}");
        }
        for bad in [
            "",
            ":1",
            "x:99999",
            "x:0",
            "x:",
            "x:+1",
            "[fd00::1]x",
            "[x]:1",
            "[fd00::1",
            "a b",
            "a/b",
            "u@x",
            "x:1:2",
        ] {
            assert_eq!(Authority::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn addresses_have_a_prefix_that_fits() {
        assert_eq!(Cidr::parse("10.0.0.5/24").unwrap().to_string(), "10.0.0.5/24");
        assert_eq!(Cidr::parse("fd00::1/64").unwrap().to_string(), "fd00::1/64");
        assert!(matches!(Cidr::parse("10.0.0.5"), Err(CidrError::Bare { .. })));
        for text in ["10.0.0.5/33", "10.0.0.5/999", "fd00::1/129"] {
            assert!(matches!(Cidr::parse(text), Err(CidrError::Prefix { .. })), "{text}");
        }
        for text in
            ["", "/24", "10.0.0.5/", "10.0.0.5/+1", "10.0.0/24", "dhcp", "10.0.0.5/24/1", "10.0.0.5/ 8"]
        {
            assert!(matches!(Cidr::parse(text), Err(CidrError::Malformed { .. })), "{text}");
        }
    }

    #[test]
    fn a_network_contains_its_addresses() {
        let cidr = |text: &str| Cidr::parse(text).unwrap();
        assert!(cidr("10.0.0.5/24").contains("10.0.0.1".parse().unwrap()));
        assert!(!cidr("10.0.0.5/24").contains("10.0.1.1".parse().unwrap()));
        assert!(!cidr("10.0.0.5/24").contains("::1".parse().unwrap()));
        assert!(cidr("10.0.0.5/0").contains("192.168.0.1".parse().unwrap()));
        assert!(!cidr("10.0.0.5/32").contains("10.0.0.4".parse().unwrap()));
        assert!(cidr("::1/0").contains("fd00::1".parse().unwrap()));
    }
}
