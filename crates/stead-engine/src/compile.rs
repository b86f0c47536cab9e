//! Compiling.
use std::sync::Arc;
use stead_model::plan::{Digest, Plan};
/// A checked plan.
pub struct CompiledPlan {
    /// a
    pub plan: Arc<Plan>,
    /// b
    pub graph: Arc<crate::graph::Graph>,
    /// c
    pub hash: Digest,
}
