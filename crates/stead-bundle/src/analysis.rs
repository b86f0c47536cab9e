//! Analysis of network captures: what EtherNet/IP and CIP traffic they hold and how it fared.
//!
//! A capture is read once, as a stream, in bounded memory:
//!
//! ```text
//! capture_file ─ packet ─┬─ connections ─ stream ─ framer ─┐
//! (pcap, pcapng)         └─ UDP ────────────────────────── decoder ─ summary
//! ```
//!
//! Nothing is trusted: whatever the bytes are, the result is a summary or an error, and every table has a limit.

mod bundle;
mod bytes;
mod capture_file;
mod cip;
mod compare;
mod connections;
mod decoder;
mod enip;
mod exchange;
mod framer;
mod io_flows;
mod packet;
mod pcap;
mod pcapng;
mod ports;
mod report;
mod samples;
mod stream;
mod summary;
mod tally;
mod window;

#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::thread;

use stead_model::time::Timestamp;

use crate::error::RecordError;
use crate::open_file::open_regular;
use crate::stored::LoadError;

use capture_file::{CaptureFile, OpenCaptureError};
use connections::{Connections, PortRoles};
use decoder::Decoder;
use io_flows::Expected;
use packet::{Transport, decode};

pub use bundle::analyze_bundle;
pub use compare::{RoleKind, summarize};
pub use ports::recorded_ports;
pub(crate) use report::summary_sections;
pub use report::{Drops, render_capture, render_summary};
pub(crate) use samples::rounded;
pub use summary::{
    Capture, Cip, Comparison, Enip, Identity, Intervals, Io, IoFlow, Latency, PathCount, RoleCaptures,
    SUMMARY_SCHEMA, ServiceCount, Summary, Tcp,
};

/// What to look for.
#[derive(Clone, Debug, PartialEq)]
pub struct AnalysisOptions {
    /// Ports taken for EtherNet/IP.
    pub ports: BTreeSet<u16>,
    /// The interval expected between packets of cyclic data, in milliseconds.
    pub expected_rpi_ms: f64,
    /// How far an interval may be from it, in percent.
    pub rpi_tolerance_pct: f64,
}

impl Default for AnalysisOptions {
    fn default() -> Self {
        Self { ports: BTreeSet::from([2222, 44818]), expected_rpi_ms: 20.0, rpi_tolerance_pct: 10.0 }
    }
}

/// Why a capture could not be analysed.
#[derive(Debug, thiserror::Error)]
pub enum CaptureError {
    /// The file is no capture.
    #[error("{path} is not a capture: it begins neither as pcap nor as pcapng")]
    NotACapture {
        /// The file as it was named.
        path: String,
    },
    /// The file could not be read.
    #[error(transparent)]
    Read(#[from] RecordError),
    /// The bundle around it could not be read.
    #[error(transparent)]
    Bundle(#[from] LoadError),
}

/// A capture to analyse.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CaptureSource {
    /// The file.
    pub path: PathBuf,
    /// What it is called in the result.
    pub name: String,
}

/// Returns what the capture at `path` holds; `name` is what the result calls it.
pub fn analyze_file(path: &Path, name: &str, options: &AnalysisOptions) -> Result<Capture, CaptureError> {
    let file = open_regular(path).map_err(RecordError::of("open", path))?;
    let bytes = file.metadata().map_err(RecordError::of("read", path))?.len();
    // What follows a broken record is not read, but belongs to the file.
    analyze(file, name, options).map(|capture| Capture { bytes, ..capture })
}

/// Returns what `captures` hold, in their order; at most `jobs` are read at a time.
pub fn analyze_files(
    captures: &[CaptureSource],
    options: &AnalysisOptions,
    jobs: usize,
) -> Vec<Result<Capture, CaptureError>> {
    let waiting = Mutex::new(captures.iter().enumerate());
    let work = || {
        let mut done = Vec::new();
        loop {
            // A poisoned lock still counts: the iterator is whole between two calls.
            let next = waiting.lock().unwrap_or_else(std::sync::PoisonError::into_inner).next();
            let Some((index, capture)) = next else { return done };
            done.push((index, analyze_file(&capture.path, &capture.name, options)));
        }
    };
    let mut done = thread::scope(|scope| {
        let workers: Vec<_> = (1..jobs.min(captures.len())).map(|_| scope.spawn(work)).collect();
        let mut done = work();
        for worker in workers {
            done.extend(worker.join().expect("analysis does not panic"));
        }
        done
    });
    done.sort_by_key(|(index, _)| *index);
    done.into_iter().map(|(_, capture)| capture).collect()
}

/// Returns what the capture that `source` gives holds; `name` is what the result calls it.
pub fn analyze(source: impl Read, name: &str, options: &AnalysisOptions) -> Result<Capture, CaptureError> {
    let mut file = CaptureFile::open(source).map_err(|error| match error {
        OpenCaptureError::NotACapture => CaptureError::NotACapture { path: name.to_owned() },
        OpenCaptureError::Read(source) => RecordError::of("read", Path::new(name))(source).into(),
    })?;
    let mut analysis = Analysis::new(options);
    while let Some(packet) = file.next().map_err(RecordError::of("read", Path::new(name)))? {
        analysis.take(packet);
    }
    Ok(analysis.finish(name, file.bytes_read(), file.truncated()))
}

/// The state of one analysis.
#[derive(Debug)]
struct Analysis {
    ports: PortSet,
    packets: u64,
    truncated_packets: u64,
    first: Option<i64>,
    last: Option<i64>,
    /// The time of the last packet that has one.
    now: i64,
    connections: Connections,
    decoder: Decoder,
}

impl Analysis {
    fn new(options: &AnalysisOptions) -> Self {
        let expected = Expected { millis: options.expected_rpi_ms, tolerance_pct: options.rpi_tolerance_pct };
        Self {
            ports: PortSet::of(&options.ports),
            packets: 0,
            truncated_packets: 0,
            first: None,
            last: None,
            now: 0,
            connections: Connections::default(),
            decoder: Decoder::new(expected),
        }
    }

    fn take(&mut self, packet: capture_file::Packet<'_>) {
        self.packets += 1;
        self.truncated_packets += u64::from(packet.cut);
        if let Some(time) = packet.time {
            self.now = time;
            self.first = Some(self.first.map_or(time, |first| first.min(time)));
            self.last = self.last.max(Some(time));
        }
        let Some(datagram) = decode(packet.link, packet.data) else { return };
        let (source, destination) = (datagram.source, datagram.destination);
        let roles = match (self.ports.has(source.port), self.ports.has(destination.port)) {
            (false, false) => return,
            (false, true) => PortRoles::SenderIsClient,
            (true, false) => PortRoles::SenderIsServer,
            (true, true) => PortRoles::Unknown,
        };
        match datagram.transport {
            Transport::Tcp(segment) => {
                self.connections.take(source, destination, segment, self.now, roles, &mut self.decoder);
            }
            Transport::Udp(payload) => {
                self.decoder.datagram(source, destination, payload, self.now, roles);
            }
        }
    }

    fn finish(mut self, name: &str, bytes: u64, truncated: bool) -> Capture {
        let (tcp, resync_bytes) = self.connections.finish(&mut self.decoder);
        let decoded = self.decoder.finish(resync_bytes);
        Capture {
            path: name.to_owned(),
            bytes,
            packets: self.packets,
            truncated,
            truncated_packets: self.truncated_packets,
            first: self.first.map(Timestamp::from_micros),
            last: self.last.map(Timestamp::from_micros),
            enip: decoded.enip,
            cip: decoded.cip,
            latency_ms: decoded.latency,
            io: decoded.io,
            identity: decoded.identity,
            tcp,
        }
    }
}

/// A set of ports, asked for every packet.
#[derive(Debug)]
struct PortSet(Box<[u64; 1024]>);

impl PortSet {
    fn of(ports: &BTreeSet<u16>) -> Self {
        let mut bits = Box::new([0; 1024]);
        for port in ports {
            bits[usize::from(port / 64)] |= 1 << (port % 64);
        }
        Self(bits)
    }

    fn has(&self, port: u16) -> bool {
        self.0[usize::from(port / 64)] & 1 << (port % 64) != 0
    }
}
