//! The pcapng format: sections of blocks, each section with its own byte order and interfaces.

use std::io::{self, Read};

use super::bytes::ByteOrder;
use super::capture_file::{Found, LONGEST_PACKET, LinkType, Next};
use super::window::Window;

const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const INTERFACE_DESCRIPTION: u32 = 1;
const OBSOLETE_PACKET: u32 = 2;
const SIMPLE_PACKET: u32 = 3;
const ENHANCED_PACKET: u32 = 6;

/// Type, length and, at the end, the length again.
const SMALLEST_BLOCK: u32 = 12;
/// Where the packet begins in a block that has a time.
const PACKET_OFFSET: u32 = 28;
/// How much of an interface's description is read; its options are few and short.
const INTERFACE_BYTES: usize = 64 * 1024;
/// How many interfaces a section may have. Packets of further ones are counted and not decoded.
const MOST_INTERFACES: usize = 4_096;
/// The end of the year 9999 in microseconds, and as far in the past: a time beyond is none.
const FURTHEST: i128 = 253_402_300_799 * 1_000_000;

/// What the blocks so far say about those to come.
#[derive(Debug)]
pub(super) struct Pcapng {
    order: ByteOrder,
    interfaces: Vec<Interface>,
}

#[derive(Clone, Copy, Debug)]
struct Interface {
    link: LinkType,
    snap_len: u32,
    resolution: Resolution,
    offset_micros: i64,
}

/// How many ticks of an interface's clock make a second: a power of ten or of two.
#[derive(Clone, Copy, Debug)]
enum Resolution {
    Decimal(u8),
    Binary(u8),
}

impl Resolution {
    fn micros(self, ticks: u64) -> i128 {
        let ticks = i128::from(ticks);
        match self {
            Self::Decimal(6) => ticks,
            Self::Decimal(power) if power < 6 => ticks * 10_i128.pow(6 - u32::from(power)),
            // Ticks have twenty digits at most.
            Self::Decimal(power) => ticks / 10_i128.pow((u32::from(power) - 6).min(20)),
            Self::Binary(power) => (ticks * 1_000_000).checked_shr(power.into()).unwrap_or(0),
        }
    }
}

impl Interface {
    fn time(self, high: u32, low: u32) -> Option<i64> {
        let ticks = u64::from(high) << 32 | u64::from(low);
        let micros = self.resolution.micros(ticks) + i128::from(self.offset_micros);
        i64::try_from(micros).ok().filter(|_| micros.abs() <= FURTHEST)
    }
}

impl Pcapng {
    /// Returns a reader if `magic` begins a section.
    pub(super) fn of_magic(magic: u32) -> Option<Self> {
        (magic == SECTION_HEADER).then_some(Self { order: ByteOrder::Little, interfaces: Vec::new() })
    }

    /// Returns what comes next in `window`.
    pub(super) fn next<R: Read>(&mut self, window: &mut Window<R>) -> io::Result<Next> {
        loop {
            if !window.fill(8)? {
                return Ok(if window.bytes().is_empty() { Next::End } else { Next::CutOff });
            }
            let block_type = self.order.u32(window.bytes(), 0).unwrap_or(0);
            // The same in both orders, and the block says which one holds from here.
            if block_type == SECTION_HEADER && !self.begin_section(window)? {
                return Ok(Next::CutOff);
            }
            let length = self.order.u32(window.bytes(), 4).unwrap_or(0);
            if length < SMALLEST_BLOCK {
                return Ok(Next::CutOff);
            }
            let packet = match block_type {
                ENHANCED_PACKET => self.packet(window, length, InterfaceField::Wide)?,
                OBSOLETE_PACKET => self.packet(window, length, InterfaceField::Narrow)?,
                SIMPLE_PACKET => self.simple_packet(window, length)?,
                INTERFACE_DESCRIPTION => {
                    self.add_interface(window, length)?;
                    None
                }
                _ => None,
            };
            if let Some(next) = packet {
                return Ok(next);
            }
            if !window.skip(length.into())? {
                return Ok(Next::CutOff);
            }
        }
    }

    /// Takes over the byte order of the section that begins here; false if it has none.
    fn begin_section<R: Read>(&mut self, window: &mut Window<R>) -> io::Result<bool> {
        if !window.fill(12)? {
            return Ok(false);
        }
        self.order = match ByteOrder::Little.u32(window.bytes(), 8) {
            Some(0x1a2b_3c4d) => ByteOrder::Little,
            Some(0x4d3c_2b1a) => ByteOrder::Big,
            Some(_) | None => return Ok(false),
        };
        self.interfaces.clear();
        Ok(true)
    }

    fn add_interface<R: Read>(&mut self, window: &mut Window<R>, length: u32) -> io::Result<()> {
        if self.interfaces.len() == MOST_INTERFACES {
            return Ok(());
        }
        let shown = usize::try_from(length).unwrap_or(usize::MAX).min(INTERFACE_BYTES);
        window.fill(shown)?;
        let order = self.order;
        let block = window.bytes();
        let block = block.get(..shown.min(block.len())).unwrap_or_default();
        let mut interface = Interface {
            link: order.u16(block, 8).map_or(LinkType::Other, |number| LinkType::of(number.into())),
            snap_len: order.u32(block, 12).unwrap_or(0),
            resolution: Resolution::Decimal(6),
            offset_micros: 0,
        };
        let mut at = 16;
        while let (Some(code), Some(len)) = (order.u16(block, at), order.u16(block, at + 2)) {
            match (code, len) {
                (0, _) => break,
                (9, 1) => {
                    let value = block.get(at + 4).copied().unwrap_or(6);
                    let power = value & 0x7f;
                    let binary = value & 0x80 != 0;
                    interface.resolution =
                        if binary { Resolution::Binary(power) } else { Resolution::Decimal(power) };
                }
                (14, 8) => {
                    let seconds = order.u64(block, at + 4).unwrap_or(0).cast_signed();
                    interface.offset_micros = seconds.saturating_mul(1_000_000);
                }
                _ => {}
            }
            at += 4 + usize::from(len).next_multiple_of(4);
        }
        self.interfaces.push(interface);
        Ok(())
    }

    /// Returns the packet of a block; none for a block too short to hold one.
    fn packet<R: Read>(
        &self,
        window: &mut Window<R>,
        length: u32,
        interface: InterfaceField,
    ) -> io::Result<Option<Next>> {
        let Some(room) = length.checked_sub(PACKET_OFFSET + 4) else { return Ok(None) };
        let offset = PACKET_OFFSET as usize;
        if !window.fill(offset)? {
            return Ok(Some(Next::CutOff));
        }
        let block = window.bytes();
        let number = |at| self.order.u32(block, at).unwrap_or(0);
        let index = match interface {
            InterfaceField::Wide => number(8),
            InterfaceField::Narrow => self.order.u16(block, 8).unwrap_or(0).into(),
        };
        let interface = usize::try_from(index).ok().and_then(|index| self.interfaces.get(index));
        let (high, low, wire) = (number(12), number(16), number(24));
        let captured = number(20).min(room);
        let time = interface.and_then(|interface| interface.time(high, low));
        let link = interface.map_or(LinkType::Other, |interface| interface.link);
        found(
            window,
            Found { time, link, offset, captured: 0, cut: false, record: length.into() },
            captured,
            wire,
        )
    }

    fn simple_packet<R: Read>(&self, window: &mut Window<R>, length: u32) -> io::Result<Option<Next>> {
        let Some(room) = length.checked_sub(16) else { return Ok(None) };
        if !window.fill(12)? {
            return Ok(Some(Next::CutOff));
        }
        let wire = self.order.u32(window.bytes(), 8).unwrap_or(0);
        let interface = self.interfaces.first();
        let snap_len = interface.map(|interface| interface.snap_len).filter(|len| *len > 0);
        let captured = wire.min(room).min(snap_len.unwrap_or(u32::MAX));
        let link = interface.map_or(LinkType::Other, |interface| interface.link);
        let found_here =
            Found { time: None, link, offset: 12, captured: 0, cut: false, record: length.into() };
        found(window, found_here, captured, wire)
    }
}

/// How a block names its interface.
#[derive(Clone, Copy, Debug)]
enum InterfaceField {
    /// 32 bits.
    Wide,
    /// 16 bits, then a count of drops.
    Narrow,
}

/// Brings `captured` bytes of a packet, as far as they are looked at, into the window.
fn found<R: Read>(
    window: &mut Window<R>,
    packet: Found,
    captured: u32,
    wire: u32,
) -> io::Result<Option<Next>> {
    let shown = usize::try_from(captured).unwrap_or(usize::MAX).min(LONGEST_PACKET);
    if !window.fill(packet.offset + shown)? {
        return Ok(Some(Next::CutOff));
    }
    let cut = captured < wire || shown < usize::try_from(captured).unwrap_or(usize::MAX);
    Ok(Some(Next::Packet(Found { captured: shown, cut, ..packet })))
}
