//! What a person may type: the argument tree, and nothing else.
//!
//! Values are checked here as far as their text allows; what they mean is [`crate::settings`]'s and the
//! commands' business. No environment variable is read here, and no abbreviation is guessed.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::error::ErrorKind;
use clap::{Args, CommandFactory, FromArgMatches as _, Parser, Subcommand, ValueEnum};
use stead_model::{RunId, SiteKey};

mod agent;
mod bundle;
mod config;
mod diff;
mod doctor;
mod exec;
mod explain;
mod fleet;
mod groups;
mod init;
mod intent;
mod job;
mod node_verbs;
mod nodes;
mod overview;
mod plan;
mod run;
mod server;
mod server_way;
mod steps;
mod tui;
mod ui;
mod value;

pub use agent::{
    AgentCheckArgs, AgentCommand, AgentConvergeArgs, AgentListArgs, AgentRunArgs, AgentSignal,
    AgentStatusArgs,
};
pub use bundle::{
    BundleCommand, BundleExportArgs, BundleInfoArgs, BundleListArgs, BundleReplayArgs, BundleReportArgs,
    BundleVerifyArgs, DocumentFormat, Speed,
};
pub use config::{ConfigApplyArgs, ConfigCommand, ConfigConfirmArgs, ConfigFetchArgs, ConfigObserveArgs};
pub use diff::{DiffCommand, DiffRunArgs};
pub use doctor::{DoctorArgs, Driver};
pub use exec::ExecArgs;
pub use explain::ExplainArgs;
pub use fleet::{
    FailOn, FleetCommand, FleetDevArgs, FleetDriverWord, FleetExplainArgs, FleetHoldArgs, FleetMasterArgs,
    FleetMintArgs, FleetPlanArgs, FleetPublishArgs, FleetReleaseArgs, FleetRevokeArgs, FleetRole,
    FleetStatusArgs, FleetTokenCommand, FleetTokenListArgs, FleetWaitArgs, FleetWayArgs, FleetWorkerArgs,
    MasterKeys, PublisherKeys, WorkerKeys,
};
pub use init::{
    InitCommand, InitFleetArgs, InitNodesArgs, InitPlanArgs, InitRunArgs, InitStepsArgs, PersonaWord,
};
pub use intent::IntentArgs;
pub use job::{JobCancelArgs, JobCommand, JobListArgs, JobPairArgs, JobShowArgs, JobSubmitArgs};
pub use node_verbs::{ActFlags, DriftArgs, NodesArgs, OnErrorWord, PairArgs, StatusArgs, TestArgs};
pub use nodes::{
    AudienceWord, ManifestArgs, ModeWord, SelectArgs, SiteArgs, TokenCommand, TokenInspectArgs,
    TokenMintArgs, TokenRevokeArgs, TokenRotateArgs, TokenVerifyArgs, ValidateArgs,
};
pub use plan::{
    Durability, GraphFormat, InventoryArgs, OutputArgs, PlanArgs, PlanCommand, PlanGraphArgs, PlanRunArgs,
    PlanShowArgs, PlanSubmitArgs, Progress, ResumeArgs, VarArgs,
};
pub use run::{RunCommand, RunManifestArgs};
pub use server::{ServerCommand, ServerStartArgs, ServerStatusArgs, ServerStopArgs};
pub use server_way::{OperatorArgs, TrustArgs};
pub use steps::{
    StepValueArgs, StepsCheckArgs, StepsCommand, StepsExplainArgs, StepsHistoryArgs, StepsListArgs,
    StepsRunArgs,
};
pub use tui::TuiArgs;
pub use ui::UiArgs;
pub use value::{PlanSource, Sink};

const EXAMPLES: &str = "\
Examples:
  stead init plan hello                    something to begin with; also steps, run, nodes, fleet
  stead plan run site.yaml --dry-run       what would change
  stead plan run site.yaml                 do it
  stead steps run --dry-run                what steps would run, with which values
  stead run manifest run.yaml              roles on agents, one bundle
  stead resume last                        go on after a crash or a failure
  stead exec role:web -- uptime            a command on some hosts
  stead bundle list                        what ran, newest first
  stead diff run base.zip last             what is different
  stead fleet dev lab                      machines kept as a Git repository says
  stead tui                                all of that on a whole screen

Exit codes:
  0 done   1 the work failed   2 usage   3 invalid input   4 verification failed   5 locked
  6 confirmation needed   7 unreachable   8 timed out   10 a fleet is converging   11 it is degraded
  130 cancelled by a signal";

/// Puts machines in their place and keeps them there.
#[derive(Debug, Parser)]
#[command(name = "stead", version, after_long_help = EXAMPLES, arg_required_else_help = true)]
#[command(subcommand_required = true, infer_subcommands = false, infer_long_args = false)]
pub struct Cli {
    /// Flags every command takes.
    #[command(flatten)]
    pub global: GlobalArgs,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// Flags every command takes.
#[derive(Clone, Debug, Default, Args)]
pub struct GlobalArgs {
    /// Where runs and locks are kept [default: $STEAD_DIR, the nearest .stead upwards, ./.stead]
    #[arg(long, value_name = "DIR", global = true, help_heading = "Global options")]
    pub state_dir: Option<PathBuf>,
    /// When to use colour
    #[arg(long, value_name = "WHEN", global = true, default_value = "auto", help_heading = "Global options")]
    pub color: ColorWhen,
}

/// When to use colour.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum ColorWhen {
    /// On a terminal, unless NO_COLOR is set.
    #[default]
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run, show or draw a plan
    #[command(after_long_help = groups::PLAN)]
    Plan(PlanArgs),
    /// Run roles on agents, and write one verifiable bundle
    #[command(subcommand, after_long_help = groups::RUN)]
    Run(RunCommand),
    /// Run, list and check numbered scripts with layered values
    #[command(subcommand, after_long_help = groups::STEPS)]
    Steps(StepsCommand),
    /// Edit files in Git by a named intent and run the steps that follow
    #[command(after_long_help = intent::EXAMPLES)]
    Intent(Box<IntentArgs>),
    /// Go on with a run that stopped before its end
    Resume(Box<ResumeArgs>),
    /// Run a command or one operation on hosts
    #[command(after_long_help = exec::EXAMPLES)]
    Exec(Box<ExecArgs>),
    /// Check and look at what runs left behind
    #[command(subcommand, after_long_help = groups::BUNDLE)]
    Bundle(BundleCommand),
    /// Compare what runs left behind
    #[command(subcommand, after_long_help = groups::DIFF)]
    Diff(DiffCommand),
    /// Look at this machine and others as places where roles run; be a node's agent
    #[command(subcommand, after_long_help = groups::AGENT)]
    Agent(AgentCommand),
    /// Show runs, nodes and a fleet on a whole screen; start runs and watch agents
    #[command(after_long_help = tui::KEYS)]
    Tui(TuiArgs),
    /// Show runs, nodes and a fleet in a browser of this machine
    #[command(after_long_help = ui::EXAMPLES)]
    Ui(Box<UiArgs>),
    /// Check what this machine, a driver and hosts have of what is needed
    #[command(after_long_help = doctor::EXAMPLES)]
    Doctor(DoctorArgs),
    /// Say what a code, an exit code or a reason of a status means, and what to do
    #[command(after_long_help = explain::EXAMPLES)]
    Explain(ExplainArgs),
    /// Make the nodes of a manifest, and make them what they should be
    #[command(after_long_help = node_verbs::CREATE_EXAMPLES)]
    Create(Box<NodesArgs>),
    /// Remove the nodes of a manifest
    #[command(after_long_help = node_verbs::DESTROY_EXAMPLES)]
    Destroy(Box<NodesArgs>),
    /// Compare the nodes of a manifest with what they should be; a part of a test that a level above does
    #[command(hide = true)]
    Verify(Box<NodesArgs>),
    /// Make the nodes of a manifest, verify them, and remove them
    #[command(after_long_help = node_verbs::TEST_EXAMPLES)]
    Test(Box<TestArgs>),
    /// Show the nodes of a manifest as they are
    #[command(after_long_help = node_verbs::STATUS_EXAMPLES)]
    Status(Box<StatusArgs>),
    /// Show what of the nodes is not as their specs want it any more
    #[command(after_long_help = node_verbs::DRIFT_EXAMPLES)]
    Drift(Box<DriftArgs>),
    /// Check a manifest or a whole site, without touching anything
    #[command(after_long_help = nodes::VALIDATE_EXAMPLES)]
    Validate(Box<ValidateArgs>),
    /// Make a machine what its spec wants
    #[command(subcommand, after_long_help = groups::CONFIG)]
    Config(ConfigCommand),
    /// Have agents of nodes run commands
    #[command(subcommand, after_long_help = groups::JOB)]
    Job(JobCommand),
    /// Make, check, rotate and revoke what nodes identify themselves with
    #[command(subcommand, after_long_help = groups::TOKEN)]
    Token(TokenCommand),
    /// Start, stop and look at the server that nodes talk to
    #[command(subcommand, after_long_help = groups::SERVER)]
    Server(ServerCommand),
    /// Keep machines as a Git commit says: publisher, master, workers
    #[command(subcommand, after_long_help = groups::FLEET)]
    Fleet(FleetCommand),
    /// Write the files to start with
    #[command(subcommand, after_long_help = groups::INIT)]
    Init(InitCommand),
    /// Print the JSON Schema of a file format or operation
    #[command(subcommand, after_long_help = SCHEMA_EXAMPLES)]
    Schema(SchemaCommand),
    /// Print a completion script for a shell
    #[command(after_long_help = COMPLETIONS_EXAMPLES)]
    Completions(CompletionsArgs),
    /// Print the manual page, or write the pages of all commands
    #[command(after_long_help = MAN_EXAMPLES)]
    Man(ManArgs),
    /// Carry out operations for a driver elsewhere; started by it
    #[command(hide = true)]
    Executor(ExecutorArgs),
    /// Start a role, watch it and stop it for a driver; started by it
    #[command(hide = true, name = stead_drivers::supervisor::COMMAND)]
    Supervise,
    /// Be the process of a sandbox; started by its driver
    #[command(hide = true)]
    Sandbox(SandboxArgs),
    /// Be the process that writes a machine's console; started by its driver
    #[command(hide = true)]
    Console {
        /// The machine's directory
        #[arg(long, value_name = "DIR")]
        machine: PathBuf,
    },
    /// Be a process of a container; started by its driver
    #[command(hide = true, subcommand)]
    Container(ContainerCommand),
    /// Do for the level above what it asks with the nodes in this machine; started by it
    #[command(hide = true, subcommand, name = stead_drivers::errand::COMMAND)]
    Errand(ErrandCommand),
}

/// What is done with an errand.
#[derive(Clone, Debug, Subcommand)]
pub enum ErrandCommand {
    /// Begin the errand on standard input
    Begin,
    /// Be the process that keeps an errand going
    Keep(ErrandArgs),
    /// Print what happens in an errand until it ends
    Follow {
        /// Which errand.
        #[command(flatten)]
        errand: ErrandArgs,
        /// The number of the last event that is known
        #[arg(long, value_name = "SEQ", default_value_t = 0)]
        after: u64,
        /// Stop after so many bytes of events, between two of them
        #[arg(long, value_name = "BYTES")]
        most: Option<u64>,
    },
    /// Ask an errand to stop
    Stop(ErrandArgs),
    /// Print which of the images on standard input this machine has not
    Absent,
    /// Fetch the images on standard input from the server of this node
    Fetch,
    /// Answer what is asked on standard input about the jobs of a manifest's nodes in this machine
    Job {
        /// The site that handed it down
        #[arg(long, value_name = "NAME", value_parser = nodes::site_key)]
        of_site: SiteKey,
        /// The manifest
        #[arg(long, value_name = "NAME", value_parser = nodes::site_key)]
        manifest: SiteKey,
        /// What this machine is called there
        #[arg(long, value_name = "NAME")]
        host: String,
        /// From which byte of the answer on
        #[arg(long, value_name = "BYTES", default_value_t = 0)]
        from: u64,
    },
    /// Print what the nodes of a manifest in this machine do
    Status {
        /// The site that handed it down
        #[arg(long, value_name = "NAME", value_parser = nodes::site_key)]
        of_site: SiteKey,
        /// The manifest
        #[arg(long, value_name = "NAME", value_parser = nodes::site_key)]
        manifest: SiteKey,
        /// What this machine is called above
        #[arg(long, value_name = "HOST")]
        host: String,
    },
}

/// Which errand.
#[derive(Clone, Debug, Args)]
pub struct ErrandArgs {
    /// The errand's run
    #[arg(long, value_name = "RUN", value_parser = value::run_id)]
    pub run: RunId,
}

/// Processes of a container.
#[derive(Clone, Debug, Subcommand)]
pub enum ContainerCommand {
    /// Be the process that keeps a container
    Keep(SandboxArgs),
    /// Be the first process in a container
    Init,
    /// Stop the container this runs in, and have it start again
    Restart,
    /// Become a program as root of a user namespace
    Apart {
        /// The process whose namespace it is; one of its own if this is left out
        #[arg(long, value_name = "PID")]
        of: Option<u32>,
        /// The program and its arguments
        #[arg(value_name = "ARGV", required = true, last = true)]
        argv: Vec<OsString>,
    },
    /// Map the numbers of this account into the user namespace of a process
    Map {
        /// The process
        #[arg(value_name = "PID")]
        pid: u32,
    },
    /// Try whether there can be a container here
    Try,
    /// Make the files of the container that standard input describes
    Make,
    /// Remove trees of containers
    Remove {
        /// The trees
        #[arg(value_name = "PATH", required = true)]
        paths: Vec<PathBuf>,
    },
}

/// Arguments of `stead sandbox` and of `stead container keep`.
#[derive(Clone, Debug, Args)]
pub struct SandboxArgs {
    /// The machine's directory
    #[arg(long, value_name = "DIR")]
    pub machine: PathBuf,
    /// Which start this is
    #[arg(long, value_name = "TICKET")]
    pub ticket: String,
}

/// Arguments of `stead executor`.
#[derive(Clone, Debug, Args)]
pub struct ExecutorArgs {
    /// Attach standard input and output to the session of this run
    #[arg(long, value_name = "RUN", value_parser = value::run_id, required_unless_present = "session")]
    pub attach: Option<RunId>,
    /// Be the session of this run
    #[arg(long, value_name = "RUN", value_parser = value::run_id, conflicts_with = "attach")]
    pub session: Option<RunId>,
    /// Where executors keep their files
    #[arg(long, value_name = "DIR")]
    pub base: PathBuf,
    /// Remove versions that nobody uses
    #[arg(long)]
    pub clean: bool,
}

const SCHEMA_EXAMPLES: &str = "\
Examples:
  stead schema plan > plan.schema.json     for an editor's YAML language server
  stead schema operation                   every operation
  stead schema operation command.exec      one operation";

/// Of what to print the schema.
#[derive(Clone, Debug, Subcommand)]
pub enum SchemaCommand {
    /// Print the JSON Schema of plan files
    #[command(after_long_help = groups::SCHEMA)]
    Plan,
    /// Print the JSON Schema of inventory files
    #[command(after_long_help = groups::SCHEMA)]
    Inventory,
    /// Print the JSON Schema of catalogues of steps
    #[command(after_long_help = groups::SCHEMA)]
    Steps,
    /// Print the JSON Schema of run manifests
    #[command(after_long_help = groups::SCHEMA)]
    Run,
    /// Print the JSON Schema of kits of roles
    #[command(after_long_help = groups::SCHEMA)]
    Kit,
    /// Print the JSON Schema of site.yaml
    #[command(after_long_help = groups::SCHEMA)]
    Site,
    /// Print the JSON Schema of secrets.yaml
    #[command(after_long_help = groups::SCHEMA)]
    Secrets,
    /// Print the JSON Schema of files in hosts/
    #[command(after_long_help = groups::SCHEMA)]
    Host,
    /// Print the JSON Schema of files in nodes/
    #[command(after_long_help = groups::SCHEMA)]
    Instance,
    /// Print the JSON Schema of files in specs/
    #[command(after_long_help = groups::SCHEMA)]
    Spec,
    /// Print the JSON Schema of files in presets/
    #[command(after_long_help = groups::SCHEMA)]
    Preset,
    /// Print the JSON Schema of files in postures/
    #[command(after_long_help = groups::SCHEMA)]
    Posture,
    /// Print the JSON Schema of manifests
    #[command(after_long_help = groups::SCHEMA)]
    Manifest,
    /// Print the JSON Schema of fleet.yaml
    #[command(after_long_help = groups::SCHEMA)]
    Fleet,
    /// Print the JSON Schema of publisher.yaml
    #[command(after_long_help = groups::SCHEMA)]
    Publisher,
    /// Print the JSON Schema of master.yaml
    #[command(after_long_help = groups::SCHEMA)]
    Master,
    /// Print the JSON Schema of worker.yaml
    #[command(after_long_help = groups::SCHEMA)]
    Worker,
    /// Print operations: parameters, result and effect
    #[command(after_long_help = groups::SCHEMA)]
    Operation {
        /// One operation, such as command.exec [default: all]
        name: Option<String>,
    },
}

const COMPLETIONS_EXAMPLES: &str = "\
Examples:
  stead completions bash > ~/.local/share/bash-completion/completions/stead
  stead completions zsh > ~/.zfunc/_stead
  stead completions fish > ~/.config/fish/completions/stead.fish";

/// Arguments of `stead completions`.
#[derive(Clone, Debug, Args)]
pub struct CompletionsArgs {
    /// Which shell
    pub shell: Shell,
}

/// Shells that completions exist for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Shell {
    /// Bash.
    Bash,
    /// Zsh.
    Zsh,
    /// Fish.
    Fish,
}

const MAN_EXAMPLES: &str = "\
Examples:
  stead man | man -l -                     read it
  stead man --dir ~/.local/share/man/man1  install the pages of all commands";

/// Arguments of `stead man`.
#[derive(Clone, Debug, Args)]
pub struct ManArgs {
    /// Write one page per command here
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
}

impl Cli {
    /// Returns what `argv` (program name first) says, or clap's error: usage, help or version.
    pub fn parse_argv(argv: &[OsString]) -> Result<Self, clap::Error> {
        let mut command = overview::grouped(Self::command(), overview::width());
        let argv = with_verbs(argv);
        let matches = command.try_get_matches_from_mut(&argv);
        let mut matches = matches.map_err(|error| overview::with_tip(error, &argv))?;
        let cli = Self::from_arg_matches_mut(&mut matches).map_err(|error| error.format(&mut command))?;
        if let Some((true, Some(Sink::Stdout))) = cli.command.output() {
            let message = "the argument '--json' cannot be used with '--events -': both write to standard output\n\n  \
                           tip: write the events to a file: --events FILE";
            return Err(cli.command.clap_command().error(ErrorKind::ArgumentConflict, message));
        }
        Ok(cli)
    }
}

/// Returns the arguments with the verb of `config --fetch`, as agents before Stead were called.
fn with_verbs(argv: &[OsString]) -> Vec<OsString> {
    let mut argv = argv.to_vec();
    let flags = argv.iter().take_while(|argument| *argument != "--").count();
    let config = argv.iter().take(flags).position(|argument| argument == "config");
    if let Some(verb) = config.and_then(|at| argv.get_mut(at + 1)).filter(|verb| *verb == "--fetch") {
        *verb = "fetch".into();
    }
    argv
}

impl Command {
    /// Returns clap's view of a command that runs plans, for errors that show its usage.
    fn clap_command(&self) -> clap::Command {
        let path: &[&str] = if matches!(self, Self::Resume(_)) {
            &["resume"]
        } else if matches!(self, Self::Run(_)) {
            &["run", "manifest"]
        } else if matches!(self, Self::Steps(_)) {
            &["steps", "run"]
        } else if matches!(self, Self::Intent(_)) {
            &["intent"]
        } else if matches!(self, Self::Create(_)) {
            &["create"]
        } else if matches!(self, Self::Destroy(_)) {
            &["destroy"]
        } else if matches!(self, Self::Test(_)) {
            &["test"]
        } else if matches!(self, Self::Status(_)) {
            &["status"]
        } else if matches!(self, Self::Validate(_)) {
            &["validate"]
        } else {
            &["plan", "run"]
        };
        let mut command = Cli::command();
        command.build();
        path.iter().fold(command, |command, name| command.find_subcommand(name).cloned().unwrap_or(command))
    }

    /// Returns `--json` and `--events` of commands that have both.
    fn output(&self) -> Option<(bool, Option<&Sink>)> {
        match self {
            Self::Plan(PlanArgs { command: PlanCommand::Run(args) }) => {
                Some((args.output.json, args.output.events.as_ref()))
            }
            Self::Resume(args) => Some((args.output.json, args.output.events.as_ref())),
            Self::Run(RunCommand::Manifest(args)) => Some((args.json, args.events.as_ref())),
            Self::Steps(StepsCommand::Run(args)) => Some((args.json, args.events.as_ref())),
            Self::Intent(args) => Some((args.json, args.events.as_ref())),
            Self::Create(args) | Self::Destroy(args) | Self::Verify(args) => {
                Some((args.output.json, args.output.events.as_ref()))
            }
            Self::Test(args) => Some((args.nodes.output.json, args.nodes.output.events.as_ref())),
            Self::Status(args) => Some((args.json, args.act.events.as_ref())),
            Self::Validate(args) => Some((args.json, args.act.events.as_ref())),
            Self::Plan(_)
            | Self::Steps(_)
            | Self::Exec(_)
            | Self::Bundle(_)
            | Self::Diff(_)
            | Self::Agent(_)
            | Self::Job(_)
            | Self::Tui(_)
            | Self::Ui(_)
            | Self::Doctor(_)
            | Self::Explain(_)
            | Self::Drift(_)
            | Self::Config(_)
            | Self::Token(_)
            | Self::Server(_)
            | Self::Fleet(_)
            | Self::Init(_)
            | Self::Schema(_)
            | Self::Completions(_)
            | Self::Man(_)
            | Self::Executor(_)
            | Self::Supervise
            | Self::Sandbox(_)
            | Self::Console { .. }
            | Self::Container(_)
            | Self::Errand(_) => None,
        }
    }

    /// Whether exactly one JSON document is wanted on standard output.
    pub fn wants_json(&self) -> bool {
        match self {
            Self::Plan(PlanArgs { command }) => match command {
                PlanCommand::Run(args) => args.output.json,
                PlanCommand::Show(args) => args.json,
                PlanCommand::Submit(args) => args.json,
                PlanCommand::Graph(args) => args.json,
                PlanCommand::Keep { .. } => false,
            },
            Self::Run(RunCommand::Manifest(args)) => args.json,
            Self::Steps(command) => match command {
                StepsCommand::Run(args) => args.json,
                StepsCommand::List(args) => args.json,
                StepsCommand::Explain(args) => args.json,
                StepsCommand::History(args) => args.json,
                StepsCommand::Check(args) => args.json,
            },
            Self::Intent(args) => args.json,
            Self::Resume(args) => args.output.json,
            Self::Exec(args) => args.json,
            Self::Bundle(command) => match command {
                BundleCommand::Verify(args) => args.json,
                BundleCommand::Info(args) => args.json,
                BundleCommand::List(args) => args.json,
                BundleCommand::Report(args) => args.format.or_json(args.json) == DocumentFormat::Json,
                BundleCommand::Export(args) => args.json,
                BundleCommand::Replay(args) => args.json,
            },
            Self::Diff(DiffCommand::Run(args)) => args.format.or_json(args.json) == DocumentFormat::Json,
            Self::Agent(command) => match command {
                AgentCommand::Status(args) => args.json,
                AgentCommand::Check(args) => args.json,
                AgentCommand::List(args) => args.json,
                AgentCommand::Run(args) => args.json,
                AgentCommand::Signal(AgentSignal::Converge(args)) => args.json,
                AgentCommand::Enable | AgentCommand::Disable | AgentCommand::Link => false,
            },
            Self::Job(command) => match command {
                JobCommand::Submit(args) => args.json,
                JobCommand::List(args) => args.json,
                JobCommand::Show(args) => args.json,
                JobCommand::Cancel(args) => args.json,
            },
            Self::Doctor(args) => args.json,
            Self::Ui(args) => args.fleet.json,
            Self::Explain(args) => args.json,
            Self::Fleet(command) => command.wants_json(),
            Self::Create(args) | Self::Destroy(args) | Self::Verify(args) => args.output.json,
            Self::Test(args) => args.nodes.output.json,
            Self::Status(args) => args.json,
            Self::Drift(args) => args.json,
            Self::Validate(args) => args.json,
            Self::Config(command) => match command {
                ConfigCommand::Apply(args) => args.json,
                ConfigCommand::Fetch(args) => args.json,
                ConfigCommand::Observe(_) => true,
                ConfigCommand::Confirm(_) => false,
            },
            Self::Token(command) => match command {
                TokenCommand::Mint(args) => args.json,
                TokenCommand::Inspect(args) => args.json,
                TokenCommand::Verify(args) => args.json,
                TokenCommand::Rotate(args) => args.json,
                TokenCommand::Revoke(args) => args.json,
            },
            Self::Server(command) => match command {
                ServerCommand::Start(args) => args.json,
                ServerCommand::Stop(args) => args.json,
                ServerCommand::Status(args) => args.json,
            },
            Self::Init(command) => match command {
                InitCommand::Plan(args) => args.json,
                InitCommand::Steps(args) => args.json,
                InitCommand::Run(args) => args.json,
                InitCommand::Nodes(args) => args.json,
                InitCommand::Fleet(args) => args.json,
            },
            Self::Tui(_)
            | Self::Schema(_)
            | Self::Completions(_)
            | Self::Man(_)
            | Self::Executor(_)
            | Self::Supervise
            | Self::Sandbox(_)
            | Self::Console { .. }
            | Self::Container(_)
            | Self::Errand(_) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tree_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn abbreviations_are_not_guessed() {
        for argv in [["stead", "pla"], ["stead", "comp"], ["stead", "--state"]] {
            let argv: Vec<OsString> = argv.iter().map(Into::into).collect();
            assert_eq!(Cli::parse_argv(&argv).unwrap_err().exit_code(), 2);
        }
    }
}
