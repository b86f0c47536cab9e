//! From a packet to the TCP segment or UDP datagram in it.
//!
//! Checksums are not looked at: network cards fill them in after the capture. Fragments of IP packets and
//! everything that is neither TCP nor UDP give none.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use super::bytes::ByteOrder;
use super::capture_file::LinkType;

const TCP: u8 = 6;
const UDP: u8 = 17;

/// One end of a conversation. IPv4 addresses are kept as IPv4-mapped ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Endpoint {
    pub(crate) address: u128,
    pub(crate) port: u16,
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let address = Ipv6Addr::from_bits(self.address).to_canonical();
        SocketAddr::new(address, self.port).fmt(f)
    }
}

/// What a packet carries between two ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Datagram<'a> {
    pub(crate) source: Endpoint,
    pub(crate) destination: Endpoint,
    pub(crate) transport: Transport<'a>,
}

/// What is in an IP packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transport<'a> {
    /// A TCP segment.
    Tcp(Segment<'a>),
    /// The payload of a UDP datagram.
    Udp(&'a [u8]),
}

/// A TCP segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment<'a> {
    pub(crate) sequence: u32,
    pub(crate) syn: bool,
    pub(crate) ack: bool,
    pub(crate) reset: bool,
    /// What was captured of its payload.
    pub(crate) payload: &'a [u8],
    /// How long the payload was on the wire.
    pub(crate) wire_len: u32,
}

/// Returns what a packet that begins with `link` carries.
pub(crate) fn decode(link: LinkType, data: &[u8]) -> Option<Datagram<'_>> {
    match link {
        LinkType::Ethernet => tagged(ByteOrder::Big.u16(data, 12)?, data.get(14..)?),
        LinkType::RawIp => ip(data),
        LinkType::Loopback => {
            let families = [ByteOrder::Little.u32(data, 0)?, ByteOrder::Big.u32(data, 0)?];
            // IPv4, and IPv6 as the various BSDs number it.
            let known = families.iter().any(|family| matches!(family, 2 | 24 | 28 | 30));
            if known { ip(data.get(4..)?) } else { None }
        }
        LinkType::LinuxCooked => tagged(ByteOrder::Big.u16(data, 14)?, data.get(16..)?),
        LinkType::LinuxCooked2 => tagged(ByteOrder::Big.u16(data, 0)?, data.get(20..)?),
        LinkType::Other => None,
    }
}

/// Reads past VLAN tags to the IP packet.
fn tagged(mut ether_type: u16, mut rest: &[u8]) -> Option<Datagram<'_>> {
    while matches!(ether_type, 0x8100 | 0x88a8 | 0x9100) {
        ether_type = ByteOrder::Big.u16(rest, 2)?;
        rest = rest.get(4..)?;
    }
    match ether_type {
        0x0800 | 0x86dd => ip(rest),
        _ => None,
    }
}

fn ip(packet: &[u8]) -> Option<Datagram<'_>> {
    match packet.first()? >> 4 {
        4 => ipv4(packet),
        6 => ipv6(packet),
        _ => None,
    }
}

/// The payload of an IP packet: what was captured, and how much there was.
#[derive(Clone, Copy)]
struct Payload<'a> {
    captured: &'a [u8],
    wire_len: usize,
}

impl<'a> Payload<'a> {
    /// Returns the payload behind a header of `header` bytes.
    fn after(self, header: usize) -> Option<Self> {
        Some(Self { captured: self.captured.get(header..)?, wire_len: self.wire_len.checked_sub(header)? })
    }

    /// Returns what begins at the front of `bytes` and is `len` long; a length of 0 is left to be filled in by
    /// the network card and means all of it.
    fn of_len(bytes: &'a [u8], len: usize) -> Self {
        let wire_len = if len == 0 { bytes.len() } else { len };
        Self { captured: bytes.get(..wire_len).unwrap_or(bytes), wire_len }
    }
}

fn ipv4(packet: &[u8]) -> Option<Datagram<'_>> {
    let header: &[u8; 20] = packet.first_chunk()?;
    let header_len = usize::from(header[0] & 0x0f) * 4;
    let total_len = u16::from_be_bytes([header[2], header[3]]);
    let fragment = u16::from_be_bytes([header[6], header[7]]) & 0x3fff;
    if header_len < 20 || fragment != 0 {
        return None;
    }
    let payload = Payload::of_len(packet, total_len.into()).after(header_len)?;
    let address = |at: usize| -> Option<u128> {
        let bits: [u8; 4] = *header.get(at..)?.first_chunk()?;
        Some(Ipv4Addr::from(bits).to_ipv6_mapped().to_bits())
    };
    transport(header[9], address(12)?, address(16)?, payload)
}

fn ipv6(packet: &[u8]) -> Option<Datagram<'_>> {
    let header: &[u8; 40] = packet.first_chunk()?;
    let len = u16::from_be_bytes([header[4], header[5]]);
    let mut payload = Payload::of_len(packet.get(40..)?, len.into());
    let mut next = header[6];
    loop {
        let extension = payload.captured;
        let units = || extension.get(1).map(|len| usize::from(*len));
        let extension_len = match next {
            // Hop by hop, routing, destination, mobility, host identity, shim.
            0 | 43 | 60 | 135 | 139 | 140 => (units()? + 1) * 8,
            // Authentication counts otherwise.
            51 => (units()? + 2) * 4,
            // A fragment that is the whole packet is none.
            44 if ByteOrder::Big.u16(extension, 2)? & 0xfff9 == 0 => 8,
            _ => break,
        };
        next = *extension.first()?;
        payload = payload.after(extension_len)?;
    }
    let address =
        |at: usize| -> Option<u128> { Some(u128::from_be_bytes(*header.get(at..)?.first_chunk()?)) };
    transport(next, address(8)?, address(24)?, payload)
}

fn transport(protocol: u8, source: u128, destination: u128, payload: Payload<'_>) -> Option<Datagram<'_>> {
    let bytes = payload.captured;
    let transport = match protocol {
        TCP => {
            let header: &[u8; 20] = bytes.first_chunk()?;
            let flags = header[13];
            let body = payload.after(usize::from(header[12] >> 4).max(5) * 4)?;
            Transport::Tcp(Segment {
                sequence: ByteOrder::Big.u32(header, 4)?,
                syn: flags & 0x02 != 0,
                ack: flags & 0x10 != 0,
                reset: flags & 0x04 != 0,
                payload: body.captured,
                wire_len: u32::try_from(body.wire_len).ok()?,
            })
        }
        UDP => {
            let len = usize::from(ByteOrder::Big.u16(bytes, 4)?);
            // Too short to be true: left to the network card.
            let end = if len < 8 { bytes.len() } else { len.min(bytes.len()) };
            Transport::Udp(bytes.get(8..end)?)
        }
        _ => return None,
    };
    let port = |at| ByteOrder::Big.u16(bytes, at);
    Some(Datagram {
        source: Endpoint { address: source, port: port(0)? },
        destination: Endpoint { address: destination, port: port(2)? },
        transport,
    })
}
