//! Directions, messages, latency and cyclic data.

use super::*;

fn services(capture: &Capture) -> Vec<String> {
    let shown = |s: &ServiceCount| {
        format!("{} {} {} {}", s.name, s.class, if s.response { "reply" } else { "request" }, s.count)
    };
    capture.cip.services.iter().map(shown).collect()
}

#[test]
fn replies_without_their_bit_are_replies_by_their_port() {
    let mut talk = Talk::default();
    talk.client(SECOND, &unconnected(1, &request(0x0e, 4)));
    talk.server(SECOND + 2_000, &unconnected(1, &[0x0e, 0, 0, 0]));
    let found = analyzed(&pcap(&talk.packets));
    assert_eq!((found.cip.requests, found.cip.responses), (1, 1));
    assert_eq!(found.latency_ms.p50, Some(2.0));
}

#[test]
fn any_port_can_be_listed() {
    let server = (SERVER.0, 9_999);
    let packets = [
        (SECOND, tcp_packet(CLIENT, server, 0, ACK, &unconnected(1, &request(0x0e, 4)))),
        (SECOND + 3_000, tcp_packet(server, CLIENT, 0, ACK, &unconnected(1, &reply(0x0e)))),
    ];
    assert_eq!(analyzed(&pcap(&packets)).enip.frames, 0);
    let mut options = AnalysisOptions::default();
    options.ports.insert(9_999);
    let found = analyze(pcap(&packets).as_slice(), "x", &options).unwrap();
    assert_eq!((found.enip.frames, found.latency_ms.max), (2, Some(3.0)));
}

#[test]
fn between_two_listed_ports_the_syn_tells_the_client() {
    let (a, b) = ((CLIENT.0, 2222), SERVER);
    let talk = |handshake: bool, bit: u8| {
        let mut packets = Vec::new();
        if handshake {
            packets.push((SECOND, tcp_packet(a, b, 99, SYN, &[])));
            packets.push((SECOND, tcp_packet(b, a, 999, SYN | ACK, &[])));
        }
        packets.push((SECOND, tcp_packet(a, b, 100, ACK, &unconnected(1, &request(0x0e, 4)))));
        let answer = [0x0e | bit, 0, 0, 0];
        packets.push((SECOND + 4_000, tcp_packet(b, a, 1_000, ACK, &unconnected(1, &answer))));
        analyzed(&pcap(&packets))
    };
    let with_syn = talk(true, 0);
    assert_eq!((with_syn.cip.requests, with_syn.cip.responses), (1, 1));
    let by_bit = talk(false, 0x80);
    assert_eq!((by_bit.cip.requests, by_bit.cip.responses, by_bit.latency_ms.count), (1, 1, 1));
}

#[test]
fn pipelined_requests_find_their_own_replies() {
    let mut talk = Talk::default();
    let requests: Vec<u8> = (1..=3).flat_map(|context| unconnected(context, &request(0x0e, 4))).collect();
    talk.client(SECOND, &requests);
    for (context, after) in [(3, 1_000), (1, 2_000), (2, 4_000)] {
        talk.server(SECOND + after, &unconnected(context, &reply(0x0e)));
    }
    talk.client(2 * SECOND, &unconnected(9, &request(0x0e, 4)));
    let found = analyzed(&pcap(&talk.packets));
    assert_eq!((found.latency_ms.count, found.latency_ms.unanswered), (3, 1));
    assert_eq!(
        (found.latency_ms.min, found.latency_ms.p50, found.latency_ms.max),
        (Some(1.0), Some(2.0), Some(4.0))
    );
}

#[test]
fn connected_messages_are_matched_by_their_sequence_count() {
    let mut talk = Talk::default();
    for (count, after) in [(5_u8, 1_000), (6, 2_000)] {
        let start = i64::from(count) * SECOND;
        talk.client(start, &connected(1, &[&[count, 0], request(0x4c, 0x6b).as_slice()].concat()));
        talk.server(start + after, &connected(2, &[&[count, 0], reply(0x4c).as_slice()].concat()));
    }
    // One of another count, and one of no message at all.
    talk.server(9 * SECOND, &connected(2, &[&[77, 0], reply(0x4c).as_slice()].concat()));
    talk.server(9 * SECOND, &connected(2, &[78, 0]));
    let found = analyzed(&pcap(&talk.packets));
    assert_eq!((found.latency_ms.count, found.latency_ms.max), (2, Some(2.0)));
    assert_eq!((found.io.packets, found.cip.messages, found.cip.malformed), (0, 5, 0));
}

#[test]
fn what_messages_carry_is_counted_apart() {
    let mut talk = Talk::default();
    let inner = request(0x4c, 0x6b);
    let list = [&[2, 0, 6, 0, 12, 0], request(0x0e, 1).as_slice(), &request(0x10, 4)].concat();
    let packet = [request(0x0a, 2), list].concat();
    let send = |message: &[u8]| {
        let len = u16::try_from(message.len()).unwrap().to_le_bytes();
        [request(0x52, 6).as_slice(), &[5, 99], &len, message, &[1, 0, 1, 0]].concat()
    };
    talk.client(SECOND, &unconnected(1, &send(&inner)));
    talk.server(SECOND + 1_000, &unconnected(1, &reply(0x4c)));
    talk.client(2 * SECOND, &unconnected(2, &packet));
    let replies = [&[0x8a, 0, 0, 0, 2, 0, 6, 0, 12, 0], reply(0x0e).as_slice(), &reply(0x10)].concat();
    talk.server(2 * SECOND + 1_000, &unconnected(2, &replies));
    talk.client(3 * SECOND, &unconnected(3, &send(&packet)));
    let found = analyzed(&pcap(&talk.packets));
    assert_eq!(
        services(&found),
        [
            "Multiple_Service_Packet 0 reply 1",
            "Multiple_Service_Packet 2 request 1",
            "Read_Tag 0 reply 1",
            "Unconnected_Send 6 request 2",
        ]
    );
    let embedded =
        Capture { cip: Cip { services: found.cip.embedded.clone(), ..Cip::default() }, ..found.clone() };
    assert_eq!(
        services(&embedded),
        [
            "Multiple_Service_Packet 2 request 1",
            "Get_Attribute_Single 0 reply 1",
            "Get_Attribute_Single 1 request 2",
            "Set_Attribute_Single 0 reply 1",
            "Set_Attribute_Single 4 request 2",
            "Read_Tag 107 request 1",
        ]
    );
    assert_eq!((found.latency_ms.count, found.cip.malformed), (2, 0));
}

#[test]
fn malformed_and_unknown_messages_are_counted() {
    let mut talk = Talk::default();
    talk.client(SECOND, &unconnected(1, &[0x0e, 200, 0x20]));
    talk.client(SECOND, &unconnected(2, &request(0x7f, 4)));
    talk.client(SECOND, &frame(0x6f, 7, 3, &[0; 7]));
    talk.client(SECOND, &frame(0x6f, 7, 3, &[0, 0, 0, 0, 0, 0, 1, 0, 0xb2, 0, 99, 0]));
    talk.server(SECOND, &unconnected(4, &[0x8e, 0, 5, 0]));
    let found = analyzed(&pcap(&talk.packets));
    assert_eq!((found.cip.malformed, found.cip.unknown_services, found.cip.messages), (3, 1, 2));
    assert_eq!(found.cip.status, BTreeMap::from([("0x05".to_owned(), 1)]));
    assert_eq!(found.cip.services[1].name, "Unknown(0x7F)");
}

#[test]
fn a_device_says_who_it_is() {
    let attributes = [&[0x4d, 0, 12, 0, 1, 0, 1, 2, 0, 0, 9, 9, 9, 9, 4], b"Pump".as_slice(), &[3]].concat();
    let identity = Some(Identity { vendor_id: 77, product_name: "Pump".to_owned() });
    let item = [&[1, 0], [0; 16].as_slice(), &attributes].concat();
    let listing = frame(0x63, 0, 0, &items(&[(0x0c, &item)]));
    let udp = [(SECOND, udp_packet(SERVER, CLIENT, &listing))];
    let found = analyzed(&pcap(&udp));
    assert_eq!((found.identity, found.enip.responses), (identity.clone(), 1));
    let mut talk = Talk::default();
    talk.client(SECOND, &unconnected(1, &request(0x01, 1)));
    talk.server(SECOND + 1, &unconnected(1, &[&[0x81, 0, 0, 0], attributes.as_slice()].concat()));
    assert_eq!(analyzed(&pcap(&talk.packets)).identity, identity);
}

#[test]
fn cyclic_data_comes_with_or_without_a_frame() {
    let (producer, consumer) = ((CLIENT.0, 2222), (SERVER.0, 2222));
    let bare = |id: u32, count: u32| {
        let address = [id.to_le_bytes(), count.to_le_bytes()].concat();
        items(&[(0x8002, &address), (0xb1, &[1, 2, 3, 4])])
    };
    let packets = [
        (0, udp_packet(producer, consumer, &bare(1, 1))),
        (5_000, udp_packet(producer, consumer, &bare(2, 1))),
        (20_000, udp_packet(producer, consumer, &bare(1, 2))),
        (24_000, udp_packet(producer, consumer, &bare(2, 2))),
        (40_000, udp_packet(producer, consumer, &bare(1, 3))),
        (50_000, udp_packet(consumer, producer, &connected(3, &[9]))),
        (60_000, udp_packet(producer, consumer, b"something else")),
    ];
    let found = analyzed(&pcap(&packets));
    assert_eq!((found.io.packets, found.io.flows.len(), found.cip.messages), (6, 3, 0));
    let gaps = &found.io.intervals_ms;
    assert_eq!((gaps.count, gaps.min, gaps.max, gaps.jitter), (3, Some(19.0), Some(20.0), Some(0.0)));
    assert_eq!((found.enip.frames, found.enip.resync_bytes), (1, 14));
    assert_eq!(found.io.flows.iter().map(|flow| flow.connection_id).collect::<Vec<_>>(), [1, 2, 3]);
}
