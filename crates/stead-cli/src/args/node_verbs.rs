//! Arguments of what acts on nodes: `create`, `destroy`, `test`, `status`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use stead_model::RunId;
use stead_model::site::manifest::OnNodeError;

use super::nodes::{ManifestArgs, SelectArgs, SiteArgs};
use super::plan::OutputArgs;
use super::value::{self, Sink};

pub(super) const CREATE_EXAMPLES: &str = "\
Examples:
  stead create -M lab -H local                make the nodes of manifests/lab.yaml here
  stead create -M lab -H local --dry-run      what would be done, in which order
  stead create -M lab -H local --only edge    one of them

Exit codes:
  0 done   1 a node failed   3 invalid input   5 another run works on them   7 unreachable   8 timed out";

pub(super) const DESTROY_EXAMPLES: &str = "\
Examples:
  stead destroy -M lab -H local               remove them, after a question
  stead destroy -M lab -H local --yes         remove them

Exit codes:
  0 gone   1 a node is left   5 another run works on them   6 nobody said yes";

pub(super) const STATUS_EXAMPLES: &str = "\
Examples:
  stead status                                every node that is known
  stead status -M lab -H local --json         those of one manifest on one host

Exit codes:
  0 all are converged   1 one is not, or there are none   3 there is no such site, manifest or host";

pub(super) const TEST_EXAMPLES: &str = "\
Examples:
  stead test -M lab -H local                  make, verify, remove; a report is written
  stead test -M lab -H local --only edge      with one of them

Exit codes:
  0 passed   1 failed   6 nodes are there already and nobody said yes";

/// Which nodes, where, and how; shared by all verbs that act.
#[derive(Clone, Debug, Args)]
pub struct NodesArgs {
    /// Which manifest.
    #[command(flatten)]
    pub manifest: ManifestArgs,
    /// The host to work on: NAME or USER@NAME
    #[arg(short = 'H', long, value_name = "HOST")]
    pub host: String,
    /// Which nodes.
    #[command(flatten)]
    pub select: SelectArgs,
    /// Where the site is.
    #[command(flatten)]
    pub site: SiteArgs,
    /// Print what would be done; nothing is written, started or contacted
    #[arg(long)]
    pub dry_run: bool,
    /// Answer every question with yes
    #[arg(short = 'y', long)]
    pub yes: bool,
    /// Wait so long for nodes another run works on [default: do not wait]
    #[arg(long, value_name = "DURATION", value_parser = value::duration)]
    pub wait_lock: Option<Duration>,
    /// What a failed node does to the others [default: the manifest's]
    #[arg(long, value_name = "WHAT")]
    pub on_error: Option<OnErrorWord>,
    /// The address that nodes reach this machine by
    #[arg(long, value_name = "ADDR")]
    pub self_addr: Option<String>,
    /// Do not look first whether the host has what is needed
    #[arg(long)]
    pub skip_preflight: bool,
    /// The run's id, made by whoever started it
    #[arg(long, value_name = "RUN", value_parser = value::run_id, hide = true)]
    pub run_id: Option<RunId>,
    /// Output.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// Arguments of `stead test`.
#[derive(Clone, Debug, Args)]
pub struct TestArgs {
    /// Which nodes, where, and how.
    #[command(flatten)]
    pub nodes: NodesArgs,
    /// Where reports go [default: STATE/reports]
    #[arg(long, value_name = "DIR")]
    pub report_dir: Option<PathBuf>,
}

const ONLY_LOOKS: &str = "As `stead create` takes them; this verb only looks, so most change nothing";

/// Flags of the verbs that act, for scripts with one set of flags for all verbs of nodes.
#[derive(Clone, Debug, Default, Args)]
pub struct ActFlags {
    /// Contact nobody
    #[arg(long, help_heading = ONLY_LOOKS)]
    pub dry_run: bool,
    /// Nothing is asked
    #[arg(short = 'y', long, help_heading = ONLY_LOOKS)]
    pub yes: bool,
    /// Nothing fails that could do something to others
    #[arg(long, value_name = "WHAT", help_heading = ONLY_LOOKS)]
    pub on_error: Option<OnErrorWord>,
    /// Checked, and told to nobody
    #[arg(long, value_name = "ADDR", help_heading = ONLY_LOOKS)]
    pub self_addr: Option<String>,
    /// Nothing is needed of the host
    #[arg(long, help_heading = ONLY_LOOKS)]
    pub skip_preflight: bool,
    /// Write the event log here, which is empty; `-` is standard output
    #[arg(long, value_name = "FILE", value_parser = value::sink, help_heading = ONLY_LOOKS)]
    pub events: Option<Sink>,
}

/// Arguments of `stead status`.
#[derive(Clone, Debug, Default, Args)]
pub struct StatusArgs {
    /// Which manifest; none: all that are known.
    #[command(flatten)]
    pub manifest: ManifestArgs,
    /// The host: NAME or USER@NAME [default: all]
    #[arg(short = 'H', long, value_name = "HOST")]
    pub host: Option<String>,
    /// Which nodes.
    #[command(flatten)]
    pub select: SelectArgs,
    /// Where the site is.
    #[command(flatten)]
    pub site: SiteArgs,
    /// Print one JSON document
    #[arg(long, alias = "json-output")]
    pub json: bool,
    /// What verbs that act take, too.
    #[command(flatten)]
    pub act: ActFlags,
}

/// Which pairs of manifest and host; none: all that are known.
#[derive(Clone, Debug, Default, Args)]
pub struct PairArgs {
    /// Nodes of this manifest
    #[arg(short = 'M', long, value_name = "NAME", help_heading = "Nodes")]
    pub manifest: Option<String>,
    /// Nodes on this host: NAME or USER@NAME
    #[arg(short = 'H', long, value_name = "HOST", help_heading = "Nodes")]
    pub host: Option<String>,
    /// Where the site is.
    #[command(flatten)]
    pub site: SiteArgs,
}

pub(super) const DRIFT_EXAMPLES: &str = "\
Examples:
  stead drift -M lab -H local                 what is not as the specs want it, at every level
  stead drift -M lab -H local --only 'web*'

Exit codes:
  0 nothing   3 there is no such manifest, host or node   4 something is different   7 a node could not be asked";

/// Arguments of `stead drift`.
#[derive(Clone, Debug, Args)]
pub struct DriftArgs {
    /// Which nodes; none: all that are known.
    #[command(flatten)]
    pub pair: PairArgs,
    /// A manifest elsewhere; `-` reads standard input
    #[arg(long, value_name = "FILE", conflicts_with_all = ["manifest", "manifest_json"], requires = "host")]
    pub manifest_file: Option<PathBuf>,
    /// A manifest as text; `-` reads standard input
    #[arg(long, value_name = "JSON", conflicts_with = "manifest", requires = "host")]
    pub manifest_json: Option<String>,
    /// Only these nodes: names and globs, repeated or separated by commas
    #[arg(long, value_name = "NODES")]
    pub only: Vec<String>,
    /// Print one JSON document
    #[arg(long, alias = "json-output")]
    pub json: bool,
}

/// What a failed node does to the others, as it is typed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OnErrorWord {
    /// Nothing new is started.
    Stop,
    /// What does not depend on it goes on.
    Continue,
    /// What this run made is removed.
    Rollback,
}

impl From<OnErrorWord> for OnNodeError {
    fn from(word: OnErrorWord) -> Self {
        match word {
            OnErrorWord::Stop => Self::Stop,
            OnErrorWord::Continue => Self::Continue,
            OnErrorWord::Rollback => Self::Rollback,
        }
    }
}
