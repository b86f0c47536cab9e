//! Nodes: `stead create`, `destroy`, `test` and `status`.

mod act;
mod document;
pub(super) mod drift;
pub(super) mod hosts;
pub(super) mod jobs;
mod load;
mod meant;
pub(super) mod only_looks;
pub(crate) mod report;
pub(super) mod resume;
mod seen;
mod server;
pub(crate) mod status;
pub(super) mod verb;

pub(super) use document::code_of;
