//! `stead agent list`: the agents of the registry.

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use stead_drivers::transport::Transports;
use stead_model::inventory::Host;
use stead_model::{ExitCode, HostName};
use tokio::task::JoinSet;

use crate::args::AgentListArgs;
use crate::commands::agent::check::ask;
use crate::commands::reach;
use crate::failure::Failure;
use crate::output::Output;
use crate::render::{json, one_line};
use crate::settings::Settings;

/// How long one agent may take to answer.
const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Serialize)]
struct Listed {
    name: HostName,
    transport: String,
    description: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<&'static str>,
}

pub(crate) fn run(
    args: &AgentListArgs,
    settings: &Settings,
    output: &mut Output,
) -> Result<ExitCode, Failure> {
    let agents: Vec<(HostName, Host)> =
        reach::registry(args.agents.as_ref(), settings)?.hosts.into_iter().collect();
    let states = if args.check {
        let transports = Arc::new(reach::transports(settings, output));
        reach::block_on(check_all(&agents, transports, Arc::new(settings.clone())))?
    } else {
        vec![None; agents.len()]
    };
    let listed: Vec<Listed> = agents
        .into_iter()
        .zip(states)
        .map(|((name, host), status)| Listed {
            name,
            transport: host.transport.to_string(),
            description: host.description,
            status,
        })
        .collect();
    if args.json {
        output.out.print(&json::document(&serde_json::json!({"agents": listed})));
    } else if listed.is_empty() {
        output.err.print_line("no agents: agents.yaml lists them (`--agents FILE` for another place)");
    } else {
        listed.iter().for_each(|agent| output.out.print_line(&line(agent)));
    }
    Ok(ExitCode::Success)
}

/// Returns the state of every agent, in order, all asked at once.
async fn check_all(
    agents: &[(HostName, Host)],
    transports: Arc<Transports>,
    settings: Arc<Settings>,
) -> Vec<Option<&'static str>> {
    let mut asking = JoinSet::new();
    for (i, (_, host)) in agents.iter().enumerate() {
        let (host, transports, settings) = (host.clone(), Arc::clone(&transports), Arc::clone(&settings));
        asking.spawn(async move {
            (i, ask(&host, None, PATIENCE, &transports, &settings).await.health().as_str())
        });
    }
    let mut states = vec![None; agents.len()];
    while let Some(ended) = asking.join_next().await {
        if let Ok((i, state)) = ended {
            states[i] = Some(state);
        }
    }
    states
}

fn line(agent: &Listed) -> String {
    let status = agent.status.map_or_else(String::new, |status| format!("  {status}"));
    let description =
        agent.description.as_ref().map_or_else(String::new, |text| format!("  {}", one_line(text)));
    format!("{}  {}{status}{description}", agent.name, agent.transport)
}
