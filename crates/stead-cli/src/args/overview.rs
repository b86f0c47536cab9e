//! How `stead --help` lists the commands: by what somebody wants to do, what to begin with first.

use std::ffi::OsString;
use std::fmt::Write as _;

use clap::error::{ContextKind, ContextValue};

use crate::render::table;
use crate::tui::scroll::wrap_words;

/// What is wanted, and the commands for it.
const GROUPS: [(&str, &[&str]); 8] = [
    ("Begin", &["init", "doctor", "explain"]),
    ("Plans", &["plan", "exec"]),
    ("Steps", &["steps", "intent"]),
    ("Runs of roles", &["run", "agent", "diff"]),
    (
        "Nodes",
        &["validate", "create", "test", "status", "drift", "destroy", "config", "job", "token", "server"],
    ),
    ("Fleets", &["fleet"]),
    ("What ran", &["bundle", "resume", "tui", "ui"]),
    ("The program itself", &["schema", "completions", "man"]),
];

/// How wide a name may be.
const WIDTH: usize = 11;

/// What is before the text about a command: two blanks, its name, and two more.
const BEFORE: usize = 2 + WIDTH + 2;

/// As wide as clap makes its own lines where no terminal says otherwise.
const WIDEST: usize = 100;

/// Returns how wide the help may be.
pub(super) fn width() -> usize {
    table::width_of_stdout().map_or(WIDEST, |columns| columns.min(WIDEST))
}

/// Returns the command with a help that lists its subcommands in groups, in lines of at most `width`.
pub(super) fn grouped(command: clap::Command, width: usize) -> clap::Command {
    let mut listed = String::new();
    for (wanted, names) in GROUPS {
        let known = names.iter().filter_map(|name| command.find_subcommand(name));
        // Headings and names as clap paints them; where there is no colour, it takes the codes away.
        let mut lines = format!("\x1b[1m\x1b[4m{wanted}:\x1b[0m\n");
        for subcommand in known {
            let about = subcommand.get_about().map(ToString::to_string).unwrap_or_default();
            let name = subcommand.get_name();
            let blanks = " ".repeat(WIDTH.saturating_sub(name.len()));
            let mut about = wrap_words(&about, width.saturating_sub(BEFORE).max(1)).into_iter();
            let first = about.next().unwrap_or_default();
            writeln!(lines, "  \x1b[1m{name}\x1b[0m{blanks}  {first}").expect("text can be written to");
            for more in about {
                writeln!(lines, "{:BEFORE$}{more}", "").expect("text can be written to");
            }
        }
        listed.push_str(&lines);
        listed.push('\n');
    }
    let options = "\x1b[1m\x1b[4mOptions:\x1b[0m\n{options}{after-help}";
    command.help_template(format!("{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{listed}{options}"))
}

/// Returns a usage error with what is meant where clap, which knows no words but its own, does not say it.
pub(super) fn with_tip(mut error: clap::Error, argv: &[OsString]) -> clap::Error {
    let words: Vec<String> = argv.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    let about = |kind: ContextKind| error.get(kind).map(ToString::to_string).unwrap_or_default();
    let wrong = about(ContextKind::InvalidSubcommand);
    let before = words.iter().position(|word| *word == wrong).and_then(|at| words.get(at.checked_sub(1)?));
    let tip = match before.map(String::as_str).filter(|_| wrong.contains(['/', '.'])) {
        Some("plan") => format!("to run a plan: 'stead plan run {wrong}'"),
        Some("run") => {
            format!("for roles: 'stead run manifest {wrong}'; for a plan: 'stead plan run {wrong}'")
        }
        Some("steps") => format!("to run steps: 'stead steps run {wrong}'"),
        _ if about(ContextKind::InvalidArg).contains("--host <HOST>") => {
            "'-H local' is this machine; other hosts are files in hosts/ of the site".to_owned()
        }
        _ => return error,
    };
    error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
    error
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::CommandFactory as _;

    use super::*;
    use crate::args::Cli;

    fn said(words: &str) -> String {
        let argv: Vec<OsString> = words.split(' ').map(OsString::from).collect();
        Cli::parse_argv(&argv).unwrap_err().to_string()
    }

    /// What a newcomer types first.
    #[test]
    fn a_file_where_a_verb_belongs_is_told_the_verb() {
        assert!(said("stead plan a.yaml").contains("'stead plan run a.yaml'"));
        assert!(said("stead run d/a.yaml").contains("'stead run manifest d/a.yaml'"));
        assert!(said("stead steps lab/steps.yaml").contains("'stead steps run lab/steps.yaml'"));
        assert!(said("stead create -M lab").contains("'-H local' is this machine"));
        assert!(!said("stead plan rum").contains("to run a plan"));
    }

    #[test]
    fn the_list_of_commands_fits_its_terminal() {
        for width in [40, 80, 100] {
            let help = grouped(Cli::command(), width).render_help().to_string();
            let listed = help.lines().skip_while(|line| *line != "Begin:");
            for line in listed.take_while(|line| *line != "Options:") {
                assert!(line.chars().count() <= width, "{width}: {line}");
            }
            assert!(help.contains("node's agent\n") || width < 80, "words stay whole: {help}");
        }
    }

    #[test]
    fn every_command_is_listed_once() {
        let command = Cli::command();
        let there: BTreeSet<&str> =
            command.get_subcommands().filter(|one| !one.is_hide_set()).map(clap::Command::get_name).collect();
        let listed: Vec<&str> = GROUPS.iter().flat_map(|(_, names)| names.iter().copied()).collect();
        assert_eq!(listed.len(), there.len());
        assert_eq!(listed.iter().copied().collect::<BTreeSet<_>>(), there);
        assert!(listed.iter().all(|name| name.len() <= WIDTH));
    }
}
