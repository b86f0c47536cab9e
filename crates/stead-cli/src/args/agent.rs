//! Arguments of `stead agent …`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};

use super::{groups, value};

/// What to do with agents.
#[derive(Clone, Debug, Subcommand)]
pub enum AgentCommand {
    /// Show what this machine is like for roles
    #[command(after_long_help = STATUS_EXAMPLES)]
    Status(AgentStatusArgs),
    /// Connect to an agent and look whether roles could run there; upload nothing
    #[command(after_long_help = CHECK_EXAMPLES)]
    Check(AgentCheckArgs),
    /// List the agents of the registry
    #[command(after_long_help = LIST_EXAMPLES)]
    List(AgentListArgs),
    /// Be the agent of this node: fetch its spec, become it, heal it, run jobs
    #[command(after_long_help = RUN_EXAMPLES)]
    Run(AgentRunArgs),
    /// Tell the agent of this node something
    #[command(subcommand, after_long_help = groups::AGENT_SIGNAL)]
    Signal(AgentSignal),
    /// Write the bootstrap on standard input and have the agent run by it
    #[command(hide = true)]
    Enable,
    /// Remove the bootstrap and stop the agent
    #[command(hide = true)]
    Disable,
    /// Make this node know the peers on standard input, and no others
    #[command(hide = true)]
    Link,
}

/// What to tell an agent.
#[derive(Clone, Copy, Debug, Subcommand)]
pub enum AgentSignal {
    /// Fetch the spec and become it, now
    #[command(after_long_help = SIGNAL_EXAMPLES)]
    Converge(AgentConvergeArgs),
}

const RUN_EXAMPLES: &str = "\
Examples:
  stead agent run                             as stead-agent.service does
  stead agent run --once                      fetch, apply, report

Exit codes:
  0 ended by a signal, or with --once converged   1 refused, or not what its spec wants   3 no bootstrap
  5 another agent runs on this node   7 with --once: no server";

const SIGNAL_EXAMPLES: &str = "\
Examples:
  stead agent signal converge
  stead agent signal converge --json

Exit codes:
  0 told   1 no agent runs on this node";

const STATUS_EXAMPLES: &str = "\
Examples:
  stead agent status
  stead agent status --json | jq .interfaces";

const CHECK_EXAMPLES: &str = "\
Examples:
  stead agent check lab1                      an agent of agents.yaml
  stead agent check ssh://ops@10.20.0.7:2222
  stead agent check lab1 -v                   with what ssh_config says of it

Exit codes:
  0 ready   1 connected, but not ready   7 not connected";

const LIST_EXAMPLES: &str = "\
Examples:
  stead agent list
  stead agent list --check                    connect to each, all at once";

/// Arguments of `stead agent run`.
#[derive(Clone, Copy, Debug, Args)]
pub struct AgentRunArgs {
    /// Fetch, apply, report, and end
    #[arg(long)]
    pub once: bool,
    /// Print one JSON document at the end
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `stead agent signal converge`.
#[derive(Clone, Copy, Debug, Args)]
pub struct AgentConvergeArgs {
    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `stead agent status`.
#[derive(Clone, Debug, Args)]
pub struct AgentStatusArgs {
    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
    /// Where roles would work [default: $XDG_CACHE_HOME/stead, ~/.cache/stead, /tmp/stead-UID]
    #[arg(long, value_name = "DIR")]
    pub workdir: Option<PathBuf>,
}

/// Arguments of `stead agent check`.
#[derive(Clone, Debug, Args)]
pub struct AgentCheckArgs {
    /// An agent of the registry, `local`, or a transport such as ssh://user@host
    #[arg(value_name = "TRANSPORT|NAME")]
    pub agent: String,
    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
    /// How long connecting and looking may take
    #[arg(long, value_name = "DURATION", value_parser = value::duration, default_value = "30s")]
    pub timeout: Duration,
    /// Where roles would work, on the agent [default: the registry's, else as `agent status`]
    #[arg(long, value_name = "DIR")]
    pub workdir: Option<String>,
    /// The registry [default: $STEAD_AGENTS, agents.yaml here or in the user's configuration]
    #[arg(long, value_name = "FILE")]
    pub agents: Option<PathBuf>,
    /// Also print the values that ssh_config, the transport and the defaults give together
    #[arg(short, long)]
    pub verbose: bool,
}

/// Arguments of `stead agent list`.
#[derive(Clone, Debug, Args)]
pub struct AgentListArgs {
    /// The registry [default: $STEAD_AGENTS, agents.yaml here or in the user's configuration]
    #[arg(long, value_name = "FILE")]
    pub agents: Option<PathBuf>,
    /// Connect to each
    #[arg(long)]
    pub check: bool,
    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
}
