//! One voice: every command is asked for the same things.

mod succeeding;

use std::collections::BTreeSet;

use clap::{Command, CommandFactory as _};
use stead_cli::args::Cli;
use stead_model::{ExitCode, explain};

use crate::process::stead;

/// Commands without `--json`, and why.
const NO_JSON: [(&str, &str); 4] = [
    ("tui", "draws on a whole screen"),
    ("completions", "prints a script for a shell"),
    ("man", "prints a page for man"),
    ("schema", "prints JSON always, and says which by its own `$schema`"),
];

/// A command with the words that lead to it.
struct Typed {
    path: Vec<String>,
    command: Command,
}

impl Typed {
    fn has_json(&self) -> bool {
        self.command.get_arguments().any(|argument| argument.get_long() == Some("json"))
    }

    fn is_excused(&self) -> bool {
        NO_JSON.iter().any(|(name, _)| self.path.first().is_some_and(|first| first == name))
    }

    /// Returns the commands of its examples, each as words.
    fn examples(&self) -> Vec<Vec<String>> {
        let help = self.command.get_after_long_help().map(ToString::to_string).unwrap_or_default();
        let lines = help.lines().skip_while(|line| *line != "Examples:").skip(1);
        let lines = lines.take_while(|line| line.starts_with("  "));
        lines.filter(|line| line.starts_with("  stead ")).flat_map(|line| commands_in(line.trim())).collect()
    }
}

/// Returns every command that people type, groups included, the program itself left out.
fn typed() -> Vec<Typed> {
    fn below(command: &Command, path: &[String], all: &mut Vec<Typed>) {
        for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set() && sub.get_name() != "help") {
            let path: Vec<String> = path.iter().cloned().chain([sub.get_name().to_owned()]).collect();
            below(sub, &path, all);
            all.push(Typed { path, command: sub.clone() });
        }
    }
    let mut root = Cli::command();
    root.build();
    let mut all = Vec::new();
    below(&root, &[], &mut all);
    all
}

fn is_leaf(typed: &Typed) -> bool {
    !typed.command.has_subcommands()
}

/// Returns the `stead` commands of a line as a shell would read it: up to what explains them, without what they are piped to.
fn commands_in(line: &str) -> Vec<Vec<String>> {
    let mut commands = Vec::new();
    let mut words: Vec<String> = Vec::new();
    let mut word = String::new();
    let (mut quote, mut blanks, mut skips) = (None, 0, false);
    let mut letters = line.chars().peekable();
    while let Some(letter) = letters.next() {
        match (letter, quote) {
            (_, Some(open)) if letter == open => quote = None,
            (_, Some(_)) => word.push(letter),
            ('\'' | '"', None) => quote = Some(letter),
            (' ', None) => {
                if !word.is_empty() {
                    words.push(std::mem::take(&mut word));
                }
                blanks += 1;
                if blanks > 1 && letters.peek().is_some_and(|next| *next != ' ') {
                    break;
                }
                continue;
            }
            ('|' | '<' | '>', None) => {
                skips = true;
                break;
            }
            ('&', None) => {
                letters.next();
                commands.push(std::mem::take(&mut words));
            }
            (_, None) => word.push(letter),
        }
        blanks = 0;
    }
    if !word.is_empty() && !skips {
        words.push(word);
    }
    commands.push(words);
    commands.retain(|words| words.first().is_some_and(|first| first == "stead"));
    commands
}

#[test]
fn every_command_has_json_or_a_reason_why_not() {
    for typed in typed().iter().filter(|typed| is_leaf(typed)) {
        assert!(typed.has_json() != typed.is_excused(), "stead {}", typed.path.join(" "));
    }
}

#[test]
fn every_command_has_two_examples_and_they_parse() {
    for typed in typed() {
        let name = typed.path.join(" ");
        let examples = typed.examples();
        assert!(examples.len() >= 2, "stead {name} has {} examples", examples.len());
        for words in examples {
            let argv: Vec<std::ffi::OsString> = words.iter().map(Into::into).collect();
            if let Err(error) = Cli::parse_argv(&argv) {
                panic!("an example of stead {name}: {}\n{error}", words.join(" "));
            }
        }
    }
}

/// Runs a command in an empty directory and checks that it tells its failure in the one way there is.
fn fails_in_one_way(words: &[&str]) {
    let dir = tempfile::tempdir().unwrap();
    let ended = stead(dir.path())
        .args(words)
        .arg("--json")
        .env("HOME", dir.path())
        .env("STEAD_ROOT", dir.path())
        .output()
        .unwrap();
    let name = words.join(" ");
    let code = u8::try_from(ended.status.code().expect("no signal ends it")).unwrap();
    let exit_code = ExitCode::from_code(code).unwrap_or_else(|| panic!("stead {name} exits with {code}"));
    assert_ne!(exit_code, ExitCode::Success, "stead {name}");
    let (stdout, stderr) =
        (String::from_utf8(ended.stdout).unwrap(), String::from_utf8(ended.stderr).unwrap());
    let document: serde_json::Value = serde_json::from_str(&stdout)
        .unwrap_or_else(|error| panic!("stead {name}: {error}: {stdout}{stderr}"));
    assert_eq!(document["schema"], 1, "stead {name}: {stdout}");
    assert_eq!(document["exit_code"], code, "stead {name}: {stdout}");
    assert!(document["diagnostics"].is_array(), "stead {name}: {stdout}");
    for key in ["code", "message", "help"] {
        // What to do is said of every failure.
        assert_ne!(document["error"][key].as_str().unwrap_or_default(), "", "stead {name}: {key}: {stdout}");
    }
    let said = document["error"]["code"].as_str().unwrap();
    assert_eq!(explain::find(said).len(), 1, "stead {name}: {said}");
    assert!(!stderr.contains("\"schema\""), "stead {name} prints its document twice: {stderr}");
    assert!(stderr.contains("error["), "stead {name}: {stderr}");
}

/// A flag that is not there.
#[test]
fn every_command_refuses_a_bad_flag_in_one_way() {
    for typed in typed().iter().filter(|typed| is_leaf(typed)) {
        let words: Vec<&str> = typed.path.iter().map(String::as_str).chain(["--no-such-flag"]).collect();
        fails_in_one_way(&words);
    }
}

/// What a command is given so that it fails before it does anything; none: it cannot fail in an empty directory.
fn wrong(path: &str) -> Option<&'static [&'static str]> {
    Some(match path {
        "plan run" | "plan show" | "plan graph" | "plan submit" => &["nowhere.yaml"],
        "run manifest" => &["nowhere.yaml"],
        "steps run" | "steps list" | "steps check" | "steps history" => &["nowhere"],
        "steps explain" => &["NAME"],
        "intent" => &["nothing"],
        "resume" => &["no-such-run"],
        "exec" => &["nobody", "--op", "no.such"],
        "bundle verify" | "bundle info" | "bundle report" | "bundle export" | "bundle replay" => {
            &["no-such-run"]
        }
        "bundle list" => &["nowhere"],
        "diff run" => &["no-such-run", "neither"],
        "agent check" => &["nobody"],
        "agent list" => &["--agents", "nowhere.yaml"],
        "doctor" => &["--target", "nobody"],
        "explain" => &["no-such-code-at-all"],
        "create" | "destroy" | "test" => &["-M", "nothing", "-H", "nobody"],
        "status" | "drift" | "validate" => &["-M", "nothing"],
        "config apply" => &["--spec", "./nowhere.yaml"],
        "config fetch" => &["--server", "https://127.0.0.1:1", "--token-file", "nowhere"],
        "job submit" => &["--node", "nobody"],
        "job list" => &[],
        "job show" | "job cancel" => &["j1"],
        "token mint" => &["--node", "edge", "--spec", "base"],
        "token inspect" | "token verify" => &["no-token"],
        "token rotate" => &[],
        "token revoke" => &["--node", "edge"],
        "server start" | "server stop" | "server status" | "ui" => &["--site", "nowhere"],
        "fleet status" | "fleet token list" => &[],
        "fleet dev" => &["nowhere"],
        "fleet wait" => &["--commit", "HEAD"],
        "fleet plan" => &["--specs", "nowhere.json"],
        "fleet explain" => &["web/0"],
        "fleet hold" => &["vm/web", "--for", "1h", "--reason", "x"],
        "fleet release" => &["h1"],
        "fleet token mint" => &["--role", "worker"],
        "fleet token revoke" => &["w1"],
        "fleet publish" | "fleet master" | "fleet worker" => &["--config", "nowhere.yaml"],
        "agent run" | "agent signal converge" => &[],
        "agent status" | "init plan" | "init steps" | "init run" | "init nodes" | "init fleet" => {
            return None;
        }
        other => panic!("say in this test what is wrong for stead {other}"),
    })
}

/// A file or a name that is not there.
#[test]
fn every_command_fails_in_one_way() {
    let mut excused = BTreeSet::new();
    for typed in typed().iter().filter(|typed| is_leaf(typed) && typed.has_json()) {
        let path = typed.path.join(" ");
        let Some(wrong) = wrong(&path) else {
            excused.insert(path);
            continue;
        };
        let words: Vec<&str> = typed.path.iter().map(String::as_str).chain(wrong.iter().copied()).collect();
        fails_in_one_way(&words);
    }
    assert_eq!(excused.len(), 6);
}

/// What drivers start by themselves is offered to nobody.
#[test]
fn completions_offer_no_hidden_command() {
    let dir = tempfile::tempdir().unwrap();
    for shell in ["bash", "zsh", "fish"] {
        let ended = stead(dir.path()).args(["completions", shell]).output().unwrap();
        let script = String::from_utf8(ended.stdout).unwrap();
        for hidden in ["supervise", "errand", "executor", "console"] {
            assert!(!script.contains(hidden), "{shell} offers {hidden}");
        }
        for shown in ["explain", "fleet", "bundle"] {
            assert!(script.contains(shown), "{shell} does not offer {shown}");
        }
    }
}
