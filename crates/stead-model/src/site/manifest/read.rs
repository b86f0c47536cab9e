//! Reads manifests. What nodes say of each other and of other files is checked elsewhere.

use super::keys::{
    CONTEXT_KEYS, EXECUTION_KEYS, MANIFEST_KEYS, MOST_NODES, NODE_EXECUTION_KEYS, NODE_KEYS, PEER_KEYS,
    PHASES_KEYS, SETTINGS_KEYS,
};
use super::{
    Context, Delegation, Manifest, ManifestNode, ManifestSettings, Mode, NodeExecution, NodeType,
    OnNodeError, Origin, Pattern, PeerOutside,
};
use crate::id::{NodeName, SiteKey};
use crate::site::host::VMIDS;
use crate::site::preset::MOST;
use crate::site::spec::read_version;
use crate::site::{Located, host, read};
use crate::yaml::{Fields, Node, Value, Walk};

pub(in crate::site) fn read(walk: &mut Walk<'_>, root: Node<'_>, origin: Origin<'_>) -> Manifest {
    let mut manifest = Manifest::default();
    let Some(fields) = walk.map(root, &MANIFEST_KEYS) else { return manifest };
    read_version(walk, fields, 2);
    manifest.name = read_name(walk, fields, origin);
    manifest.description =
        fields.get("description").and_then(|node| walk.text_of_scalar(node)).map(str::to_owned);
    manifest.pattern = fields.get("pattern").and_then(|node| {
        let value = walk.choice(node, &Pattern::WORDS)?;
        Some(Located { value, span: node.span() })
    });
    if let Some(execution) = read::map(walk, fields, "execution", &EXECUTION_KEYS) {
        manifest.default_mode = read::word(walk, execution, "default_mode", &Mode::WORDS).unwrap_or_default();
    }
    if let Some(settings) = read::map(walk, fields, "settings", &SETTINGS_KEYS) {
        manifest.settings = read_settings(walk, settings);
    }
    if let Some(node) = fields.get("context") {
        match origin {
            Origin::Given => manifest.context = read_context(walk, node),
            Origin::File(_) | Origin::Elsewhere => walk.report(
                root.key("context")
                    .unwrap_or(node)
                    .error("node/conflict", "`context` is set by a delegating parent, not in a file")
                    .help("leave it out"),
            ),
        }
    }
    let Some(node) = fields.get("nodes") else { return manifest };
    let Some(items) = walk.list(node, "nodes") else { return manifest };
    if items.len() == 0 {
        walk.report(node.error("node/missing-field", "a manifest has at least one node"));
    }
    for (index, item) in items.enumerate() {
        manifest.nodes.extend(read_node(walk, item, index));
    }
    manifest
}

fn read_name(walk: &mut Walk<'_>, fields: Fields<'_>, origin: Origin<'_>) -> Option<SiteKey> {
    let name = read::id::<SiteKey>(walk, fields, "name")?;
    if let Origin::File(stem) = origin
        && stem != name.value.as_str()
        && let Some(node) = fields.get("name")
    {
        walk.report(
            node.error(
                "node/conflict",
                format!("the manifest is called `{}`, its file `{stem}.yaml`", name.value),
            )
            .help(format!("write `name: {stem}`, or rename the file to `{}.yaml`", name.value)),
        );
    }
    Some(name.value)
}

fn read_settings(walk: &mut Walk<'_>, fields: Fields<'_>) -> ManifestSettings {
    let default = ManifestSettings::default();
    ManifestSettings {
        verify_ssh: read::flag(walk, fields, "verify_ssh").unwrap_or(default.verify_ssh),
        cleanup_on_failure: read::flag(walk, fields, "cleanup_on_failure")
            .unwrap_or(default.cleanup_on_failure),
        timeout_buffer: read::number(walk, fields, "timeout_buffer", 0..=86_400)
            .unwrap_or(default.timeout_buffer),
        on_error: read::word(walk, fields, "on_error", &OnNodeError::WORDS).unwrap_or(default.on_error),
        parallel: read::number(walk, fields, "parallel", 0..=10_000).unwrap_or(default.parallel),
        delegation: read::word(walk, fields, "delegation", &Delegation::WORDS).unwrap_or(default.delegation),
    }
}

fn read_context(walk: &mut Walk<'_>, node: Node<'_>) -> Option<Context> {
    let fields = walk.map(node, &CONTEXT_KEYS)?;
    let (run, host) = (read::text(walk, fields, "run"), read::text(walk, fields, "host"));
    let mut path = Vec::new();
    if let Some(items) = fields.get("path").and_then(|node| walk.list(node, "nodes")) {
        for item in items {
            path.extend(walk.id(item));
        }
    }
    let mut peers = Vec::new();
    if let Some(items) = fields.get("peers").and_then(|node| walk.list(node, "peers")) {
        for item in items {
            peers.extend(read_peer(walk, item));
        }
    }
    Some(Context { run: run?, path, host: host?, peers })
}

fn read_peer(walk: &mut Walk<'_>, node: Node<'_>) -> Option<PeerOutside> {
    let fields = walk.map(node, &PEER_KEYS)?;
    let (of, name) = (read::id(walk, fields, "of")?, read::id(walk, fields, "name")?);
    let place = read::ip(walk, fields, "ip").zip(read::number(walk, fields, "ssh_port", 1..=65_535));
    Some(PeerOutside { of: of.value, name: name.value, place })
}

fn read_node(walk: &mut Walk<'_>, node: Node<'_>, index: usize) -> Option<ManifestNode> {
    let fields = walk.map(node, &NODE_KEYS)?;
    // A node without a usable name still has all its other problems told.
    let name: Option<Located<NodeName>> = read::id(walk, fields, "name");
    let nameless = || Located { value: NodeName::parse("nameless").expect("a name"), span: node.span() };
    let read = ManifestNode {
        index,
        name: name.clone().unwrap_or_else(nameless),
        kind: fields.get("type").and_then(|node| {
            let value = walk.choice(node, &NodeType::WORDS)?;
            Some(Located { value, span: node.span() })
        }),
        spec: read::id(walk, fields, "spec"),
        preset: read::id(walk, fields, "preset"),
        image: read::text(walk, fields, "image"),
        template: read::text(walk, fields, "template"),
        parent: read_parent(walk, fields),
        peers: read_names(walk, fields, "peers"),
        depends_on: read_names(walk, fields, "depends_on"),
        count: read::number(walk, fields, "count", 1..=MOST_NODES),
        host: fields.get("host").and_then(|node| located(walk, node)),
        hosting: fields.get("hosting").and_then(|node| {
            let value = host::read_hosting(walk, node)?;
            Some(Box::new(Located { value, span: node.span() }))
        }),
        vmid: fields.get("vmid").and_then(|node| {
            let value = u32::try_from(walk.integer(node, VMIDS)?).ok()?;
            Some(Located { value, span: node.span() })
        }),
        disk: read::number(walk, fields, "disk", 1..=MOST),
        ip: read::node_address(walk, fields, "ip"),
        execution: read_execution(walk, fields),
    };
    if let (Some(node), Some(_)) = (fields.get("vmid"), read.count.filter(|count| *count > 1)) {
        walk.report(
            node.error("node/conflict", "`vmid` is the id of one machine, and `count` makes several"),
        );
    }
    if let (Some(node), Some(parent)) = (fields.get("host"), &read.parent) {
        walk.report(node.error(
            "node/conflict",
            format!("only a root has a `host`; this node is made in `{}`", parent.value),
        ));
    }
    let kind = read.kind.as_ref().map(|kind| kind.value);
    for (key, idle, other) in [("image", NodeType::Ct, "template"), ("template", NodeType::Vm, "image")] {
        if let Some(node) = fields.node().key(key)
            && kind == Some(idle)
        {
            let message = format!("a `{}` boots no `{key}`", idle.word());
            read::warn(walk, node, "node/unapplied-key", &message, &format!("use `{other}`"));
        }
    }
    name.is_some().then_some(read)
}

fn located(walk: &mut Walk<'_>, node: Node<'_>) -> Option<Located<String>> {
    Some(Located { value: walk.full_text(node)?.to_owned(), span: node.span() })
}

fn read_parent(walk: &mut Walk<'_>, fields: Fields<'_>) -> Option<Located<String>> {
    let node = fields.get("parent")?;
    if matches!(node.value(), Value::Null) {
        return None;
    }
    located(walk, node)
}

fn read_names(walk: &mut Walk<'_>, fields: Fields<'_>, key: &str) -> Vec<Located<String>> {
    let names = read::located_texts(walk, fields, key).unwrap_or_default();
    read::refuse_repeated(walk, fields.get(key), "node");
    names
}

fn read_execution(walk: &mut Walk<'_>, fields: Fields<'_>) -> NodeExecution {
    let mut execution = NodeExecution::default();
    let Some(fields) = read::map(walk, fields, "execution", &NODE_EXECUTION_KEYS) else { return execution };
    execution.mode = read::word(walk, fields, "mode", &Mode::WORDS);
    let Some(phases) = read::map(walk, fields, "phases", &PHASES_KEYS) else { return execution };
    if let Some(node) = phases.get("create")
        && walk.choice(node, &Mode::WORDS).is_some_and(|mode| mode != Mode::Push)
    {
        walk.report(
            node.error("node/conflict", "a node cannot make itself: `create` is always `push`")
                .help("leave it out"),
        );
    }
    execution.config = read::word(walk, phases, "config", &Mode::WORDS);
    execution.run = read::word(walk, phases, "run", &Mode::WORDS);
    execution.destroy = read::word(walk, phases, "destroy", &Mode::WORDS);
    execution
}
