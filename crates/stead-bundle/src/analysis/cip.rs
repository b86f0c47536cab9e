//! The Common Industrial Protocol: requests, replies, what they carry, and what services are called.

use super::bytes::ByteOrder;

/// Set in a reply's service, by servers that do so.
const REPLY_BIT: u8 = 0x80;
const MULTIPLE_SERVICE_PACKET: u8 = 0x0a;
const UNCONNECTED_SEND: u8 = 0x52;
const CONNECTION_MANAGER: u16 = 6;

/// A request: what is asked of which object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Request<'a> {
    pub(crate) service: u8,
    pub(crate) class: u16,
    /// The encoded path.
    pub(crate) path: &'a [u8],
    pub(crate) data: &'a [u8],
}

/// A reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reply<'a> {
    pub(crate) service: u8,
    pub(crate) status: u8,
    pub(crate) data: &'a [u8],
}

/// What a message carries inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Carried<T> {
    Nothing,
    /// One message, which may be a list.
    One(T),
    /// It should carry something and cannot be read.
    Malformed,
}

/// Returns whether the message says itself that it is a reply.
pub(crate) fn has_reply_bit(message: &[u8]) -> bool {
    message.first().is_some_and(|service| service & REPLY_BIT != 0)
}

impl<'a> Request<'a> {
    /// Returns the request that `message` is.
    pub(crate) fn parse(order: ByteOrder, message: &'a [u8]) -> Option<Self> {
        let service = message.first()? & !REPLY_BIT;
        let path_end = 2 + usize::from(*message.get(1)?) * 2;
        let path = message.get(2..path_end)?;
        let class = path_segments(order, path).find_map(Segment::class).unwrap_or(0);
        Some(Self { service, class, path, data: message.get(path_end..)? })
    }

    /// Returns whether it is a list of requests.
    pub(crate) fn is_list(self) -> bool {
        self.service == MULTIPLE_SERVICE_PACKET
    }

    /// Returns the request that an `Unconnected_Send` is to pass on.
    pub(crate) fn passed_on(self, order: ByteOrder) -> Carried<Request<'a>> {
        if self.service != UNCONNECTED_SEND || self.class != CONNECTION_MANAGER {
            return Carried::Nothing;
        }
        let message = order.u16(self.data, 2).and_then(|len| self.data.get(4..4 + usize::from(len)));
        match message.and_then(|message| Request::parse(order, message)) {
            Some(request) => Carried::One(request),
            None => Carried::Malformed,
        }
    }
}

impl<'a> Reply<'a> {
    /// Returns the reply that `message` is.
    pub(crate) fn parse(message: &'a [u8]) -> Option<Self> {
        let [service, _reserved, status, extended] = *message.first_chunk()?;
        let data = message.get(4 + usize::from(extended) * 2..)?;
        Some(Self { service: service & !REPLY_BIT, status, data })
    }

    /// Returns whether it is a list of replies. An error that concerns the list as a whole has none.
    pub(crate) fn is_list(self) -> bool {
        self.service == MULTIPLE_SERVICE_PACKET && !self.data.is_empty()
    }
}

/// Returns the messages of a `Multiple_Service_Packet` or its reply: a count, offsets from its beginning, and the
/// messages. None if an offset points outside or backwards.
pub(crate) fn listed(order: ByteOrder, data: &[u8]) -> Option<impl Iterator<Item = &[u8]>> {
    let count = usize::from(order.u16(data, 0)?);
    let offset = move |index: usize| {
        if index == count {
            return Some(data.len());
        }
        order.u16(data, 2 + 2 * index).map(usize::from)
    };
    let first = 2 + 2 * count;
    let message = move |index: usize| {
        let begin = offset(index).filter(|begin| *begin >= first)?;
        data.get(begin..offset(index + 1)?)
    };
    let whole = (0..count).all(|index| message(index).is_some());
    whole.then(|| (0..count).filter_map(message))
}

/// One segment of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Segment<'a> {
    Class(u16),
    Instance(u16),
    Attribute(u16),
    Member(u32),
    Symbol(&'a [u8]),
    Other,
}

impl Segment<'_> {
    fn class(self) -> Option<u16> {
        match self {
            Self::Class(class) => Some(class),
            Self::Instance(_) | Self::Attribute(_) | Self::Member(_) | Self::Symbol(_) | Self::Other => None,
        }
    }
}

/// Returns the segments of `path`, up to the first that makes no sense.
fn path_segments(order: ByteOrder, path: &[u8]) -> impl Iterator<Item = Segment<'_>> {
    let mut rest = path;
    std::iter::from_fn(move || {
        let (segment, len) = path_segment(order, rest)?;
        rest = rest.get(len..)?;
        Some(segment)
    })
}

/// Returns the segment at the front of `path` and its length.
fn path_segment(order: ByteOrder, path: &[u8]) -> Option<(Segment<'_>, usize)> {
    let kind = *path.first()?;
    let second = path.get(1).copied();
    Some(match kind {
        0x20 => (Segment::Class(second?.into()), 2),
        0x21 => (Segment::Class(order.u16(path, 2)?), 4),
        0x24 => (Segment::Instance(second?.into()), 2),
        0x25 => (Segment::Instance(order.u16(path, 2)?), 4),
        0x30 => (Segment::Attribute(second?.into()), 2),
        0x31 => (Segment::Attribute(order.u16(path, 2)?), 4),
        0x28 => (Segment::Member(second?.into()), 2),
        0x29 => (Segment::Member(order.u16(path, 2)?.into()), 4),
        0x2a => (Segment::Member(order.u32(path, 2)?), 6),
        0x91 => {
            let len = usize::from(second?);
            (Segment::Symbol(path.get(2..2 + len)?), 2 + len.next_multiple_of(2))
        }
        // An electronic key.
        0x34 => (Segment::Other, 10),
        // Other logical segments: 8, 16 and 32 bits.
        _ if kind & 0xe0 == 0x20 => (Segment::Other, [2, 4, 6, 2][usize::from(kind & 3)]),
        // A port: its number may follow in 16 bits, its address may have a length of its own.
        0x00..=0x1f => {
            let more = if kind & 0x0f == 0x0f { 2 } else { 0 };
            let address = if kind & 0x10 == 0 { 0 } else { usize::from(second?).next_multiple_of(2) };
            (Segment::Other, 2 + more + address)
        }
        // Network segments with a length in words, and those of two bytes.
        0x50..=0x5f => (Segment::Other, 2 + 2 * usize::from(second?)),
        0x40..=0x4f => (Segment::Other, 2),
        // Simple data: a length in words.
        0x80 => (Segment::Other, 2 + 2 * usize::from(second?)),
        _ => return None,
    })
}

/// Returns `path` in words: `class/instance/attribute` such as `0x04/1/3`, or a symbol such as `Tank.Level[2]`.
pub(crate) fn path_text(order: ByteOrder, path: &[u8]) -> String {
    let mut text = String::new();
    for segment in path_segments(order, path) {
        match segment {
            Segment::Class(class) => separated(&mut text, "/", &format!("0x{class:02X}")),
            Segment::Instance(number) | Segment::Attribute(number) => {
                separated(&mut text, "/", &number.to_string());
            }
            Segment::Member(index) => text.push_str(&format!("[{index}]")),
            Segment::Symbol(name) => separated(&mut text, ".", &String::from_utf8_lossy(name)),
            Segment::Other => {}
        }
    }
    text
}

fn separated(text: &mut String, separator: &str, part: &str) {
    if !text.is_empty() {
        text.push_str(separator);
    }
    text.push_str(part);
}

/// Returns what `service` is called on objects of `class`, if it has a name.
pub(crate) fn service_name(service: u8, class: u16) -> Option<&'static str> {
    let on_connection_manager = class == CONNECTION_MANAGER;
    Some(match service {
        0x01 => "Get_Attributes_All",
        0x02 => "Set_Attributes_All",
        0x03 => "Get_Attribute_List",
        0x04 => "Set_Attribute_List",
        0x05 => "Reset",
        MULTIPLE_SERVICE_PACKET => "Multiple_Service_Packet",
        0x0e => "Get_Attribute_Single",
        0x10 => "Set_Attribute_Single",
        0x4b => "Execute_PCCC",
        0x4c => "Read_Tag",
        0x4d => "Write_Tag",
        0x4e if on_connection_manager => "Forward_Close",
        0x4e => "Read_Modify_Write_Tag",
        UNCONNECTED_SEND if on_connection_manager => "Unconnected_Send",
        UNCONNECTED_SEND => "Read_Tag_Fragmented",
        0x53 => "Write_Tag_Fragmented",
        0x54 => "Forward_Open",
        0x5b => "Large_Forward_Open",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LITTLE: ByteOrder = ByteOrder::Little;

    #[test]
    fn paths_have_their_class_in_either_width_and_skip_what_they_do_not_know() {
        let class = |path: &[u8]| {
            let words = u8::try_from(path.len() / 2).unwrap();
            Request::parse(LITTLE, &[&[0x0e, words], path].concat()).unwrap().class
        };
        assert_eq!(class(&[0x20, 4, 0x24, 1]), 4);
        assert_eq!(class(&[0x21, 0, 0x34, 0x12, 0x25, 0, 1, 0]), 0x1234);
        assert_eq!(class(&[0x91, 3, b'T', b'a', b'g', 0]), 0);
        // A port, a port with an address of three bytes, an electronic key.
        assert_eq!(class(&[0x01, 0, 0x20, 7]), 7);
        assert_eq!(class(&[0x12, 3, b'1', b'.', b'2', 0, 0x20, 8]), 8);
        assert_eq!(class(&[0x34, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0x20, 9]), 9);
        assert_eq!(class(&[0xff, 0, 0x20, 9]), 0);
    }

    #[test]
    fn a_path_longer_than_the_message_is_malformed() {
        assert_eq!(Request::parse(LITTLE, &[0x0e, 3, 0x20, 4]), None);
        assert_eq!(Request::parse(LITTLE, &[0x0e]), None);
        assert_eq!(Reply::parse(&[0x8e, 0, 0, 1]), None);
    }

    #[test]
    fn an_unconnected_send_passes_a_request_on() {
        let inner = [0x4c, 2, 0x20, 0x6b, 0x24, 0, 1, 0];
        let message = [&[0x52, 2, 0x20, 6, 0x24, 1, 5, 99, 8, 0], inner.as_slice(), &[1, 0, 1, 0]].concat();
        let request = Request::parse(LITTLE, &message).unwrap();
        let Carried::One(inner) = request.passed_on(LITTLE) else { panic!("{request:?}") };
        assert_eq!((inner.service, inner.class, inner.data), (0x4c, 0x6b, [1, 0].as_slice()));
        let short = Request::parse(LITTLE, &message[..12]).unwrap();
        assert_eq!(short.passed_on(LITTLE), Carried::Malformed);
    }

    #[test]
    fn a_list_gives_its_messages_and_refuses_offsets_outside() {
        let data = [2, 0, 6, 0, 8, 0, 1, 2, 3];
        let messages: Vec<&[u8]> = listed(LITTLE, &data).unwrap().collect();
        assert_eq!(messages, [[1, 2].as_slice(), &[3]]);
        for bad in
            [[2, 0, 6, 0, 99, 0, 1], [2, 0, 2, 0, 6, 0, 1], [2, 0, 7, 0, 6, 0, 1], [255, 255, 0, 0, 0, 0, 0]]
        {
            assert!(listed(LITTLE, &bad).is_none(), "{bad:?}");
        }
    }

    #[test]
    fn services_are_named_by_the_class_they_are_used_on() {
        assert_eq!(service_name(0x52, 6), Some("Unconnected_Send"));
        assert_eq!(service_name(0x52, 0), Some("Read_Tag_Fragmented"));
        assert_eq!(service_name(0x4e, 6), Some("Forward_Close"));
        assert_eq!(service_name(0x4e, 0x6b), Some("Read_Modify_Write_Tag"));
        assert_eq!(service_name(0x77, 6), None);
    }

    #[test]
    fn paths_can_be_read() {
        assert_eq!(path_text(LITTLE, &[0x20, 4, 0x24, 1, 0x30, 3]), "0x04/1/3");
        let tag = [0x91, 4, b'T', b'a', b'n', b'k', 0x91, 3, b'L', b'v', b'l', 0, 0x28, 2];
        assert_eq!(path_text(LITTLE, &tag), "Tank.Lvl[2]");
    }
}
