//! File formats and links: the same traffic in every wrapping gives the same findings.

use super::*;

/// One exchange, without its link header.
fn ip_packets() -> Vec<Timed> {
    let segment = |from: End, to: End, body: &[u8]| ipv4(6, from.0, to.0, &tcp(from.1, to.1, 1, ACK, body));
    vec![
        (5 * SECOND, segment(CLIENT, SERVER, &unconnected(1, &request(0x0e, 4)))),
        (5 * SECOND + 1_500, segment(SERVER, CLIENT, &unconnected(1, &reply(0x0e)))),
    ]
}

fn wrapped(head: &[u8]) -> Vec<Timed> {
    ip_packets().into_iter().map(|(time, ip)| (time, [head, &ip].concat())).collect()
}

/// Checks that `capture` holds the exchange.
#[track_caller]
fn assert_exchange(capture: &[u8]) {
    let found = analyzed(capture);
    assert_eq!((found.packets, found.cip.messages, found.truncated), (2, 2, false), "{found:?}");
    assert_eq!(found.latency_ms.max, Some(1.5));
    assert_eq!(found.first, Some(Timestamp::from_micros(5 * SECOND)));
}

#[test]
fn every_link_is_read() {
    let ethernet = |types: &[u8]| [&[2; 12], types].concat();
    assert_exchange(&pcap_of(1, &wrapped(&ethernet(&[8, 0]))));
    assert_exchange(&pcap_of(1, &wrapped(&ethernet(&[0x81, 0, 0, 5, 8, 0]))));
    assert_exchange(&pcap_of(1, &wrapped(&ethernet(&[0x88, 0xa8, 0, 5, 0x81, 0, 0, 6, 8, 0]))));
    for raw in [12, 14, 101, 228] {
        assert_exchange(&pcap_of(raw, &wrapped(&[])));
    }
    assert_exchange(&pcap_of(0, &wrapped(&[2, 0, 0, 0])));
    assert_exchange(&pcap_of(0, &wrapped(&[0, 0, 0, 2])));
    assert_exchange(&pcap_of(108, &wrapped(&[0, 0, 0, 2])));
    let mut cooked = [0; 16];
    cooked[14] = 8;
    assert_exchange(&pcap_of(113, &wrapped(&cooked)));
    let mut cooked = [0; 20];
    cooked[0] = 8;
    assert_exchange(&pcap_of(276, &wrapped(&cooked)));
    let unknown = analyzed(&pcap_of(147, &wrapped(&[])));
    assert_eq!((unknown.packets, unknown.cip.messages), (2, 0));
}

#[test]
fn pcap_is_read_in_both_byte_orders_and_resolutions() {
    for nanos in [false, true] {
        for big in [false, true] {
            let number = |number: u32| if big { number.to_be_bytes() } else { number.to_le_bytes() };
            let magic: u32 = if nanos { 0xa1b2_3c4d } else { 0xa1b2_c3d4 };
            let mut file = Vec::new();
            for head in [magic, 0, 0, 0, 65_535, 1] {
                file.extend_from_slice(&number(head));
            }
            for (time, packet) in wrapped(&[[2; 12].as_slice(), &[8, 0]].concat()) {
                let len = u32::try_from(packet.len()).unwrap();
                let fraction = if nanos { micros(time) * 1_000 + 999 } else { micros(time) };
                for head in [seconds(time), fraction, len, len] {
                    file.extend_from_slice(&number(head));
                }
                file.extend_from_slice(&packet);
            }
            assert_exchange(&file);
        }
    }
}

/// A writer of pcapng in one byte order.
struct Pcapng {
    big: bool,
    file: Vec<u8>,
}

impl Pcapng {
    fn new() -> Self {
        Self { big: false, file: Vec::new() }
    }

    fn u16(&self, number: u16) -> [u8; 2] {
        if self.big { number.to_be_bytes() } else { number.to_le_bytes() }
    }

    fn u32(&self, number: u32) -> [u8; 4] {
        if self.big { number.to_be_bytes() } else { number.to_le_bytes() }
    }

    fn block(&mut self, kind: u32, body: &[u8]) {
        let padded = body.len().next_multiple_of(4);
        let len = self.u32(u32::try_from(padded + 12).unwrap());
        let kind = self.u32(kind);
        self.file.extend_from_slice(&[kind, len].concat());
        self.file.extend_from_slice(body);
        self.file.resize(self.file.len() + padded - body.len(), 0);
        self.file.extend_from_slice(&len);
    }

    fn section(&mut self, big: bool) {
        self.big = big;
        let body = [&self.u32(0x1a2b_3c4d)[..], &self.u16(1), &self.u16(0), &[0xff; 8]].concat();
        self.block(0x0a0d_0d0a, &body);
    }

    fn interface(&mut self, link: u16, resolution: Option<u8>) {
        let mut body = [&self.u16(link)[..], &[0, 0], &self.u32(0)].concat();
        // A name, then the resolution.
        body.extend_from_slice(&[&self.u16(2)[..], &self.u16(3), b"eth\0"].concat());
        if let Some(resolution) = resolution {
            body.extend_from_slice(&[&self.u16(9)[..], &self.u16(1), &[resolution, 0, 0, 0]].concat());
        }
        body.extend_from_slice(&[0; 4]);
        self.block(1, &body);
    }

    fn packet(&mut self, interface: u32, ticks: u64, packet: &[u8]) {
        let len = self.u32(u32::try_from(packet.len()).unwrap());
        let (high, low) = (self.u32((ticks >> 32) as u32), self.u32((ticks & 0xffff_ffff) as u32));
        let body = [&self.u32(interface), &high, &low, &len, &len].map(|part| part.as_slice()).concat();
        self.block(6, &[&body, packet].concat());
    }
}

#[test]
fn pcapng_is_read_over_sections_interfaces_and_unknown_blocks() {
    let [first, second] = ip_packets().try_into().unwrap();
    for big in [false, true] {
        let mut file = Pcapng::new();
        file.section(big);
        file.interface(147, None);
        file.interface(101, Some(9));
        file.block(0x0bad_cafe, &[7; 999]);
        file.packet(1, u64::try_from(first.0).unwrap() * 1_000, &first.1);
        // Another section in the other order, whose interface counts in powers of two.
        file.section(!big);
        file.interface(101, Some(0x80 | 20));
        file.block(5, &[0; 12]);
        let ticks = (u64::try_from(second.0).unwrap() << 20).div_ceil(1_000_000);
        file.packet(0, ticks, &second.1);
        assert_exchange(&file.file);
    }
}

#[test]
fn pcapng_counts_in_microseconds_unless_it_says_otherwise() {
    for (resolution, ticks_per_micro) in [(None, 1), (Some(6), 1), (Some(9), 1_000), (Some(12), 1_000_000)] {
        let mut file = Pcapng::new();
        file.section(false);
        file.interface(101, resolution);
        for (time, packet) in ip_packets() {
            file.packet(0, u64::try_from(time).unwrap() * ticks_per_micro, &packet);
        }
        assert_exchange(&file.file);
    }
}

#[test]
fn simple_and_obsolete_packets_are_packets() {
    let [first, second] = ip_packets().try_into().unwrap();
    let mut file = Pcapng::new();
    file.section(false);
    file.interface(101, None);
    let len = file.u32(u32::try_from(first.1.len()).unwrap());
    file.block(3, &[&len, first.1.as_slice()].concat());
    let ticks = file.u32(u32::try_from(second.0).unwrap());
    let len = file.u32(u32::try_from(second.1.len()).unwrap());
    file.block(2, &[&[0; 8], &ticks[..], &len, &len, &second.1].concat());
    let found = analyzed(&file.file);
    assert_eq!((found.packets, found.cip.messages), (2, 2));
}

#[test]
fn ipv6_is_read_behind_extension_headers() {
    let segment = |from: End, to: End, body: &[u8]| tcp(from.1, to.1, 1, ACK, body);
    let ask = segment(CLIENT, SERVER, &unconnected(1, &request(0x0e, 4)));
    let answer = segment(SERVER, CLIENT, &unconnected(1, &reply(0x0e)));
    // Hop by hop, destination options of 16 bytes, and a fragment header of a whole packet.
    let extensions = [&[60, 0, 0, 0, 0, 0, 0, 0][..], &[44, 1], &[0; 14], &[6, 0, 0, 0, 1, 2, 3, 4]].concat();
    let packets = [
        (5 * SECOND, ipv6(6, CLIENT.0, SERVER.0, &ask)),
        (5 * SECOND + 1_500, ipv6(0, SERVER.0, CLIENT.0, &[extensions, answer].concat())),
    ];
    assert_exchange(&pcap_of(101, &packets));
}

#[test]
fn options_of_ipv4_and_padding_of_ethernet_are_no_payload() {
    let packets = wrapped(&[[2; 12].as_slice(), &[8, 0]].concat()).into_iter().map(|(time, packet)| {
        let mut packet = packet;
        packet[14] = 0x46;
        packet.splice(34..34, [1, 1, 1, 1]);
        let total = u16::try_from(packet.len() - 14).unwrap().to_be_bytes();
        packet[16..18].copy_from_slice(&total);
        packet.extend_from_slice(&[0xee; 9]);
        (time, packet)
    });
    let packets: Vec<Timed> = packets.collect();
    assert_exchange(&pcap(&packets));
    assert_eq!(analyzed(&pcap(&packets)).enip.resync_bytes, 0);
}

#[test]
fn fragments_are_counted_and_skipped() {
    let mut packets = ip_packets();
    packets[0].1[6] = 0x20;
    packets[1].1[7] = 1;
    let found = analyzed(&pcap_of(101, &packets));
    assert_eq!((found.packets, found.enip.frames), (2, 0));
}

#[test]
fn a_file_cut_off_is_read_to_there() {
    let whole = golden_a();
    for cut in [1, 10, 40, 60] {
        let found = analyzed(&whole[..whole.len() - cut]);
        assert!(found.truncated, "cut {cut}");
        assert_eq!((found.packets, found.cip.messages), (210, 200));
    }
    let head = analyzed(&whole[..12]);
    assert_eq!((head.packets, head.truncated), (0, true));
}

/// Case 25: an empty capture is one of no packets.
#[test]
fn an_empty_file_is_a_capture_of_nothing_and_text_is_none() {
    let empty = analyzed(&[]);
    assert_eq!((empty.packets, empty.bytes, empty.truncated), (0, 0, false));
    assert_eq!((empty.first, empty.latency_ms.p95), (None, None));
    assert_eq!(analyzed(&pcap(&[])).packets, 0);
    for text in [b"a".as_slice(), b"abc", b"%PDF-1.7 and so on", &[0; 100]] {
        let error = analyze(text, "x.pcap", &AnalysisOptions::default()).unwrap_err();
        assert!(matches!(error, CaptureError::NotACapture { .. }), "{error}");
    }
}

#[test]
fn packets_that_were_cut_are_counted_and_their_streams_go_on() {
    let mut talk = Talk::default();
    talk.exchange(SECOND, 1_000, 1, 0x0e, 4);
    talk.exchange(2 * SECOND, 1_000, 2, 0x0e, 4);
    talk.exchange(3 * SECOND, 1_000, 3, 0x0e, 4);
    let mut file = pcap(&talk.packets[..2]);
    let (time, packet) = &talk.packets[2];
    let len = u32::try_from(packet.len()).unwrap();
    for number in [seconds(*time), micros(*time), len - 10, len] {
        file.extend_from_slice(&number.to_le_bytes());
    }
    file.extend_from_slice(&packet[..packet.len() - 10]);
    file.extend_from_slice(&pcap(&talk.packets[3..])[24..]);
    let found = analyzed(&file);
    assert_eq!((found.truncated_packets, found.truncated), (1, false));
    assert_eq!((found.cip.requests, found.cip.responses, found.latency_ms.count), (2, 3, 2));
    assert_eq!(found.tcp.lost_segments, 0);
}

#[test]
fn times_beyond_the_calendar_are_none() {
    let [first, second] = ip_packets().try_into().unwrap();
    let mut file = Pcapng::new();
    file.section(false);
    file.interface(101, Some(0));
    file.packet(0, u64::MAX, &first.1);
    file.packet(0, 7, &second.1);
    let found = analyzed(&file.file);
    assert_eq!((found.packets, found.first), (2, Some(Timestamp::from_micros(7 * SECOND))));
}
