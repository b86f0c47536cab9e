//! Addresses with a prefix length, and destinations of routes. Pure.

use std::fmt;
use std::net::IpAddr;

use stead_runner::operation::OpError;

/// An address with a prefix length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Prefix {
    pub(crate) address: IpAddr,
    pub(crate) length: u8,
}

impl Prefix {
    /// Returns what `text` says, or nothing if it is none. Without a length it is one address.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (address, length) = match text.split_once('/') {
            Some((address, length)) => (address, Some(length)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().ok()?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let length = match length {
            Some(length) if length.bytes().all(|b| b.is_ascii_digit()) => length.parse().ok()?,
            Some(_) => return None,
            None => most,
        };
        (length <= most).then_some(Self { address, length })
    }

    /// Returns the addresses of parameter `name`, each with its prefix length.
    pub(super) fn given(name: &str, text: &str) -> Result<Self, OpError> {
        Self::parse(text).filter(|_| text.contains('/')).ok_or_else(|| {
            OpError::invalid(format!(
                "`{name}`, `{}`: expected an address with prefix length, such as 10.0.0.7/24",
                text.escape_debug()
            ))
        })
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_have_one_spelling() {
        assert_eq!(Prefix::parse("10.0.0.7/24").unwrap().to_string(), "10.0.0.7/24");
        assert_eq!(Prefix::parse("FD00:0::1/64").unwrap().to_string(), "fd00::1/64");
        assert_eq!(Prefix::parse("10.0.0.7").unwrap().to_string(), "10.0.0.7/32");
        for bad in ["", "10.0.0.7/33", "10.0.0.7/+4", "10.0.0.7/", "x/8", "10.0.0/8", "10.0.0.7/24\nx"] {
            assert_eq!(Prefix::parse(bad), None, "{bad:?}");
        }
    }
}
