//! `triggers`: what starts runs of a plan on a server. Read here; schedules, targets and names they use are
//! checked when the plan is compiled.

use std::collections::BTreeMap;

use super::keys::{AGENT_ONLINE_KEYS, CATCH_UP, OVERLAP, SCHEDULE_KEYS, TRIGGER_KEYS, WEBHOOK_KEYS};
use crate::plan::{Trigger, TriggerKind};
use crate::yaml::{Fields, Node, NodeId, Walk};

/// Returns the usable triggers and where they are.
pub(super) fn triggers(walk: &mut Walk<'_>, fields: Fields<'_>) -> (Vec<Trigger>, Vec<NodeId>) {
    let Some(items) = fields.get("triggers").and_then(|node| walk.list(node, "triggers")) else {
        return (Vec::new(), Vec::new());
    };
    items.filter_map(|node| Some((trigger(walk, node)?, node.id()))).unzip()
}

fn trigger(walk: &mut Walk<'_>, node: Node<'_>) -> Option<Trigger> {
    let fields = walk.map(node, &TRIGGER_KEYS)?;
    let overlap = fields.get("overlap").and_then(|node| walk.choice(node, OVERLAP)).unwrap_or_default();
    let min_interval = fields.get("min_interval").and_then(|node| walk.duration(node));
    let mut vars = BTreeMap::new();
    if let Some(node) = fields.get("vars") {
        let Some(entries) = node.as_map() else {
            walk.report(node.bad(format!("expected a map of variables, found {}", node.describe())));
            return None;
        };
        for (key, value) in entries {
            vars.insert(key.as_text().unwrap_or_default().to_owned(), value.to_json());
        }
    }
    let given: Vec<&str> =
        ["agent_online", "schedule", "webhook"].into_iter().filter(|key| fields.get(key).is_some()).collect();
    let [kind] = given[..] else {
        walk.report(node.bad("a trigger has exactly one of `agent_online`, `schedule`, `webhook`"));
        return None;
    };
    let node = fields.get(kind)?;
    let on = match kind {
        "agent_online" => {
            let fields = walk.map(node, &AGENT_ONLINE_KEYS)?;
            let r#match = fields.get("match").and_then(|node| walk.full_text(node))?.to_owned();
            TriggerKind::AgentOnline { r#match }
        }
        "schedule" => schedule(walk, node)?,
        _ => webhook(walk, node)?,
    };
    Some(Trigger { on, overlap, min_interval, vars })
}

fn schedule(walk: &mut Walk<'_>, node: Node<'_>) -> Option<TriggerKind> {
    let fields = walk.map(node, &SCHEDULE_KEYS)?;
    let catch_up = fields.get("catch_up").and_then(|node| walk.choice(node, CATCH_UP)).unwrap_or_default();
    let tz = match fields.get("tz") {
        None => Some("UTC"),
        Some(node) => walk.full_text(node),
    };
    let cron = fields.get("cron").and_then(|node| walk.full_text(node));
    Some(TriggerKind::Schedule { cron: cron?.to_owned(), tz: tz?.to_owned(), catch_up })
}

fn webhook(walk: &mut Walk<'_>, node: Node<'_>) -> Option<TriggerKind> {
    let fields = walk.map(node, &WEBHOOK_KEYS)?;
    let path = fields.get("path").and_then(|node| {
        let path = walk.text(node)?;
        let fits = path.starts_with('/')
            && path.split('/').all(|part| part != "..")
            && path.bytes().all(|b| b.is_ascii_graphic() && !b"?#\\".contains(&b));
        if !fits {
            walk.report(
                node.bad(format!("`{path}` is not a path"))
                    .help("begin it with `/`, without blanks, `?` or `#`"),
            );
        }
        fits.then(|| path.to_owned())
    });
    let node = fields.get("secret")?;
    let secret = walk.text(node)?;
    Some(TriggerKind::Webhook { path: path?, secret: secret.to_owned() })
}
