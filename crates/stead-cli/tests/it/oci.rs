//! Containers: the driver, the processes behind `stead container`, and what they leave.

mod contract;
mod failing;
mod making;
pub(crate) mod yard;
