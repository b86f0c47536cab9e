//! Containers: the driver, the processes behind `stead container`, and what they leave.

pub(crate) mod account;
mod contract;
mod failing;
mod making;
mod reached;
mod rootless;
pub(crate) mod yard;
