//! Nodes as they are: what is remembered of them where they were made.

pub mod entry;
pub mod operations;

pub use entry::{NodeChange, NodeEntry, NodeStatus, NodesState, ServerEntry};
