//! From argv to an exit code.

use std::ffi::OsString;
use std::process;

use clap::error::ErrorKind;
use stead_model::{ExitCode, TransportSpec};

use crate::args::{Cli, ColorWhen};
use crate::commands;
use crate::failure::{Failure, FailureKind};
use crate::output::{Output, Paint};
use crate::render::{cursor, json};
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
            settings.argv = argv.iter().map(|arg| without_secret(&arg.to_string_lossy())).collect();
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

/// Returns an argument for the run's record: a transport, also behind `NAME=`, in its masked form, anything else as it
/// is.
fn without_secret(argument: &str) -> String {
    let masked = |text: &str| {
        let spec = TransportSpec::parse(text).ok().filter(TransportSpec::has_literal_secret)?;
        Some(spec.to_string())
    };
    // `--agent NAME=ssh://…`, in one word or two.
    let behind = argument.find("ssh://").filter(|at| argument[..*at].ends_with('='));
    match behind {
        Some(at) => masked(&argument[at..]).map(|spec| format!("{}{spec}", &argument[..at])),
        None => masked(argument),
    }
    .unwrap_or_else(|| argument.to_owned())
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
    if !error.use_stderr() {
        output.out.print(&render(color.paint(terminals.stdout)));
        return ExitCode::Success;
    }
    output.err.print(&render(color.paint(terminals.stderr)));
    if was_typed(argv, "--json") {
        let (message, help) = split_usage(error);
        output.out.print(&json::error(ExitCode::Usage, &message, &help));
    }
    ExitCode::Usage
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
        for (typed, kept) in [
            ("ssh://u:pw@h", "ssh://u:***@h"),
            ("A1=ssh://u:pw@h", "A1=ssh://u:***@h"),
            ("--agent=A1=ssh://u:pw@h?insecure=true", "--agent=A1=ssh://u:***@h?insecure=true"),
            ("A1=ssh://u@h", "A1=ssh://u@h"),
            ("--var=x=y", "--var=x=y"),
        ] {
            assert_eq!(without_secret(typed), kept);
        }
    }
}
