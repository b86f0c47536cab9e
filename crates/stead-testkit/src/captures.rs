//! Captures of EtherNet/IP, made byte by byte: the golden ones of the contract, and as long ones as wanted.

use std::io::{self, Write};

const CLIENT: ([u8; 4], u16) = ([10, 0, 0, 1], 50_000);
const SERVER: ([u8; 4], u16) = ([10, 0, 0, 2], 44_818);
const SECOND: u64 = 1_000_000;
const START: u64 = 1_700_000_000 * SECOND;

/// Returns the golden capture A: 100 exchanges answered after 1, 2, … 100 ms, then 11 cyclic packets 20 ms apart.
pub fn golden_a() -> Vec<u8> {
    golden(1, &[], &[20; 10])
}

/// Returns the golden capture B: twice as slow, two more exchanges, and a cyclic packet that comes late.
pub fn golden_b() -> Vec<u8> {
    golden(2, &[(0x01, 1), (0x54, 6)], &[20, 20, 20, 20, 20, 20, 20, 20, 25, 15])
}

fn golden(millis_per_step: u64, more: &[(u8, u8)], gaps_ms: &[u64]) -> Vec<u8> {
    let mut talk = Talk::begin(Vec::new());
    let mut now = START;
    for step in 1..=100 {
        talk.exchange(now, step * millis_per_step * 1_000, 0x0e, 4);
        now += SECOND;
    }
    for (service, class) in more {
        talk.exchange(now, 5_000, *service, *class);
        now += SECOND;
    }
    talk.cyclic(now);
    for gap in gaps_ms {
        now += gap * 1_000;
        talk.cyclic(now);
    }
    talk.out
}

/// Writes a capture of about `bytes` bytes to `out`: requests of one attribute, each answered after a millisecond.
pub fn write_exchanges(out: impl Write, bytes: u64) -> io::Result<()> {
    let mut talk = Talk::begin(out);
    let mut now = START;
    while talk.written < bytes {
        talk.exchange(now, 1_000, 0x0e, 4);
        now += 2_000;
    }
    talk.failed.map_or(Ok(()), Err)
}

/// A client and a server that talk, written packet by packet.
struct Talk<W> {
    out: W,
    written: u64,
    context: u64,
    sequences: [u32; 2],
    failed: Option<io::Error>,
}

impl<W: Write> Talk<W> {
    fn begin(out: W) -> Self {
        let mut talk = Self { out, written: 0, context: 0, sequences: [0; 2], failed: None };
        let mut head = 0xa1b2_c3d4_u32.to_le_bytes().to_vec();
        head.extend_from_slice(&[2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0, 0, 1, 0, 0, 0]);
        talk.put(&head);
        talk
    }

    fn put(&mut self, bytes: &[u8]) {
        self.written += bytes.len() as u64;
        if let Err(error) = self.out.write_all(bytes) {
            self.failed.get_or_insert(error);
            // Whoever writes until a length is reached gets there.
            self.written = u64::MAX / 2;
        }
    }

    fn packet(&mut self, time: u64, protocol: u8, from: [u8; 4], to: [u8; 4], body: &[u8]) {
        let ip_len = u16::try_from(20 + body.len()).unwrap_or(u16::MAX).to_be_bytes();
        let mut packet = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0];
        packet.extend_from_slice(&[0x45, 0, ip_len[0], ip_len[1], 0, 0, 0x40, 0, 64, protocol, 0, 0]);
        packet.extend_from_slice(&from);
        packet.extend_from_slice(&to);
        packet.extend_from_slice(body);
        let mut record = Vec::with_capacity(16 + packet.len());
        for number in [time / SECOND, time % SECOND, packet.len() as u64, packet.len() as u64] {
            record.extend_from_slice(&u32::try_from(number).unwrap_or(u32::MAX).to_le_bytes());
        }
        record.extend_from_slice(&packet);
        self.put(&record);
    }

    fn segment(&mut self, time: u64, side: usize, body: &[u8]) {
        let (from, to) = if side == 0 { (CLIENT, SERVER) } else { (SERVER, CLIENT) };
        let mut segment = [from.1.to_be_bytes(), to.1.to_be_bytes()].concat();
        segment.extend_from_slice(&self.sequences[side].to_be_bytes());
        segment.extend_from_slice(&[0, 0, 0, 0, 0x50, 0x10, 0xff, 0xff, 0, 0, 0, 0]);
        segment.extend_from_slice(body);
        self.sequences[side] = self.sequences[side].wrapping_add(u32::try_from(body.len()).unwrap_or(0));
        self.packet(time, 6, from.0, to.0, &segment);
    }

    /// A request at `time`, answered after `micros`.
    fn exchange(&mut self, time: u64, micros: u64, service: u8, class: u8) {
        self.context += 1;
        let request = [service, 2, 0x20, class, 0x24, 1];
        let reply = [service | 0x80, 0, 0, 0, 1, 2];
        let frame = |message: &[u8], context| frame(0x6f, context, &items(&[(0, &[]), (0xb2, message)]));
        self.segment(time, 0, &frame(&request, self.context));
        self.segment(time + micros, 1, &frame(&reply, self.context));
    }

    /// A packet of cyclic data at `time`.
    fn cyclic(&mut self, time: u64) {
        let body = frame(0x70, 0, &items(&[(0xa1, &0x1234_u32.to_le_bytes()), (0xb1, &[1, 0, 42])]));
        let len = u16::try_from(8 + body.len()).unwrap_or(u16::MAX).to_be_bytes();
        let port = 2222_u16.to_be_bytes();
        let datagram = [&port[..], &port, &len, &[0, 0], &body].concat();
        self.packet(time, 17, CLIENT.0, SERVER.0, &datagram);
    }
}

fn frame(command: u16, context: u64, items: &[u8]) -> Vec<u8> {
    let len = u16::try_from(6 + items.len()).unwrap_or(u16::MAX).to_le_bytes();
    let mut frame = [command.to_le_bytes(), len].concat();
    frame.extend_from_slice(&[7, 0, 0, 0, 0, 0, 0, 0]);
    frame.extend_from_slice(&context.to_le_bytes());
    frame.extend_from_slice(&[0; 10]);
    frame.extend_from_slice(items);
    frame
}

fn items(items: &[(u16, &[u8])]) -> Vec<u8> {
    let count = |count: usize| u16::try_from(count).unwrap_or(u16::MAX).to_le_bytes();
    let mut list = count(items.len()).to_vec();
    for (kind, data) in items {
        list.extend_from_slice(&kind.to_le_bytes());
        list.extend_from_slice(&count(data.len()));
        list.extend_from_slice(data);
    }
    list
}
