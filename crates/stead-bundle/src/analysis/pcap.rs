//! The pcap format: one header, then packets, each with a header of its own.

use std::io::{self, Read};

use super::bytes::ByteOrder;
use super::capture_file::{Found, LONGEST_PACKET, LinkType, Next};
use super::window::Window;

const FILE_HEADER: usize = 24;
const PACKET_HEADER: usize = 16;

/// What the file header says.
#[derive(Debug)]
pub(super) struct Pcap {
    order: ByteOrder,
    /// How many units of a packet's fraction make a microsecond.
    units_per_micro: u32,
    /// None until the header is read.
    link: Option<LinkType>,
}

impl Pcap {
    /// Returns a reader for the format that `magic`, read as little-endian, announces.
    pub(super) fn of_magic(magic: u32) -> Option<Self> {
        let (order, units_per_micro) = match magic {
            0xa1b2_c3d4 => (ByteOrder::Little, 1),
            0xa1b2_3c4d => (ByteOrder::Little, 1_000),
            0xd4c3_b2a1 => (ByteOrder::Big, 1),
            0x4d3c_b2a1 => (ByteOrder::Big, 1_000),
            _ => return None,
        };
        Some(Self { order, units_per_micro, link: None })
    }

    /// Returns what comes next in `window`.
    pub(super) fn next<R: Read>(&mut self, window: &mut Window<R>) -> io::Result<Next> {
        let link = match self.link {
            Some(link) => link,
            None => {
                if !window.fill(FILE_HEADER)? {
                    return Ok(Next::CutOff);
                }
                // The upper half holds flags about frame checksums.
                let number = self.order.u32(window.bytes(), 20).unwrap_or(u32::MAX) & 0xffff;
                window.skip(FILE_HEADER as u64)?;
                *self.link.insert(LinkType::of(number))
            }
        };
        if !window.fill(PACKET_HEADER)? {
            return Ok(if window.bytes().is_empty() { Next::End } else { Next::CutOff });
        }
        let Some((seconds, fraction, captured, length)) = self.packet_header(window.bytes()) else {
            return Ok(Next::CutOff);
        };
        let shown = usize::try_from(captured).unwrap_or(usize::MAX).min(LONGEST_PACKET);
        if !window.fill(PACKET_HEADER + shown)? {
            return Ok(Next::CutOff);
        }
        let micros = i64::from(fraction / self.units_per_micro);
        Ok(Next::Packet(Found {
            time: Some(i64::from(seconds) * 1_000_000 + micros),
            link,
            offset: PACKET_HEADER,
            captured: shown,
            cut: captured < length || shown < usize::try_from(captured).unwrap_or(usize::MAX),
            record: PACKET_HEADER as u64 + u64::from(captured),
        }))
    }

    fn packet_header(&self, bytes: &[u8]) -> Option<(u32, u32, u32, u32)> {
        let number = |at| self.order.u32(bytes, at);
        Some((number(0)?, number(4)?, number(8)?, number(12)?))
    }
}
