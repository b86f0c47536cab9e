//! Arguments of `stead job …`.

use std::time::Duration;

use clap::{Args, Subcommand};
use stead_model::{MessageId, NodeName};

use super::OperatorArgs;

/// What to do with jobs.
#[derive(Clone, Debug, Subcommand)]
pub enum JobCommand {
    /// Have a node's agent run a command, once
    #[command(after_long_help = SUBMIT_EXAMPLES)]
    Submit(Box<JobSubmitArgs>),
    /// List jobs, oldest first
    #[command(after_long_help = LIST_EXAMPLES)]
    List(JobListArgs),
    /// Show a job with what it wrote
    #[command(after_long_help = SHOW_EXAMPLES)]
    Show(JobShowArgs),
    /// End a job, waiting or running
    #[command(after_long_help = CANCEL_EXAMPLES)]
    Cancel(JobCancelArgs),
}

const SUBMIT_EXAMPLES: &str = "\
Examples:
  stead job submit --node edge -- uptime
  stead job submit --node edge --wait --timeout 5m -- apt-get update

Exit codes:
  0 submitted, or with --wait succeeded   1 refused, or with --wait not succeeded   7 no server";

const LIST_EXAMPLES: &str = "\
Examples:
  stead job list
  stead job list --node edge --json";

const SHOW_EXAMPLES: &str = "\
Examples:
  stead job show j1794831036477               an id that `stead job submit` or `stead job list` printed
  stead job show j1794831036477 --json";

const CANCEL_EXAMPLES: &str = "\
Examples:
  stead job cancel j1794831036477             an id that `stead job list` printed
  stead job cancel j1794831036477 --json";

/// Arguments of `stead job submit`.
#[derive(Clone, Debug, Args)]
pub struct JobSubmitArgs {
    /// Where
    #[arg(long, value_name = "NAME", value_parser = super::nodes::node_name)]
    pub node: NodeName,
    /// How long it may wait for the node's agent
    #[arg(long, value_name = "DURATION", value_parser = super::nodes::lifetime, default_value = "1h")]
    pub ttl: Duration,
    /// How long it may run [default: as long as it takes]
    #[arg(long, value_name = "DURATION", value_parser = super::nodes::lifetime)]
    pub timeout: Option<Duration>,
    /// It may run again if nobody knows whether it ran
    #[arg(long)]
    pub idempotent: bool,
    /// Wait for its end, and print what it wrote
    #[arg(long)]
    pub wait: bool,
    /// The program and its arguments; no shell is involved
    #[arg(last = true, required = true, value_name = "CMD")]
    pub command: Vec<String>,
    /// Which server.
    #[command(flatten)]
    pub operator: OperatorArgs,
    /// Print one JSON document
    #[arg(long, alias = "json-output")]
    pub json: bool,
}

/// Arguments of `stead job list`.
#[derive(Clone, Debug, Args)]
pub struct JobListArgs {
    /// Only those of this node
    #[arg(long, value_name = "NAME", value_parser = super::nodes::node_name)]
    pub node: Option<NodeName>,
    /// Which server.
    #[command(flatten)]
    pub operator: OperatorArgs,
    /// Print one JSON document
    #[arg(long, alias = "json-output")]
    pub json: bool,
}

/// Arguments of `stead job show`.
#[derive(Clone, Debug, Args)]
pub struct JobShowArgs {
    /// Which job
    #[arg(value_name = "ID", value_parser = message_id)]
    pub id: MessageId,
    /// Which server.
    #[command(flatten)]
    pub operator: OperatorArgs,
    /// Print one JSON document
    #[arg(long, alias = "json-output")]
    pub json: bool,
}

/// Arguments of `stead job cancel`.
#[derive(Clone, Debug, Args)]
pub struct JobCancelArgs {
    /// Which job
    #[arg(value_name = "ID", value_parser = message_id)]
    pub id: MessageId,
    /// Which server.
    #[command(flatten)]
    pub operator: OperatorArgs,
    /// Print one JSON document
    #[arg(long, alias = "json-output")]
    pub json: bool,
}

fn message_id(text: &str) -> Result<MessageId, String> {
    MessageId::parse(text).map_err(|error| error.to_string())
}
