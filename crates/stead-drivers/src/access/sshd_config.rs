//! The text of the SSH daemon's configuration. Pure.

use std::collections::BTreeMap;

use serde_json::Value;
use stead_runner::operation::{OpError, Params};

use crate::file::edit::Lines;
use crate::setup::input;

pub(super) const INCLUDE: &str = "Include /etc/ssh/sshd_config.d/*.conf";

/// Returns the settings of parameter `settings`, each with its lines.
pub(super) fn settings(params: &Params) -> Result<BTreeMap<String, Vec<String>>, OpError> {
    let given = params.get("settings").and_then(Value::as_object).cloned().unwrap_or_default();
    let mut settings = BTreeMap::new();
    for (name, value) in given {
        if name.is_empty() || !name.bytes().all(|b| b.is_ascii_alphanumeric()) {
            return Err(OpError::invalid(format!(
                "`settings`: `{}` is not the name of an sshd_config setting",
                name.escape_debug()
            )));
        }
        if ["match", "include"].contains(&name.to_ascii_lowercase().as_str()) {
            return Err(OpError::invalid(format!("`settings`: `{name}` cannot be set here")));
        }
        let values = match value {
            Value::Array(items) => items.iter().map(|item| text(&name, item)).collect::<Result<_, _>>()?,
            one @ (Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Object(_)) => {
                vec![text(&name, &one)?]
            }
        };
        settings.insert(name, values);
    }
    let mut names: Vec<String> = settings.keys().map(|name| name.to_ascii_lowercase()).collect();
    names.sort();
    if let Some(twice) = names.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(OpError::invalid(format!("`settings`: `{}` is given twice", twice[0])));
    }
    Ok(settings)
}

fn text(name: &str, value: &Value) -> Result<String, OpError> {
    let text = match value {
        Value::String(text) => text.trim().to_owned(),
        Value::Number(number) => number.to_string(),
        Value::Bool(yes) => (if *yes { "yes" } else { "no" }).to_owned(),
        Value::Null | Value::Array(_) | Value::Object(_) => String::new(),
    };
    input::on_one_line(name, &text)?;
    if text.is_empty() {
        return Err(OpError::invalid(format!("`settings`: `{name}` needs a text, a number or a boolean")));
    }
    Ok(text)
}

/// Returns the content of a drop-in with these settings.
pub(super) fn drop_in(settings: &BTreeMap<String, Vec<String>>) -> String {
    let lines = settings.iter().flat_map(|(name, values)| values.iter().map(move |value| (name, value)));
    lines.map(|(name, value)| format!("{name} {value}\n")).collect()
}

/// Returns the main file with the line that includes drop-ins before every setting: the first value wins.
pub(super) fn with_include(content: &[u8]) -> Vec<u8> {
    let mut lines = Lines::new(content);
    let words = |text: &[u8]| -> Vec<String> {
        let text = String::from_utf8_lossy(text);
        let text = text.split('#').next().unwrap_or_default();
        text.split(|c: char| c.is_ascii_whitespace() || c == '=')
            .filter(|word| !word.is_empty())
            .map(|word| word.trim_matches('"').to_owned())
            .collect()
    };
    let is_include = |text: &[u8]| {
        let words = words(text);
        let names = |word: &String| word == "/etc/ssh/sshd_config.d/*.conf" || word == "sshd_config.d/*.conf";
        words.first().is_some_and(|word| word.eq_ignore_ascii_case("include")) && words.iter().any(names)
    };
    let first = lines.find(|text| !words(text).is_empty()).first().copied();
    if first.is_some_and(|first| is_include(lines.text(first))) {
        return lines.into_bytes();
    }
    // Included twice, settings that add up (ports, host keys, subsystems) would clash with themselves.
    for i in lines.find(|text| is_include(text) && words(text).len() == 2).into_iter().rev() {
        lines.remove(i..i + 1);
    }
    lines.insert(0, &[INCLUDE.as_bytes()]);
    lines.into_bytes()
}

/// Returns the lines of `sshd -T`, by lower-case name.
pub(super) fn effective(text: &str) -> BTreeMap<String, Vec<String>> {
    let mut settings: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (name, value) in text.lines().filter_map(|line| line.split_once(' ')) {
        settings.entry(name.to_ascii_lowercase()).or_default().push(value.trim().to_owned());
    }
    settings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn included(text: &str) -> String {
        let once = with_include(text.as_bytes());
        assert_eq!(with_include(&once), once, "a second time changes again");
        String::from_utf8(once).unwrap()
    }

    #[test]
    fn the_include_line_stands_before_every_setting_once() {
        let good = "# comment\n\nInclude /etc/ssh/sshd_config.d/*.conf\nPort 22\n";
        assert_eq!(included(good), good);
        assert_eq!(included("# c\nPort 22\n"), format!("{INCLUDE}\n# c\nPort 22\n"));
        assert_eq!(included(&format!("Port 22\n{INCLUDE}\nX y")), format!("{INCLUDE}\nPort 22\nX y"));
        assert_eq!(included(""), format!("{INCLUDE}\n"));
        assert_eq!(
            included("#Include /etc/ssh/sshd_config.d/*.conf\n"),
            format!("{INCLUDE}\n#Include /etc/ssh/sshd_config.d/*.conf\n")
        );
        assert_eq!(
            included("include=\"/etc/ssh/sshd_config.d/*.conf\"\n"),
            "include=\"/etc/ssh/sshd_config.d/*.conf\"\n"
        );
    }
}
