//! `stead agent check TRANSPORT|NAME`: whether roles could run there.

use std::time::Duration;

use stead_drivers::agent::{self, AgentCheck, AgentQuestion, Health};
use stead_drivers::doctor::CheckStatus;
use stead_drivers::transport::Transports;
use stead_model::diagnostic::suggest;
use stead_model::inventory::Host;
use stead_model::transport::TransportSpec;
use stead_model::{ExitCode, HostName, Inventory};

use crate::args::AgentCheckArgs;
use crate::commands::reach;
use crate::failure::{Failure, FailureKind};
use crate::output::{Output, Style};
use crate::render::{json, one_line};
use crate::settings::Settings;

pub(crate) fn run(
    args: &AgentCheckArgs,
    settings: &Settings,
    output: &mut Output,
) -> Result<ExitCode, Failure> {
    let registry = reach::registry(args.agents.as_ref(), settings)?;
    let host = find(&args.agent, &registry)?;
    for (code, text) in host.transport.warnings() {
        output.err.print_line(&format!("[warning] {code}: {text}"));
    }
    let transports = reach::transports(settings, output);
    let check = reach::block_on(async {
        if args.verbose {
            say_effective(&transports, &host.transport, args.json, output).await;
        }
        ask(&host, args.workdir.as_deref(), args.timeout, &transports, settings).await
    })?;
    if args.json {
        output.out.print(&json::document(&check));
    } else {
        output.out.print(&to_text(&check, settings));
    }
    Ok(match check.health() {
        Health::Ok => ExitCode::Success,
        Health::Unreachable => ExitCode::Unreachable,
        Health::Error => ExitCode::Failed,
    })
}

/// Asks an agent whether roles could run there, in `workdir` or else where its entry says.
pub(crate) async fn ask(
    host: &Host,
    workdir: Option<&str>,
    timeout: Duration,
    transports: &Transports,
    settings: &Settings,
) -> AgentCheck {
    let question = AgentQuestion {
        transport: &host.transport,
        workdir: workdir.or(host.workdir.as_deref()),
        sha256: reach::own_sha256(),
        has_binary: &|name| reach::has_binary(name, settings),
        timeout,
    };
    agent::check(transports, &question).await
}

/// Returns the agent that `text` means: one of the registry, `local`, or a transport. No other word is a host.
fn find(text: &str, registry: &Inventory) -> Result<Host, Failure> {
    if let Some(host) = registry.get(text) {
        return Ok(host);
    }
    if !text.contains("://") && !text.contains('@') {
        let known = registry.hosts.keys().map(HostName::as_str).chain(["local"]);
        return Err(Failure::unknown_name(FailureKind::Usage, format!("there is no agent `{text}`"))
            .hint(suggest(text, known))
            .hint("a host of no registry is written as a transport: ssh://user@host or user@host"));
    }
    let transport =
        TransportSpec::parse(text).map_err(|error| Failure::caused_by(FailureKind::Usage, error))?;
    Ok(Host::reached_by(transport))
}

/// Says what holds for the agent, as `ssh -G` does. A JSON document keeps standard output to itself.
async fn say_effective(transports: &Transports, spec: &TransportSpec, is_json: bool, output: &Output) {
    let to = if is_json { &output.err } else { &output.out };
    let TransportSpec::Ssh(ssh) = spec else { return };
    match transports.effective(ssh).await {
        Ok((values, ignored)) => {
            values.iter().for_each(|(key, value)| to.print_line(&format!("{key} {value}")));
            if !ignored.is_empty() {
                to.print_line(&format!("without effect here: {}", ignored.join(", ")));
            }
        }
        // Connecting fails of the same and says so.
        Err(error) => {
            output.err.print_line(&format!("[warning] reach/ssh-config: {}", one_line(&error.message)))
        }
    }
}

fn to_text(check: &AgentCheck, settings: &Settings) -> String {
    let mut text = String::new();
    for step in &check.checks {
        let word = format!("[{}]", step.status.as_str().to_ascii_uppercase());
        let style = match step.status {
            CheckStatus::Pass => Style::Good,
            CheckStatus::Fail => Style::Bad,
            CheckStatus::Skip => Style::Dim,
        };
        let detail =
            step.detail.as_deref().map_or_else(String::new, |detail| format!(": {}", one_line(detail)));
        text.push_str(&format!("{} {}{detail}\n", settings.stdout_paint.apply(style, &word), step.name));
    }
    text.push_str(if check.ok { "Result: READY\n" } else { "Result: NOT READY\n" });
    text
}
