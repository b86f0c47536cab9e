//! Finds frames in one direction of a TCP connection: several in a segment, one over several segments, and the
//! next one after bytes that are none.

use super::bytes::ByteOrder;
use super::enip::{Command, HEADER, Header, Items};

/// Above this an empty buffer is given back: most connections never need it again.
const KEPT_CAPACITY: usize = 512;

/// Real messages have two to four items. Where each byte may begin a frame, more are not looked through.
const MOST_ITEMS: u16 = 16;

/// The state of one direction between two segments.
#[derive(Debug, Default)]
pub(crate) struct Framer {
    /// The beginning of a frame whose end has not come.
    pending: Vec<u8>,
    /// When the last of them came.
    pending_time: i64,
    /// Whether the next byte is known to begin a frame.
    synced: bool,
}

/// What is at a place of a stream.
enum Place {
    Frame(Header),
    /// Too little to tell.
    Unfinished,
    NoFrame,
}

impl Framer {
    /// Makes the next byte the beginning of a frame: the connection starts here.
    pub(crate) fn start(&mut self) {
        self.pending = Vec::new();
        self.synced = true;
    }

    /// Gives up the frame begun, since bytes are missing; returns how many bytes of it there were.
    pub(crate) fn lose_sync(&mut self) -> u64 {
        self.synced = false;
        std::mem::take(&mut self.pending).len() as u64
    }

    /// Returns how many bytes are held.
    pub(crate) fn held(&self) -> usize {
        self.pending.len()
    }

    /// Takes the next bytes of the stream, which came at `time`; gives each frame they complete to `sink` with
    /// the time of the last packet it needed. Returns how many bytes were skipped.
    pub(crate) fn feed(&mut self, data: &[u8], time: i64, sink: &mut impl FnMut(Header, &[u8], i64)) -> u64 {
        if self.pending.is_empty() {
            let (consumed, skipped) = self.frames(data, &mut |header, body, _| sink(header, body, time));
            self.pending.extend_from_slice(data.get(consumed..).unwrap_or_default());
            self.pending_time = time;
            return skipped;
        }
        let mut pending = std::mem::take(&mut self.pending);
        let begun = pending.len();
        let begun_time = self.pending_time.max(time);
        pending.extend_from_slice(data);
        let (consumed, skipped) = self.frames(&pending, &mut |header, body, at| {
            sink(header, body, if at < begun { begun_time } else { time });
        });
        self.pending_time = if consumed < begun { begun_time } else { time };
        if consumed == pending.len() && pending.capacity() > KEPT_CAPACITY {
            pending = Vec::new();
        } else {
            pending.drain(..consumed);
        }
        self.pending = pending;
        skipped
    }

    /// Gives every whole frame of `bytes` to `sink` with its place; returns how many bytes are done with and how
    /// many of them were skipped.
    fn frames(&mut self, bytes: &[u8], sink: &mut impl FnMut(Header, &[u8], usize)) -> (usize, u64) {
        let (mut at, mut skipped) = (0, 0);
        while let Some(rest) = bytes.get(at..).filter(|rest| !rest.is_empty()) {
            match self.look(rest) {
                Place::Frame(header) => {
                    let Some(body) = rest.get(HEADER..header.frame_len()) else { break };
                    sink(header, body, at);
                    self.synced = true;
                    at += header.frame_len();
                }
                Place::Unfinished => break,
                Place::NoFrame => {
                    self.synced = false;
                    at += 1;
                    skipped += 1;
                }
            }
        }
        (at, skipped)
    }

    fn look(&self, rest: &[u8]) -> Place {
        let code = |order: ByteOrder| order.u16(rest, 0).map(Command::of);
        let (Some(little), Some(big)) = (code(ByteOrder::Little), code(ByteOrder::Big)) else {
            return Place::Unfinished;
        };
        let order = match (little, big) {
            (Some(_), _) => ByteOrder::Little,
            (None, Some(_)) => ByteOrder::Big,
            (None, None) => return Place::NoFrame,
        };
        let Some(header) = Header::parse(order, rest) else { return Place::Unfinished };
        let trusted = match order {
            ByteOrder::Little => self.synced || is_frame(header, rest),
            // A zero before a little-endian header looks like a big-endian one.
            ByteOrder::Big => {
                is_frame(header, rest) && !begins_little_endian(rest.get(1..).unwrap_or_default())
            }
        };
        if trusted { Place::Frame(header) } else { Place::NoFrame }
    }
}

/// Returns whether `header` is plausible and so is, as far as can be seen, what follows: another header, or at
/// least a body that is what the header says.
fn is_frame(header: Header, rest: &[u8]) -> bool {
    let following = header.order.u16(rest, header.frame_len());
    let body = || rest.get(HEADER..header.frame_len()).unwrap_or_default();
    let followed = following.is_none_or(|code| Command::of(code).is_some() || has_items(header, body()));
    header.is_plausible() && followed
}

fn has_items(header: Header, body: &[u8]) -> bool {
    match header.command {
        Command::SendRrData | Command::SendUnitData => {
            let items = Items::of_message(header.order, body);
            items.is_some_and(|items| items.announced() <= MOST_ITEMS && items.is_whole())
        }
        Command::ListServices
        | Command::ListIdentity
        | Command::ListInterfaces
        | Command::RegisterSession
        | Command::UnregisterSession => false,
    }
}

fn begins_little_endian(rest: &[u8]) -> bool {
    Header::parse(ByteOrder::Little, rest).is_some_and(|header| is_frame(header, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a frame of `command` with `body`.
    fn frame(command: u16, body: &[u8]) -> Vec<u8> {
        let mut bytes = command.to_le_bytes().to_vec();
        bytes.extend_from_slice(&u16::try_from(body.len()).unwrap().to_le_bytes());
        bytes.extend_from_slice(&7_u32.to_le_bytes());
        bytes.extend_from_slice(&[0; 16]);
        bytes.extend_from_slice(body);
        bytes
    }

    /// Feeds `chunks` at times 1, 2, …; returns the frames' bodies and times, and what was skipped.
    fn fed(framer: &mut Framer, chunks: &[&[u8]]) -> (Vec<(Vec<u8>, i64)>, u64) {
        let (mut frames, mut skipped) = (Vec::new(), 0);
        for (chunk, time) in chunks.iter().zip(1..) {
            skipped += framer.feed(chunk, time, &mut |_, body, time| frames.push((body.to_vec(), time)));
        }
        (frames, skipped)
    }

    #[test]
    fn frames_are_found_however_the_stream_is_cut() {
        let stream = [frame(0x6f, b"first"), frame(0x70, b""), frame(0x6f, &[3; 300])].concat();
        for size in [1, 2, 7, 23, 24, 25, 29, 400] {
            let chunks: Vec<&[u8]> = stream.chunks(size).collect();
            let (frames, skipped) = fed(&mut Framer::default(), &chunks);
            let bodies: Vec<&[u8]> = frames.iter().map(|(body, _)| body.as_slice()).collect();
            assert_eq!(bodies, [b"first".as_slice(), b"", &[3; 300]], "cut every {size} bytes");
            assert_eq!(skipped, 0);
        }
    }

    #[test]
    fn a_frames_time_is_that_of_the_packet_that_completed_it() {
        let stream = [frame(0x6f, b"ab"), frame(0x6f, b"cd")].concat();
        let (frames, _) = fed(&mut Framer::default(), &[&stream[..10], &stream[10..30], &stream[30..]]);
        assert_eq!(frames, [(b"ab".to_vec(), 2), (b"cd".to_vec(), 3)]);
    }

    #[test]
    fn unknown_bytes_are_skipped_and_counted() {
        let [x, y] =
            [b"x", b"y"].map(|data| [&[0, 0, 0, 0, 0, 0, 1, 0, 0xb2, 0, 1, 0], data.as_slice()].concat());
        let stream = [b"\xde\xad\xbe\xef\x00".to_vec(), frame(0x6f, &x), vec![0], frame(0x70, &y)].concat();
        for size in [1, 3, 200] {
            let mut framer = Framer::default();
            framer.start();
            let chunks: Vec<&[u8]> = stream.chunks(size).collect();
            let (frames, skipped) = fed(&mut framer, &chunks);
            let bodies: Vec<&[u8]> = frames.iter().map(|(body, _)| body.as_slice()).collect();
            assert_eq!((bodies, skipped), (vec![x.as_slice(), &y], 6), "cut every {size} bytes");
        }
    }

    #[test]
    fn big_endian_is_tried_where_little_endian_makes_no_sense() {
        let mut bytes = 0x6f_u16.to_be_bytes().to_vec();
        bytes.extend_from_slice(&3_u16.to_be_bytes());
        bytes.extend_from_slice(&7_u32.to_be_bytes());
        bytes.extend_from_slice(&[0; 16]);
        bytes.extend_from_slice(b"abc");
        let (frames, skipped) = fed(&mut Framer::default(), &[&bytes]);
        assert_eq!((frames, skipped), (vec![(b"abc".to_vec(), 1)], 0));
    }

    #[test]
    fn a_lost_frame_gives_up_what_was_held() {
        let mut framer = Framer::default();
        let bytes = frame(0x6f, b"half of this");
        framer.feed(&bytes[..30], 1, &mut |_, _, _| panic!("not whole"));
        assert_eq!(framer.held(), 30);
        assert_eq!(framer.lose_sync(), 30);
        let (frames, skipped) = fed(&mut framer, &[&bytes[30..], &bytes]);
        assert_eq!((frames.len(), skipped), (1, 6));
    }
}
