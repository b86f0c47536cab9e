//! `stead agent run`: the agent of this node.

use std::sync::Arc;

use serde_json::json;
use stead_drivers::node_agent::{self, AgentError, Patience, Tell};
use stead_model::ExitCode;
use stead_runner::clock;

use crate::args::AgentRunArgs;
use crate::commands::reach;
use crate::failure::{Failure, FailureKind};
use crate::output::Output;
use crate::render::json;
use crate::settings::Settings;

pub(crate) fn run(
    args: &AgentRunArgs,
    settings: &Settings,
    output: &mut Output,
) -> Result<ExitCode, Failure> {
    let (root, err) = (settings.root(), output.err.clone());
    let tell: Tell = Arc::new(move |line: &str| err.print_line(&format!("{} {line}", clock::now())));
    if args.once {
        let once = reach::block_on(node_agent::run_once(root, Patience::default(), tell))?;
        let exit_code = once.map(node_agent::Once::exit_code).map_err(failure)?;
        return Ok(told(exit_code, args, output));
    }
    reach::block_on(node_agent::run(root, tell))?.map_err(failure)?;
    Ok(told(ExitCode::Success, args, output))
}

/// Tells a program how the agent ended; people have read it.
fn told(exit_code: ExitCode, args: &AgentRunArgs, output: &Output) -> ExitCode {
    if args.json {
        let document =
            json!({"schema": 1, "exit_code": exit_code, "success": exit_code == ExitCode::Success});
        output.out.print(&json::document(&document));
    }
    exit_code
}

/// Returns the failure of an agent that does not run.
pub(super) fn failure(error: AgentError) -> Failure {
    let kind = match &error {
        AgentError::Running { .. } => FailureKind::Locked,
        AgentError::NoBootstrap | AgentError::InvalidBootstrap(_) | AgentError::Server(_) => {
            FailureKind::Invalid
        }
        AgentError::Files { .. } | AgentError::Service(_) | AgentError::Broken(_) => FailureKind::Work,
    };
    let hint = match &error {
        AgentError::NoBootstrap => {
            Some("`stead create` writes it to nodes in pull and hybrid mode; an agent runs on such a node")
        }
        AgentError::Running { .. }
        | AgentError::InvalidBootstrap(_)
        | AgentError::Server(_)
        | AgentError::Files { .. }
        | AgentError::Service(_)
        | AgentError::Broken(_) => None,
    };
    let failure = Failure::caused_by(kind, error);
    if let Some(hint) = hint { failure.hint(hint) } else { failure }
}
