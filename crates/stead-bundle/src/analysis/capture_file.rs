//! Capture files as a stream of packets: pcap and pcapng, told apart by their first bytes.
//!
//! Readers of our own rather than a parsing crate: a block is skipped without being held, however long it claims
//! to be, a packet is borrowed from the window, and nothing is allocated for it.

use std::io::{self, Read};

use super::bytes::ByteOrder;
use super::pcap::Pcap;
use super::pcapng::Pcapng;
use super::window::Window;

/// How much of one packet is looked at. Twice the largest IP packet; what is beyond is skipped.
pub(super) const LONGEST_PACKET: usize = 128 * 1024;

/// What a packet begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LinkType {
    /// An Ethernet header.
    Ethernet,
    /// An IP header.
    RawIp,
    /// BSD loopback: an address family of four bytes in either order.
    Loopback,
    /// Linux cooked capture, version 1.
    LinuxCooked,
    /// Linux cooked capture, version 2.
    LinuxCooked2,
    /// Something we do not read.
    Other,
}

impl LinkType {
    /// Returns the link type of a number from the registry of link types.
    pub(crate) fn of(number: u32) -> Self {
        match number {
            1 => Self::Ethernet,
            12 | 14 | 101 | 228 | 229 => Self::RawIp,
            0 | 108 => Self::Loopback,
            113 => Self::LinuxCooked,
            276 => Self::LinuxCooked2,
            _ => Self::Other,
        }
    }
}

/// One packet of a capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Packet<'a> {
    /// When it was seen, in whole microseconds since the Unix epoch; some blocks do not say.
    pub(crate) time: Option<i64>,
    /// What it begins with.
    pub(crate) link: LinkType,
    /// What was captured of it.
    pub(crate) data: &'a [u8],
    /// Whether it was longer on the wire.
    pub(crate) cut: bool,
}

/// Where a packet lies in the window, before it is borrowed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found {
    pub(super) time: Option<i64>,
    pub(super) link: LinkType,
    pub(super) offset: usize,
    pub(super) captured: usize,
    pub(super) cut: bool,
    /// How many bytes the record has in all, from the window's beginning.
    pub(super) record: u64,
}

/// What a look for the next packet gives.
#[derive(Debug)]
pub(super) enum Next {
    /// A packet, in the window as a whole.
    Packet(Found),
    /// The end, at the end of a record.
    End,
    /// The end, in the middle of a record, or a record whose lengths contradict each other.
    CutOff,
}

/// Why a stream is not read as a capture.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OpenCaptureError {
    /// It begins like no capture.
    #[error("the first bytes are those of no capture")]
    NotACapture,
    /// It could not be read.
    #[error("reading failed")]
    Read(#[from] io::Error),
}

#[derive(Debug)]
enum Format {
    /// Nothing at all: a capture of no packets.
    Empty,
    Pcap(Pcap),
    Pcapng(Pcapng),
}

/// A capture being read.
#[derive(Debug)]
pub(crate) struct CaptureFile<R> {
    window: Window<R>,
    format: Format,
    /// The rest of the record given last, skipped before the next one is looked for.
    unread: u64,
    truncated: bool,
}

impl<R: Read> CaptureFile<R> {
    /// Returns a reader of the capture `source` holds.
    pub(crate) fn open(source: R) -> Result<Self, OpenCaptureError> {
        let mut window = Window::new(source);
        let format = if window.fill(4)? {
            let magic = ByteOrder::Little.u32(window.bytes(), 0).unwrap_or(0);
            let pcap = Pcap::of_magic(magic).map(Format::Pcap);
            let pcapng = || Pcapng::of_magic(magic).map(Format::Pcapng);
            pcap.or_else(pcapng).ok_or(OpenCaptureError::NotACapture)?
        } else if window.bytes().is_empty() {
            Format::Empty
        } else {
            return Err(OpenCaptureError::NotACapture);
        };
        Ok(Self { window, format, unread: 0, truncated: false })
    }

    /// Returns the next packet, none at the end.
    pub(crate) fn next(&mut self) -> io::Result<Option<Packet<'_>>> {
        if self.truncated {
            return Ok(None);
        }
        let next = if self.window.skip(self.unread)? {
            self.unread = 0;
            match &mut self.format {
                Format::Empty => Next::End,
                Format::Pcap(pcap) => pcap.next(&mut self.window)?,
                Format::Pcapng(pcapng) => pcapng.next(&mut self.window)?,
            }
        } else {
            Next::CutOff
        };
        match next {
            Next::Packet(found) => {
                self.unread = found.record;
                let end = found.offset + found.captured;
                let data = self.window.bytes().get(found.offset..end).unwrap_or_default();
                Ok(Some(Packet { time: found.time, link: found.link, data, cut: found.cut }))
            }
            Next::End => Ok(None),
            Next::CutOff => {
                self.truncated = true;
                Ok(None)
            }
        }
    }

    /// Returns whether the file ended in the middle of a record.
    pub(crate) fn truncated(&self) -> bool {
        self.truncated
    }

    /// Returns how many bytes were read.
    pub(crate) fn bytes_read(&self) -> u64 {
        self.window.bytes_read()
    }
}
