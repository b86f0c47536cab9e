//! TCP streams as networks really deliver them.

use super::*;

/// The client's side of three requests, as one stream.
fn stream() -> Vec<u8> {
    (1..=3).flat_map(|context| unconnected(context, &request(0x0e, 4))).collect()
}

/// Returns a packet of the client with `range` of the stream, which begins at sequence `base`.
fn part(time: i64, base: u32, range: std::ops::Range<usize>) -> Timed {
    let sequence = base.wrapping_add(u32::try_from(range.start).unwrap());
    (time, tcp_packet(CLIENT, SERVER, sequence, ACK, &stream()[range]))
}

#[test]
fn repeated_bytes_count_once() {
    let packets =
        [part(1, 0, 0..60), part(2, 0, 0..60), part(3, 0, 30..100), part(4, 0, 100..138), part(5, 0, 20..50)];
    let found = analyzed(&pcap(&packets));
    assert_eq!((found.cip.requests, found.tcp.retransmits, found.tcp.out_of_order), (3, 3, 0));
    assert_eq!(found.enip.resync_bytes, 0);
}

#[test]
fn early_segments_wait_for_those_before_them_across_the_wrap_of_sequence_numbers() {
    for base in [0, u32::MAX - 70, u32::MAX] {
        let packets = [
            part(1, base, 0..40),
            part(2, base, 100..138),
            part(3, base, 70..100),
            part(4, base, 70..90),
            part(5, base, 40..70),
        ];
        let found = analyzed(&pcap(&packets));
        assert_eq!((found.cip.requests, found.enip.resync_bytes), (3, 0), "from {base}");
        assert_eq!((found.tcp.out_of_order, found.tcp.retransmits, found.tcp.lost_segments), (2, 1, 0));
    }
}

#[test]
fn a_hole_is_given_up_after_five_seconds_and_decoding_goes_on_at_the_next_header() {
    // The second request is lost in part; the third is whole.
    let hole = [part(SECOND, 0, 0..60), part(2 * SECOND, 0, 80..138)];
    let late = part(8 * SECOND, 0, 60..80);
    let found = analyzed(&pcap(&[hole[0].clone(), hole[1].clone(), late]));
    assert_eq!((found.cip.requests, found.tcp.lost_segments, found.tcp.out_of_order), (2, 1, 1));
    assert_eq!((found.enip.resync_bytes, found.tcp.retransmits), (14 + 12, 1));
    let in_time = part(6 * SECOND, 0, 60..80);
    let found = analyzed(&pcap(&[hole[0].clone(), hole[1].clone(), in_time]));
    assert_eq!((found.cip.requests, found.tcp.lost_segments), (3, 0));
    // The capture ends first: what waits is decoded all the same.
    let found = analyzed(&pcap(&hole));
    assert_eq!((found.cip.requests, found.tcp.lost_segments), (2, 1));
}

#[test]
fn a_hole_is_given_up_when_too_much_waits_behind_it() {
    let frame = unconnected(1, &[request(0x0e, 4), vec![0; 1_000]].concat());
    let len = u32::try_from(frame.len()).unwrap();
    let mut packets = vec![(1, tcp_packet(CLIENT, SERVER, 0, ACK, &frame))];
    for index in 2..1_500 {
        packets.push((1, tcp_packet(CLIENT, SERVER, index * len, ACK, &frame)));
    }
    let found = analyzed(&pcap(&packets));
    assert_eq!((found.tcp.lost_segments, found.cip.requests), (1, 1_499));
    assert!((800..1_100).contains(&found.tcp.out_of_order), "{:?}", found.tcp);
}

#[test]
fn a_stream_begun_in_the_middle_is_read_from_the_next_header() {
    let found = analyzed(&pcap(&[part(1, 0, 10..138)]));
    assert_eq!((found.cip.requests, found.enip.resync_bytes), (2, 36));
}

#[test]
fn a_new_handshake_between_the_same_ends_is_another_connection() {
    let connect = |time, sequence| (time, tcp_packet(CLIENT, SERVER, sequence, SYN, &[]));
    let packets = [
        connect(0, 99),
        connect(1, 99),
        part(2, 100, 0..138),
        (3, tcp_packet(SERVER, CLIENT, 5, RST, &[])),
        connect(4, 7_000_099),
        part(5, 7_000_100, 0..138),
    ];
    let found = analyzed(&pcap(&packets));
    assert_eq!((found.tcp.flows, found.tcp.resets, found.tcp.retransmits), (2, 1, 0));
    assert_eq!((found.cip.requests, found.latency_ms.unanswered), (6, 6));
}

#[test]
fn a_probe_that_keeps_a_connection_alive_is_no_retransmit() {
    let found = analyzed(&pcap(&[part(1, 0, 0..138), part(2, 0, 137..138), part(3, 0, 130..138)]));
    assert_eq!((found.tcp.retransmits, found.cip.requests), (1, 3));
}

#[test]
fn more_connections_than_are_followed_leave_their_counts() {
    let request = unconnected(1, &request(0x0e, 4));
    let packets: Vec<Timed> = (0..70_000_u32)
        .map(|index| {
            let [_, b, c, d] = index.to_be_bytes();
            (i64::from(index), tcp_packet(([10, b, c, d], 1_024), SERVER, 0, ACK, &request))
        })
        .collect();
    let found = analyzed(&pcap(&packets));
    assert_eq!((found.tcp.flows, found.cip.requests, found.latency_ms.unanswered), (70_000, 70_000, 70_000));
}

#[test]
fn replies_that_came_early_have_their_own_times() {
    let [first, second] = [1, 2].map(|context| unconnected(context, &reply(0x0e)));
    let split = u32::try_from(first.len()).unwrap();
    let ask: Vec<u8> = [1, 2].iter().flat_map(|context| unconnected(*context, &request(0x0e, 4))).collect();
    let packets = [
        (SECOND, tcp_packet(SERVER, CLIENT, 99, SYN | ACK, &[])),
        (SECOND, tcp_packet(CLIENT, SERVER, 0, ACK, &ask)),
        (SECOND + 2_000, tcp_packet(SERVER, CLIENT, 100 + split, ACK, &second)),
        (SECOND + 5_000, tcp_packet(SERVER, CLIENT, 100, ACK, &first)),
    ];
    let found = analyzed(&pcap(&packets));
    assert_eq!((found.latency_ms.min, found.latency_ms.max), (Some(2.0), Some(5.0)));
}

#[test]
fn replies_behind_a_hole_are_found_before_their_requests_expire() {
    let answer = unconnected(1, &reply(0x0e));
    let packets = [
        (SECOND, tcp_packet(SERVER, CLIENT, 99, SYN | ACK, &[])),
        (SECOND, tcp_packet(CLIENT, SERVER, 0, ACK, &unconnected(1, &request(0x0e, 4)))),
        (SECOND + 3_000, tcp_packet(SERVER, CLIENT, 500, ACK, &answer)),
        (12 * SECOND, tcp_packet(CLIENT, SERVER, 46, ACK, &unconnected(2, &request(0x0e, 4)))),
    ];
    let found = analyzed(&pcap(&packets));
    assert_eq!((found.latency_ms.count, found.latency_ms.max, found.tcp.lost_segments), (1, Some(3.0), 1));
    assert_eq!(found.latency_ms.unanswered, 1);
}
