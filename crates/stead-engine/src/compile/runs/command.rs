//! The command line of a role: its words, a kit's flags, `args`.

use std::collections::BTreeSet;

use serde_json::Value;
use stead_model::Diagnostics;
use stead_model::run_manifest::ArgForm;
use stead_model::run_plan::Arg;
use stead_model::yaml::{self, Node};

use super::BAD_VALUE;
use super::render::{flag_words, words};
use super::texts::{Given, Here, Spot, escape};

/// Returns the command line that `command` gives here; `{{ args }}` in it stands for `args`.
pub(super) fn argv(
    here: &Here<'_>,
    command: &[ArgForm<'_>],
    args: &[Arg],
    problems: &mut Diagnostics,
) -> Vec<Arg> {
    let mut argv = Vec::new();
    for item in command {
        match item {
            ArgForm::Text(node) if is_args(*node) => argv.extend_from_slice(args),
            ArgForm::Text(node) => argv.extend(text(here, *node, problems)),
            ArgForm::Flag { flag, value } => {
                let Some(flag) = here.known_text(*flag, problems) else { continue };
                argv.extend(self::flag(here, &flag, *value, problems));
            }
        }
    }
    argv
}

/// Whether an item stands for all of `args`.
fn is_args(node: Node<'_>) -> bool {
    let inner = node.as_text().and_then(|text| text.strip_prefix("{{")?.strip_suffix("}}"));
    inner.is_some_and(|inner| inner.trim() == "args")
}

fn text(here: &Here<'_>, node: Node<'_>, problems: &mut Diagnostics) -> Vec<Arg> {
    let Some(template) = node.as_text() else { return vec![Arg::Text(node.raw().to_owned())] };
    match here.text(node, Spot::Run, problems) {
        Given::Known(value) => match words(&value) {
            Ok(words) => words.iter().map(|word| Arg::Text(escape(word))).collect(),
            Err(message) => {
                problems.push(node.bad(message));
                Vec::new()
            }
        },
        Given::Later => vec![Arg::Text(template.to_owned())],
        Given::Broken => Vec::new(),
    }
}

/// Returns what a flag with the value of `node` gives.
pub(super) fn flag(here: &Here<'_>, flag: &str, node: Node<'_>, problems: &mut Diagnostics) -> Vec<Arg> {
    let items: Vec<Node<'_>> = match node.value() {
        yaml::Value::List(items) => items.collect(),
        yaml::Value::Null | yaml::Value::Bool(_) | yaml::Value::Number(_) | yaml::Value::Text(_) => {
            vec![node]
        }
        yaml::Value::Map(_) => {
            problems.push(node.bad(format!("expected a text, number or boolean, found {}", node.describe())));
            return Vec::new();
        }
    };
    let mut argv = Vec::new();
    for item in items {
        match here.text(item, Spot::Run, problems) {
            Given::Known(value) => match flag_words(flag, &value) {
                Ok(words) => argv.extend(words.iter().map(|word| Arg::Text(escape(word)))),
                Err(message) => problems.push(item.bad(message)),
            },
            Given::Later => argv
                .push(Arg::Flag { flag: escape(flag), value: item.as_text().unwrap_or_default().to_owned() }),
            Given::Broken => {}
        }
    }
    argv
}

/// Returns the flag that a key of `args` is.
pub(super) fn flag_of(key: &str) -> String {
    format!("--{}", key.replace('_', "-"))
}

/// Returns the flags that a kit's command sets itself.
pub(super) fn own_flags(command: &[ArgForm<'_>]) -> BTreeSet<String> {
    let text = |item: &ArgForm<'_>| match item {
        ArgForm::Text(node) => node.as_text().map(str::to_owned),
        ArgForm::Flag { flag, .. } => flag.as_text().map(str::to_owned),
    };
    let flags = command.iter().filter_map(text).filter(|word| word.starts_with("--"));
    flags.map(|flag| flag.split('=').next().unwrap_or_default().to_owned()).collect()
}

/// Returns the flags of `args`, in written order.
pub(super) fn args(
    here: &Here<'_>,
    given: &[(Node<'_>, Node<'_>)],
    own: &BTreeSet<String>,
    problems: &mut Diagnostics,
) -> Vec<Arg> {
    let mut argv = Vec::new();
    for (key, value) in given {
        let name = key.as_text().unwrap_or_default();
        let flag = flag_of(name);
        if name.is_empty() || name.chars().any(char::is_control) {
            problems.push(key.bad("this cannot name a flag"));
        } else if own.contains(&flag) {
            let problem = key.error(BAD_VALUE, format!("`{flag}` is set by the kit itself"));
            problems.push(problem.help("leave it out of `args`"));
        } else {
            argv.extend(self::flag(here, &flag, *value, problems));
        }
    }
    argv
}

/// Returns `args` as the list that templates of a kit see; nothing if they are not all known.
pub(super) fn as_value(args: &[Arg]) -> Option<Value> {
    let word = |arg: &Arg| match arg {
        Arg::Text(text) => (!crate::expr::is_template(text)).then(|| Value::String(text.clone())),
        Arg::Flag { .. } => None,
    };
    args.iter().map(word).collect::<Option<Vec<Value>>>().map(Value::Array)
}
