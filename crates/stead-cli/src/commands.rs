//! One module per command: arguments in, one library call, output out.

use stead_model::ExitCode;

use crate::args::{
    AgentCommand, BundleCommand, Command, ConfigCommand, DiffCommand, InitCommand, JobCommand, PlanCommand,
    RunCommand, ServerCommand, StepsCommand, TokenCommand,
};
use crate::failure::Failure;
use crate::output::Output;
use crate::settings::Settings;

pub(crate) mod agent;
pub(crate) mod bundle;
mod completions;
mod config;
mod console;
mod container;
mod diff;
mod doctor;
mod errand;
mod exec;
mod executor;
pub(crate) mod explain;
pub(crate) mod fleet;
mod init;
mod intent;
mod job;
mod man;
mod manifest;
pub(crate) mod nodes;
mod plan;
pub(crate) mod reach;
mod resume;
pub(crate) mod run;
mod sandbox;
mod schema;
mod server;
mod server_way;
mod site;
mod steps;
mod supervise;
mod token;
mod tui;
mod ui;
mod validate;

/// Runs a command and returns its exit code, or why it could not do its work.
pub fn run(command: Command, settings: &Settings, output: &mut Output) -> Result<ExitCode, Failure> {
    match command {
        Command::Plan(args) => match args.command {
            PlanCommand::Run(args) => plan::run::run(&args, settings, output),
            PlanCommand::Show(args) => plan::show::run(&args, settings, output),
            PlanCommand::Graph(args) => plan::graph::run(&args, settings, output),
            PlanCommand::Submit(args) => plan::submit::run(&args, settings, output),
            PlanCommand::Keep { submission } => plan::keep::run(&submission, settings, output),
        },
        Command::Run(RunCommand::Manifest(args)) => run::manifest::run(&args, settings, output),
        Command::Steps(command) => match command {
            StepsCommand::Run(args) => steps::run::run(&args, settings, output),
            StepsCommand::List(args) => steps::list::run(&args, settings, output),
            StepsCommand::Explain(args) => steps::explain::run(&args, settings, output),
            StepsCommand::History(args) => steps::history::run(&args, settings, output),
            StepsCommand::Check(args) => steps::check::run(&args, settings, output),
        },
        Command::Intent(args) => intent::run(&args, settings, output),
        Command::Resume(args) => resume::run(&args, settings, output),
        Command::Exec(args) => exec::run(&args, settings, output),
        Command::Bundle(command) => match command {
            BundleCommand::Verify(args) => bundle::verify::run(&args, settings, output),
            BundleCommand::Info(args) => bundle::info::run(&args, settings, output),
            BundleCommand::List(args) => bundle::list::run(&args, settings, output),
            BundleCommand::Report(args) => bundle::report::run(&args, settings, output),
            BundleCommand::Export(args) => bundle::export::run(&args, settings, output),
            BundleCommand::Replay(args) => bundle::replay::run(&args, settings, output),
        },
        Command::Diff(DiffCommand::Run(args)) => diff::run(&args, settings, output),
        Command::Agent(command) => match command {
            AgentCommand::Status(args) => agent::status::run(&args, settings, output),
            AgentCommand::Check(args) => agent::check::run(&args, settings, output),
            AgentCommand::List(args) => agent::list::run(&args, settings, output),
            AgentCommand::Run(args) => agent::run::run(&args, settings, output),
            AgentCommand::Signal(signal) => agent::control::signal(signal, settings, output),
            AgentCommand::Enable => agent::control::enable(settings, output),
            AgentCommand::Disable => agent::control::disable(settings, output),
            AgentCommand::Link => agent::control::link(settings, output),
        },
        Command::Job(command) => match command {
            JobCommand::Submit(args) => job::submit::run(&args, settings, output),
            JobCommand::List(args) => job::list::run(&args, settings, output),
            JobCommand::Show(args) => job::show::run(&args, settings, output),
            JobCommand::Cancel(args) => job::cancel::run(&args, settings, output),
        },
        Command::Tui(args) => tui::run(&args, settings),
        Command::Ui(args) => ui::run(&args, settings, output),
        Command::Doctor(args) => doctor::run(&args, settings, output),
        Command::Explain(args) => explain::run(&args, output),
        Command::Create(args) => nodes::verb::create(&args, settings, output),
        Command::Destroy(args) => nodes::verb::destroy(&args, settings, output),
        Command::Verify(args) => nodes::verb::verify(&args, settings, output),
        Command::Test(args) => nodes::verb::test(&args, settings, output),
        Command::Status(args) => nodes::status::run(&args, settings, output),
        Command::Drift(args) => nodes::drift::run(&args, settings, output),
        Command::Validate(args) => validate::run(&args, settings, output),
        Command::Config(command) => match command {
            ConfigCommand::Apply(args) => config::apply::run(&args, settings, output),
            ConfigCommand::Fetch(args) => config::fetch::run(&args, settings, output),
            ConfigCommand::Observe(args) => config::observe::run(&args, settings, output),
            ConfigCommand::Confirm(args) => config::observe::confirm(&args),
        },
        Command::Token(command) => match command {
            TokenCommand::Mint(args) => token::mint::run(&args, settings, output),
            TokenCommand::Inspect(args) => token::inspect::run(&args, output),
            TokenCommand::Verify(args) => token::verify::run(&args, settings, output),
            TokenCommand::Rotate(args) => token::rotate::run(&args, settings, output),
            TokenCommand::Revoke(args) => token::revoke::run(&args, settings, output),
        },
        Command::Server(command) => match command {
            ServerCommand::Start(args) => server::start::run(&args, settings, output),
            ServerCommand::Stop(args) => server::stop::run(&args, settings, output),
            ServerCommand::Status(args) => server::status::run(&args, settings, output),
        },
        Command::Fleet(command) => fleet::run(&command, settings, output),
        Command::Init(command) => match command {
            InitCommand::Plan(args) => init::first::plan(&args, settings, output),
            InitCommand::Steps(args) => init::first::steps(&args, settings, output),
            InitCommand::Run(args) => init::first::run(&args, settings, output),
            InitCommand::Nodes(args) => init::nodes::run(&args, settings, output),
            InitCommand::Fleet(args) => init::fleet::run(&args, settings, output),
        },
        Command::Schema(command) => schema::run(&command, output),
        Command::Completions(args) => completions::run(&args, output),
        Command::Man(args) => man::run(&args, output),
        Command::Executor(args) => executor::run(&args, settings),
        Command::Supervise => supervise::run(),
        Command::Sandbox(args) => sandbox::run(&args),
        Command::Console { machine } => console::run(&machine),
        Command::Container(command) => container::run(&command),
        Command::Errand(command) => errand::run(&command, settings, output),
    }
}
