//! The tasks of nodes as operations.

use std::sync::Arc;

use stead_model::node::NodeStatus;
use stead_model::node::operations as op;
use stead_model::{Descriptor, NodeName};
use stead_runner::operation::{Action, OpContext, OpError, Outcome, Params, Registry, Stop};

use super::NodesSurroundings;

/// What is said of a node whose work was stopped midway.
pub(super) const CANCELLED: &str = "cancelled";

/// An operation of nodes.
struct NodeOperation {
    descriptor: &'static Descriptor,
    nodes: Arc<NodesSurroundings>,
}

/// Adds every operation of nodes.
pub(super) fn add_to(registry: &mut Registry, nodes: &Arc<NodesSurroundings>) {
    for descriptor in &op::OPERATIONS {
        registry.add_action(NodeOperation { descriptor, nodes: Arc::clone(nodes) });
    }
}

#[async_trait::async_trait]
impl Action for NodeOperation {
    fn descriptor(&self) -> &'static Descriptor {
        self.descriptor
    }

    async fn check(&self, _: &OpContext, _: &Params) -> Result<Outcome, OpError> {
        Err(OpError::permanent("a run of nodes is planned without asking anybody"))
    }

    async fn run(&self, cx: &OpContext, params: &Params) -> Result<Outcome, OpError> {
        let nodes = &self.nodes;
        nodes.begin_run(cx.run_id.as_ref()).await?;
        let name = params.text("node").map(node_name).transpose()?;
        if let Some(name) = &name {
            nodes.touch(name);
        }
        // What is delegated is asked to stop where it runs, and waited for.
        let stop = if self.descriptor.name == op::NODE_DELEGATE { Stop::Kill } else { Stop::Ask };
        let done = tokio::select! {
            biased;
            done = self.act(cx, params, name.as_ref()) => done,
            () = cx.cancel.at_least(stop) => Err(OpError { changed: true, ..OpError::operation(CANCELLED) }),
        };
        if let (Err(error), Some(name)) = (&done, &name)
            && self.fails_node()
        {
            let message = error.message.clone();
            nodes
                .update(name, error.changed, |entry| {
                    (entry.status, entry.error) = (NodeStatus::Failed, Some(message));
                })
                .await?;
        }
        done
    }
}

impl NodeOperation {
    /// Whether a node is not what it should be when this fails.
    fn fails_node(&self) -> bool {
        !matches!(self.descriptor.name, op::NODE_VERIFY | op::NODE_LINK | op::NODE_DELEGATE)
    }

    async fn act(
        &self,
        cx: &OpContext,
        params: &Params,
        name: Option<&NodeName>,
    ) -> Result<Outcome, OpError> {
        let nodes = &self.nodes;
        let node = || name.ok_or_else(|| OpError::invalid("no node is named"));
        match self.descriptor.name {
            op::NODE_MAKE => nodes.make(cx, node()?).await,
            op::NODE_PUSH => nodes.push(cx, node()?).await,
            op::NODE_AWAIT => nodes.await_report(cx, node()?).await,
            op::NODE_SIGNAL => nodes.signal(cx, node()?).await,
            op::NODE_HOSTING => nodes.check_hosting(cx, node()?).await,
            op::NODE_LINK => nodes.link(cx, node()?, &node_name(params.required("peer")?)?).await,
            op::NODE_VERIFY => nodes.verify(cx, node()?).await,
            op::NODE_REMOVE => {
                let (made_here, terminate) =
                    (params.flag("made_here", false), params.flag("terminate", false));
                nodes.remove(cx, node()?, made_here, terminate).await
            }
            op::NODE_DELEGATE => {
                let deputy = match params.text("host") {
                    Some(host) => nodes.host_deputy(host)?,
                    None => nodes.node_deputy(node()?)?,
                };
                nodes.delegate(cx, &deputy, params.required("verb")?).await
            }
            op::NODE_SERVER => nodes.serve(cx, params.required("act")?).await,
            op::NODE_MILESTONE => Ok(Outcome::default()),
            other => Err(OpError::invalid(format!("there is no operation `{other}` of nodes"))),
        }
    }
}

fn node_name(text: &str) -> Result<NodeName, OpError> {
    NodeName::parse(text).map_err(|error| OpError::invalid(error.to_string()))
}
