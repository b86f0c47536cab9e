//! A planned run as a person reads it.

use std::fmt::Write as _;

use serde_json::Value;
use stead_model::duration;
use stead_model::plan::Section;
use stead_model::run_plan::{Analyze, Arg, RolePlan, Until, phases};

use super::CompiledRun;

impl CompiledRun {
    /// Returns the phases with role, agent and readiness.
    pub fn phases_text(&self) -> String {
        let mut text = String::new();
        let run = &self.run;
        let id = run.run_id.as_ref().map_or("auto", |id| id.as_str());
        line(&mut text, format_args!("Run {id}: {} roles, until {}", run.roles.len(), until(run.until)));
        let rows: Vec<(String, String)> =
            self.compiled.plan.tasks.iter().map(|task| self.row(task)).collect();
        let width = rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
        for (name, about) in rows {
            line(&mut text, format_args!("  {}", format!("{name:width$}  {about}").trim_end()));
        }
        text
    }

    fn row(&self, task: &stead_model::Task) -> (String, String) {
        let role = task.action.parts().first().and_then(|part| part.op.params.get("role"));
        let role = role.and_then(|param| param.as_value()?.as_str());
        let about = match role.and_then(|name| Some((name, self.run.roles.get(name)?))) {
            Some((name, role)) if task.name.as_str() == phases::start_of(name) => {
                format!("{} on {}", role.kind.as_str(), agent(role))
            }
            Some((name, role)) if task.name.as_str() == phases::ready_of(name) => {
                format!("ready: {}", ready(role.ready.as_ref()))
            }
            Some((name, role)) if task.name.as_str() == phases::stop_of(name) => {
                format!("{}, after {} s KILL", role.stop.signal, role.stop.grace_seconds)
            }
            Some(_) => String::new(),
            None => self.about(task.name.as_str()),
        };
        let is_skipped = task.section == Section::Finally && !task.settings.when.is_empty();
        (task.name.to_string(), if is_skipped { "skipped: not asked for".to_owned() } else { about })
    }

    fn about(&self, phase: &str) -> String {
        let run = &self.run;
        match phase {
            phases::INIT => {
                let agents: Vec<String> =
                    run.agents.iter().map(|(id, agent)| named(id.as_str(), &agent.transport)).collect();
                format!("agents: {}", agents.join(", "))
            }
            phases::UNTIL => format!("until {}", until(run.until)),
            phases::ANALYZE if run.analyze == Analyze::Auto => "if a capture is collected".to_owned(),
            phases::DIFF => {
                run.diff.as_ref().map_or_else(String::new, |diff| format!("with {}", diff.baseline))
            }
            _ => String::new(),
        }
    }

    /// Returns the phases, then of each role what is started and with what, limits and warnings.
    pub fn whole_text(&self) -> String {
        let mut text = self.phases_text();
        for (name, role) in self.run.in_start_order() {
            self.role_text(&mut text, name, role);
        }
        let run = &self.run;
        line(&mut text, format_args!("\nLimits"));
        let limit = run.timeout.map_or_else(|| "none".to_owned(), duration::to_exact);
        line(&mut text, format_args!("  timeout: {limit}"));
        line(&mut text, format_args!("  lease: {} s", run.lease_seconds));
        line(&mut text, format_args!("  artifacts: {} bytes per role", run.max_bytes));
        if let Some(profile) = &run.profile {
            let hash = profile.sha256.map_or_else(String::new, |hash| format!(", sha256 {hash}"));
            line(
                &mut text,
                format_args!("\nProfile\n  {} ({}{hash})", profile.path, word(&profile.distribution)),
            );
        }
        if !run.kits.is_empty() {
            line(&mut text, format_args!("\nKits"));
            run.kits.iter().for_each(|(name, hash)| line(&mut text, format_args!("  {name}: sha256 {hash}")));
        }
        line(&mut text, format_args!("\nWarnings"));
        for warning in &run.warnings {
            let role = warning.role.as_ref().map_or_else(String::new, |role| format!("{role}: "));
            line(&mut text, format_args!("  {}: {role}{}", warning.code, warning.text));
        }
        if run.warnings.is_empty() {
            line(&mut text, format_args!("  none"));
        }
        text
    }

    fn role_text(&self, text: &mut String, name: &str, role: &RolePlan) {
        line(text, format_args!("\nRole {name} ({} on {})", role.kind.as_str(), agent(role)));
        let argv: Vec<String> = role.argv.iter().map(arg).collect();
        line(text, format_args!("  argv: {}", argv.join(" ")));
        if !role.env_names.is_empty() {
            line(text, format_args!("  env: {}", role.env_names.join(", ")));
        }
        line(text, format_args!("  workdir: {}", role.workdir.as_deref().unwrap_or("a fresh directory")));
        for file in &role.files {
            line(
                text,
                format_args!(
                    "  file: {} -> {} ({:04o}, sha256 {})",
                    file.from, file.to, file.mode, file.sha256
                ),
            );
        }
        if let Some(value) = &role.ready {
            line(text, format_args!("  ready: {}", ready(Some(value))));
        }
        line(text, format_args!("  stop: {}, {} s", role.stop.signal, role.stop.grace_seconds));
        let limits = [("duration", role.duration_seconds), ("timeout", role.timeout_seconds)];
        for (what, seconds) in limits {
            if let Some(seconds) = seconds {
                line(text, format_args!("  {what}: {seconds} s"));
            }
        }
        if !role.needs.is_empty() {
            line(text, format_args!("  needs: {}", role.needs.join(", ")));
        }
        if !role.matrix.is_empty() {
            line(text, format_args!("  matrix: {}", Value::Object(role.matrix.clone())));
        }
        let artifacts: Vec<&str> = role.artifacts.iter().map(|artifact| artifact.path.as_str()).collect();
        line(text, format_args!("  artifacts: {}", artifacts.join(", ")));
    }
}

fn line(text: &mut String, content: std::fmt::Arguments<'_>) {
    let written = writeln!(text, "{content}");
    debug_assert!(written.is_ok(), "writing to memory does not fail");
}

fn until(until: Until) -> &'static str {
    match until {
        Until::Tasks => "the last task ends",
        Until::Duration => "the duration of its services is over",
        Until::Signal => "a signal",
    }
}

fn agent(role: &RolePlan) -> String {
    named(role.agent_id.as_str(), &role.transport)
}

fn named(id: &str, transport: &str) -> String {
    if id == transport { id.to_owned() } else { format!("{id} ({transport})") }
}

/// Returns an item of a command line so that items can be told apart.
fn arg(arg: &Arg) -> String {
    match arg {
        Arg::Text(text) => crate::expr::quote::word(text),
        Arg::Flag { flag, value } => format!("[{flag} {value}]"),
    }
}

fn ready(value: Option<&Value>) -> String {
    let Some(value) = value else { return "none".to_owned() };
    let text = |key: &str| match value.get(key) {
        Some(Value::String(text)) => Some(text.clone()),
        Some(other) if !other.is_null() => Some(other.to_string()),
        Some(_) | None => None,
    };
    let method = text("method").unwrap_or_default();
    let address = || format!("{}:{}", text("host").unwrap_or_default(), text("port").unwrap_or_default());
    let about = match method.as_str() {
        "none" => return method,
        "tcp_connect" => address(),
        "structured_stdout" => {
            let event = text("event").unwrap_or_default();
            match text("fallback").as_deref() {
                Some("tcp_connect") => format!("{event}, else tcp_connect {}", address()),
                Some(_) | None => event,
            }
        }
        _ => ["pattern", "url", "path", "command"].into_iter().find_map(text).unwrap_or_default(),
    };
    format!("{method} {about}, within {} s", text("timeout_seconds").unwrap_or_default())
}

fn word(value: &impl serde::Serialize) -> String {
    serde_json::to_value(value).ok().and_then(|value| value.as_str().map(str::to_owned)).unwrap_or_default()
}
