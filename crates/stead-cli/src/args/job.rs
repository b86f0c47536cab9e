//! Arguments of `stead job …`.

use std::time::Duration;

use clap::{Args, Subcommand};
use stead_model::NodeName;
use stead_model::node::{JobId, JobIdError};

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
  stead job submit --node crane -- uptime     a node in `quay`: the id is then `quay/j…`

Exit codes:
  0 submitted, or with --wait succeeded   1 refused, or with --wait not succeeded   7 no server";

const LIST_EXAMPLES: &str = "\
Examples:
  stead job list
  stead job list --node edge --json

Exit codes:
  0 all that could be found   7 a server, or a level below, did not answer";

const SHOW_EXAMPLES: &str = "\
Examples:
  stead job show j1794831036477               an id that `stead job submit` or `stead job list` printed
  stead job show quay/j1794831036477 --json   the job of a node in `quay`";

const CANCEL_EXAMPLES: &str = "\
Examples:
  stead job cancel j1794831036477             an id that `stead job list` printed
  stead job cancel j1794831036477 --json";

/// Which pair of manifest and host a node on a deeper level is of.
#[derive(Clone, Debug, Default, Args)]
pub struct JobPairArgs {
    /// The manifest of a node on a deeper level, if several have one of its name
    #[arg(short = 'M', long, value_name = "NAME", conflicts_with = "server")]
    pub manifest: Option<String>,
    /// Its host: NAME or USER@NAME
    #[arg(short = 'H', long, value_name = "HOST", conflicts_with = "server")]
    pub host: Option<String>,
}

/// Arguments of `stead job submit`.
#[derive(Clone, Debug, Args)]
pub struct JobSubmitArgs {
    /// Where
    #[arg(long, value_name = "NAME", value_parser = super::nodes::node_name)]
    pub node: NodeName,
    /// Which of several nodes of that name.
    #[command(flatten)]
    pub pair: JobPairArgs,
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
    /// Only those below of these.
    #[command(flatten)]
    pub pair: JobPairArgs,
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
    #[arg(value_name = "ID", value_parser = job_id)]
    pub id: JobId,
    /// Where, if the nodes in its id are of several manifests.
    #[command(flatten)]
    pub pair: JobPairArgs,
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
    #[arg(value_name = "ID", value_parser = job_id)]
    pub id: JobId,
    /// Where, if the nodes in its id are of several manifests.
    #[command(flatten)]
    pub pair: JobPairArgs,
    /// Which server.
    #[command(flatten)]
    pub operator: OperatorArgs,
    /// Print one JSON document
    #[arg(long, alias = "json-output")]
    pub json: bool,
}

fn job_id(text: &str) -> Result<JobId, String> {
    text.parse().map_err(|error: JobIdError| error.to_string())
}
