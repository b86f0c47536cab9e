//! EtherNet/IP encapsulation: the header of a frame and the items of its common packet format.

use super::bytes::ByteOrder;

/// How long a frame's header is.
pub(crate) const HEADER: usize = 24;

/// Connected address: a connection id.
pub(crate) const CONNECTED_ADDRESS: u16 = 0xa1;
/// Connected data.
pub(crate) const CONNECTED_DATA: u16 = 0xb1;
/// Unconnected message.
pub(crate) const UNCONNECTED_DATA: u16 = 0xb2;
/// Sequenced address: a connection id and a sequence number.
pub(crate) const SEQUENCED_ADDRESS: u16 = 0x8002;
/// An identity, in the answer to `ListIdentity`.
pub(crate) const IDENTITY: u16 = 0x0c;

/// What a frame asks for or answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Command {
    ListServices,
    ListIdentity,
    ListInterfaces,
    RegisterSession,
    UnregisterSession,
    SendRrData,
    SendUnitData,
}

impl Command {
    pub(crate) const ALL: [Self; 7] = [
        Self::ListServices,
        Self::ListIdentity,
        Self::ListInterfaces,
        Self::RegisterSession,
        Self::UnregisterSession,
        Self::SendRrData,
        Self::SendUnitData,
    ];

    /// Returns the command of `code`.
    pub(crate) fn of(code: u16) -> Option<Self> {
        Some(match code {
            0x04 => Self::ListServices,
            0x63 => Self::ListIdentity,
            0x64 => Self::ListInterfaces,
            0x65 => Self::RegisterSession,
            0x66 => Self::UnregisterSession,
            0x6f => Self::SendRrData,
            0x70 => Self::SendUnitData,
            _ => return None,
        })
    }

    /// Returns its name in the specification.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::ListServices => "ListServices",
            Self::ListIdentity => "ListIdentity",
            Self::ListInterfaces => "ListInterfaces",
            Self::RegisterSession => "RegisterSession",
            Self::UnregisterSession => "UnregisterSession",
            Self::SendRrData => "SendRRData",
            Self::SendUnitData => "SendUnitData",
        }
    }
}

/// The header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) order: ByteOrder,
    pub(crate) command: Command,
    /// How much follows the header.
    pub(crate) length: u16,
    pub(crate) session: u32,
    pub(crate) status: u32,
    pub(crate) context: [u8; 8],
    pub(crate) options: u32,
}

impl Header {
    /// Returns the header at the front of `bytes` if its command is known in `order`.
    pub(crate) fn parse(order: ByteOrder, bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; HEADER] = bytes.first_chunk()?;
        Some(Self {
            order,
            command: Command::of(order.u16(bytes, 0)?)?,
            length: order.u16(bytes, 2)?,
            session: order.u32(bytes, 4)?,
            status: order.u32(bytes, 8)?,
            context: *bytes.get(12..)?.first_chunk()?,
            options: order.u32(bytes, 20)?,
        })
    }

    /// Returns how long the frame is, header included.
    pub(crate) fn frame_len(self) -> usize {
        HEADER + usize::from(self.length)
    }

    /// Returns whether this is what a sender would write, beyond the command: for a place in a stream that is
    /// not known to be the beginning of a frame.
    pub(crate) fn is_plausible(self) -> bool {
        let length_fits = match self.command {
            Command::RegisterSession => self.length == 4,
            Command::UnregisterSession => self.length == 0,
            Command::ListServices | Command::ListIdentity | Command::ListInterfaces => self.length <= 4_096,
            Command::SendRrData | Command::SendUnitData => true,
        };
        let known_status = matches!(self.status, 0..=3 | 0x64 | 0x65 | 0x69);
        length_fits && known_status && self.options == 0
    }
}

/// An item of the common packet format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Item<'a> {
    pub(crate) kind: u16,
    pub(crate) data: &'a [u8],
}

/// The items of a packet, one after the other; ends early where the packet does.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Items<'a> {
    order: ByteOrder,
    rest: &'a [u8],
    left: u16,
}

impl<'a> Items<'a> {
    /// Returns the items of a list: a count, then the items.
    pub(crate) fn of_list(order: ByteOrder, list: &'a [u8]) -> Option<Self> {
        Some(Self { order, left: order.u16(list, 0)?, rest: list.get(2..)? })
    }

    /// Returns the items of `SendRRData` and `SendUnitData`: an interface handle, a timeout, a list.
    pub(crate) fn of_message(order: ByteOrder, payload: &'a [u8]) -> Option<Self> {
        Self::of_list(order, payload.get(6..)?)
    }

    /// Returns how many items there should be.
    pub(crate) fn announced(self) -> u16 {
        self.left
    }

    /// Returns whether all items that were announced are there.
    pub(crate) fn is_whole(mut self) -> bool {
        while self.next().is_some() {}
        self.left == 0
    }
}

impl<'a> Iterator for Items<'a> {
    type Item = Item<'a>;

    fn next(&mut self) -> Option<Item<'a>> {
        if self.left == 0 {
            return None;
        }
        let kind = self.order.u16(self.rest, 0)?;
        let len = usize::from(self.order.u16(self.rest, 2)?);
        let data = self.rest.get(4..4 + len)?;
        self.rest = self.rest.get(4 + len..)?;
        self.left -= 1;
        Some(Item { kind, data })
    }
}
