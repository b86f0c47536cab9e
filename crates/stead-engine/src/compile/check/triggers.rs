//! What the plan says of itself: limits, and what starts its runs.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::Value;
use stead_model::diagnostic::suggest;
use stead_model::plan::TriggerKind;

use super::settings::NO_TIMEOUT;
use super::{Checker, WHOLE_PLAN};
use crate::cron::{Cron, Zone};
use crate::expr::{is_template, template_references};
use crate::target::TargetExpr;

/// Most attempts at once.
const MAX_PARALLEL: u32 = 10_000;

/// The most bytes of a webhook's path.
const LONGEST_PATH: usize = 512;
/// How a webhook's path is made.
const HOOK_PATH: &str =
    "use parts of letters, digits and `-._~!$&'()*+,;=:@` with a `/` before each, at most 512 bytes";

/// Whether a request can have this path as it is written, and means nothing else by it.
fn is_hook_path(path: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=:@".contains(&byte);
    let mut parts = path.split('/').skip(1);
    path.len() <= LONGEST_PATH
        && parts.all(|part| !matches!(part, "" | "." | "..") && part.bytes().all(is_plain))
}

impl Checker<'_> {
    pub(super) fn whole_plan(&mut self) {
        let limits = self.plan.limits;
        let per_target = limits.per_target.map(|count| ("limits.per_target", count));
        for (path, count) in [("limits.parallel", limits.parallel)].into_iter().chain(per_target) {
            if !(1..=MAX_PARALLEL).contains(&count) {
                self.plan_error(
                    path,
                    "plan/bad-value",
                    format!("`{path}` is from 1 to {MAX_PARALLEL}, found {count}"),
                    "",
                );
            }
        }
        let plan = self.plan;
        if plan.timeout == Some(Duration::ZERO) {
            let message = "`timeout` is 0: the plan would be over before it began".to_owned();
            self.plan_error("timeout", "plan/bad-value", message, NO_TIMEOUT);
        }
        if plan.finally_timeout.is_zero() {
            let message = "`finally_timeout` is 0: no task of `finally` could run".to_owned();
            self.plan_error(
                "finally_timeout",
                "plan/bad-value",
                message,
                "give it some time; the default is 5m",
            );
        }
        let mut paths = BTreeSet::new();
        for (i, trigger) in plan.triggers.iter().enumerate() {
            let path = format!("triggers.{i}");
            match &trigger.on {
                TriggerKind::AgentOnline { r#match } => {
                    let path = format!("{path}.agent_online.match");
                    match TargetExpr::parse(r#match) {
                        Ok(expr) => {
                            if expr.ad_hoc().is_some() {
                                let message = format!("`{match}` means no agent, but a way to a host");
                                let help =
                                    "name agents, their names' pattern (`web*`) or labels (`spec:web`)";
                                self.plan_error(&path, "plan/bad-value", message, help);
                            }
                        }
                        Err(error) => self.plan_error(&path, error.code(), error.to_string(), ""),
                    }
                }
                TriggerKind::Schedule { cron, tz, .. } => {
                    if let Err(error) = Cron::parse(cron) {
                        let message = format!("`{cron}` is not a schedule: {error}");
                        self.plan_error(&format!("{path}.schedule.cron"), "plan/bad-value", message, "");
                    }
                    if let Err(error) = Zone::parse(tz) {
                        self.plan_error(
                            &format!("{path}.schedule.tz"),
                            "plan/bad-value",
                            error.to_string(),
                            "",
                        );
                    }
                }
                TriggerKind::Webhook { path: address, secret } => {
                    let place = format!("{path}.webhook.path");
                    if !address.starts_with('/') {
                        let message = format!("a webhook's path starts with `/`, found `{address}`");
                        self.plan_error(&place, "plan/bad-value", message, "");
                    } else if !is_hook_path(address) {
                        let message = format!("no request has the path `{address}`");
                        self.plan_error(&place, "plan/bad-value", message, HOOK_PATH);
                    } else if !paths.insert(address.as_str()) {
                        let message = format!("two webhooks have the path `{address}`");
                        self.plan_error(&place, "plan/bad-value", message, "give each its own");
                    }
                    if !plan.secrets.contains_key(secret) {
                        let help = suggest(secret, plan.secrets.keys().map(String::as_str));
                        let message = format!("the secret `{secret}` is not declared");
                        self.plan_error(&format!("{path}.webhook.secret"), "plan/undeclared", message, &help);
                    }
                }
            }
            for (name, value) in &trigger.vars {
                let path = format!("{path}.vars.{name}");
                if !plan.vars.contains_key(name) {
                    let help = suggest(name, plan.vars.keys().map(String::as_str));
                    self.plan_error(
                        &path,
                        "plan/undeclared",
                        format!("the variable `{name}` is not declared"),
                        &help,
                    );
                }
                self.trigger_value(&path, value);
            }
        }
    }

    /// Checks the templates in a trigger's variable: they see `trigger` and nothing else.
    fn trigger_value(&mut self, path: &str, value: &Value) {
        let mut open = vec![value];
        while let Some(value) = open.pop() {
            match value {
                Value::String(text) if is_template(text) => match template_references(text) {
                    Ok(found) => {
                        let others: Vec<String> = found
                            .names
                            .iter()
                            .filter(|name| *name != "trigger")
                            .map(|name| format!("`{name}`"))
                            .collect();
                        let unknown = found.unknown.iter().map(|unknown| unknown.message.clone());
                        let not_there =
                            others.iter().map(|name| format!("{name} is not known when a trigger fires"));
                        for message in unknown.chain(not_there) {
                            self.plan_error(
                                path,
                                "plan/bad-expression",
                                format!("`{text}`: {message}"),
                                "use `trigger`",
                            );
                        }
                    }
                    Err(error) => {
                        self.plan_error(path, "plan/bad-expression", format!("`{text}`: {error}"), "")
                    }
                },
                Value::Array(items) => open.extend(items),
                Value::Object(items) => open.extend(items.values()),
                Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
            }
        }
    }

    fn plan_error(&mut self, path: &str, code: &'static str, message: String, help: &str) {
        self.error(WHOLE_PLAN, path, code, message, help);
    }
}
