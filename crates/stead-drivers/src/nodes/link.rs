//! `node.link`: two nodes are told of each other.

use stead_model::NodeName;
use stead_runner::operation::{OpContext, OpError, Outcome};

use super::NodesSurroundings;

impl NodesSurroundings {
    /// Tells both nodes of each other.
    pub(super) async fn link(&self, _: &OpContext, _: &NodeName, _: &NodeName) -> Result<Outcome, OpError> {
        Err(OpError::permanent("this program cannot do that yet"))
    }
}
