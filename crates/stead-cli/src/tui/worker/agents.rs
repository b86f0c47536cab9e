//! Looks at this machine, reads the registry and checks agents.

use std::sync::Arc;
use std::time::Duration;

use stead_drivers::agent;
use stead_model::Inventory;
use tokio::task::JoinSet;

use super::Surroundings;
use crate::commands::agent::check::ask;
use crate::commands::agent::workdirs;
use crate::commands::reach;
use crate::output::Handle;
use crate::tui::agents::{CheckState, Registered};
use crate::tui::state::Message;

/// How long one agent may take to answer, as on the command line.
const PATIENCE: Duration = Duration::from_secs(30);

/// Looks at this machine as `stead agent status` does, and reads the registry.
pub(super) fn look(work: &Surroundings) {
    let registry = reach::registry(None, &work.settings).map(|registry| listed(&registry));
    work.send(Message::Registry(registry.map_err(|failure| failure.message())));
    let workdirs = workdirs(&work.settings);
    match reach::block_on(agent::status(&workdirs, stead_runner::GIT_COMMIT)) {
        Ok(status) => work.send(Message::Local(Box::new(status))),
        Err(failure) => work.send(Message::Notice(failure.message())),
    }
}

fn listed(registry: &Inventory) -> Vec<Registered> {
    let hosts = registry.hosts.iter().map(|(name, host)| Registered {
        name: name.to_string(),
        transport: host.transport.to_string(),
        description: host.description.clone(),
        state: CheckState::Unchecked,
    });
    hosts.collect()
}

/// Checks agents of the registry, all at once; each answers for itself.
pub(super) fn check(work: &Surroundings, names: &[String]) {
    let failed = |problem: &str| {
        for name in names {
            work.send(Message::Checked { name: name.clone(), state: CheckState::Failed(problem.to_owned()) });
        }
    };
    let registry = match reach::registry(None, &work.settings) {
        Ok(registry) => registry,
        Err(failure) => return failed(&failure.message()),
    };
    let transports = Arc::new(reach::transports(&work.settings, &work.output(Handle::new(std::io::sink()))));
    let asked = reach::block_on(async {
        let mut asking = JoinSet::new();
        for name in names {
            let Some(host) = registry.get(name) else {
                let problem = "it is not in the registry any more".to_owned();
                work.send(Message::Checked { name: name.clone(), state: CheckState::Failed(problem) });
                continue;
            };
            let (work, transports, name) = (work.clone(), Arc::clone(&transports), name.clone());
            asking.spawn(async move {
                let check = ask(&host, None, PATIENCE, &transports, &work.settings).await;
                work.send(Message::Checked { name, state: CheckState::Checked(Box::new(check)) });
            });
        }
        while asking.join_next().await.is_some() {}
    });
    if let Err(failure) = asked {
        failed(&failure.message());
    }
}
