//! One direction of a TCP connection: segments by sequence number in, frames out.

use std::collections::BTreeMap;

use super::enip::Header;
use super::framer::Framer;
use super::packet::Segment;
use super::summary::Tcp;

/// How much may wait for a hole to be filled.
const MOST_EARLY: usize = 1024 * 1024;
/// In how many segments.
const MOST_EARLY_SEGMENTS: usize = 16_384;
/// How much of capture time a hole may stay open.
const LONGEST_HOLE_MICROS: i64 = 5_000_000;
/// About what a waiting segment takes beyond its bytes.
const EARLY_OVERHEAD: usize = 96;

/// Counters that all streams share.
#[derive(Debug, Default)]
pub(crate) struct StreamTotals {
    pub(crate) tcp: Tcp,
    pub(crate) resync_bytes: u64,
}

/// A segment that came before its turn.
#[derive(Debug)]
struct Early {
    time: i64,
    data: Box<[u8]>,
    wire_len: u32,
}

/// One direction of a connection.
#[derive(Debug, Default)]
pub(crate) struct Stream {
    /// Where the next byte belongs, counted from below the first sequence number; none before the first segment.
    next: Option<u64>,
    /// The first sequence number, if its SYN was seen.
    initial: Option<u32>,
    framer: Framer,
    early: BTreeMap<u64, Early>,
    early_bytes: usize,
    /// When the stream last went on, while something waits.
    stuck_since: i64,
}

impl Stream {
    /// Begins the stream behind a SYN of `sequence`, unless it has begun there already.
    pub(crate) fn begin(&mut self, sequence: u32) {
        if self.initial == Some(sequence) {
            return;
        }
        *self = Self {
            initial: Some(sequence),
            next: Some(position_of(sequence.wrapping_add(1))),
            ..Self::default()
        };
        self.framer.start();
    }

    /// Returns whether any segment was seen that is not behind a SYN of `sequence`.
    pub(crate) fn is_other_than(&self, sequence: u32) -> bool {
        self.next.is_some() && self.initial != Some(sequence)
    }

    /// Returns how many bytes are held.
    pub(crate) fn held(&self) -> usize {
        self.framer.held() + self.early_bytes + self.early.len() * EARLY_OVERHEAD
    }

    /// Gives up a hole that is still open after too long.
    pub(crate) fn expire(
        &mut self,
        time: i64,
        totals: &mut StreamTotals,
        sink: &mut impl FnMut(Header, &[u8], i64),
    ) {
        if !self.early.is_empty() && time - self.stuck_since >= LONGEST_HOLE_MICROS {
            self.give_up_hole(time, totals, sink);
        }
    }

    /// Takes a segment seen at `time` and gives the frames it completes to `sink`.
    pub(crate) fn take(
        &mut self,
        segment: Segment<'_>,
        time: i64,
        totals: &mut StreamTotals,
        sink: &mut impl FnMut(Header, &[u8], i64),
    ) {
        // A SYN takes the place of one byte.
        let sequence = if segment.syn { segment.sequence.wrapping_add(1) } else { segment.sequence };
        if segment.wire_len == 0 {
            return;
        }
        let next = *self.next.get_or_insert_with(|| position_of(sequence));
        let ahead = sequence.wrapping_sub(low_half(next)).cast_signed();
        match u32::try_from(ahead) {
            Ok(0) => self.deliver(segment.payload, segment.wire_len, time, totals, sink),
            Ok(ahead) => {
                self.keep(next + u64::from(ahead), segment, time, totals);
                while self.early_bytes > MOST_EARLY || self.early.len() > MOST_EARLY_SEGMENTS {
                    self.give_up_hole(time, totals, sink);
                }
                return;
            }
            Err(_) => {
                let known = ahead.unsigned_abs();
                let probe = known == 1 && segment.wire_len == 1;
                totals.tcp.retransmits += u64::from(!probe);
                if known >= segment.wire_len {
                    return;
                }
                let fresh = segment.payload.get(known as usize..).unwrap_or_default();
                self.deliver(fresh, segment.wire_len - known, time, totals, sink);
            }
        }
        self.catch_up(totals, sink);
        self.stuck_since = time;
    }

    /// Gives up every hole: nothing more will come, or too much is held.
    pub(crate) fn flush(&mut self, totals: &mut StreamTotals, sink: &mut impl FnMut(Header, &[u8], i64)) {
        while !self.early.is_empty() {
            self.give_up_hole(self.stuck_since, totals, sink);
        }
    }

    /// Gives up everything that is held.
    pub(crate) fn drop_held(&mut self, totals: &mut StreamTotals, sink: &mut impl FnMut(Header, &[u8], i64)) {
        self.flush(totals, sink);
        totals.resync_bytes += self.framer.lose_sync();
    }

    fn keep(&mut self, position: u64, segment: Segment<'_>, time: i64, totals: &mut StreamTotals) {
        let end = position + u64::from(segment.wire_len);
        let before = self.early.range(..=position).next_back();
        if before.is_some_and(|(begin, early)| begin + u64::from(early.wire_len) >= end) {
            totals.tcp.retransmits += 1;
            return;
        }
        totals.tcp.out_of_order += 1;
        if self.early.is_empty() {
            self.stuck_since = time;
        }
        let early = Early { time, data: segment.payload.into(), wire_len: segment.wire_len };
        self.early_bytes += early.data.len();
        if let Some(shorter) = self.early.insert(position, early) {
            self.early_bytes -= shorter.data.len();
        }
    }

    /// Goes on behind the hole; a frame begun before it is lost.
    fn give_up_hole(
        &mut self,
        time: i64,
        totals: &mut StreamTotals,
        sink: &mut impl FnMut(Header, &[u8], i64),
    ) {
        let Some((position, _)) = self.early.first_key_value() else { return };
        self.next = Some(*position);
        totals.tcp.lost_segments += 1;
        totals.resync_bytes += self.framer.lose_sync();
        self.catch_up(totals, sink);
        self.stuck_since = time;
    }

    /// Delivers what waited for the place the stream has reached.
    fn catch_up(&mut self, totals: &mut StreamTotals, sink: &mut impl FnMut(Header, &[u8], i64)) {
        while let Some(entry) = self.early.first_entry() {
            let next = self.next.unwrap_or(0);
            let Some(known) = next.checked_sub(*entry.key()) else { return };
            let early = entry.remove();
            self.early_bytes -= early.data.len();
            let Some(fresh_len) = u64::from(early.wire_len).checked_sub(known).filter(|len| *len > 0) else {
                continue;
            };
            let fresh =
                usize::try_from(known).ok().and_then(|known| early.data.get(known..)).unwrap_or_default();
            let fresh_len = u32::try_from(fresh_len).unwrap_or(u32::MAX);
            self.deliver(fresh, fresh_len, early.time, totals, sink);
        }
    }

    /// Takes the next bytes of the stream. What was not captured of them is a gap that nothing fills.
    fn deliver(
        &mut self,
        data: &[u8],
        wire_len: u32,
        time: i64,
        totals: &mut StreamTotals,
        sink: &mut impl FnMut(Header, &[u8], i64),
    ) {
        self.next = self.next.map(|next| next + u64::from(wire_len));
        totals.resync_bytes += self.framer.feed(data, time, sink);
        if data.len() < wire_len as usize {
            totals.resync_bytes += self.framer.lose_sync();
        }
    }
}

/// Returns a position for the first `sequence` of a stream, with room below it.
fn position_of(sequence: u32) -> u64 {
    1 << 32 | u64::from(sequence)
}

/// Returns the sequence number of `position`.
fn low_half(position: u64) -> u32 {
    (position & 0xffff_ffff) as u32
}
