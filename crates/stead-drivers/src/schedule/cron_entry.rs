//! `cron.entry`: a command that cron runs, in a file of its own in `/etc/cron.d`.

use stead_engine::cron::Cron;
use stead_model::Descriptor;
use stead_model::operation::{Needed, ParamDefault, ParamKind, ParamSpec, judge_texts};
use stead_runner::operation::{OpError, Params};

use crate::access::account::Account;
use crate::disk::seen::Kind;
use crate::file::entry::Want;
use crate::file::params::STATE;
use crate::setup::{CONFIGURE, Configure, Setup, input};

/// The short forms that cron knows.
const SHORT: &[&str] =
    &["@reboot", "@yearly", "@annually", "@monthly", "@weekly", "@daily", "@midnight", "@hourly"];

static DESCRIPTOR: Descriptor = Descriptor {
    name: "cron.entry",
    summary: "Makes sure cron runs a command on a schedule, by the file /etc/cron.d/NAME, or does not.",
    params: &[
        ParamSpec::new("name", ParamKind::FileName, "Name of the file: letters, digits, `-` and `_`.")
            .required()
            .judged(input::judge_plain_name),
        ParamSpec::new(
            "schedule",
            ParamKind::Line,
            "Five fields (minute hour day month weekday) or `@daily`, `@hourly` and so on; needed unless `state` is absent.",
        )
        .needed(Needed::UnlessAbsent)
        .judged(|value| judge_texts(value, |text| input::problem(schedule(text.trim())))),
        ParamSpec::new(
            "command",
            ParamKind::Line,
            "Shell command; a `%` in it is an ordinary character. Needed unless `state` is absent.",
        )
        .needed(Needed::UnlessAbsent),
        ParamSpec::new("user", ParamKind::Line, "Account it runs as, which must be there; default: root.")
            .default(ParamDefault::Text("root"))
            .judged(|value| judge_texts(value, |text| input::problem(input::word("user", text)))),
        ParamSpec::new("env", ParamKind::TextMap, "Environment variables; default: none.")
            .default(ParamDefault::EmptyMap),
        STATE,
    ],
    ..CONFIGURE
};

pub(super) struct CronEntry;

impl Configure for CronEntry {
    fn descriptor(&self) -> &'static Descriptor {
        &DESCRIPTOR
    }

    fn setup(&self, setup: &mut Setup<'_>, params: &Params) -> Result<(), OpError> {
        // Cron passes over files with other characters in their names.
        let path = format!("/etc/cron.d/{}", input::file_name(params, "name", "")?);
        if input::is_absent(params) {
            return setup.absent(path);
        }
        let content = content(params)?;
        // Cron passes over a whole file that names an account it does not know; root there is always.
        if let Some(user) = params.text("user").filter(|user| *user != "root") {
            Account::require(setup, user)?;
        }
        let want = Want::new(Kind::File).content(content.into_bytes()).mode(0o644);
        let want = setup.owned_by_root(want);
        setup.file(path, want)
    }
}

/// Returns the content of the file. Pure.
fn content(params: &Params) -> Result<String, OpError> {
    let needed = |name: &str| {
        let text = input::line(params, name)?.map(str::trim).filter(|text| !text.is_empty());
        text.ok_or_else(|| OpError::invalid(format!("`{name}` is needed unless `state` is absent")))
    };
    let (schedule, command) = (schedule(needed("schedule")?)?, needed("command")?);
    let user = input::word("user", params.text("user").unwrap_or("root"))?;
    let mut content = String::new();
    for (name, value) in params.text_map("env") {
        content.push_str(&variable(&name, &value)?);
    }
    // Cron itself would end the command at a bare `%` and feed it the rest.
    content.push_str(&format!("{schedule} {user} {}\n", escaped(command)));
    Ok(content)
}

fn schedule(text: &str) -> Result<String, OpError> {
    if text.starts_with('@') {
        return match SHORT.contains(&text) {
            true => Ok(text.to_owned()),
            false => Err(OpError::invalid(format!(
                "`schedule`, `{text}`: expected five fields or one of {}",
                SHORT.join(", ")
            ))),
        };
    }
    Cron::parse(text).map_err(|error| OpError::invalid(format!("`schedule`, `{text}`: {error}")))?;
    Ok(text.split_ascii_whitespace().collect::<Vec<_>>().join(" "))
}

fn escaped(command: &str) -> String {
    let mut escaped = String::new();
    let mut before = ' ';
    for c in command.chars() {
        if c == '%' && before != '\\' {
            escaped.push('\\');
        }
        escaped.push(c);
        before = c;
    }
    escaped
}

/// Returns the line that sets a variable.
fn variable(name: &str, value: &str) -> Result<String, OpError> {
    let mut chars = name.chars();
    let is_name = chars.next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
        && chars.all(|c| c.is_ascii_alphanumeric() || c == '_');
    if !is_name {
        return Err(OpError::invalid(format!(
            "`env`: `{}` is not the name of a variable",
            name.escape_debug()
        )));
    }
    input::on_one_line("env", value)?;
    let bare = value.trim() == value && !value.is_empty() && !value.starts_with(['"', '\'']);
    Ok(match (bare, value.contains('"'), value.contains('\'')) {
        (true, _, _) => format!("{name}={value}\n"),
        (false, false, _) => format!("{name}=\"{value}\"\n"),
        (false, true, false) => format!("{name}='{value}'\n"),
        (false, true, true) => {
            return Err(OpError::invalid(format!(
                "`env`: cron cannot hold the value of `{name}`: it starts or ends with a blank or a quote and has both kinds of quotes"
            )));
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn made(values: Value) -> Result<String, OpError> {
        let Value::Object(values) = values else { panic!("not a map") };
        content(&Params::new(values))
    }

    #[test]
    fn an_entry_is_one_line_after_its_variables() {
        assert_eq!(made(json!({"schedule": "@daily", "command": "true"})).unwrap(), "@daily root true\n");
        let full = json!({"schedule": "*/5  1-3 * jan mon", "command": "date +%F >> /x 2>&1", "user": "web",
            "env": {"B": " x", "A": 1}});
        assert_eq!(made(full).unwrap(), "A=1\nB=\" x\"\n*/5 1-3 * jan mon web date +\\%F >> /x 2>&1\n");
        assert_eq!(
            made(json!({"schedule": "@daily", "command": "date +\\%F"})).unwrap(),
            "@daily root date +\\%F\n"
        );
    }

    #[test]
    fn what_would_be_another_line_or_never_fires_is_refused() {
        for values in [
            json!({"schedule": "@daily", "command": "true\n* * * * * root evil"}),
            json!({"schedule": "* * * *", "command": "true"}),
            json!({"schedule": "61 * * * *", "command": "true"}),
            json!({"schedule": "0 0 30 2 *", "command": "true"}),
            json!({"schedule": "@sometimes", "command": "true"}),
            json!({"schedule": "@daily", "command": "true", "user": "root evil"}),
            json!({"schedule": "@daily", "command": "true", "env": {"A B": "x"}}),
            json!({"schedule": "@daily", "command": "true", "env": {"A": "x\ny"}}),
            json!({"schedule": "@daily"}),
        ] {
            assert!(made(values.clone()).is_err(), "{values}");
        }
    }
}
