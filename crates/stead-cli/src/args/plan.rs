//! Arguments of `stead plan …` and `stead resume`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use stead_engine::compile::VarFlag;
use stead_model::RunId;

use super::value::{self, PlanSource, Sink};
use super::{OperatorArgs, PairArgs, StepValueArgs};

/// Arguments of `stead plan`.
#[derive(Debug, Args)]
pub struct PlanArgs {
    /// What to do with the plan.
    #[command(subcommand)]
    pub command: PlanCommand,
}

/// What to do with a plan.
#[derive(Debug, Subcommand)]
pub enum PlanCommand {
    /// Run a plan
    #[command(after_long_help = RUN_EXAMPLES)]
    Run(Box<PlanRunArgs>),
    /// Show what a plan would run, level by level; reaches no target
    #[command(after_long_help = SHOW_EXAMPLES)]
    Show(PlanShowArgs),
    /// Draw a plan as a graph; reaches no target
    #[command(after_long_help = GRAPH_EXAMPLES)]
    Graph(PlanGraphArgs),
    /// Have a site's server run a plan
    #[command(after_long_help = SUBMIT_EXAMPLES)]
    Submit(Box<PlanSubmitArgs>),
    /// Be the process of a submitted plan; started by the server
    #[command(hide = true)]
    Keep {
        /// The submission's directory
        #[arg(long, value_name = "DIR")]
        submission: PathBuf,
    },
}

const SUBMIT_EXAMPLES: &str = "\
Examples:
  stead plan submit site.yaml                          prints the run's id
  stead plan submit site.yaml --wait                   exits as the run does
  stead plan submit site.yaml --server https://deploy.example:44443 --token-file token

Exit codes:
  0 taken   1 refused   3 invalid   6 a task asks and --yes is missing   7 the server is away";

const RUN_EXAMPLES: &str = "\
Examples:
  stead plan run site.yaml
  stead plan run site.yaml --dry-run --diff            predict, with differences
  stead plan run site.yaml --dry-run --fail-on-change  exit 4 if something would change
  stead plan run site.yaml --var version=1.27 --var 'ports:=[80, 443]'
  stead plan run site.yaml --only start-nginx --limit role:web
  stead plan run site.yaml --json > report.json
  generate | stead plan run - --events - | jq -c .";

const SHOW_EXAMPLES: &str = "\
Examples:
  stead plan show site.yaml
  stead plan show site.yaml --json | jq -r .plan_hash";

const GRAPH_EXAMPLES: &str = "\
Examples:
  stead plan graph site.yaml | dot -Tsvg > plan.svg
  stead plan graph site.yaml --format mermaid
  stead plan graph site.yaml --run last | dot -Tsvg > run.svg";

/// Arguments of `stead plan run`.
#[derive(Clone, Debug, Args)]
pub struct PlanRunArgs {
    /// The plan file; `-` reads standard input
    #[arg(value_name = "FILE", value_parser = value::plan_source)]
    pub file: PlanSource,
    /// Values for the plan's variables.
    #[command(flatten)]
    pub vars: VarArgs,
    /// Run only this task, what it depends on, and `finally`; may be repeated
    #[arg(long, value_name = "TASK")]
    pub only: Vec<String>,
    /// How many attempts may run at once, 1 to 10000 [default: the plan's, 64]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub parallel: Option<u32>,
    /// Limit of the main part, such as 30s or 1h30m [default: the plan's]
    #[arg(long, value_name = "DURATION", value_parser = value::timeout)]
    pub timeout: Option<Duration>,
    /// Predict what would change; write nothing
    #[arg(long)]
    pub dry_run: bool,
    /// With --dry-run: exit 4 if something would change, or might
    #[arg(long, requires = "dry_run")]
    pub fail_on_change: bool,
    /// Show what differs
    #[arg(long)]
    pub diff: bool,
    /// Answer yes to every `confirm`
    #[arg(long)]
    pub yes: bool,
    /// Name of the run [default: time and a random part]
    #[arg(long, value_name = "ID", value_parser = value::run_id)]
    pub run_id: Option<RunId>,
    /// Record nothing; the run cannot be resumed
    #[arg(long)]
    pub no_journal: bool,
    /// What the journal survives: the death of the process, or a loss of power
    #[arg(long, value_name = "WHAT", default_value = "process")]
    pub durability: Durability,
    /// Wait so long for targets another run holds [default: do not wait]
    #[arg(long, value_name = "DURATION", value_parser = value::duration)]
    pub wait_lock: Option<Duration>,
    /// Which hosts there are.
    #[command(flatten)]
    pub inventory: InventoryArgs,
    /// How the run is shown.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// Arguments of `stead plan submit`.
#[derive(Clone, Debug, Args)]
pub struct PlanSubmitArgs {
    /// The plan file; `-` reads standard input
    #[arg(value_name = "FILE", value_parser = value::plan_source)]
    pub file: PlanSource,
    /// Values for the plan's variables.
    #[command(flatten)]
    pub vars: VarArgs,
    /// Which server.
    #[command(flatten)]
    pub operator: OperatorArgs,
    /// Answer yes to every `confirm`
    #[arg(long)]
    pub yes: bool,
    /// Wait for the end of the run, and exit as it does
    #[arg(long)]
    pub wait: bool,
    /// Submitted again with the same key it is the same run [default: a new one]
    #[arg(long, value_name = "KEY", value_parser = value::key)]
    pub key: Option<String>,
    /// Print one JSON document: the run, or with --wait its report
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `stead plan show`.
#[derive(Clone, Debug, Args)]
pub struct PlanShowArgs {
    /// The plan file; `-` reads standard input
    #[arg(value_name = "FILE", value_parser = value::plan_source)]
    pub file: PlanSource,
    /// Values for the plan's variables.
    #[command(flatten)]
    pub vars: VarArgs,
    /// Which hosts there are.
    #[command(flatten)]
    pub inventory: InventoryArgs,
    /// Print one JSON document: plan, hash, levels
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `stead plan graph`.
#[derive(Clone, Debug, Args)]
pub struct PlanGraphArgs {
    /// The plan file; `-` reads standard input
    #[arg(value_name = "FILE", value_parser = value::plan_source)]
    pub file: PlanSource,
    /// Values for the plan's variables.
    #[command(flatten)]
    pub vars: VarArgs,
    /// The language of the drawing
    #[arg(long, value_name = "FORMAT", default_value = "dot")]
    pub format: GraphFormat,
    /// Print one JSON document that holds the drawing
    #[arg(long)]
    pub json: bool,
    /// Colour tasks by how they ended in this run: an id, a prefix, `last` or a path
    #[arg(long, value_name = "RUN")]
    pub run: Option<String>,
}

const RESUME_EXAMPLES: &str = "\
Examples:
  stead resume last
  stead resume k3f9q2ma                        the random part of a run id is enough
  stead resume last --rerun migrate            an interrupted task is safe to run again
  stead resume last --assume-done migrate      or it is known to be done
  stead resume last --force                    go on with the changed plan file";

/// Arguments of `stead resume`.
#[derive(Clone, Debug, Args)]
#[command(after_long_help = RESUME_EXAMPLES)]
pub struct ResumeArgs {
    /// The run: an id, a unique prefix, its random part, `last` or a path
    #[arg(value_name = "RUN")]
    pub run: String,
    /// Run this interrupted task again; may be repeated
    #[arg(long, value_name = "TASK")]
    pub rerun: Vec<String>,
    /// Take this interrupted task as done; may be repeated
    #[arg(long, value_name = "TASK")]
    pub assume_done: Vec<String>,
    /// Go on with the plan as it is now, keeping what is the same
    #[arg(long)]
    pub force: bool,
    /// Answer yes to every `confirm`
    #[arg(long)]
    pub yes: bool,
    /// Wait so long for targets another run holds [default: do not wait]
    #[arg(long, value_name = "DURATION", value_parser = value::duration)]
    pub wait_lock: Option<Duration>,
    /// Confirm a run of steps that destroys, by its target's name
    #[arg(long, value_name = "TARGET")]
    pub confirm: Option<String>,
    /// What configures the steps of a run of steps, given anew.
    #[command(flatten)]
    pub values: StepValueArgs,
    /// Which hosts there are.
    #[command(flatten)]
    pub inventory: InventoryArgs,
    /// How the run is shown.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// Values for a plan's variables; later ones win.
#[derive(Clone, Debug, Default, Args)]
pub struct VarArgs {
    /// Set a variable: NAME=VALUE, or NAME:=JSON; may be repeated
    #[arg(long = "var", value_name = "NAME=VALUE", value_parser = value::var, help_heading = "Variables")]
    pub var: Vec<VarFlag>,
    /// Set variables from a YAML file; may be repeated
    #[arg(long = "vars-file", value_name = "FILE", help_heading = "Variables")]
    pub vars_file: Vec<PathBuf>,
}

/// Which hosts there are and which of them take part.
#[derive(Clone, Debug, Default, Args)]
pub struct InventoryArgs {
    /// Inventory file; may be repeated [default: $STEAD_INVENTORY, inventory.yaml beside the plan or here]
    #[arg(short = 'i', long = "inventory", value_name = "FILE", help_heading = "Hosts")]
    pub inventory: Vec<PathBuf>,
    /// Registry of agents, whose agents are hosts too; may be repeated [default: $STEAD_AGENTS, agents.yaml]
    #[arg(long, value_name = "FILE", help_heading = "Hosts")]
    pub agents: Vec<PathBuf>,
    /// Only hosts that also match this target expression
    #[arg(long, value_name = "EXPR", help_heading = "Hosts")]
    pub limit: Option<String>,
    /// Nodes are hosts too.
    #[command(flatten)]
    pub nodes: PairArgs,
}

/// How a run is shown.
#[derive(Clone, Debug, Default, Args)]
pub struct OutputArgs {
    /// Print the report as one JSON document on standard output
    #[arg(long, alias = "json-output", help_heading = "Output")]
    pub json: bool,
    /// Write the event log here as it happens; `-` is standard output
    #[arg(long, value_name = "FILE", value_parser = value::sink, help_heading = "Output")]
    pub events: Option<Sink>,
    /// Write a JUnit XML report
    #[arg(long, value_name = "FILE", value_parser = value::report_file, help_heading = "Output")]
    pub junit: Option<PathBuf>,
    /// Write a Markdown report
    #[arg(long, value_name = "FILE", value_parser = value::report_file, help_heading = "Output")]
    pub markdown: Option<PathBuf>,
    /// How progress is shown on standard error
    #[arg(long, value_name = "HOW", default_value = "auto", help_heading = "Output")]
    pub progress: Progress,
    /// Show the output of tasks as it comes, as `task@host | line`
    #[arg(short = 'v', long, help_heading = "Output")]
    pub verbose: bool,
}

/// How progress is shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Progress {
    /// `tty` on a terminal, else `plain`.
    #[default]
    Auto,
    /// A moving display.
    Tty,
    /// One line per event.
    Plain,
    /// Not at all.
    None,
}

/// What the journal survives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Durability {
    /// The death of the process.
    #[default]
    Process,
    /// A loss of power.
    Power,
}

/// The language of a drawing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum GraphFormat {
    /// Graphviz.
    #[default]
    Dot,
    /// Mermaid.
    Mermaid,
}
