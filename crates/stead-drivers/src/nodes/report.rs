//! `node.await` and `node.signal`: a node configures itself, and its report at the level's server is waited for.

use stead_model::NodeName;
use stead_runner::operation::{OpContext, OpError, Outcome};

use super::NodesSurroundings;

impl NodesSurroundings {
    /// Waits for the report of a node that fetches its spec.
    pub(super) async fn await_report(&self, _: &OpContext, _: &NodeName) -> Result<Outcome, OpError> {
        Err(OpError::permanent("this program cannot do that yet"))
    }

    /// Tells a node to fetch its spec, and waits for its report.
    pub(super) async fn signal(&self, _: &OpContext, _: &NodeName) -> Result<Outcome, OpError> {
        Err(OpError::permanent("this program cannot do that yet"))
    }
}
