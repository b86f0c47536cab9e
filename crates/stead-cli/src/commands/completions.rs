//! `stead completions SHELL`.

use clap::{Command, CommandFactory as _};
use stead_model::ExitCode;

use crate::args::{Cli, CompletionsArgs, Shell};
use crate::failure::Failure;
use crate::output::Output;

pub(super) fn run(args: &CompletionsArgs, output: &Output) -> Result<ExitCode, Failure> {
    let shell = match args.shell {
        Shell::Bash => clap_complete::Shell::Bash,
        Shell::Zsh => clap_complete::Shell::Zsh,
        Shell::Fish => clap_complete::Shell::Fish,
    };
    // Made in memory first: the generator panics if its writer fails, and a pipe may close.
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut visible(&Cli::command()), "stead", &mut script);
    output.out.print(&String::from_utf8_lossy(&script));
    Ok(ExitCode::Success)
}

/// Returns `command` without the commands that people do not type, which the generators would offer.
fn visible(command: &Command) -> Command {
    // Names of commands live as long as the program, which ends soon.
    let name: &'static str = command.get_name().to_owned().leak();
    let shown =
        Command::new(name).args(command.get_arguments().cloned()).groups(command.get_groups().cloned());
    let shown = match command.get_about() {
        Some(about) => shown.about(about.clone()),
        None => shown,
    };
    shown.subcommands(command.get_subcommands().filter(|below| !below.is_hide_set()).map(visible))
}
