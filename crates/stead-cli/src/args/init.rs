//! Arguments of `stead init`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

/// What to start.
#[derive(Clone, Debug, Subcommand)]
pub enum InitCommand {
    /// Write a first plan
    #[command(after_long_help = PLAN_EXAMPLES)]
    Plan(InitPlanArgs),
    /// Write a first catalogue of steps, with its scripts
    #[command(after_long_help = STEPS_EXAMPLES)]
    Steps(InitStepsArgs),
    /// Write a first run manifest, with a server and a client
    #[command(after_long_help = RUN_EXAMPLES)]
    Run(InitRunArgs),
    /// Write a site directory that works; overwrites nothing
    #[command(after_long_help = NODES_EXAMPLES)]
    Nodes(InitNodesArgs),
    /// Write a fleet that works, with its first commit
    #[command(after_long_help = FLEET_EXAMPLES)]
    Fleet(InitFleetArgs),
}

const PLAN_EXAMPLES: &str = "\
Examples:
  stead init plan                             ./plan
  stead init plan hello && stead plan run hello/plan.yaml";

/// Arguments of `stead init plan`.
#[derive(Clone, Debug, Args)]
pub struct InitPlanArgs {
    /// The directory to write
    #[arg(value_name = "DIR", default_value = "plan")]
    pub directory: PathBuf,
    /// Print one JSON document
    #[arg(long, alias = "json-output")]
    pub json: bool,
}

const STEPS_EXAMPLES: &str = "\
Examples:
  stead init steps                            ./steps
  stead init steps lab && stead steps run lab/steps.yaml --dry-run";

/// Arguments of `stead init steps`.
#[derive(Clone, Debug, Args)]
pub struct InitStepsArgs {
    /// The directory to write
    #[arg(value_name = "DIR", default_value = "steps")]
    pub directory: PathBuf,
    /// Print one JSON document
    #[arg(long, alias = "json-output")]
    pub json: bool,
}

const RUN_EXAMPLES: &str = "\
Examples:
  stead init run                              ./run
  stead init run soak && stead run manifest soak/run.yaml";

/// Arguments of `stead init run`.
#[derive(Clone, Debug, Args)]
pub struct InitRunArgs {
    /// The directory to write
    #[arg(value_name = "DIR", default_value = "run")]
    pub directory: PathBuf,
    /// Print one JSON document
    #[arg(long, alias = "json-output")]
    pub json: bool,
}

const NODES_EXAMPLES: &str = "\
Examples:
  stead init nodes                            ./site-config, for one who is present
  stead init nodes lab --persona managed      ./lab, for sites that recover by themselves";

/// Arguments of `stead init nodes`.
#[derive(Clone, Debug, Args)]
pub struct InitNodesArgs {
    /// The directory to write [default: ./site-config]
    #[arg(value_name = "DIR", conflicts_with = "site")]
    pub directory: Option<PathBuf>,
    /// Who the site is for
    #[arg(long, value_name = "WHO", default_value = "homelab")]
    pub persona: PersonaWord,
    /// The same, as other commands call it
    #[arg(long, value_name = "DIR")]
    pub site: Option<PathBuf>,
    /// Print one JSON document
    #[arg(long, alias = "json-output")]
    pub json: bool,
}

/// Who a site is for, as it is typed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PersonaWord {
    /// Push: the operator is present and wants to see it now.
    Homelab,
    /// Pull: remote sites that recover by themselves.
    Managed,
    /// Hybrid: an audited trigger, autonomous execution.
    Enterprise,
}

const FLEET_EXAMPLES: &str = "\
Examples:
  stead init fleet                            ./fleet
  stead init fleet lab && stead fleet dev lab";

/// Arguments of `stead init fleet`.
#[derive(Clone, Debug, Args)]
pub struct InitFleetArgs {
    /// The directory to write
    #[arg(value_name = "DIR", default_value = "fleet")]
    pub directory: PathBuf,
    /// Print one JSON document
    #[arg(long, alias = "json-output")]
    pub json: bool,
}
