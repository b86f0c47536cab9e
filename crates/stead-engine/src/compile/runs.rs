//! From a run manifest to a plan of phases: which roles there are, where and with what they run, in which order.
//!
//! [`render_role`] fills in what is known only when a role starts.

use std::sync::Arc;

use stead_model::RunPlan;

use super::CompiledPlan;

mod paths;
mod render;

pub use render::{AgentNames, RenderError, RenderedRole, RoleNames, RunNames, render_role, render_workdir};

/// A run of roles that can start.
#[derive(Clone, Debug)]
pub struct CompiledRun {
    /// The plan: one task per phase.
    pub compiled: CompiledPlan,
    /// What it says of roles; also in the plan.
    pub run: Arc<RunPlan>,
}
