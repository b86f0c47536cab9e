//! From argv to an exit code.

use std::ffi::OsString;
use std::process;

use clap::error::ErrorKind;
use stead_engine::compile::runs::AgentFlag;
use stead_model::{ExitCode, TransportSpec};

use crate::args::{Cli, ColorWhen, Command, RunCommand};
use crate::commands;
use crate::failure::{Failure, FailureKind};
use crate::output::{Output, Paint};
use crate::render::cursor;
use crate::settings::{ColorRule, Environment, Settings, Terminals};

/// Runs the command this process was started as.
pub fn main() -> process::ExitCode {
    cursor::restore_on_panic();
    let argv: Vec<OsString> = std::env::args_os().collect();
    let mut output = Output::of_process();
    let code = run(&argv, Environment::of_process(), Terminals::of_process(), &mut output);
    cursor::restore();
    let code = match output.finish() {
        Ok(()) => code,
        Err(error) => {
            let failure = Failure::caused_by(FailureKind::Output, error);
            output.err.print(&failure.to_text(Paint::None));
            if code == ExitCode::Success { failure.exit_code() } else { code }
        }
    };
    process::ExitCode::from(code.code())
}

fn run(argv: &[OsString], environment: Environment, terminals: Terminals, output: &mut Output) -> ExitCode {
    let cli = match Cli::parse_argv(argv) {
        Ok(cli) => cli,
        Err(error) => return report_usage(&error, argv, &environment, terminals, output),
    };
    let wants_json = cli.command.wants_json();
    let color = ColorRule::new(cli.global.color, &environment);
    let result = std::env::current_dir()
        .map_err(|error| {
            Failure::caused_by(FailureKind::Invalid, error)
                .hint("the current directory is gone; cd to one that exists")
        })
        .and_then(|current_dir| {
            let mut settings = Settings::new(&cli.global, environment, terminals, current_dir);
            settings.argv = recorded(argv, &cli.command);
            commands::run(cli.command, &settings, output)
        });
    match result {
        Ok(code) => code,
        Err(failure) => {
            output.err.print(&failure.to_text(color.paint(terminals.stderr)));
            if wants_json {
                output.out.print(&failure.to_json());
            }
            failure.exit_code()
        }
    }
}

/// Returns the arguments for the run's record: what `--agent` flags of `command` name, and any other transport, in its
/// masked form, everything else as it is.
fn recorded(argv: &[OsString], command: &Command) -> Vec<String> {
    let agents = if let Command::Run(RunCommand::Manifest(args)) = command { &args.agent[..] } else { &[] };
    argv.iter().map(|argument| without_secret(&argument.to_string_lossy(), agents)).collect()
}

fn without_secret(argument: &str, agents: &[String]) -> String {
    const FLAG: &str = "--agent=";
    let (flag, value) = argument.strip_prefix(FLAG).map_or(("", argument), |value| (FLAG, value));
    let agent = agents.iter().find(|agent| *agent == value).and_then(|agent| AgentFlag::parse(agent).ok());
    let masked = match &agent {
        Some(agent) => masked(&agent.spec).map(|spec| format!("{flag}{}={spec}", agent.name)),
        None => masked(argument),
    };
    masked.unwrap_or_else(|| argument.to_owned())
}

/// Returns the masked form of a transport that holds a secret.
fn masked(text: &str) -> Option<String> {
    let spec = TransportSpec::parse(text).ok().filter(TransportSpec::has_literal_secret)?;
    Some(spec.to_string())
}

/// Prints help, version or a usage error.
fn report_usage(
    error: &clap::Error,
    argv: &[OsString],
    environment: &Environment,
    terminals: Terminals,
    output: &Output,
) -> ExitCode {
    let color = ColorRule::new(color_typed(argv), environment);
    let render = |paint: Paint| match paint {
        Paint::None => error.render().to_string(),
        Paint::Ansi => error.render().ansi().to_string(),
    };
    let failure = usage_failure(error);
    if !error.use_stderr() {
        output.out.print(&render(color.paint(terminals.stdout)));
        return ExitCode::Success;
    }
    let text = render(color.paint(terminals.stderr));
    output.err.print(&text.replacen("error:", &format!("error[{}]:", failure.stable_code()), 1));
    if was_typed(argv, "--json") || was_typed(argv, "--json-output") {
        output.out.print(&failure.to_json());
    }
    ExitCode::Usage
}

/// Returns the failure that clap's error is, for its code and its document.
fn usage_failure(error: &clap::Error) -> Failure {
    let (message, help) = split_usage(error);
    let failure = Failure::new(FailureKind::Usage, message);
    if help.is_empty() { failure } else { failure.hint(help) }
}

/// Returns what is wrong, and what to do about it, of clap's text.
pub(crate) fn split_usage(error: &clap::Error) -> (String, String) {
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        return ("no command was given".to_owned(), "try '--help'".to_owned());
    }
    let text = error.render().to_string();
    let text = text.strip_prefix("error: ").unwrap_or(&text).trim_end();
    let (message, help) = text.split_once("\n\n").unwrap_or((text, ""));
    let lines = |part: &str| {
        part.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join("\n")
    };
    (lines(message), lines(help))
}

/// Arguments that do not parse still say how the error is wanted; after `--` nothing is a flag.
fn was_typed(argv: &[OsString], flag: &str) -> bool {
    argv.iter().skip(1).take_while(|arg| *arg != "--").any(|arg| arg == flag)
}

fn color_typed(argv: &[OsString]) -> ColorWhen {
    let mut arguments = argv.iter().skip(1).filter_map(|arg| arg.to_str()).take_while(|arg| *arg != "--");
    while let Some(argument) = arguments.next() {
        let value = if argument == "--color" { arguments.next() } else { argument.strip_prefix("--color=") };
        match value {
            Some("always") => return ColorWhen::Always,
            Some("never") => return ColorWhen::Never,
            Some(_) | None => {}
        }
    }
    ColorWhen::Auto
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transports_are_recorded_without_their_passwords() {
        let argv_of = |words: &[&str]| words.iter().map(OsString::from).collect::<Vec<OsString>>();
        for (typed, kept) in [
            ("A1=ssh://u:pw@h", "A1=ssh://u:***@h"),
            ("A1=u@h?password=pw", "A1=ssh://u:***@h"),
            ("A1=ssh://u:pw@h?insecure=true", "A1=ssh://u:***@h?insecure=true"),
            ("A1=ssh://u@h", "A1=ssh://u@h"),
            ("A1=u@h", "A1=u@h"),
            ("A1=local", "A1=local"),
        ] {
            let (one, kept_one) = (format!("--agent={typed}"), format!("--agent={kept}"));
            for (flags, expected) in [
                (vec!["--agent", typed], vec!["--agent", kept]),
                (vec![one.as_str()], vec![kept_one.as_str()]),
            ] {
                let words = [vec!["stead", "run", "manifest", "m.yaml", "--var=x=y"], flags].concat();
                let expected = [vec!["stead", "run", "manifest", "m.yaml", "--var=x=y"], expected].concat();
                let argv = argv_of(&words);
                let cli = Cli::parse_argv(&argv).unwrap();
                assert_eq!(recorded(&argv, &cli.command), expected);
            }
        }
        let argv = argv_of(&["stead", "agent", "check", "ssh://u:pw@h"]);
        let cli = Cli::parse_argv(&argv).unwrap();
        assert_eq!(recorded(&argv, &cli.command)[3], "ssh://u:***@h");
    }
}
