//! `sudo.rule`: what a user or group may run as somebody else, in a file of its own in `/etc/sudoers.d`.

use stead_model::Descriptor;
use stead_model::operation::{Needed, ParamDefault, ParamKind, ParamSpec, RootSupport, judge_texts};
use stead_runner::operation::{OpError, Params};

use crate::command::program;
use crate::disk::seen::Kind;
use crate::file::entry::Want;
use crate::file::params::STATE;
use crate::setup::{CONFIGURE, Configure, Setup, input};

static DESCRIPTOR: Descriptor = Descriptor {
    name: "sudo.rule",
    summary: "Makes sure a user or group may run commands by sudo, by the file /etc/sudoers.d/NAME, or has no such rule.",
    root: RootSupport::Full,
    params: &[
        ParamSpec::new("name", ParamKind::FileName, "Name of the file: letters, digits, `-` and `_`.")
            .required()
            .judged(input::judge_plain_name),
        ParamSpec::new("user", ParamKind::Line, "Who may; this or `group` unless `state` is absent.")
            .needed(Needed::UnlessAbsent)
            .judged(|value| judge_texts(value, |text| input::problem(name("user", text)))),
        ParamSpec::new("group", ParamKind::Line, "Whose members may.")
            .needed(Needed::UnlessAbsent)
            .judged(|value| judge_texts(value, |text| input::problem(name("group", text)))),
        ParamSpec::new(
            "commands",
            ParamKind::Lines,
            "Commands by absolute path, with arguments if only these; default: ALL.",
        )
        .default(ParamDefault::Texts(&["ALL"]))
        .judged(|value| judge_texts(value, |text| input::problem(command(text)))),
        ParamSpec::new(
            "runas",
            ParamKind::NonEmptyText,
            "As whom: `USER`, `USER:GROUP` or ALL; default: ALL.",
        )
        .default(ParamDefault::Text("ALL")),
        ParamSpec::new("nopasswd", ParamKind::Bool, "Without a password; default: false.")
            .default(ParamDefault::Flag(false)),
        STATE,
    ],
    exclusive: &[&["user", "group"]],
    ..CONFIGURE
};

pub(super) struct SudoRule;

impl Configure for SudoRule {
    fn descriptor(&self) -> &'static Descriptor {
        &DESCRIPTOR
    }

    fn setup(&self, setup: &mut Setup<'_>, params: &Params) -> Result<(), OpError> {
        // Sudo passes over files with `.` or `~` in their names, which would look like a rule and be none.
        let path = format!("/etc/sudoers.d/{}", input::file_name(params, "name", "")?);
        if input::is_absent(params) {
            return setup.absent(path);
        }
        let rule = rule(params)?;
        let want = Want::new(Kind::File).content(rule.into_bytes()).mode(0o440);
        let want = setup.owned_by_root(want);
        let found = program::find("visudo", "/".as_ref(), std::env::var_os("PATH").as_deref());
        let want = match found {
            Ok(_) => want.validated(&["visudo", "-cf", "{}"]),
            Err(_) if setup.is_running() => {
                return Err(OpError::permanent(
                    "`visudo` is not there to check the rule: the package sudo has it",
                ));
            }
            Err(_) => {
                setup.notes.push(format!("`{path}` was not checked: there is no `visudo` here"));
                want
            }
        };
        setup.file(path, want)
    }
}

/// Returns the one line of the file. Pure.
fn rule(params: &Params) -> Result<String, OpError> {
    let who = match (params.text("user"), params.text("group")) {
        (Some(user), None) => name("user", user)?.to_owned(),
        (None, Some(group)) => format!("%{}", name("group", group)?),
        (None, None) | (Some(_), Some(_)) => {
            return Err(OpError::invalid("one of `user` and `group` is needed"));
        }
    };
    let runas = params.text("runas").unwrap_or("ALL");
    for part in runas.splitn(2, ':').filter(|part| !part.is_empty()) {
        name("runas", part)?;
    }
    let commands = match params.get("commands") {
        Some(_) => input::lines(params, "commands")?,
        None => vec!["ALL".to_owned()],
    };
    let commands: Vec<String> = commands.iter().map(|text| command(text)).collect::<Result<_, _>>()?;
    let tag = if params.flag("nopasswd", false) { "NOPASSWD: " } else { "" };
    Ok(format!("{who} ALL=({runas}) {tag}{}\n", commands.join(", ")))
}

/// Returns `text` if it names an account and nothing else in a rule.
fn name<'a>(param: &str, text: &'a str) -> Result<&'a str, OpError> {
    let bare = text.strip_prefix('#').unwrap_or(text);
    let fits = |c: char| c.is_alphanumeric() || "_.-@$".contains(c);
    let is_id = text.starts_with('#');
    let is_name = !bare.is_empty() && !bare.starts_with('-') && bare.chars().all(fits);
    if is_name && (!is_id || bare.bytes().all(|b| b.is_ascii_digit())) {
        return Ok(text);
    }
    Err(OpError::invalid(format!(
        "`{param}`, `{}`: expected the name of an account, or `#` and its id",
        text.escape_debug()
    )))
}

/// Returns a command as a rule holds it: what would end it there is escaped, unless it is already.
fn command(text: &str) -> Result<String, OpError> {
    let text = text.trim();
    let bare = text.strip_prefix('!').unwrap_or(text);
    if bare != "ALL" && !bare.starts_with('/') && !bare.starts_with("sudoedit ") {
        return Err(OpError::invalid(format!(
            "`commands`, `{text}`: expected an absolute path, `sudoedit PATH` or ALL"
        )));
    }
    let mut rule = String::new();
    let mut before = ' ';
    for c in text.chars() {
        match c {
            '#' if before != '\\' => {
                return Err(OpError::invalid(format!("`commands`, `{text}`: a `#` would start a comment")));
            }
            ',' | ':' | '=' if before != '\\' => rule.push('\\'),
            _ => {}
        }
        rule.push(c);
        before = if before == '\\' { ' ' } else { c };
    }
    if before == '\\' {
        return Err(OpError::invalid(format!(
            "`commands`, `{text}`: a `\\` at the end joins it with the next"
        )));
    }
    Ok(rule)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn made(values: Value) -> Result<String, OpError> {
        let Value::Object(values) = values else { panic!("not a map") };
        rule(&Params::new(values))
    }

    #[test]
    fn a_rule_is_one_line() {
        assert_eq!(made(json!({"user": "ann"})).unwrap(), "ann ALL=(ALL) ALL\n");
        let full = json!({"group": "ops", "runas": "www-data:www-data", "nopasswd": true,
            "commands": ["/usr/bin/systemctl restart web", "/bin/x a=b,c"]});
        assert_eq!(
            made(full).unwrap(),
            "%ops ALL=(www-data:www-data) NOPASSWD: /usr/bin/systemctl restart web, /bin/x a\\=b\\,c\n"
        );
        assert_eq!(
            made(json!({"user": "#1000", "commands": ["/bin/x a\\:b"]})).unwrap(),
            "#1000 ALL=(ALL) /bin/x a\\:b\n"
        );
    }

    #[test]
    fn what_would_be_another_rule_is_refused() {
        for values in [
            json!({}),
            json!({"user": "ann ALL=(ALL) NOPASSWD: ALL"}),
            json!({"user": "ann\nbob"}),
            json!({"user": "#x"}),
            json!({"user": "ann", "runas": "root) NOPASSWD: ALL ("}),
            json!({"user": "ann", "commands": ["/bin/x\nann ALL=(ALL) ALL"]}),
            json!({"user": "ann", "commands": ["/bin/x \\"]}),
            json!({"user": "ann", "commands": ["/bin/x # y"]}),
            json!({"user": "ann", "commands": ["relative"]}),
        ] {
            assert!(made(values.clone()).is_err(), "{values}");
        }
    }
}
