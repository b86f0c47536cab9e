//! The operations of plans of nodes: only runs of nodes have them.

use crate::operation::{Descriptor, Effect, ParamKind, ParamSpec, RootSupport};

/// Makes a machine, starts it and learns its address.
pub const NODE_MAKE: &str = "node.make";
/// Applies a node's spec over SSH.
pub const NODE_PUSH: &str = "node.push";
/// Waits for the report of a node that fetches its spec.
pub const NODE_AWAIT: &str = "node.await";
/// Tells a node to fetch its spec and waits for its report.
pub const NODE_SIGNAL: &str = "node.signal";
/// Asks a node whether it can make machines.
pub const NODE_HOSTING: &str = "node.hosting";
/// Tells two nodes of each other.
pub const NODE_LINK: &str = "node.link";
/// Compares a node with what it should be.
pub const NODE_VERIFY: &str = "node.verify";
/// Removes a machine.
pub const NODE_REMOVE: &str = "node.remove";
/// Has a hosting node do something with the nodes in it.
pub const NODE_DELEGATE: &str = "node.delegate";
/// Looks after the server of a level.
pub const NODE_SERVER: &str = "node.server";
/// Does nothing: all before it went well.
pub const NODE_MILESTONE: &str = "node.milestone";

/// What a hosting node does with the nodes in it, as `verb` of [`NODE_DELEGATE`].
pub mod delegated {
    /// Makes them.
    pub const CREATE: &str = "create";
    /// Looks at them.
    pub const VERIFY: &str = "verify";
    /// Removes them.
    pub const DESTROY: &str = "destroy";
    /// Removes those that this run made.
    pub const ROLLBACK: &str = "rollback";
}

/// What is done with a server, as `act` of [`NODE_SERVER`].
pub mod serving {
    /// It is there and answers.
    pub const ENSURE: &str = "ensure";
    /// It goes, if a run started it and nobody needs it any more.
    pub const RELEASE: &str = "release";
}

const NODE: ParamSpec = ParamSpec::new("node", ParamKind::NonEmptyText, "The node.").required();
const ONE_NODE: &[ParamSpec] = &[NODE];
const TWO_NODES: &[ParamSpec] =
    &[NODE, ParamSpec::new("peer", ParamKind::NonEmptyText, "The other node.").required()];
const REMOVED: &[ParamSpec] = &[
    NODE,
    ParamSpec::new("made_here", ParamKind::Bool, "Only if this run made it."),
    ParamSpec::new("terminate", ParamKind::Bool, "The node stops itself first."),
];
const DELEGATED: &[ParamSpec] = &[
    ParamSpec::new("node", ParamKind::NonEmptyText, "The hosting node."),
    ParamSpec::new("host", ParamKind::NonEmptyText, "Instead of a node: a host that is another machine."),
    ParamSpec::new("verb", ParamKind::NonEmptyText, "What it does with the nodes in it.").required(),
];
const SERVED: &[ParamSpec] =
    &[ParamSpec::new("act", ParamKind::NonEmptyText, "What is done with the server.").required()];

const fn operation(name: &'static str, summary: &'static str, params: &'static [ParamSpec]) -> Descriptor {
    Descriptor {
        name,
        summary,
        effect: Effect::Command,
        idempotent: true,
        check: false,
        undo: false,
        platforms: &[],
        root: RootSupport::None,
        needs_root: false,
        params,
        exclusive: &[],
        one_of: &[],
        result: &[],
    }
}

/// All of them.
pub static OPERATIONS: [Descriptor; 11] = [
    operation(NODE_MAKE, "Makes a machine, starts it and learns its address.", ONE_NODE),
    operation(NODE_PUSH, "Applies a node's spec over SSH.", ONE_NODE),
    operation(NODE_AWAIT, "Waits for the report of a node that fetches its spec.", ONE_NODE),
    operation(NODE_SIGNAL, "Tells a node to fetch its spec and waits for its report.", ONE_NODE),
    operation(NODE_HOSTING, "Asks a node whether it can make machines.", ONE_NODE),
    operation(NODE_LINK, "Tells two nodes of each other.", TWO_NODES),
    operation(NODE_VERIFY, "Compares a node with what it should be.", ONE_NODE),
    operation(NODE_REMOVE, "Removes a machine.", REMOVED),
    operation(NODE_DELEGATE, "Has a hosting node do something with the nodes in it.", DELEGATED),
    operation(NODE_SERVER, "Looks after the server of a level.", SERVED),
    operation(NODE_MILESTONE, "Does nothing: all before it went well.", &[]),
];
