//! `node.hosting`: whether a node can make machines.

use stead_model::NodeName;
use stead_runner::operation::{OpContext, OpError, Outcome};

use super::NodesSurroundings;

impl NodesSurroundings {
    /// Asks a node whether it can make machines.
    pub(super) async fn check_hosting(&self, _: &OpContext, _: &NodeName) -> Result<Outcome, OpError> {
        Err(OpError::permanent("this program cannot do that yet"))
    }
}
