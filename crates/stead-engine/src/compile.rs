//! Compiling.
use std::sync::Arc;
use stead_model::plan::{Digest, Plan, TaskIndex};
/// A checked plan.
#[derive(Clone)]
pub struct CompiledPlan {
    /// a
    pub plan: Arc<Plan>,
    /// b
    pub graph: Arc<crate::graph::Graph>,
    /// c
    pub hash: Digest,
    /// d
    pub warnings: Vec<stead_model::Diagnostic>,
}
/// x
#[derive(Default)]
pub struct Catalogue;
impl Catalogue {
    /// x
    pub fn new(_: impl Iterator<Item = &'static stead_model::Descriptor>) -> Self { Self }
}
/// x
#[derive(Default)]
pub struct Explicit {
    /// x
    pub idempotent: Vec<Option<bool>>,
}
/// x
pub fn check(mut plan: Plan, _: &Explicit, _: &Catalogue, _: &dyn Fn(TaskIndex, &str) -> stead_model::diagnostic::Place, d: stead_model::Diagnostics) -> Result<CompiledPlan, stead_model::Diagnostics> {
    if d.has_errors() { return Err(d) }
    for task in &mut plan.tasks { task.hash = task.digest(); }
    let graph = crate::graph::Graph::build(&plan.tasks).map_err(|_| d)?;
    let hash = Digest::of(&plan.to_json());
    Ok(CompiledPlan { plan: Arc::new(plan), graph: Arc::new(graph), hash, warnings: vec![] })
}
