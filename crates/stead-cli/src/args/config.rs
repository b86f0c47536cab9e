//! Arguments of `stead config …`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use stead_model::{NodeName, RunId};

use super::TrustArgs;
use super::nodes::{ModeWord, SiteArgs, node_name};
use super::value::{self, Sink};

/// What to do with the spec of a node.
#[derive(Clone, Debug, Subcommand)]
pub enum ConfigCommand {
    /// Make this machine, or another, what its spec wants
    #[command(after_long_help = APPLY_EXAMPLES)]
    Apply(Box<ConfigApplyArgs>),
    /// Fetch this node's spec from its server
    #[command(after_long_help = FETCH_EXAMPLES)]
    Fetch(Box<ConfigFetchArgs>),
    /// Look at this machine for a driver elsewhere; asked by it
    #[command(hide = true)]
    Observe(ConfigObserveArgs),
    /// Keep the changes that an apply made to the network: its driver has reached the machine since; asked by it
    #[command(hide = true)]
    Confirm(ConfigConfirmArgs),
}

/// Arguments of `stead config confirm`.
#[derive(Clone, Debug, Args)]
pub struct ConfigConfirmArgs {
    /// The apply
    #[arg(value_name = "RUN", value_parser = value::run_id)]
    pub run: RunId,
}

/// Arguments of `stead config observe`.
#[derive(Clone, Debug, Args)]
pub struct ConfigObserveArgs {
    /// The resolved spec to look by: a file, or `-` for standard input; without it only peers are told
    #[arg(long, value_name = "SPEC")]
    pub spec: Option<String>,
    /// Whether this is reached from here
    #[arg(long, value_name = "HOST:PORT")]
    pub reach: Vec<String>,
}

const APPLY_EXAMPLES: &str = "\
Examples:
  stead config apply                          the spec that is in force here, once more
  stead config apply --spec spec.yaml --dry-run
  stead config apply --spec base              a spec of the site, for this machine
  stead config apply -H quay --spec base      for a machine that is there already, over SSH

Exit codes:
  0 as the spec wants it   1 something failed   3 the spec is missing or invalid   7 the machine is not reached
  130 stopped by a signal";

/// Arguments of `stead config apply`.
#[derive(Clone, Debug, Args)]
pub struct ConfigApplyArgs {
    /// A resolved spec: a file or `-` for standard input; or a spec of the site by name [default: the one in force]
    #[arg(long, value_name = "SPEC")]
    pub spec: Option<String>,
    /// Apply it on this host of the site, over SSH
    #[arg(short = 'H', long, value_name = "HOST", requires = "spec")]
    pub host: Option<String>,
    /// The node it is resolved for [default: this machine's name, with -H the host's]
    #[arg(long, value_name = "NAME", value_parser = node_name)]
    pub node: Option<NodeName>,
    /// Say what would change and change nothing
    #[arg(long)]
    pub dry_run: bool,
    /// How the spec came
    #[arg(long, value_name = "MODE", default_value = "push", hide = true)]
    pub mode: ModeWord,
    /// Write events to a file; `-`: to standard output, and what came of it as the last line
    #[arg(long, value_name = "FILE", value_parser = value::sink, conflicts_with = "host")]
    pub events: Option<Sink>,
    /// Where the site is.
    #[command(flatten)]
    pub site: SiteArgs,
    /// Print one JSON document
    #[arg(long, alias = "json-output")]
    pub json: bool,
}

const FETCH_EXAMPLES: &str = "\
Examples:
  stead config fetch                          as the node was told when it was made
  stead config fetch --server https://10.0.0.1:44443 --token-file token --fingerprint AB:CD:…

Server, token and pin come from flags, then from STEAD_SERVER, STEAD_TOKEN and STEAD_FINGERPRINT, then from
/etc/stead/bootstrap.json.

Exit codes:
  0 fetched   1 refused   2 no server or no token   3 the spec is invalid   7 unreachable or not trusted";

/// Arguments of `stead config fetch`.
#[derive(Clone, Debug, Args)]
pub struct ConfigFetchArgs {
    /// The server [default: $STEAD_SERVER, the node's bootstrap]
    #[arg(long, value_name = "URL")]
    pub server: Option<String>,
    /// The file with the node's token; `-` reads standard input [default: $STEAD_TOKEN, the node's bootstrap]
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// Whom to trust.
    #[command(flatten)]
    pub trust: TrustArgs,
    /// The node [default: as the bootstrap says, else the one the token is for]
    #[arg(long, value_name = "NODE", value_parser = node_name)]
    pub identity: Option<NodeName>,
    /// Where to write spec.yaml [default: /var/lib/stead/config below the node's root]
    #[arg(long, value_name = "DIR")]
    pub output: Option<PathBuf>,
    /// How often to try
    #[arg(long, value_name = "N", default_value = "5", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub attempts: u32,
    /// How many seconds to wait before the second try; doubles each time
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = seconds)]
    pub backoff: Duration,
    /// Print one JSON document
    #[arg(long, alias = "json-output")]
    pub json: bool,
}

/// Reads seconds, with a fraction.
fn seconds(text: &str) -> Result<Duration, String> {
    let number: Option<f64> = text.parse().ok().filter(|seconds| (0.0..=86_400.0).contains(seconds));
    number.map(Duration::from_secs_f64).ok_or_else(|| "expected seconds, at most a day's".to_owned())
}
