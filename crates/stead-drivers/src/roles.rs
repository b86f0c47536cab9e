//! Places where roles run: what is asked of them, and the agent of this machine.
//!
//! What a driver asks of a place is answered by the same code here and in an executor on another machine.

mod artifacts;
pub(crate) mod held;
mod local;
pub(crate) mod probe;
pub(crate) mod site;

pub use local::LocalAgent;
