//! Captures made byte by byte, for tests.

use std::net::Ipv4Addr;

pub(crate) const SYN: u8 = 0x02;
pub(crate) const RST: u8 = 0x04;
pub(crate) const ACK: u8 = 0x10;

/// Address and port.
pub(crate) type End = ([u8; 4], u16);

pub(crate) const CLIENT: End = ([10, 0, 0, 1], 50_000);
pub(crate) const SERVER: End = ([10, 0, 0, 2], 44_818);

/// A packet and when it was seen, in microseconds.
pub(crate) type Timed = (i64, Vec<u8>);

/// Returns a pcap file of Ethernet packets with microseconds, little-endian.
pub(crate) fn pcap(packets: &[Timed]) -> Vec<u8> {
    pcap_of(1, packets)
}

/// Returns a pcap file of packets of link type `link`.
pub(crate) fn pcap_of(link: u32, packets: &[Timed]) -> Vec<u8> {
    let mut file = 0xa1b2_c3d4_u32.to_le_bytes().to_vec();
    file.extend_from_slice(&[2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    file.extend_from_slice(&65_535_u32.to_le_bytes());
    file.extend_from_slice(&link.to_le_bytes());
    for (time, packet) in packets {
        let len = u32::try_from(packet.len()).unwrap();
        for number in [seconds(*time), micros(*time), len, len] {
            file.extend_from_slice(&number.to_le_bytes());
        }
        file.extend_from_slice(packet);
    }
    file
}

pub(crate) fn seconds(time: i64) -> u32 {
    u32::try_from(time / 1_000_000).unwrap()
}

pub(crate) fn micros(time: i64) -> u32 {
    u32::try_from(time % 1_000_000).unwrap()
}

/// Returns an Ethernet frame around an IP packet.
pub(crate) fn ethernet(ip: &[u8]) -> Vec<u8> {
    [&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0], ip].concat()
}

/// Returns an IPv4 packet.
pub(crate) fn ipv4(protocol: u8, source: [u8; 4], destination: [u8; 4], body: &[u8]) -> Vec<u8> {
    let len = u16::try_from(20 + body.len()).unwrap().to_be_bytes();
    let mut packet = vec![0x45, 0, len[0], len[1], 0, 0, 0x40, 0, 64, protocol, 0, 0];
    packet.extend_from_slice(&source);
    packet.extend_from_slice(&destination);
    packet.extend_from_slice(body);
    packet
}

/// Returns an IPv6 packet whose payload begins with a header of type `next`.
pub(crate) fn ipv6(next: u8, source: [u8; 4], destination: [u8; 4], body: &[u8]) -> Vec<u8> {
    let len = u16::try_from(body.len()).unwrap().to_be_bytes();
    let mut packet = vec![0x60, 0, 0, 0, len[0], len[1], next, 64];
    for address in [source, destination] {
        packet.extend_from_slice(&[0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        packet.extend_from_slice(&address);
    }
    packet.extend_from_slice(body);
    packet
}

/// Returns a TCP segment.
pub(crate) fn tcp(source: u16, destination: u16, sequence: u32, flags: u8, body: &[u8]) -> Vec<u8> {
    let mut segment = source.to_be_bytes().to_vec();
    segment.extend_from_slice(&destination.to_be_bytes());
    segment.extend_from_slice(&sequence.to_be_bytes());
    segment.extend_from_slice(&[0, 0, 0, 0, 0x50, flags, 0xff, 0xff, 0, 0, 0, 0]);
    segment.extend_from_slice(body);
    segment
}

/// Returns a UDP datagram.
pub(crate) fn udp(source: u16, destination: u16, body: &[u8]) -> Vec<u8> {
    let mut datagram = source.to_be_bytes().to_vec();
    datagram.extend_from_slice(&destination.to_be_bytes());
    datagram.extend_from_slice(&u16::try_from(8 + body.len()).unwrap().to_be_bytes());
    datagram.extend_from_slice(&[0, 0]);
    datagram.extend_from_slice(body);
    datagram
}

/// Returns an Ethernet packet with a TCP segment.
pub(crate) fn tcp_packet(from: End, to: End, sequence: u32, flags: u8, body: &[u8]) -> Vec<u8> {
    ethernet(&ipv4(6, from.0, to.0, &tcp(from.1, to.1, sequence, flags, body)))
}

/// Returns an Ethernet packet with a UDP datagram.
pub(crate) fn udp_packet(from: End, to: End, body: &[u8]) -> Vec<u8> {
    ethernet(&ipv4(17, from.0, to.0, &udp(from.1, to.1, body)))
}

/// Returns an encapsulation frame.
pub(crate) fn frame(command: u16, session: u32, context: u64, body: &[u8]) -> Vec<u8> {
    let mut frame = command.to_le_bytes().to_vec();
    frame.extend_from_slice(&u16::try_from(body.len()).unwrap().to_le_bytes());
    frame.extend_from_slice(&session.to_le_bytes());
    frame.extend_from_slice(&[0; 4]);
    frame.extend_from_slice(&context.to_le_bytes());
    frame.extend_from_slice(&[0; 4]);
    frame.extend_from_slice(body);
    frame
}

/// Returns items behind their count.
pub(crate) fn items(items: &[(u16, &[u8])]) -> Vec<u8> {
    let mut list = u16::try_from(items.len()).unwrap().to_le_bytes().to_vec();
    for (kind, data) in items {
        list.extend_from_slice(&kind.to_le_bytes());
        list.extend_from_slice(&u16::try_from(data.len()).unwrap().to_le_bytes());
        list.extend_from_slice(data);
    }
    list
}

/// Returns a `SendRRData` frame with an unconnected message.
pub(crate) fn unconnected(context: u64, message: &[u8]) -> Vec<u8> {
    frame(0x6f, 7, context, &[vec![0; 6], items(&[(0, &[]), (0xb2, message)])].concat())
}

/// Returns a `SendUnitData` frame with a connected message or cyclic data.
pub(crate) fn connected(connection_id: u32, data: &[u8]) -> Vec<u8> {
    let list = items(&[(0xa1, &connection_id.to_le_bytes()), (0xb1, data)]);
    frame(0x70, 7, 0, &[vec![0; 6], list].concat())
}

/// Returns a request for instance 1 of `class`.
pub(crate) fn request(service: u8, class: u8) -> Vec<u8> {
    vec![service, 2, 0x20, class, 0x24, 1]
}

/// Returns a good reply, with its bit set.
pub(crate) fn reply(service: u8) -> Vec<u8> {
    vec![service | 0x80, 0, 0, 0, 1, 2]
}

/// A client and a server that talk, packet by packet.
#[derive(Debug, Default)]
pub(crate) struct Talk {
    pub(crate) packets: Vec<Timed>,
    client_sequence: u32,
    server_sequence: u32,
}

impl Talk {
    /// The client sends `bytes` at `time`.
    pub(crate) fn client(&mut self, time: i64, bytes: &[u8]) {
        self.packets.push((time, tcp_packet(CLIENT, SERVER, self.client_sequence, ACK, bytes)));
        self.client_sequence += u32::try_from(bytes.len()).unwrap();
    }

    /// The server sends `bytes` at `time`.
    pub(crate) fn server(&mut self, time: i64, bytes: &[u8]) {
        self.packets.push((time, tcp_packet(SERVER, CLIENT, self.server_sequence, ACK, bytes)));
        self.server_sequence += u32::try_from(bytes.len()).unwrap();
    }

    /// One exchange at `time`, answered after `micros`.
    pub(crate) fn exchange(&mut self, time: i64, micros: i64, context: u64, service: u8, class: u8) {
        self.client(time, &unconnected(context, &request(service, class)));
        self.server(time + micros, &unconnected(context, &reply(service)));
    }
}

/// One second in microseconds.
pub(crate) const SECOND: i64 = 1_000_000;

/// The golden capture A.
pub(crate) fn golden_a() -> Vec<u8> {
    golden(1, &[], &[20; 10])
}

/// The golden capture B.
pub(crate) fn golden_b() -> Vec<u8> {
    golden(2, &[(0x01, 1), (0x54, 6)], &[20, 20, 20, 20, 20, 20, 20, 20, 25, 15])
}

fn golden(millis_per_step: i64, more: &[(u8, u8)], gaps_ms: &[i64]) -> Vec<u8> {
    let mut talk = Talk::default();
    let mut now = 1_700_000_000 * SECOND;
    let mut context = 0;
    for step in 1..=100 {
        context += 1;
        talk.exchange(now, step * millis_per_step * 1_000, context, 0x0e, 4);
        now += SECOND;
    }
    for (service, class) in more {
        context += 1;
        talk.exchange(now, 5_000, context, *service, *class);
        now += SECOND;
    }
    let producer = (CLIENT.0, 2222);
    let consumer = (SERVER.0, 2222);
    let mut packets = talk.packets;
    let mut send =
        |time| packets.push((time, udp_packet(producer, consumer, &connected(0x1234, &[1, 0, 42]))));
    send(now);
    for gap in gaps_ms {
        now += gap * 1_000;
        send(now);
    }
    pcap(&packets)
}

/// Returns the text of an address.
pub(crate) fn shown(end: End) -> String {
    format!("{}:{}", Ipv4Addr::from(end.0), end.1)
}
