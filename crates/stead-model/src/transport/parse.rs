//! Reads transports.

use core::net::Ipv6Addr;
use std::ops::Range;

use super::options::{self, SECRET_OPTIONS};
use super::{Jump, SecretSource, SshSpec, TransportFault, TransportSpec, TransportSpecError};
use crate::diagnostic::nearest;

/// A fault and the bytes it is about.
pub(super) type Fault = (TransportFault, Range<usize>);

/// A part of the text with the offset it begins at.
#[derive(Clone, Copy)]
pub(super) struct Part<'a> {
    pub(super) text: &'a str,
    pub(super) at: usize,
}

impl<'a> Part<'a> {
    pub(super) fn range(self) -> Range<usize> {
        self.at..self.at + self.text.len()
    }

    /// Returns the parts before and behind the byte at `offset`, which is of `width` bytes.
    pub(super) fn split(self, offset: usize, width: usize) -> (Self, Self) {
        let (before, behind) = (&self.text[..offset], &self.text[offset + width..]);
        (Self { text: before, at: self.at }, Self { text: behind, at: self.at + offset + width })
    }

    pub(super) fn fault(self, fault: TransportFault) -> Fault {
        (fault, self.range())
    }
}

pub(super) fn parse(text: &str) -> Result<TransportSpec, TransportSpecError> {
    read(text).map_err(|(fault, range)| TransportSpecError::new(fault, text, range))
}

/// Returns the scheme and what follows `://`, if the text has a scheme.
fn scheme(text: &str) -> Option<(&str, Part<'_>)> {
    let (scheme, rest) = text.split_once("://")?;
    let is_scheme = scheme.bytes().all(|b| b.is_ascii_alphanumeric() || b"+.-_".contains(&b));
    is_scheme.then_some((scheme, Part { text: rest, at: scheme.len() + 3 }))
}

fn read(text: &str) -> Result<TransportSpec, Fault> {
    if text.is_empty() {
        return Err((TransportFault::Empty, 0..0));
    }
    if let Some((at, c)) = text.char_indices().find(|(_, c)| c.is_whitespace() || c.is_control()) {
        return Err((TransportFault::WhiteSpace, at..at + c.len_utf8()));
    }
    if text == "local" {
        return Ok(TransportSpec::Local);
    }
    match scheme(text) {
        Some(("local", rest)) if rest.text.is_empty() => Ok(TransportSpec::Local),
        Some(("local", rest)) => Err(rest.fault(TransportFault::LocalWithMore)),
        Some(("ssh", rest)) => ssh(rest, Form::Url),
        Some((other, _)) => Err((TransportFault::Scheme { scheme: other.to_owned() }, 0..other.len())),
        None => {
            let whole = Part { text, at: 0 };
            let word = whole.text.split('?').next().unwrap_or_default();
            if word.contains('@') {
                ssh(whole, Form::Short)
            } else if word == "local" {
                Err((TransportFault::LocalWithMore, word.len()..text.len()))
            } else {
                Err((TransportFault::BareWord { word: word.to_owned() }, 0..word.len()))
            }
        }
    }
}

/// How the host was written; both mean the same.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    /// `ssh://…`
    Url,
    /// `user@host`
    Short,
}

fn ssh(part: Part<'_>, form: Form) -> Result<TransportSpec, Fault> {
    let (authority, query) = match part.text.find('?') {
        Some(at) => {
            let (authority, query) = part.split(at, 1);
            (authority, Some(query))
        }
        None => (part, None),
    };
    let mut spec = SshSpec::default();
    let mut place = authority;
    if let Some(at) = authority.text.rfind('@') {
        let (account, host) = authority.split(at, 1);
        place = host;
        let user = match account.text.find(':') {
            Some(at) if form == Form::Short => {
                return Err((TransportFault::ColonInUser, account.at + at..account.at + at + 1));
            }
            Some(at) => {
                let (user, password) = account.split(at, 1);
                if password.text.is_empty() {
                    return Err(password.fault(TransportFault::EmptyPassword));
                }
                spec.password = Some(SecretSource::Literal(decode(password)?));
                user
            }
            None => account,
        };
        spec.user = Some(account_name(user, decode(user)?)?);
    }
    (spec.host, spec.port) = host_and_port(place, form == Form::Short)?;
    if let Some(query) = query {
        options::read(query, &mut spec)?;
    }
    Ok(TransportSpec::Ssh(Box::new(spec)))
}

fn account_name(part: Part<'_>, name: String) -> Result<String, Fault> {
    match name.as_bytes().first() {
        None => Err(part.fault(TransportFault::EmptyUser)),
        Some(b'-') => Err(part.fault(TransportFault::User)),
        Some(_) => Ok(name),
    }
}

/// Returns host and port; `bare` allows an IPv6 address without brackets, which then has no port.
fn host_and_port(part: Part<'_>, bare: bool) -> Result<(String, Option<u16>), Fault> {
    if let Some(at) = part.text.find('/') {
        let path = part.at + at..part.at + part.text.len();
        return Err(if at == 0 {
            (TransportFault::EmptyHost, part.at..part.at)
        } else {
            (TransportFault::Path, path)
        });
    }
    if part.text.starts_with('[') {
        let Some(end) = part.text.find(']') else {
            return Err(part.fault(bad_host(part, "the `]` is missing")));
        };
        let (head, rest) = part.split(end + 1, 0);
        let inner = Part { text: &head.text[1..end], at: part.at + 1 };
        let host = ipv6(inner)?;
        return match rest.text.strip_prefix(':') {
            Some(digits) => Ok((host, Some(port(Part { text: digits, at: rest.at + 1 })?))),
            None if rest.text.is_empty() => Ok((host, None)),
            None => Err(rest.fault(bad_host(part, "only `:port` follows the brackets"))),
        };
    }
    if part.text.matches(':').count() > 1 {
        if !bare {
            return Err(part.fault(bad_host(part, "an IPv6 address stands in brackets")));
        }
        return Ok((ipv6(part)?, None));
    }
    match part.text.find(':') {
        Some(at) => {
            let (host, digits) = part.split(at, 1);
            Ok((host_name(host)?, Some(port(digits)?)))
        }
        None => Ok((host_name(part)?, None)),
    }
}

fn bad_host(part: Part<'_>, why: &'static str) -> TransportFault {
    // `user:password` without a host must not be repeated.
    let repeat =
        !part.text.contains(':') || part.text.bytes().all(|b| b.is_ascii_hexdigit() || b"[]:.%".contains(&b));
    TransportFault::Host { host: part.text.chars().filter(|_| repeat).collect(), why }
}

fn ipv6(part: Part<'_>) -> Result<String, Fault> {
    let (address, zone) = part.text.split_once('%').unwrap_or((part.text, "zone"));
    let is_zone = !zone.is_empty() && zone.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b));
    if part.text.is_empty() {
        Err(part.fault(TransportFault::EmptyHost))
    } else if address.parse::<Ipv6Addr>().is_ok() && is_zone {
        Ok(part.text.to_owned())
    } else {
        Err(part.fault(bad_host(part, "it is not an IPv6 address")))
    }
}

fn host_name(part: Part<'_>) -> Result<String, Fault> {
    let is_name = |text: &str| text.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b));
    if part.text.is_empty() {
        Err(part.fault(TransportFault::EmptyHost))
    } else if !is_name(part.text) {
        Err(part.fault(bad_host(part, "letters, digits, `.`, `_` and `-` make a name")))
    } else if part.text.starts_with(['-', '.']) || part.text.len() > 253 {
        Err(part.fault(bad_host(
            part,
            "a name starts with a letter, digit or `_` and has at most 253 characters",
        )))
    } else {
        Ok(part.text.to_owned())
    }
}

fn port(part: Part<'_>) -> Result<u16, Fault> {
    let digits = part.text.bytes().all(|b| b.is_ascii_digit());
    match part.text.parse::<u16>() {
        Ok(port) if digits && port > 0 => Ok(port),
        Ok(_) | Err(_) => {
            Err(part.fault(TransportFault::Port { port: part.text.chars().filter(|_| digits).collect() }))
        }
    }
}

/// Returns the hosts of `value`, which is the decoded text of `part`.
pub(super) fn jumps(part: Part<'_>, value: &str) -> Result<Vec<Jump>, Fault> {
    let refuse = |(fault, _): Fault| part.fault(fault);
    let one = |text: &str| -> Result<Jump, Fault> {
        let whole = Part { text: text.strip_prefix("ssh://").unwrap_or(text), at: 0 };
        if whole.text == "none" {
            let why = "leave the option out, or have no ssh_config read with `ssh_config=none`";
            return Err(whole.fault(bad_host(whole, why)));
        }
        let (user, place) = match whole.text.rfind('@') {
            Some(at) => {
                let (user, place) = whole.split(at, 1);
                if user.text.contains(':') {
                    return Err(user.fault(TransportFault::ColonInUser));
                }
                (Some(account_name(user, user.text.to_owned())?), place)
            }
            None => (None, whole),
        };
        let (host, port) = host_and_port(place, true)?;
        Ok(Jump { user, host, port, host_key: None })
    };
    value.split(',').map(|text| one(text).map_err(refuse)).collect()
}

/// Returns the percent-decoded text of `part`.
pub(super) fn decode(part: Part<'_>) -> Result<String, Fault> {
    let refuse = || part.fault(TransportFault::Encoding);
    let mut bytes = Vec::with_capacity(part.text.len());
    let mut rest = part.text.as_bytes();
    while let Some((first, tail)) = rest.split_first() {
        rest = tail;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
        let [high, low, tail @ ..] = tail else { return Err(refuse()) };
        let (Some(high), Some(low)) = (digit(*high), digit(*low)) else { return Err(refuse()) };
        bytes.push(high << 4 | low);
        rest = tail;
    }
    // No name, path or password may smuggle a line end or a NUL into a file or protocol.
    String::from_utf8(bytes).ok().filter(|text| !text.chars().any(char::is_control)).ok_or_else(refuse)
}

/// Returns the ranges of `text` that are, or may be meant as, literal secrets, whether or not it is a transport.
///
/// For those who show what a user wrote.
pub fn secret_ranges(text: &str) -> Vec<Range<usize>> {
    let mut ranges = Vec::new();
    let whole = scheme(text).map_or(Part { text, at: 0 }, |(_, rest)| rest);
    let authority = whole.text.split('?').next().unwrap_or_default();
    let end = authority.rfind('@').unwrap_or(authority.len());
    if let Some(colon) = authority[..end].find(':')
        && (scheme(text).is_some() || text.contains('@'))
        && !host_and_port(Part { text: authority, at: 0 }, true).is_ok_and(|_| end == authority.len())
    {
        // An unencoded `?` in a password ends the account early: up to the `@` it is still the password.
        let end = whole.text.rfind('@').filter(|_| end == authority.len()).unwrap_or(end);
        ranges.push(whole.at + colon + 1..whole.at + end.max(colon + 1));
    }
    let mut at = whole.at + authority.len() + 1;
    for option in whole.text.split_once('?').map_or("", |(_, query)| query).split('&') {
        if let Some((name, value)) = option.split_once('=')
            && nearest(name, SECRET_OPTIONS).is_some()
            && !(value.starts_with("env:") || value.starts_with("file:"))
        {
            ranges.push(at + name.len() + 1..at + option.len());
        }
        at += option.len() + 1;
    }
    ranges.retain(|range| !range.is_empty());
    ranges
}
