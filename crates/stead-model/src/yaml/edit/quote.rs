//! How a value is written in place of another: in the same quotes, if they can hold it.

use serde_saphyr::granit_parser::ScalarStyle;

use super::Wanted;
use crate::yaml::scalar::{self, Scalar};

/// Returns the ways to write `wanted` where a scalar of this style stands, best first. Whoever uses one has to read it
/// back: what a text means depends on what is around it.
pub(super) fn spellings(wanted: &Wanted, style: ScalarStyle, in_flow: bool) -> Vec<String> {
    let text = match wanted {
        Wanted::Int(number) => return vec![number.to_string()],
        Wanted::Bool(value) => return vec![value.to_string()],
        Wanted::Text(text) => text,
    };
    let kept = match style {
        ScalarStyle::Plain => is_plain(text, in_flow).then(|| text.clone()),
        ScalarStyle::SingleQuoted => {
            text.chars().all(is_printable).then(|| format!("'{}'", text.replace('\'', "''")))
        }
        ScalarStyle::DoubleQuoted | ScalarStyle::Literal | ScalarStyle::Folded => None,
    };
    kept.into_iter().chain([double_quoted(text)]).collect()
}

/// Returns the style that somebody chose for `value`, which stands in the file as `written`. Double quotes that it cannot
/// do without are nobody's choice: so a plain value is plain again after it was another for a while.
pub(super) fn chosen_style(value: &str, written: &str, style: ScalarStyle, in_flow: bool) -> ScalarStyle {
    let is_forced =
        style == ScalarStyle::DoubleQuoted && !is_plain(value, in_flow) && written == double_quoted(value);
    if is_forced { ScalarStyle::Plain } else { style }
}

/// Whether `text` without quotes, outside of flow collections, is this text to every reader.
pub(in crate::yaml) fn is_plain_text(text: &str) -> bool {
    is_plain(text, false)
}

/// Whether `text` without quotes is this text to every reader, of YAML 1.1 too.
fn is_plain(text: &str, in_flow: bool) -> bool {
    let Some(first) = text.chars().next() else { return false };
    let second = text.chars().nth(1);
    let begins = match first {
        '-' | '?' | ':' => second.is_some_and(|c| !c.is_whitespace() && !is_flow(c)),
        ',' | '[' | ']' | '{' | '}' | '#' | '&' | '*' | '!' | '|' | '>' | '\'' | '"' | '%' | '@' | '`' => {
            false
        }
        _ => true,
    };
    begins
        && text.chars().all(|c| is_printable(c) && c != '\t')
        && !text.starts_with(' ')
        && !text.ends_with([' ', ':'])
        && !text.contains(": ")
        && !text.contains(" #")
        && !(in_flow && text.contains(|c| is_flow(c) || c == ':'))
        && !text.starts_with("---")
        && !text.starts_with("...")
        && scalar::classify(text) == Scalar::Text
        && !is_special_in_yaml_1_1(text)
}

fn is_flow(c: char) -> bool {
    matches!(c, ',' | '[' | ']' | '{' | '}')
}

/// Whether `c` may stand for itself inside quotes on one line.
fn is_printable(c: char) -> bool {
    !c.is_control() && !matches!(c, '\u{2028}' | '\u{2029}' | '\u{feff}' | '\u{fffe}' | '\u{ffff}')
}

/// Whether readers of YAML 1.1 may take the text for a boolean, a number, a date or a merge key.
fn is_special_in_yaml_1_1(text: &str) -> bool {
    let lower = text.to_ascii_lowercase();
    let words = ["y", "n", "yes", "no", "on", "off", "true", "false", "null", "~", "<<", "="];
    if words.contains(&lower.as_str()) {
        return true;
    }
    // Numbers with `_`, `0b1`, `0o7`, `1:30`, `.inf`, `2001-01-01 10:00:00`: whatever begins like a number and has only
    // the characters of one.
    let unsigned = lower.strip_prefix(['+', '-']).unwrap_or(&lower);
    let begins = unsigned.starts_with(|c: char| c.is_ascii_digit())
        || unsigned.strip_prefix('.').is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
        || matches!(unsigned, ".inf" | ".nan");
    let radix = ["0x", "0b", "0o"].iter().any(|prefix| {
        unsigned
            .strip_prefix(prefix)
            .is_some_and(|digits| digits.chars().all(|c| c.is_ascii_hexdigit() || c == '_'))
    });
    begins
        && (radix
            || matches!(unsigned, ".inf" | ".nan")
            || unsigned.chars().all(|c| c.is_ascii_digit() || "_.:+-et z".contains(c)))
}

fn double_quoted(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for c in text.chars() {
        match c {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            c if is_printable(c) => quoted.push(c),
            c if u32::from(c) <= 0xff => quoted.push_str(&format!("\\x{:02x}", u32::from(c))),
            c if u32::from(c) <= 0xffff => quoted.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => quoted.push_str(&format!("\\U{:08x}", u32::from(c))),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;

    fn best(text: &str, style: ScalarStyle, in_flow: bool) -> String {
        spellings(&Wanted::Text(text.to_owned()), style, in_flow).remove(0)
    }

    #[test]
    fn plain_text_stays_plain() {
        for text in
            ["./a/b", "a b", "v1.2.3", "10.0.0.0/8", "http://x:80", "a#b", "-x", "é", "30s", "x,y", "it's"]
        {
            assert_eq!(best(text, ScalarStyle::Plain, false), text);
        }
    }

    #[test]
    fn what_would_mean_something_else_gets_double_quotes() {
        for text in [
            "",
            "on",
            "Yes",
            "y",
            "null",
            "~",
            "true",
            "1",
            "1.0",
            "1e3",
            "0x1f",
            "0b11",
            "1_000",
            "1:30",
            ".5",
            ".inf",
            "2026-11-15",
            "2026-11-15 10:00:00",
            "a: b",
            "a:",
            "a #b",
            "- a",
            "-",
            "?",
            "#a",
            "&a",
            "*a",
            "!a",
            "|",
            ">",
            "'a'",
            "\"a",
            "%a",
            "@a",
            "`a",
            "[a]",
            "{a}",
            " a",
            "a ",
            "---",
            "--- a",
            "<<",
            "=",
        ] {
            assert!(best(text, ScalarStyle::Plain, false).starts_with('"'), "{text}");
        }
        assert_eq!(
            best("a\n\u{1}\"\\\t\u{85}\u{feff}", ScalarStyle::Plain, false),
            r#""a\n\x01\"\\\t\x85\ufeff""#
        );
    }

    #[test]
    fn brackets_and_commas_are_quoted_inside_brackets_only() {
        for text in ["a,b", "a]", "a{b}", "a:b"] {
            assert_eq!(best(text, ScalarStyle::Plain, false), text);
            assert_eq!(best(text, ScalarStyle::Plain, true), format!("\"{text}\""));
        }
    }

    #[test]
    fn quotes_are_kept() {
        assert_eq!(best("it's", ScalarStyle::SingleQuoted, false), "'it''s'");
        assert_eq!(best("a\nb", ScalarStyle::SingleQuoted, false), "\"a\\nb\"");
        assert_eq!(best("x", ScalarStyle::DoubleQuoted, false), "\"x\"");
    }

    #[test]
    fn numbers_and_booleans_are_written_without_quotes() {
        assert_eq!(spellings(&Wanted::Int(-3), ScalarStyle::DoubleQuoted, false), ["-3"]);
        assert_eq!(spellings(&Wanted::Bool(true), ScalarStyle::SingleQuoted, true), ["true"]);
    }
}
