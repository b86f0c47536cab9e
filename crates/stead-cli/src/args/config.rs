//! Arguments of `stead config …`.

use clap::{Args, Subcommand};
use stead_model::NodeName;

use super::nodes::{ModeWord, SiteArgs};
use super::value::{self, Sink};

/// What to do with the spec of a node.
#[derive(Clone, Debug, Subcommand)]
pub enum ConfigCommand {
    /// Make this machine, or another, what its spec wants
    #[command(after_long_help = APPLY_EXAMPLES)]
    Apply(Box<ConfigApplyArgs>),
}

const APPLY_EXAMPLES: &str = "\
Examples:
  stead config apply                          the spec that is in force here, once more
  stead config apply --spec spec.yaml --dry-run
  stead config apply --spec base              a spec of the site, for this machine
  stead config apply -H quay --spec base      for a machine that is there already, over SSH

Exit codes:
  0 as the spec wants it   1 something failed   3 the spec is missing or invalid   7 the machine is not reached";

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
    #[arg(long, value_name = "FILE", value_parser = value::sink)]
    pub events: Option<Sink>,
    /// Where the site is.
    #[command(flatten)]
    pub site: SiteArgs,
    /// Print one JSON document
    #[arg(long, alias = "json-output")]
    pub json: bool,
}

fn node_name(text: &str) -> Result<NodeName, String> {
    NodeName::parse(text).map_err(|error| error.to_string())
}
