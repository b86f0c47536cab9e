//! The kernel's own tables of links, addresses and routes, asked over a netlink socket.
//!
//! Three dumps, no privilege, no program. Answers are parsed by length, never trusted.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with};

const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const RTM_NEWLINK: u16 = 16;
const RTM_GETLINK: u16 = 18;
const RTM_NEWADDR: u16 = 20;
const RTM_GETADDR: u16 = 22;
const RTM_NEWROUTE: u16 = 24;
const RTM_GETROUTE: u16 = 26;
const NLM_F_REQUEST: u16 = 0x1;
const NLM_F_DUMP: u16 = 0x300;
/// The table changed during the dump.
const NLM_F_DUMP_INTR: u16 = 0x10;

const IFLA_ADDRESS: u16 = 1;
const IFLA_IFNAME: u16 = 3;
const IFLA_MTU: u16 = 4;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const RTA_OIF: u16 = 4;
const RTA_GATEWAY: u16 = 5;
const RTA_PRIORITY: u16 = 6;
const RTA_PREFSRC: u16 = 7;
const RTA_MULTIPATH: u16 = 9;
const RTA_TABLE: u16 = 15;

const IFF_UP: u32 = 1;
const RT_TABLE_MAIN: u32 = 254;
const RTN_UNICAST: u8 = 1;
const RT_SCOPE_UNIVERSE: u8 = 0;
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;

const HEADER: usize = 16;
const LINK_HEADER: usize = 16;
const ADDRESS_HEADER: usize = 8;
const ROUTE_HEADER: usize = 12;

/// The kernel makes a piece of a dump at most this large.
const LARGEST_PIECE: usize = 64 << 10;
/// More than any machine's interfaces, addresses or main routes need.
const LARGEST_DUMP: usize = 16 << 20;
/// How often a dump is asked for that changes while it is read.
const TRIES: u32 = 5;

/// A network interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Link {
    pub(super) index: u32,
    pub(super) name: String,
    pub(super) hardware: Vec<u8>,
    pub(super) mtu: Option<u32>,
    pub(super) up: bool,
}

/// An address of an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LinkAddress {
    pub(super) link: u32,
    pub(super) address: IpAddr,
    pub(super) prefix: u8,
    /// Whether it is good for the whole network, not only this link or this machine.
    pub(super) global: bool,
}

/// A default route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DefaultRoute {
    pub(super) is_v4: bool,
    pub(super) link: Option<u32>,
    pub(super) gateway: Option<IpAddr>,
    pub(super) source: Option<IpAddr>,
    pub(super) metric: u32,
}

/// Returns all interfaces.
pub(super) fn links() -> Result<Vec<Link>, Errno> {
    let dump = dump(RTM_GETLINK, LINK_HEADER, 0)?;
    Ok(messages(&dump, RTM_NEWLINK).filter_map(link).collect())
}

/// Returns all addresses, in the kernel's order.
pub(super) fn addresses() -> Result<Vec<LinkAddress>, Errno> {
    let dump = dump(RTM_GETADDR, ADDRESS_HEADER, 0)?;
    Ok(messages(&dump, RTM_NEWADDR).filter_map(address).collect())
}

/// Returns the default routes of the main table.
pub(super) fn default_routes() -> Result<Vec<DefaultRoute>, Errno> {
    let mut routes = Vec::new();
    for family in [AF_INET, AF_INET6] {
        let dump = dump(RTM_GETROUTE, ROUTE_HEADER, family)?;
        routes.extend(messages(&dump, RTM_NEWROUTE).filter_map(default_route));
    }
    Ok(routes)
}

fn link(body: &[u8]) -> Option<Link> {
    let (head, attributes) = body.split_at_checked(LINK_HEADER)?;
    let mut link = Link {
        index: u32_at(head, 4)?,
        name: String::new(),
        hardware: Vec::new(),
        mtu: None,
        up: u32_at(head, 8)? & IFF_UP != 0,
    };
    for (kind, value) in Attributes(attributes) {
        match kind {
            IFLA_IFNAME => link.name = text(value),
            IFLA_ADDRESS => link.hardware = value.to_vec(),
            IFLA_MTU => link.mtu = u32_at(value, 0),
            _ => {}
        }
    }
    (!link.name.is_empty()).then_some(link)
}

fn address(body: &[u8]) -> Option<LinkAddress> {
    let (head, attributes) = body.split_at_checked(ADDRESS_HEADER)?;
    let (mut own, mut peer) = (None, None);
    for (kind, value) in Attributes(attributes) {
        match kind {
            IFA_LOCAL => own = ip(value),
            IFA_ADDRESS => peer = ip(value),
            _ => {}
        }
    }
    // On a point-to-point link the one is our end, the other the peer's; elsewhere both are the same.
    let address = own.or(peer)?;
    Some(LinkAddress {
        link: u32_at(head, 4)?,
        address,
        prefix: head[1],
        global: head[3] == RT_SCOPE_UNIVERSE,
    })
}

fn default_route(body: &[u8]) -> Option<DefaultRoute> {
    let (head, attributes) = body.split_at_checked(ROUTE_HEADER)?;
    let (family, prefix, kind) = (head[0], head[1], head[7]);
    let mut table = u32::from(head[4]);
    let mut route =
        DefaultRoute { is_v4: family == AF_INET, link: None, gateway: None, source: None, metric: 0 };
    for (kind, value) in Attributes(attributes) {
        match kind {
            RTA_OIF => route.link = u32_at(value, 0),
            RTA_GATEWAY => route.gateway = ip(value),
            RTA_PREFSRC => route.source = ip(value),
            RTA_PRIORITY => route.metric = u32_at(value, 0)?,
            RTA_TABLE => table = u32_at(value, 0)?,
            RTA_MULTIPATH => {
                // The first of several ways; each has a head of 8 bytes and attributes of its own.
                route.link = route.link.or(u32_at(value, 4));
                let length =
                    value.get(..2).map(|bytes| usize::from(u16::from_ne_bytes([bytes[0], bytes[1]])));
                let inner = length.and_then(|length| value.get(8..length)).unwrap_or_default();
                let gateway = Attributes(inner).find(|(kind, _)| *kind == RTA_GATEWAY);
                route.gateway = route.gateway.or(gateway.and_then(|(_, value)| ip(value)));
            }
            _ => {}
        }
    }
    (prefix == 0 && kind == RTN_UNICAST && table == RT_TABLE_MAIN && matches!(family, AF_INET | AF_INET6))
        .then_some(route)
}

/// Asks for a whole table and returns the messages of the answer, one after the other.
fn dump(request: u16, header: usize, family: u8) -> Result<Vec<u8>, Errno> {
    let mut last = Errno::AGAIN;
    for _ in 0..TRIES {
        match dump_once(request, header, family) {
            Err(Errno::INTR | Errno::AGAIN) => last = Errno::AGAIN,
            Err(errno) => last = errno,
            Ok(dump) => return Ok(dump),
        }
    }
    Err(last)
}

fn dump_once(request: u16, header: usize, family: u8) -> Result<Vec<u8>, Errno> {
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
    let length = HEADER + header;
    let mut message = Vec::with_capacity(length);
    message.extend(u32::try_from(length).unwrap_or(u32::MAX).to_ne_bytes());
    message.extend(request.to_ne_bytes());
    message.extend((NLM_F_REQUEST | NLM_F_DUMP).to_ne_bytes());
    message.extend(1u32.to_ne_bytes());
    message.extend(0u32.to_ne_bytes());
    message.push(family);
    message.resize(length, 0);
    send(&socket, &message, SendFlags::empty())?;
    receive(&socket)
}

fn receive(socket: &OwnedFd) -> Result<Vec<u8>, Errno> {
    let mut all = Vec::new();
    let mut piece = vec![0; LARGEST_PIECE];
    loop {
        let (length, whole) = recv(socket, &mut piece[..], RecvFlags::TRUNC)?;
        if whole > length || all.len() > LARGEST_DUMP {
            return Err(Errno::NOBUFS);
        }
        if length == 0 {
            return Err(Errno::IO);
        }
        for (kind, flags, body) in Messages(&piece[..length]) {
            if flags & NLM_F_DUMP_INTR != 0 {
                return Err(Errno::AGAIN);
            }
            match kind {
                NLMSG_DONE => return Ok(all),
                NLMSG_ERROR => {
                    let code = u32_at(body, 0).map_or(0, |code| code.cast_signed().saturating_neg());
                    return Err(Errno::from_raw_os_error(code));
                }
                _ => {}
            }
        }
        all.extend_from_slice(&piece[..length]);
    }
}

fn messages(dump: &[u8], wanted: u16) -> impl Iterator<Item = &[u8]> {
    Messages(dump).filter(move |(kind, ..)| *kind == wanted).map(|(.., body)| body)
}

/// The messages in some bytes: kind, flags, body.
struct Messages<'a>(&'a [u8]);

impl<'a> Iterator for Messages<'a> {
    type Item = (u16, u16, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let length = usize::try_from(u32_at(self.0, 0)?).ok()?;
        let message = self.0.get(..length)?;
        let kind = u16_at(message, 4)?;
        let flags = u16_at(message, 6)?;
        let body = message.get(HEADER..)?;
        self.0 = self.0.get(aligned(length)..).unwrap_or_default();
        Some((kind, flags, body))
    }
}

/// The attributes in some bytes: kind, value.
struct Attributes<'a>(&'a [u8]);

impl<'a> Iterator for Attributes<'a> {
    type Item = (u16, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        const KIND: u16 = 0x3fff;
        let length = usize::from(u16_at(self.0, 0)?);
        let attribute = self.0.get(..length)?;
        let kind = u16_at(attribute, 2)? & KIND;
        let value = attribute.get(4..)?;
        self.0 = self.0.get(aligned(length)..).unwrap_or_default();
        Some((kind, value))
    }
}

const fn aligned(length: usize) -> usize {
    (length + 3) & !3
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..at + 2).and_then(|bytes| bytes.try_into().ok()).map(u16::from_ne_bytes)
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + 4).and_then(|bytes| bytes.try_into().ok()).map(u32::from_ne_bytes)
}

fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

fn ip(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        4 => <[u8; 4]>::try_from(bytes).ok().map(|octets| Ipv4Addr::from(octets).into()),
        16 => <[u8; 16]>::try_from(bytes).ok().map(|octets| Ipv6Addr::from(octets).into()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        let length = 4 + value.len();
        let mut bytes = u16::try_from(length).unwrap().to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(value);
        bytes.resize(aligned(length), 0);
        bytes
    }

    #[test]
    fn a_route_over_several_ways_takes_the_first() {
        let gateway = attribute(RTA_GATEWAY, &[10, 0, 0, 1]);
        let mut way = u16::try_from(8 + gateway.len()).unwrap().to_ne_bytes().to_vec();
        way.extend([0, 0]);
        way.extend(7u32.to_ne_bytes());
        way.extend(&gateway);
        let mut body = vec![AF_INET, 0, 0, 0, 254, 0, 0, RTN_UNICAST, 0, 0, 0, 0];
        body.extend(attribute(RTA_MULTIPATH, &way));
        let route = default_route(&body).unwrap();
        assert_eq!((route.link, route.gateway), (Some(7), Some(Ipv4Addr::new(10, 0, 0, 1).into())));
        // Another table, another kind, another destination: no default route of this machine.
        for (at, value) in [(4, 255), (7, 7), (1, 24)] {
            let mut other = body.clone();
            other[at] = value;
            assert_eq!(default_route(&other), None, "{at}");
        }
    }

    #[test]
    fn cut_answers_are_no_panic() {
        let mut body = vec![AF_INET, 0, 0, 0, 254, 0, 0, RTN_UNICAST, 0, 0, 0, 0];
        body.extend(attribute(RTA_GATEWAY, &[10, 0, 0, 1]));
        let mut message = u32::try_from(HEADER + body.len()).unwrap().to_ne_bytes().to_vec();
        message.extend(RTM_NEWROUTE.to_ne_bytes());
        message.extend([0; 10]);
        message.extend(&body);
        assert_eq!(messages(&message, RTM_NEWROUTE).count(), 1);
        for length in 0..message.len() {
            let cut = messages(&message[..length], RTM_NEWROUTE).filter_map(default_route).count();
            assert_eq!(cut, 0, "{length}");
        }
        for length in 0..body.len() {
            let cut = &body[..length];
            assert!(link(cut).is_none() && address(cut).is_none());
            default_route(cut);
        }
        assert_eq!(Messages(&[0; 16]).count(), 0);
        assert_eq!(Attributes(&[0; 16]).count(), 0);
    }
}
