//! `node.push`: the driver applies a node's spec over one SSH connection.

use stead_model::NodeName;
use stead_runner::operation::{OpContext, OpError, Outcome};

use super::NodesSurroundings;

impl NodesSurroundings {
    /// Applies the spec of a node over SSH.
    pub(super) async fn push(&self, _: &OpContext, _: &NodeName) -> Result<Outcome, OpError> {
        Err(OpError::permanent("this program cannot do that yet"))
    }
}
