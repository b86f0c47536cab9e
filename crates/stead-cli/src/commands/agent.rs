//! `stead agent …`: this machine and others, as places where roles run.

pub(crate) mod check;
pub(crate) mod list;
pub(crate) mod status;
