//! `stead agent signal`, and what drivers do to a node's agent over SSH: `enable`, `disable`, `link`.

use serde_json::json;
use stead_drivers::node_agent::{self, NodeFiles, Peers};
use stead_model::ExitCode;

use super::run::failure;
use crate::args::AgentSignal;
use crate::commands::site::read_stdin;
use crate::failure::{Failure, FailureKind};
use crate::output::Output;
use crate::render::json;
use crate::settings::Settings;

pub(crate) fn signal(
    signal: AgentSignal,
    settings: &Settings,
    output: &mut Output,
) -> Result<ExitCode, Failure> {
    match signal {
        AgentSignal::Converge(args) => {
            if node_agent::signal_converge(&files(settings)).map_err(failure)? {
                match args.json {
                    true => output.out.print(&json::document(&json!({"schema": 1, "told": true}))),
                    false => output.out.print_line("told to converge"),
                }
                return Ok(ExitCode::Success);
            }
            Err(Failure::new(FailureKind::Work, "no agent runs on this node")
                .hint("`stead agent run --once` does it without one"))
        }
    }
}

pub(crate) fn enable(settings: &Settings, output: &mut Output) -> Result<ExitCode, Failure> {
    let changed = node_agent::enable(&files(settings), &read_stdin()?).map_err(failure)?;
    say(changed, output)
}

pub(crate) fn disable(settings: &Settings, output: &mut Output) -> Result<ExitCode, Failure> {
    let changed = node_agent::disable(&files(settings)).map_err(failure)?;
    say(changed, output)
}

pub(crate) fn link(settings: &Settings, output: &mut Output) -> Result<ExitCode, Failure> {
    let peers: Peers = serde_json::from_slice(&read_stdin()?).map_err(|error| {
        Failure::caused_by(FailureKind::Invalid, error).hint("expected {peers: [{name, address}, …]}")
    })?;
    let changed = node_agent::know_peers(&files(settings), peers)
        .map_err(|error| Failure::caused_by(FailureKind::Work, error))?;
    say(changed, output)
}

fn files(settings: &Settings) -> NodeFiles {
    NodeFiles::below(settings.root())
}

fn say(changed: bool, output: &Output) -> Result<ExitCode, Failure> {
    output.out.print_line(if changed { "changed" } else { "unchanged" });
    Ok(ExitCode::Success)
}
