//! Calls over TLS in Cap'n Proto.
//!
//! ```text
//! publisher, worker, command line                                   master
//!   Client: api::Master ── Request ──▶ Link ═ TLS 1.3 ═▶ connection ── spawns ──▶ Arc<dyn api::Master>
//!   (any thread)            Carrier's one thread    │    serve's one thread           (any thread)
//! ```
//!
//! [`serve`] takes connections for a master, [`Client`] is a master somewhere else. What is not `Send` stays on one thread on
//! either side; everything that costs time (reading specs, the master's own work) happens outside of it, so that one peer
//! delays no other. `convert` is the only place that knows both the generated code and the types of a fleet, and believes
//! nothing it reads. Bounds are here.

use std::time::Duration;

use stead_model::fleet::peer::Method;

mod client;
mod convert;
#[expect(
    clippy::unwrap_used,
    missing_docs,
    reason = "made by capnpc from schema/fleet.capnp"
)]
#[rustfmt::skip]
pub mod fleet_capnp;
mod flow;
pub(crate) mod fuzzing;
mod link;
mod request;
mod serve;
mod service;
mod transport;

pub use client::{Client, join};
pub use link::Carrier;
pub use request::{Answer, Desired, Hello, Request, SentAssignment};
pub use serve::{Room, ServeError, serve, serve_in};
pub use transport::{Link, Mode, Transport};

/// The version of the protocol: what it speaks with others of this and the version before.
pub const PROTO_MAJOR: u16 = 1;
/// What was added to it: 1 lists and revokes enrolments, 2 tells processes of one worker apart, 3 says which
/// group an instance is of and what it takes, 4 has times and an id of a token, 5 publishes groups together.
pub const PROTO_MINOR: u16 = 5;
/// The largest message that is sent or read.
pub const MAX_MESSAGE: usize = 64 << 20;
/// The largest message that is read of somebody without a certificate.
const MAX_STRANGER_MESSAGE: usize = 64 << 10;
/// The largest message that is read of a worker: it reports instances, and publishes nothing.
const MAX_WORKER_MESSAGE: usize = 8 << 20;
/// The most connections of one worker; it has one, or two while it changes masters.
const MAX_WORKER_CONNECTIONS: usize = 16;
/// The most VMs in a group.
pub const MAX_SPECS: usize = 100_000;
/// The most groups that are published at once with another.
const MAX_TOGETHER: usize = 1_000;
/// The most connections at once.
pub const MAX_CONNECTIONS: usize = 20_000;
/// The most peers at once that have not shaken hands, of all and of one address; they take no room from members.
const MAX_HANDSHAKES: usize = 1_000;
const MAX_HANDSHAKES_OF_ONE: usize = 250;
/// The most of them that have not shown a certificate.
const MAX_STRANGERS: usize = 1_000;
/// The most calls of one connection at once; a client has three or four.
const MAX_CALLS: usize = 64;
/// The longest that a call may ask to wait.
pub const MAX_WAIT: Duration = Duration::from_secs(55);
/// How long an ordinary call may take, and what waits may take beyond their wait.
const DEADLINE: Duration = Duration::from_secs(10);
/// How long a publication may take.
const PUBLISH_DEADLINE: Duration = Duration::from_secs(60);
/// How long nothing may come from the other side before it is asked whether it is there.
const IDLE: Duration = Duration::from_secs(15);

/// Returns what the reader of messages up to `bytes` accepts.
fn reader_options(bytes: usize) -> capnp::message::ReaderOptions {
    let mut options = capnp::message::ReaderOptions::new();
    options.traversal_limit_in_words(Some(bytes / 8)).nesting_limit(32);
    options
}

/// Returns what somebody is told who may not call `method`.
fn forbidden(role: stead_model::fleet::peer::Role, method: Method) -> String {
    format!("a certificate with the role `{role}` may not call {}", method.word())
}
