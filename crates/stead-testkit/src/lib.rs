//! What Stead's tests share. Never shipped: only ever a development dependency.

pub mod context;
pub mod flow;
pub mod operation_contract;
pub mod sshd;
pub mod transport_contract;
pub mod tree;
