//! Readers of the small choices: retry, batch sizes, host failure, guards, expressions.

use std::sync::Arc;

use super::BAD_EXPRESSION;
use super::keys::{
    BACKOFF_KEYS, GUARD_KEYS, HOST_FAILURE, HOST_FAILURE_KEYS, JITTER, MAX_HOSTS, MAX_RETRIES, ON_ERROR,
    ON_ERROR_KEYS, ONLY_IF_CHANGED, RETRY_KEYS, retry_classes,
};
use crate::plan::{Backoff, Expression, Guard, HostFailure, OnError, OnlyIfChanged, Retry, Size};
use crate::yaml::{Node, Value, Walk};

pub(crate) fn retry(walk: &mut Walk<'_>, node: Node<'_>) -> Option<Retry> {
    if node.as_map().is_none() {
        return times(walk, node).map(Retry::times);
    }
    let fields = walk.map(node, &RETRY_KEYS)?;
    let mut retry = Retry::times(fields.get("times").and_then(|node| times(walk, node)).unwrap_or(0));
    if let Some(node) = fields.get("backoff") {
        retry.backoff = backoff(walk, node).unwrap_or(Backoff::NONE);
    }
    if let Some(node) = fields.get("on") {
        let classes = retry_classes();
        retry.on =
            walk.one_or_many(node).into_iter().filter_map(|node| walk.choice(node, &classes)).collect();
        retry.on.sort_unstable();
        retry.on.dedup();
    }
    Some(retry)
}

pub(super) fn times(walk: &mut Walk<'_>, node: Node<'_>) -> Option<u32> {
    walk.integer(node, 0..=MAX_RETRIES).and_then(|number| u32::try_from(number).ok())
}

fn backoff(walk: &mut Walk<'_>, node: Node<'_>) -> Option<Backoff> {
    if node.as_map().is_none() {
        return walk.choice(node, &[("none", Backoff::NONE), ("exponential", Backoff::EXPONENTIAL)]);
    }
    let fields = walk.map(node, &BACKOFF_KEYS)?;
    let initial = fields.get("initial").and_then(|node| walk.duration(node));
    let max = fields.get("max").and_then(|node| walk.duration(node));
    let factor = match fields.get("factor") {
        None => 2.0,
        Some(node) => match node.value() {
            Value::Number(number)
                if number.as_f64().is_some_and(|factor| (1.0..=100.0).contains(&factor)) =>
            {
                number.as_f64().unwrap_or(2.0)
            }
            Value::Null
            | Value::Bool(_)
            | Value::Number(_)
            | Value::Text(_)
            | Value::List(_)
            | Value::Map(_) => {
                walk.report(node.bad(format!("expected a number from 1 to 100, found {}", node.describe())));
                2.0
            }
        },
    };
    let jitter = fields.get("jitter").and_then(|node| walk.choice(node, JITTER)).unwrap_or_default();
    Some(Backoff { initial: initial?, max: max?, factor, jitter })
}

/// What `on_error` of a task says: a word, or the short form of `retry`.
pub(super) enum ErrorForm {
    Word(OnError),
    Retry(u32),
}

pub(super) fn on_error(walk: &mut Walk<'_>, node: Node<'_>) -> Option<ErrorForm> {
    if node.as_map().is_none() {
        return walk.choice(node, ON_ERROR).map(ErrorForm::Word);
    }
    let fields = walk.map(node, &ON_ERROR_KEYS)?;
    fields.get("retry").and_then(|node| times(walk, node)).map(ErrorForm::Retry)
}

pub(super) fn host_failure(walk: &mut Walk<'_>, node: Node<'_>) -> Option<HostFailure> {
    if node.as_map().is_none() {
        return walk.choice(node, HOST_FAILURE);
    }
    let fields = walk.map(node, &HOST_FAILURE_KEYS)?;
    let percent = fields.get("percent").and_then(|node| walk.integer(node, 0..=99))?;
    u8::try_from(percent).ok().map(HostFailure::Percent)
}

pub(super) fn sizes(walk: &mut Walk<'_>, node: Node<'_>) -> Vec<Size> {
    walk.one_or_many(node).into_iter().filter_map(|node| size(walk, node)).collect()
}

pub(super) fn size(walk: &mut Walk<'_>, node: Node<'_>) -> Option<Size> {
    if let Some(text) = node.as_text() {
        let percent = text.strip_suffix('%').and_then(|digits| {
            let plain = digits.bytes().all(|byte| byte.is_ascii_digit());
            digits.parse::<u32>().ok().filter(|percent| plain && (1..=100).contains(percent))
        });
        if percent.is_none() {
            walk.report(
                node.bad(format!("`{text}` is not a size"))
                    .help("a count such as 2, or a share from \"1%\" to \"100%\""),
            );
        }
        return percent.map(Size::Percent);
    }
    walk.integer(node, 1..=MAX_HOSTS).and_then(|count| u32::try_from(count).ok()).map(Size::Count)
}

pub(super) fn only_if_changed(walk: &mut Walk<'_>, node: Node<'_>) -> Option<OnlyIfChanged> {
    match node.value() {
        Value::Bool(true) => Some(OnlyIfChanged::Any),
        Value::Bool(false) => Some(OnlyIfChanged::No),
        Value::Text("any" | "all") => walk.choice(node, ONLY_IF_CHANGED),
        Value::Text("yes" | "no" | "on" | "off") => {
            walk.boolean(node);
            None
        }
        Value::Null | Value::Number(_) | Value::Text(_) | Value::List(_) | Value::Map(_) => {
            walk.report(node.bad(format!("expected true, false, any or all, found {}", node.describe())));
            None
        }
    }
}

/// Reads an expression: a text without braces, or a boolean.
pub(super) fn expression(walk: &mut Walk<'_>, node: Node<'_>) -> Option<Expression> {
    if let Value::Bool(value) = node.value() {
        return Some(Expression(if value { "true" } else { "false" }.into()));
    }
    let text = walk.text(node)?;
    let trimmed = text.trim();
    if trimmed.is_empty() {
        walk.report(node.error(BAD_EXPRESSION, "the expression is empty"));
        return None;
    }
    if trimmed.contains("{{") || trimmed.contains("{%") {
        let bare = trimmed.strip_prefix("{{").and_then(|rest| rest.strip_suffix("}}")).map(str::trim);
        let help = match bare.filter(|bare| !bare.contains("{{") && !bare.contains("}}")) {
            Some(bare) => format!("write it without braces: \"{bare}\""),
            None => "write the expression alone, without `{{ }}` or `{% %}`".to_owned(),
        };
        walk.report(node.error(BAD_EXPRESSION, "an expression is written without braces").help(help));
        return None;
    }
    Some(Expression(Arc::from(trimmed)))
}

/// Reads one guard or a list of them.
pub(super) fn guards(walk: &mut Walk<'_>, node: Node<'_>) -> Vec<Guard> {
    walk.one_or_many(node).into_iter().filter_map(|node| guard(walk, node)).collect()
}

/// Reads a guard. It recurses as deep as the tree, which is bounded.
fn guard(walk: &mut Walk<'_>, node: Node<'_>) -> Option<Guard> {
    if node.as_map().is_none() {
        return expression(walk, node).map(|expr| Guard::Expr { expr, reason: None });
    }
    let fields = walk.map(node, &GUARD_KEYS)?;
    let forms: Vec<&str> =
        ["expr", "all", "any", "not"].into_iter().filter(|key| fields.get(key).is_some()).collect();
    let [form] = forms[..] else {
        let message = if forms.is_empty() { "a guard needs one of" } else { "a guard has exactly one of" };
        walk.report(node.bad(format!("{message} `expr`, `all`, `any`, `not`")));
        return None;
    };
    if form != "expr"
        && let Some(reason) = fields.get("reason")
    {
        walk.report(reason.bad("`reason` belongs to `expr`"));
    }
    let value = fields.get(form)?;
    match form {
        "expr" => Some(Guard::Expr {
            expr: expression(walk, value)?,
            reason: fields.get("reason").and_then(|node| walk.text(node)).map(str::to_owned),
        }),
        "not" => match value.as_list() {
            Some(_) => {
                walk.report(
                    value.bad("`not` takes one guard").help("write `not: {any: […]}` or `not: {all: […]}`"),
                );
                None
            }
            None => guard(walk, value).map(|guard| Guard::Not(Box::new(guard))),
        },
        "all" => list(walk, value).map(Guard::All),
        _ => list(walk, value).map(Guard::Any),
    }
}

fn list(walk: &mut Walk<'_>, node: Node<'_>) -> Option<Vec<Guard>> {
    let items = walk.list(node, "guards")?;
    if items.len() == 0 {
        walk.report(node.bad("must not be empty"));
        return None;
    }
    Some(items.filter_map(|node| guard(walk, node)).collect())
}
