//! Reads target expressions.

use stead_model::diagnostic::suggest;
use stead_model::transport::secret_ranges;
use stead_model::{HostName, TransportSpec};

use super::glob::{Glob, is_name_byte};
use super::{AdHoc, Atom, Element, Factor, Meaning, TargetError, TargetExpr};

/// Longest expression: no inventory needs more, and it bounds what a message repeats.
const MAX_LENGTH: usize = 64 << 10;

pub(super) fn parse(text: &str) -> Result<TargetExpr, TargetError> {
    let refuse = |(offset, message): (usize, String)| {
        let position = text.char_indices().take_while(|(at, _)| *at < offset).count();
        TargetError::Bad { text: shown(text), position, message }
    };
    if text.len() > MAX_LENGTH {
        return Err(refuse((0, format!("longer than {MAX_LENGTH} bytes"))));
    }
    let (at, whole) = trim(0, text);
    if is_transport(whole) {
        return ad_hoc(at, whole).map_err(refuse);
    }
    let elements =
        split(text, 0, b',').map(|(at, part)| element(at, part)).collect::<Result<_, _>>().map_err(refuse)?;
    Ok(TargetExpr { text: text.into(), meaning: Meaning::Set(elements) })
}

/// Whether `text` is meant as a transport, and not as an expression that has one in it.
fn is_transport(text: &str) -> bool {
    let head = text.split('?').next().unwrap_or_default();
    let scheme =
        head.split_once("://").is_some_and(|(scheme, _)| scheme.bytes().all(|b| b.is_ascii_alphanumeric()));
    scheme || (head.contains('@') && !head.contains([',', '&', '!']))
}

fn ad_hoc(at: usize, text: &str) -> Result<TargetExpr, Problem> {
    let transport = TransportSpec::parse(text).map_err(|error| {
        let help = error.help();
        let help = if help.is_empty() { help } else { format!(" ({help})") };
        (at + error.range.start, format!("{}{help}", error.fault))
    })?;
    if transport == TransportSpec::Local {
        return parse("local").map_err(|_| (at, "write `local`".to_owned()));
    }
    let name = HostName::parse(&transport.address()).map_err(|error| (at, error.to_string()))?;
    if matches!(name.as_str(), "local" | "all") {
        let message = format!("`{name}` alone is no other host: write `ssh://user@{name}`");
        return Err((at, message));
    }
    let text = transport.to_string().into();
    Ok(TargetExpr { text, meaning: Meaning::AdHoc(Box::new(AdHoc { name, transport })) })
}

/// Returns what a message may repeat of an expression.
fn shown(text: &str) -> String {
    let mut bytes = text.as_bytes().to_vec();
    for range in secret_ranges(text) {
        bytes[range].fill(b'*');
    }
    let text = String::from_utf8_lossy(&bytes);
    match text.char_indices().nth(200) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.into_owned(),
    }
}

/// Returns the parts between `separator`s outside brackets, each with its offset.
fn split(text: &str, offset: usize, separator: u8) -> impl Iterator<Item = (usize, &str)> {
    let mut ends = Vec::new();
    let mut in_brackets = false;
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'[' => in_brackets = true,
            b']' => in_brackets = false,
            byte if byte == separator && !in_brackets => ends.push(at),
            _ => {}
        }
    }
    ends.push(text.len());
    let mut start = 0;
    ends.into_iter().map(move |end| {
        let from = std::mem::replace(&mut start, end + 1);
        (offset + from, &text[from..end])
    })
}

/// Returns `text` without blanks around it, with the offset of what is left.
fn trim(at: usize, text: &str) -> (usize, &str) {
    let rest = text.trim_start();
    (at + text.len() - rest.len(), rest.trim_end())
}

type Problem = (usize, String);

fn element(at: usize, text: &str) -> Result<Element, Problem> {
    let (at, text) = trim(at, text);
    if text.is_empty() {
        return Err((at, "an element is empty".to_owned()));
    }
    let (excluded, at, text) = match text.strip_prefix('!') {
        Some(rest) => (true, at + 1, rest),
        None => (false, at, text),
    };
    let (first, rest) = trim(at, text);
    if excluded && rest.starts_with('!') {
        return Err((first, "`!` twice: leave both out".to_owned()));
    }
    let mut element = Element { excluded, factors: Vec::new(), any: false };
    for (at, part) in split(text, at, b'&') {
        let (at, part) = trim(at, part);
        let (negated, at, part) = match part.strip_prefix('!') {
            Some(rest) => {
                let (at, rest) = trim(at + 1, rest);
                (true, at, rest)
            }
            None => (false, at, part),
        };
        if part.is_empty() {
            let message =
                if negated || excluded { "`!` stands alone" } else { "`&` needs a set on both sides" };
            return Err((at, message.to_owned()));
        }
        if part == "_any" {
            if negated || excluded {
                return Err((at, "`_any` is one host; it has no complement".to_owned()));
            }
            element.any = true;
        } else {
            element.factors.push(Factor { negated, atom: atom(at, part)? });
        }
    }
    Ok(element)
}

fn atom(at: usize, text: &str) -> Result<Atom, Problem> {
    if let Some((key, value)) = text.split_once(':') {
        return label(at, key, value);
    }
    if matches!(text, "_all" | "all") {
        return Ok(Atom::All);
    }
    if text.starts_with('_') {
        return Err((at, format!("`{text}` is not a set: {}", suggest(text, ["_all", "_any"]))));
    }
    if text.contains(['*', '?', '[']) {
        return Glob::parse(text)
            .map(Atom::Glob)
            .map_err(|(offset, message)| (at + offset, message.to_owned()));
    }
    if text.contains('@') {
        return Err((at, "a host by SSH stands alone, as the whole expression or list item".to_owned()));
    }
    match text.char_indices().find(|(_, c)| !c.is_ascii() || !is_name_byte(*c as u8)) {
        Some((offset, c)) => Err((at + offset, format!("`{}` is not part of a name", c.escape_debug()))),
        None if !text.as_bytes()[0].is_ascii_alphanumeric() => {
            Err((at, "a host name starts with a letter or digit".to_owned()))
        }
        None => Ok(Atom::Name(text.into())),
    }
}

fn label(at: usize, key: &str, value: &str) -> Result<Atom, Problem> {
    let is_segment = |text: &str| {
        !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-')
    };
    if !is_segment(key) || key.len() > 63 {
        return Err((at, format!("`{}` is not a label's name", key.escape_debug())));
    }
    let after = at + key.len() + 1;
    match value {
        "" => Err((after, format!("the value of label `{key}` is missing; `{key}:*` means any"))),
        "*" => Ok(Atom::HasLabel(key.into())),
        value if value.split('.').all(is_segment) => Ok(Atom::Label { key: key.into(), value: value.into() }),
        value if value.contains(':') => Err((after, "a label is `name:value`, with one colon".to_owned())),
        value => Err((after, format!("`{}` is not a label's value", value.escape_debug()))),
    }
}
