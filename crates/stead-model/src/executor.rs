//! What a driver and the executor on a target say to each other: protocol 1.
//!
//! ```text
//!   driver ── Request (id 0: the session, else one operation) ──▶ executor
//!          ◀── Reply ──────────────────────────────────────────
//! ```
//!
//! On its standard output the executor first writes [`BANNER`]; then both sides send [`Frame`]s: JSON messages, and
//! bytes that belong to the message before them on the same id. Members nobody knows are ignored; a message nobody
//! knows is answered `error`. Reading and writing is the runner's and the drivers' work.

mod bytes;
mod frame;
mod message;
mod names;

pub use bytes::ByteText;
pub use frame::{Frame, FrameBuffer, FrameError, FrameKind, HEADER, LONGEST, SHORTEST};
pub use message::{
    Answer, EntryKind, ExecRequest, Expressed, Hello, Holder, Keep, OpRequest, OpResult, OpStatus, Pipe,
    Received, Reply, Request, Restart, RoleRequest, SourceEntry, SourceTree, UnknownMessage, Welcome, write,
};
pub use names::target_arch;

/// The version of the protocol this program speaks.
pub const PROTOCOL: u32 = 1;

/// The first line an executor writes.
pub const BANNER: &[u8] = b"STEAD-EXECUTOR 1\n";

/// How much may come before [`BANNER`]: what login scripts print.
pub const NOISE: usize = 64 * 1024;

/// Bytes one frame carries at most when content is sent piece by piece: small enough that others get their turn.
pub const PIECE: usize = 64 * 1024;

/// The operation that answers `facts`.
pub const FACTS: &str = "facts";

/// How long a session lives without hearing from its driver, unless `hello` says otherwise.
pub const LEASE: std::time::Duration = std::time::Duration::from_secs(15);
