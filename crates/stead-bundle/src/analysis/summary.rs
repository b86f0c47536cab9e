//! What analysis finds, as `analysis/summary.json` holds it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use stead_model::time::Timestamp;

/// Version of the format.
pub const SUMMARY_SCHEMA: u32 = 1;

/// `analysis/summary.json`: the captures of all roles.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Version of this format: 1.
    pub schema: u32,
    /// Ports taken for EtherNet/IP, ascending.
    pub ports: Vec<u16>,
    /// What each role captured.
    pub roles: BTreeMap<String, RoleCaptures>,
    /// A client's view against a server's, if there are both.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compare: Option<Comparison>,
}

/// The captures of one role.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RoleCaptures {
    /// In order of their paths.
    pub captures: Vec<Capture>,
}

/// One capture.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Capture {
    /// Where it is.
    pub path: String,
    /// How long the file is.
    pub bytes: u64,
    /// How many packets it has.
    pub packets: u64,
    /// Whether the file ends in the middle of a packet.
    pub truncated: bool,
    /// How many packets were longer than what was captured of them.
    pub truncated_packets: u64,
    /// When the earliest packet was seen.
    pub first: Option<Timestamp>,
    /// When the latest packet was seen.
    pub last: Option<Timestamp>,
    /// Encapsulation.
    pub enip: Enip,
    /// Messages.
    pub cip: Cip,
    /// From request to reply.
    pub latency_ms: Latency,
    /// Cyclic data.
    pub io: Io,
    /// Who the device says it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<Identity>,
    /// How the streams fared.
    pub tcp: Tcp,
}

/// Frames of EtherNet/IP.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Enip {
    /// How many.
    pub frames: u64,
    /// Towards the server.
    pub requests: u64,
    /// From the server.
    pub responses: u64,
    /// By command.
    pub commands: BTreeMap<String, u64>,
    /// Bytes that belong to no frame.
    pub resync_bytes: u64,
}

/// Messages of CIP.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cip {
    /// How many.
    pub messages: u64,
    /// Towards the server.
    pub requests: u64,
    /// From the server.
    pub responses: u64,
    /// By service, class and direction.
    pub services: Vec<ServiceCount>,
    /// Classes of requests, ascending, without 0.
    pub classes: Vec<u16>,
    /// Replies by general status, such as `0x00`.
    pub status: BTreeMap<String, u64>,
    /// What messages carried inside.
    pub embedded: Vec<ServiceCount>,
    /// Messages whose service has no name.
    pub unknown_services: u64,
    /// Messages that contradict themselves.
    pub malformed: u64,
    /// The paths asked for most.
    pub paths_top: Vec<PathCount>,
}

/// How often a service was used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceCount {
    /// Its code, without the bit that marks replies.
    pub service: u8,
    /// Its name.
    pub name: String,
    /// The class it was used on; 0 in replies.
    pub class: u16,
    /// Whether these are replies.
    pub response: bool,
    /// How many.
    pub count: u64,
}

/// How often a path was asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathCount {
    /// The path, such as `0x04/1/3`, or the name of a tag.
    pub path: String,
    /// How many requests.
    pub count: u64,
}

/// Times from request to reply in milliseconds; null without samples.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// How many samples.
    pub count: u64,
    /// The shortest.
    pub min: Option<f64>,
    /// The longest.
    pub max: Option<f64>,
    /// The mean.
    pub mean: Option<f64>,
    /// Half are not longer.
    pub p50: Option<f64>,
    /// 90 % are not longer.
    pub p90: Option<f64>,
    /// 95 % are not longer.
    pub p95: Option<f64>,
    /// 99 % are not longer.
    pub p99: Option<f64>,
    /// Requests without a reply.
    pub unanswered: u64,
}

/// Cyclic data.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Io {
    /// How many packets.
    pub packets: u64,
    /// By flow.
    pub flows: Vec<IoFlow>,
    /// Between packets of one flow.
    pub intervals_ms: Intervals,
}

/// Packets of one producer on one connection.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct IoFlow {
    /// Address and port of the sender.
    pub src: String,
    /// Address and port of the receiver.
    pub dst: String,
    /// The connection's id.
    pub connection_id: u32,
    /// How many packets.
    pub packets: u64,
    /// Mean time between two packets; null without one.
    pub mean_ms: Option<f64>,
    /// Longest less shortest time between two packets; null without one.
    pub jitter_ms: Option<f64>,
}

/// Times between packets of one flow in milliseconds, all flows together; null without samples.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Intervals {
    /// How many.
    pub count: u64,
    /// The shortest.
    pub min: Option<f64>,
    /// The longest.
    pub max: Option<f64>,
    /// The mean.
    pub mean: Option<f64>,
    /// The standard deviation.
    pub std_dev: Option<f64>,
    /// The largest jitter of a flow.
    pub jitter: Option<f64>,
    /// Half are not longer.
    pub p50: Option<f64>,
    /// 90 % are not longer.
    pub p90: Option<f64>,
    /// 95 % are not longer.
    pub p95: Option<f64>,
    /// 99 % are not longer.
    pub p99: Option<f64>,
    /// What was expected.
    pub expected: f64,
    /// How many are further from it than tolerated.
    pub violations: u64,
    /// The same in percent; null without samples.
    pub violation_pct: Option<f64>,
}

/// Who a device says it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// Number of the vendor.
    pub vendor_id: u16,
    /// Name of the product.
    pub product_name: String,
}

/// How TCP streams of EtherNet/IP fared.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tcp {
    /// Connections.
    pub flows: u64,
    /// Segments that repeat bytes.
    pub retransmits: u64,
    /// Segments that came early.
    pub out_of_order: u64,
    /// Holes that were never filled.
    pub lost_segments: u64,
    /// Segments that reset a connection.
    pub resets: u64,
}

/// A client's captures against a server's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// The share of the client's packets that the server lacks; null if the client has none.
    pub drop_rate: Option<f64>,
    /// What the client saw and the server did not.
    pub services_missing_at_server: Vec<ServiceCount>,
    /// The server's mean latency by the client's; null if one is missing.
    pub latency_ratio: Option<f64>,
    /// Whether the server's mean is more than one and a half of the client's.
    pub latency_flag: bool,
}
