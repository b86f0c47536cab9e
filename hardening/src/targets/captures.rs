//! Captures, and what they hold of EtherNet/IP and CIP.

use stead_bundle::Style;
use stead_bundle::analysis::{AnalysisOptions, analyze, render_capture};

use super::Target;

pub(super) const CAPTURE: Target = Target {
    name: "capture",
    about: "a capture, pcap or pcapng",
    run: capture,
    words: &["\u{a}\u{d}\u{d}\u{a}", "\u{0}\u{0}\u{0}\u{0}", "\u{8}\u{0}\u{45}\u{0}"],
};

pub(super) const CIP: Target = Target {
    name: "cip",
    about: "EtherNet/IP in good packets: pieces of a length byte, a direction byte and that many bytes",
    run: cip,
    words: &[
        "\u{6f}\u{0}",
        "\u{70}\u{0}",
        "\u{65}\u{0}",
        "\u{63}\u{0}",
        "\u{b2}\u{0}",
        "\u{b1}\u{0}",
        "\u{a1}\u{0}",
        "\u{0}\u{0}\u{0}\u{0}",
    ],
};

fn capture(bytes: &[u8]) {
    check(bytes);
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
    for style in [Style::Text, Style::Markdown] {
        assert!(!render_capture(&found, style).is_empty());
    }
    let written = serde_json::to_string(&found).expect("a summary is always JSON");
    let read = serde_json::from_str::<stead_bundle::analysis::Capture>(&written);
    assert_eq!(serde_json::to_string(&read.expect("what was written is read")).ok(), Some(written));
}

fn cip(bytes: &[u8]) {
    let mut packets =
        vec![0xd4, 0xc3, 0xb2, 0xa1, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0, 0, 1, 0, 0, 0];
    let (mut sequences, mut time, mut rest) = ([1_u32; 2], 0_u32, bytes);
    while let [length, way, tail @ ..] = rest {
        let (body, tail) = tail.split_at(usize::from(*length).min(tail.len()));
        rest = tail;
        time += 1;
        let (is_server, is_udp) = (way & 1 == 1, way & 2 == 2);
        let sequence = &mut sequences[usize::from(is_server)];
        let packet = packet(is_server, is_udp, *sequence, body);
        *sequence = sequence.wrapping_add(u32::try_from(body.len()).unwrap_or(0));
        let length = u32::try_from(packet.len()).unwrap_or(0).to_le_bytes();
        packets.extend([time.to_le_bytes(), [0; 4], length, length].concat());
        packets.extend(packet);
    }
    check(&packets);
}

/// Returns the packet of one piece: Ethernet, IPv4, TCP or UDP.
fn packet(is_server: bool, is_udp: bool, sequence: u32, body: &[u8]) -> Vec<u8> {
    let (client, server) =
        (([10, 0, 0, 1], 50_000_u16), ([10, 0, 0, 2], if is_udp { 2222_u16 } else { 44818 }));
    let (from, to) = if is_server { (server, client) } else { (client, server) };
    let mut segment = [from.1.to_be_bytes(), to.1.to_be_bytes()].concat();
    if is_udp {
        segment.extend(u16::try_from(8 + body.len()).unwrap_or(8).to_be_bytes());
        segment.extend([0, 0]);
    } else {
        segment.extend(sequence.to_be_bytes());
        segment.extend([0, 0, 0, 0, 0x50, 0x10, 0xff, 0xff, 0, 0, 0, 0]);
    }
    segment.extend_from_slice(body);
    let mut packet = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0, 0x45, 0];
    packet.extend(u16::try_from(20 + segment.len()).unwrap_or(20).to_be_bytes());
    packet.extend([0, 0, 0, 0, 64, if is_udp { 17 } else { 6 }, 0, 0]);
    packet.extend(from.0);
    packet.extend(to.0);
    packet.extend(segment);
    packet
}
