//! `stead completions SHELL`.

use clap::CommandFactory as _;
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
    clap_complete::generate(shell, &mut Cli::command(), "stead", &mut script);
    output.out.print(&String::from_utf8_lossy(&script));
    Ok(ExitCode::Success)
}
