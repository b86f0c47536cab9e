//! `stead agent …`: this machine and others, as places where roles run.

pub(super) mod check;
pub(super) mod list;
pub(super) mod status;
