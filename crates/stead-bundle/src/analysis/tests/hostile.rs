//! Bytes of any kind give a summary or an error, never a panic.

use proptest::prelude::*;

use super::*;

/// A capture with everything in it, to be spoiled.
fn rich() -> Vec<u8> {
    let mut talk = Talk::default();
    talk.exchange(SECOND, 1_000, 1, 0x0e, 4);
    let list = [&[2, 0, 6, 0, 12, 0], request(0x0e, 1).as_slice(), &request(0x10, 4)].concat();
    let packet = [request(0x0a, 2), list].concat();
    let len = u16::try_from(packet.len()).unwrap().to_le_bytes();
    let send = [request(0x52, 6).as_slice(), &[5, 99], &len, &packet, &[1, 0, 1, 0]].concat();
    talk.client(2 * SECOND, &unconnected(2, &send));
    talk.client(2 * SECOND, &connected(1, &[&[1, 0], request(0x4c, 0x6b).as_slice()].concat()));
    talk.server(2 * SECOND + 1, &connected(1, &[&[1, 0], reply(0x4c).as_slice()].concat()));
    let mut packets = talk.packets;
    packets.push((3 * SECOND, tcp_packet(CLIENT, SERVER, 9_000, ACK, &unconnected(5, &request(0x0e, 4)))));
    packets.push((3 * SECOND, udp_packet((CLIENT.0, 2222), (SERVER.0, 2222), &connected(3, &[1]))));
    pcap(&packets)
}

/// Checks what holds for every capture.
fn check(bytes: &[u8]) {
    let Ok(found) = analyze(bytes, "x", &AnalysisOptions::default()) else { return };
    assert_eq!(found.cip.messages, found.cip.requests + found.cip.responses);
    assert_eq!(found.enip.frames, found.enip.requests + found.enip.responses);
    assert_eq!(found.bytes, bytes.len() as u64);
    assert!(found.latency_ms.count <= found.cip.responses);
    let services: u64 = found.cip.services.iter().map(|service| service.count).sum();
    assert_eq!(services, found.cip.messages);
    serde_json::to_string(&found).unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_behind_a_magic_number(
        magic in prop::sample::select(vec![0xa1b2_c3d4_u32, 0xa1b2_3c4d, 0xd4c3_b2a1, 0x4d3c_b2a1, 0x0a0d_0d0a]),
        bytes in prop::collection::vec(any::<u8>(), 0..600),
    ) {
        check(&[&magic.to_le_bytes(), bytes.as_slice()].concat());
    }

    #[test]
    fn a_good_capture_with_bytes_changed(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..12),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut bytes = rich();
        for (index, value) in changes {
            let at = index.index(bytes.len());
            bytes[at] = value;
        }
        check(&bytes);
        bytes.truncate(cut.index(bytes.len()));
        check(&bytes);
    }

    #[test]
    fn any_payload_in_good_packets(
        payloads in prop::collection::vec((any::<bool>(), 0_u32..3_000, prop::collection::vec(any::<u8>(), 0..80)), 0..20),
        command in prop::sample::select(vec![0x04_u16, 0x63, 0x65, 0x6f, 0x70]),
    ) {
        let mut packets = Vec::new();
        for (time, (udp, sequence, payload)) in payloads.into_iter().enumerate() {
            let body = frame(command, 7, 1, &payload);
            let packet = if udp { udp_packet(CLIENT, SERVER, &body) } else { tcp_packet(CLIENT, SERVER, sequence, ACK, &body) };
            packets.push((i64::try_from(time).unwrap() * SECOND, packet));
        }
        check(&pcap(&packets));
    }

    #[test]
    fn any_message_in_good_frames(messages in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..60), 0..20)) {
        let mut talk = Talk::default();
        for message in &messages {
            talk.client(SECOND, &unconnected(1, message));
            talk.server(SECOND + 5, &unconnected(1, message));
        }
        check(&pcap(&talk.packets));
    }

    #[test]
    fn a_stream_cut_anywhere_and_shuffled_gives_all_its_frames(
        sizes in prop::collection::vec(1_usize..90, 1..40),
        order in any::<prop::sample::Index>(),
        base in any::<u32>(),
    ) {
        let stream: Vec<u8> = (0..20_u64).flat_map(|context| unconnected(context, &request(0x0e, 4))).collect();
        let mut packets = vec![(0, tcp_packet(CLIENT, SERVER, base.wrapping_sub(1), SYN, &[]))];
        let mut at = 0;
        for size in sizes.iter().cycle() {
            let end = (at + size).min(stream.len());
            let sequence = base.wrapping_add(u32::try_from(at).unwrap());
            packets.push((1, tcp_packet(CLIENT, SERVER, sequence, ACK, &stream[at..end])));
            at = end;
            if at == stream.len() {
                break;
            }
        }
        let segments = packets.len() - 1;
        packets[1..].rotate_left(order.index(segments));
        let found = analyzed(&pcap(&packets));
        prop_assert_eq!((found.cip.requests, found.enip.resync_bytes, found.tcp.lost_segments), (20, 0, 0));
    }
}

#[test]
fn lengths_that_claim_gigabytes_are_skipped_without_being_held() {
    let mut file = pcap(&[(0, vec![1; 60])]);
    for number in [0_u32, 0, u32::MAX, u32::MAX] {
        file.extend_from_slice(&number.to_le_bytes());
    }
    file.extend_from_slice(&[0; 1_000]);
    let found = analyzed(&file);
    assert_eq!((found.packets, found.truncated), (1, true));
    let block = [
        &0x0a0d_0d0a_u32.to_le_bytes()[..],
        &u32::MAX.to_le_bytes(),
        &0x1a2b_3c4d_u32.to_le_bytes(),
        &[0; 99],
    ];
    assert!(analyzed(&block.concat()).truncated);
}
