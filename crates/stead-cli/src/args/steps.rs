//! Arguments of `stead steps …`.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};

use super::value::{self, Sink};

/// What to do with steps.
#[derive(Clone, Debug, Subcommand)]
pub enum StepsCommand {
    /// Run the steps of a catalogue
    #[command(after_long_help = RUN_EXAMPLES)]
    Run(Box<StepsRunArgs>),
    /// List catalogues and their steps
    #[command(after_long_help = LIST_EXAMPLES)]
    List(StepsListArgs),
    /// Show where a value comes from, layer by layer
    #[command(after_long_help = EXPLAIN_EXAMPLES)]
    Explain(StepsExplainArgs),
    /// List runs of steps, newest first
    #[command(after_long_help = HISTORY_EXAMPLES)]
    History(StepsHistoryArgs),
    /// Check catalogues, layers, scripts and what intents edit; exit 4 if something is bad
    #[command(after_long_help = CHECK_EXAMPLES)]
    Check(StepsCheckArgs),
}

const RUN_EXAMPLES: &str = "\
Examples:
  stead steps run --dry-run                       plan and configuration; does nothing
  stead steps run                                 apply
  stead steps run --only 15,install-flux          some steps, in listed order
  stead steps run cluster --from 32 --set FEAT_VERIFY=true
  stead steps run --delete --confirm homelab      take it down
  stead steps run --resume last                   go on after a crash or a failure";

const LIST_EXAMPLES: &str = "\
Examples:
  stead steps list
  stead steps list cluster --json | jq -r '.catalogues[].steps[].id'";

const EXPLAIN_EXAMPLES: &str = "\
Examples:
  stead steps explain BASE_DOMAIN
  stead steps explain BASE_DOMAIN --profile other.env --json | jq -r .winner";

const HISTORY_EXAMPLES: &str = "\
Examples:
  stead steps history
  stead steps history cluster --limit 5 --json";

const CHECK_EXAMPLES: &str = "\
Examples:
  stead steps check
  stead steps check cluster --profile profiles/ci.env --json";

/// Arguments of `stead steps run`.
#[derive(Clone, Debug, Args)]
pub struct StepsRunArgs {
    /// The catalogue: its name, or a path [default: steps.yaml, or the only file in steps/]
    #[arg(value_name = "CATALOGUE")]
    pub catalogue: Option<String>,
    /// What configures the steps.
    #[command(flatten)]
    pub values: StepValueArgs,
    /// Run only these: ids, numbers, file names; a comma list, may be repeated
    #[arg(long, value_name = "LIST", help_heading = "Selection")]
    pub only: Vec<String>,
    /// Leave these out; a comma list, may be repeated
    #[arg(long, value_name = "LIST", help_heading = "Selection")]
    pub skip: Vec<String>,
    /// Begin with this step
    #[arg(long, value_name = "S", help_heading = "Selection")]
    pub from: Option<String>,
    /// End with this step
    #[arg(long, value_name = "S", help_heading = "Selection")]
    pub until: Option<String>,
    /// Add the steps that selected ones need
    #[arg(long, conflicts_with = "skip_needs", help_heading = "Selection")]
    pub with_needs: bool,
    /// Go without the steps that selected ones need
    #[arg(long, help_heading = "Selection")]
    pub skip_needs: bool,
    /// Show plan and configuration; start nothing, write nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Run the delete order
    #[arg(long)]
    pub delete: bool,
    /// Confirm what destroys, by the target's name
    #[arg(long, value_name = "TARGET")]
    pub confirm: Option<String>,
    /// Go on with this run, as `stead resume` does
    #[arg(
        long,
        value_name = "RUN",
        conflicts_with_all = ["only", "skip", "from", "until", "with_needs", "skip_needs", "delete"]
    )]
    pub resume: Option<String>,
    /// Wait so long for a target another run holds [default: do not wait]
    #[arg(long, value_name = "DURATION", value_parser = value::duration)]
    pub wait_lock: Option<Duration>,
    /// Print the report as one JSON document on standard output
    #[arg(long, help_heading = "Output")]
    pub json: bool,
    /// Write the event log here as it happens; `-` is standard output
    #[arg(long, value_name = "FILE", value_parser = value::sink, help_heading = "Output")]
    pub events: Option<Sink>,
}

/// What configures steps besides their catalogue.
#[derive(Clone, Default, Args)]
pub struct StepValueArgs {
    /// The file of the catalogue's flag layer
    #[arg(long, value_name = "FILE", help_heading = "Values")]
    pub profile: Option<PathBuf>,
    /// The same, for catalogues whose flag layer is called so
    #[arg(long, value_name = "FILE", conflicts_with = "profile", help_heading = "Values")]
    pub host_env: Option<PathBuf>,
    /// Set a value over all layers; may be repeated, the last one wins
    #[arg(long = "set", value_name = "K=V", value_parser = value::pair, help_heading = "Values")]
    pub set: Vec<(String, String)>,
}

/// Names only: values may be secret.
impl fmt::Debug for StepValueArgs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { profile, host_env, set } = self;
        let names: Vec<&String> = set.iter().map(|(name, _)| name).collect();
        f.debug_struct("StepValueArgs")
            .field("profile", profile)
            .field("host_env", host_env)
            .field("set", &names)
            .finish()
    }
}

/// Arguments of `stead steps list`.
#[derive(Clone, Debug, Args)]
pub struct StepsListArgs {
    /// One catalogue: its name, or a path [default: all]
    #[arg(value_name = "CATALOGUE")]
    pub catalogue: Option<String>,
    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `stead steps explain`.
#[derive(Clone, Debug, Args)]
pub struct StepsExplainArgs {
    /// The name of a variable or control
    #[arg(value_name = "KEY")]
    pub key: String,
    /// The catalogue: its name, or a path [default: steps.yaml, or the only file in steps/]
    #[arg(value_name = "CATALOGUE")]
    pub catalogue: Option<String>,
    /// What configures the steps.
    #[command(flatten)]
    pub values: StepValueArgs,
    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `stead steps history`.
#[derive(Clone, Debug, Args)]
pub struct StepsHistoryArgs {
    /// One catalogue: its name, or a path [default: all]
    #[arg(value_name = "CATALOGUE")]
    pub catalogue: Option<String>,
    /// At most so many
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub limit: usize,
    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `stead steps check`.
#[derive(Clone, Debug, Args)]
pub struct StepsCheckArgs {
    /// One catalogue: its name, or a path [default: all]
    #[arg(value_name = "CATALOGUE")]
    pub catalogue: Option<String>,
    /// What configures the steps.
    #[command(flatten)]
    pub values: StepValueArgs,
    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
}
