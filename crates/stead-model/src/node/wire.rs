//! What nodes, operators and a site's server say to each other: bodies of requests and answers, and error codes.
//!
//! Everything here is JSON. What comes over the wire is read by the `parse` functions alone, which take bytes and
//! answer with the code to refuse them with; they bound what a body may hold, its size is bounded before.
//!
//! # How signals reach an agent
//!
//! `GET /v1/nodes/N/next?wait=S` answers with the oldest signal that was not delivered, and that is its delivery. An
//! agent that keeps the id of the last signal it has taken down says so: `…/next?wait=S&after=ID` answers with the oldest
//! signal after that one, so that an answer that was lost on its way comes again. Ids grow. A report that names a signal
//! or job settles it for good.

mod code;
mod job;
mod report;
mod signal;
#[cfg(test)]
mod tests;

pub use code::{ErrorBody, WireCode, WireError};
pub use job::{INPUT_BYTES, Job, JobInput, JobOrder, JobRequest, JobState, STREAM_BYTES};
pub use report::{
    AgentState, JobOutcome, NodeReport, NodeStatus, ReportKind, ReportStatus, StoredReport, is_digest,
};
pub use signal::{Pins, RenewedToken, Signal, SignalKind, SignalRequest};

/// The longest a long-poll may wait, in seconds.
pub const LONGEST_WAIT_SECONDS: u64 = 55;

/// How much larger than `limits.body_bytes` the report of a job may be that was delivered to the node and that the query
/// names (`POST …/reports?job=ID`): two streams in JSON, whatever their bytes.
pub const JOB_REPORT_BYTES: u64 = 13 * 1024 * 1024;

/// How much larger than `limits.body_bytes` a job may be that comes over the server's socket: a text to read, in JSON.
pub const JOB_REQUEST_BYTES: u64 = 2 * INPUT_BYTES as u64;

/// The header in which the stead of a hosting node says for whom of a level above it asks, over the server's socket.
pub const FOR_HEADER: &str = "stead-for";

/// Reads a JSON body of one shape.
fn parse_body<'b, T: serde::Deserialize<'b>>(body: &'b [u8]) -> Result<T, WireError> {
    serde_json::from_slice(body).map_err(|error| {
        // The text of an error may hold bytes of the body, which may be secret: only its place is told.
        let what = if error.is_data() { "does not fit" } else { "is not JSON" };
        WireError::new(
            WireCode::E400,
            format!("the body {what} at line {} column {}", error.line(), error.column()),
        )
    })
}
