//! Nodes: `stead create`, `destroy`, `test` and `status`.

mod act;
mod document;
mod load;
pub(super) mod resume;
mod seen;
mod server;
pub(super) mod status;
pub(super) mod verb;
