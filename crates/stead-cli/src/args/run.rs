//! Arguments of `stead run …`.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use stead_engine::compile::VarFlag;

use super::value::{self, Sink};

/// What to run.
#[derive(Clone, Debug, Subcommand)]
pub enum RunCommand {
    /// Run the roles of a manifest on their agents, and write one bundle
    #[command(after_long_help = MANIFEST_EXAMPLES)]
    Manifest(Box<RunManifestArgs>),
}

const MANIFEST_EXAMPLES: &str = "\
Examples:
  stead run manifest run.yaml --dry-run            phases, roles and agents; does nothing
  stead run manifest run.yaml --print-plan --json  the compiled plan
  stead run manifest run.yaml                      run it, bundle below runs/
  stead run manifest run.yaml --agent A1=local --agent client=ssh://lab@10.20.0.7
  stead run manifest run.yaml --var rate=500 --timeout 10m

Exit codes:
  0 success   1 a role or phase failed   2 usage   3 invalid manifest, kit, profile or baseline
  4 a condition of fail_on is true   5 the run id is held   7 an agent is unreachable   8 timed out   130 cancelled";

/// Arguments of `stead run manifest`.
#[derive(Clone, Args)]
pub struct RunManifestArgs {
    /// The run manifest
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Where a role, or an agent's id, runs: local, ssh://user@host or user@host; may be repeated
    // Read later: an error of the argument parser would show what was typed, which may hold a password.
    #[arg(long, value_name = "NAME=TRANSPORT")]
    pub agent: Vec<String>,
    /// Where the bundle is written
    #[arg(long, value_name = "DIR", default_value = "runs")]
    pub bundle_dir: PathBuf,
    /// Show the phases; connect to nothing, start nothing, write nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Show everything that is planned; connect to nothing, start nothing, write nothing
    #[arg(long)]
    pub print_plan: bool,
    /// Leave the analysis of captures out
    #[arg(long)]
    pub no_analyze: bool,
    /// Leave the comparison with the baseline out
    #[arg(long)]
    pub no_diff: bool,
    /// Limit up to the end of the last role, `0` for none [default: 5m; none if a signal ends the run]
    #[arg(long, value_name = "DURATION", value_parser = value::limit)]
    pub timeout: Option<Duration>,
    /// Show the output of roles
    #[arg(short, long)]
    pub verbose: bool,
    /// The registry of agents [default: $STEAD_AGENTS, agents.yaml beside the manifest, here, or the user's]
    #[arg(long, value_name = "FILE")]
    pub agents: Option<PathBuf>,
    /// More kits: files NAME.yaml
    #[arg(long, value_name = "DIR")]
    pub kits: Option<PathBuf>,
    /// Set a variable: K=V, or K:=JSON; may be repeated
    #[arg(long, value_name = "K=V", value_parser = value::var)]
    pub var: Vec<VarFlag>,
    /// Sign the bundle with this OpenSSH key, or with a .pub that ssh-agent holds the key of
    #[arg(long, value_name = "KEY")]
    pub sign: Option<PathBuf>,
    /// If the bundle exists already, rename it first
    #[arg(long)]
    pub force: bool,
    /// Print one JSON document
    #[arg(long, help_heading = "Output")]
    pub json: bool,
    /// Write the event log here as it happens; `-` is standard output
    #[arg(long, value_name = "FILE", value_parser = value::sink, help_heading = "Output")]
    pub events: Option<Sink>,
}

/// What transports hold is left out: it may be a password.
impl fmt::Debug for RunManifestArgs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunManifestArgs")
            .field("file", &self.file)
            .field("bundle_dir", &self.bundle_dir)
            .finish_non_exhaustive()
    }
}
