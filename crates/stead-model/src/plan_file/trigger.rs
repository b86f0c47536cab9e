//! `triggers`: what starts runs of a plan on a server. Checked here, used by the server alone.

use std::collections::BTreeMap;

use super::keys::{
    AGENT_ONLINE_KEYS, CATCH_UP, OVERLAP, SCHEDULE_KEYS, TRIGGER_KEYS, WEBHOOK_KEYS, is_var_name,
};
use super::{Declared, UNDECLARED, cron::Cron};
use crate::diagnostic::suggest;
use crate::plan::{SecretRef, Trigger, TriggerKind};
use crate::yaml::{Fields, Node, Walk};

pub(super) fn triggers(
    walk: &mut Walk<'_>,
    fields: Fields<'_>,
    vars: &[Declared],
    secrets: &BTreeMap<String, SecretRef>,
) -> Vec<Trigger> {
    let Some(items) = fields.get("triggers").and_then(|node| walk.list(node, "triggers")) else {
        return Vec::new();
    };
    items.filter_map(|node| trigger(walk, node, vars, secrets)).collect()
}

fn trigger(
    walk: &mut Walk<'_>,
    node: Node<'_>,
    declared: &[Declared],
    secrets: &BTreeMap<String, SecretRef>,
) -> Option<Trigger> {
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
            let name = key.as_text().unwrap_or_default();
            if is_var_name(name) && !declared.iter().any(|var| var.name == name) {
                let help = suggest(name, declared.iter().map(|var| var.name.as_str()));
                walk.report(
                    key.error(UNDECLARED, format!("`{name}` is not among the plan's `vars`")).help(help),
                );
            }
            vars.insert(name.to_owned(), value.to_json());
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
        _ => webhook(walk, node, secrets)?,
    };
    Some(Trigger { on, overlap, min_interval, vars })
}

fn schedule(walk: &mut Walk<'_>, node: Node<'_>) -> Option<TriggerKind> {
    let fields = walk.map(node, &SCHEDULE_KEYS)?;
    let catch_up = fields.get("catch_up").and_then(|node| walk.choice(node, CATCH_UP)).unwrap_or_default();
    let tz = match fields.get("tz") {
        None => Some("UTC".to_owned()),
        Some(node) => walk.text(node).and_then(|tz| {
            if is_time_zone(tz) {
                return Some(tz.to_owned());
            }
            walk.report(
                node.bad(format!("`{tz}` is not a time zone name")).help("such as `UTC` or `Europe/Vienna`"),
            );
            None
        }),
    };
    let node = fields.get("cron")?;
    let text = walk.text(node)?;
    let cron = walk.parsed(node, Cron::parse(text)).map(|_| text.to_owned());
    Some(TriggerKind::Schedule { cron: cron?, tz: tz?, catch_up })
}

/// Whether `text` has the shape of an IANA name: words of letters, digits, `_`, `+`, `-` joined by `/`.
fn is_time_zone(text: &str) -> bool {
    text.len() <= 64
        && text.starts_with(|first: char| first.is_ascii_alphabetic())
        && text.split('/').all(|word| {
            !word.is_empty() && word.bytes().all(|b| b.is_ascii_alphanumeric() || b"_+-".contains(&b))
        })
}

fn webhook(
    walk: &mut Walk<'_>,
    node: Node<'_>,
    secrets: &BTreeMap<String, SecretRef>,
) -> Option<TriggerKind> {
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
    if !secrets.contains_key(secret) {
        let help = suggest(secret, secrets.keys().map(String::as_str));
        walk.report(
            node.error(UNDECLARED, format!("`{secret}` is not among the plan's `secrets`")).help(help),
        );
    }
    Some(TriggerKind::Webhook { path: path?, secret: secret.to_owned() })
}
