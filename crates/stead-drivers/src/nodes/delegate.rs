//! `node.delegate`: a hosting node does something with the nodes in it.

use stead_model::NodeName;
use stead_runner::operation::{OpContext, OpError, Outcome};

use super::NodesSurroundings;

impl NodesSurroundings {
    /// Has the stead on `node` do `verb` with the nodes in it.
    pub(super) async fn delegate(&self, _: &OpContext, _: &NodeName, _: &str) -> Result<Outcome, OpError> {
        Err(OpError::permanent("this program cannot do that yet"))
    }
}
