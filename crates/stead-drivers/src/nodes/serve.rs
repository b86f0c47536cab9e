//! `node.server`: the server of a level is there while its nodes need it.

use stead_runner::operation::{OpContext, OpError, Outcome};

use super::NodesSurroundings;

impl NodesSurroundings {
    /// Has a server answer, or lets go of it.
    pub(super) async fn serve(&self, _: &OpContext, _: &str) -> Result<Outcome, OpError> {
        Err(OpError::permanent("this program cannot do that yet"))
    }
}
