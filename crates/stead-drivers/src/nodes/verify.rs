//! `node.verify`: a node is compared with what it should be.

use stead_model::NodeName;
use stead_runner::operation::{OpContext, OpError, Outcome};

use super::NodesSurroundings;

impl NodesSurroundings {
    /// Compares a node with what it should be.
    pub(super) async fn verify(&self, _: &OpContext, _: &NodeName) -> Result<Outcome, OpError> {
        Err(OpError::permanent("this program cannot do that yet"))
    }
}
