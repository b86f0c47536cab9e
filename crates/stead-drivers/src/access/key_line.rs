//! One line of an `authorized_keys` file: options, key, comment. Pure.

use stead_runner::operation::OpError;

use crate::disk::base64;
use crate::setup::input;

/// A line that holds a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct KeyLine {
    /// The whole line, without its end.
    pub(super) text: String,
    /// The key itself: what makes two lines the same key.
    pub(super) blob: Vec<u8>,
}

impl KeyLine {
    /// Returns the line a user gave, or what is wrong with it.
    pub(super) fn given(text: &str) -> Result<Self, OpError> {
        let text = input::on_one_line("keys", text.trim())?;
        Self::parse(text).ok_or_else(|| {
            let shown: String = text.chars().take(40).collect();
            OpError::invalid(format!(
                "`keys`: `{shown}` is not a public key; expected a line such as `ssh-ed25519 AAAA… comment`"
            ))
        })
    }

    /// Returns the key of a line of the file; nothing for comments and what is no key.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let trimmed = text.trim();
        if trimmed.is_empty() || trimmed.starts_with('#') {
            return None;
        }
        // Either the type comes first, or options without blanks outside quotes do.
        let rest = [trimmed, after_options(trimmed)].into_iter().find_map(key)?;
        Some(Self { text: text.to_owned(), blob: rest })
    }
}

/// Returns the key that `text` starts with: its type, then its blob, which says the type again.
fn key(text: &str) -> Option<Vec<u8>> {
    let mut words = text.split_ascii_whitespace();
    let (kind, blob) = (words.next()?, words.next()?);
    let blob = base64::decode(blob)?;
    let length = u32::from_be_bytes(blob.get(..4)?.try_into().ok()?);
    let named = blob.get(4..4 + usize::try_from(length).ok()?)?;
    (named == kind.as_bytes() && blob.len() > 4 + named.len()).then_some(blob)
}

/// Returns what comes after the options of a line.
fn after_options(text: &str) -> &str {
    let mut quoted = false;
    let mut escaped = false;
    for (i, c) in text.char_indices() {
        match c {
            '\\' if quoted => {
                escaped = !escaped;
                continue;
            }
            '"' if !escaped => quoted = !quoted,
            ' ' | '\t' if !quoted => return text[i..].trim_start(),
            _ => {}
        }
        escaped = false;
    }
    ""
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f";

    #[test]
    fn a_key_is_found_behind_options_and_before_a_comment() {
        let plain = KeyLine::parse(KEY).unwrap();
        for line in [
            format!("{KEY} ann@home of mine"),
            format!("from=\"10.0.0.0/8\",command=\"echo \\\"a b\\\" ssh-rsa\" {KEY}"),
            format!("  no-pty\t{KEY}"),
        ] {
            assert_eq!(KeyLine::parse(&line).unwrap().blob, plain.blob, "{line}");
        }
    }

    #[test]
    fn what_is_no_key_is_refused() {
        let cut = &KEY[..30];
        let other_type = KEY.replace("ssh-ed25519 ", "ssh-rsa ");
        for line in [
            "",
            "# x",
            "ssh-ed25519",
            "ssh-ed25519 !!!!",
            cut,
            &other_type,
            "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5",
        ] {
            assert_eq!(KeyLine::parse(line), None, "{line}");
        }
        assert!(KeyLine::given(&format!("{KEY}\nssh-rsa x")).is_err());
        assert!(KeyLine::given(&format!("{KEY} comment")).is_ok());
    }
}
