//! Containers: the driver, the processes behind `stead container`, and what they leave.

mod contract;
mod failing;
mod making;
mod reached;
pub(crate) mod yard;
