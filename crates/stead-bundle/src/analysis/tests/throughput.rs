//! How fast a large capture is read. Run in a release build with `--ignored`.

use std::io::{self, Read};
use std::time::Instant;

use super::*;

/// A capture of any length: the same traffic again and again.
struct Endless {
    head: Vec<u8>,
    body: Vec<u8>,
    at: usize,
    left: usize,
}

impl Read for Endless {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let from = if self.at < self.head.len() {
            &self.head[self.at..]
        } else {
            &self.body[(self.at - self.head.len()) % self.body.len()..]
        };
        let len = from.len().min(buffer.len()).min(self.left);
        buffer[..len].copy_from_slice(&from[..len]);
        self.at += len;
        self.left -= len;
        Ok(len)
    }
}

fn peak_memory_kib() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().trim_end_matches(" kB").trim().parse().ok()
}

#[test]
#[ignore = "a figure of release builds"]
fn a_gigabyte_of_exchanges_is_read_fast_and_in_little_memory() {
    let mut talk = Talk::default();
    let mut packets = Vec::new();
    for index in 0..100_000_i64 {
        // Two connections, so that each begins anew when the capture repeats itself.
        if index % 50_000 == 0 {
            talk.connect(index * 500, u32::try_from(index * 1_000).unwrap());
        }
        let context = u64::try_from(index).unwrap();
        talk.exchange(index * 500, 100 + index % 400, context, 0x0e, 4);
        if index % 4 == 0 {
            packets
                .push((index * 500, udp_packet((CLIENT.0, 2222), (SERVER.0, 2222), &connected(1, &[0; 32]))));
        }
    }
    packets.extend(talk.packets);
    packets.sort_by_key(|(time, _)| *time);
    let file = pcap(&packets);
    for size in [64 << 20, 1 << 30, 4_usize << 30] {
        let (head, body) = (file[..24].to_vec(), file[24..].to_vec());
        let source = Endless { head, body, at: 0, left: size };
        let start = Instant::now();
        let found = analyze(source, "x", &AnalysisOptions::default()).unwrap();
        let seconds = start.elapsed().as_secs_f64();
        let rate = size as f64 / 1e6 / seconds;
        println!(
            "{size} bytes, {} packets: {seconds:.2} s, {rate:.0} MB/s, {:?} KiB",
            found.packets,
            peak_memory_kib()
        );
        assert!(found.cip.messages as f64 > 0.8 * found.packets as f64, "{found:?}");
    }
}
