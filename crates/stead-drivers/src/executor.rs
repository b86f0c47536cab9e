//! The executor: this program on a target, carrying out operations for a driver elsewhere.
//!
//! ```text
//!  driver ══ SSH ══▶ attach ──socket──▶ session ──┬─ host "web1": operations, output, results, lease
//!                    (relays bytes)   (one per run)└─ host "web2" …
//! ```
//!
//! [`attach`] starts the run's session process if there is none and then only copies bytes, so a lost connection
//! costs nothing: the next one finds the session, its running operations and everything it has to say. The session
//! ends when its drivers say so or are silent for longer than the lease, and leaves nothing behind.

mod attach;
mod files;
mod greeting;
mod home;
mod host;
mod leftovers;
mod lock;
mod output;
mod server;
mod shipped;
mod versions;
mod work;

pub use attach::attach;
pub use server::serve;
