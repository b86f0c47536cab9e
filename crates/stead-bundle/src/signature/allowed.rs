//! Who may sign: OpenSSH's allowed signers file (`ssh-keygen(1)`, ALLOWED SIGNERS).
//!
//! Principals are read and do not matter: a bundle has no name of its signer to compare with. Certificates are refused
//! rather than passed over, since a line that is passed over looks like one that counts.

use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use ssh_key::PublicKey;
use ssh_key::public::KeyData;
use stead_model::time::Timestamp;

use super::NAMESPACE;
use crate::error::RecordError;
use crate::open_file::open_regular;

/// No such file is longer.
const LONGEST_FILE: u64 = 16 << 20;
const OPTIONS: &str = "namespaces, valid-after, valid-before";

/// The keys that may sign.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AllowedSigners(Vec<AllowedSigner>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct AllowedSigner {
    key: KeyData,
    options: Options,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Options {
    /// Patterns; none allows every namespace.
    namespaces: Option<String>,
    after: Option<i64>,
    before: Option<i64>,
}

/// A line that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignerProblem {
    /// Which, from 1.
    pub line: usize,
    /// What is wrong.
    pub message: String,
}

/// Why there are no allowed signers.
#[derive(Debug, thiserror::Error)]
pub enum SignersError {
    /// Lines that cannot be used.
    #[error("{path}: {}", told(problems), path = path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// All of them.
        problems: Vec<SignerProblem>,
    },
    /// The file could not be read.
    #[error(transparent)]
    Read(#[from] RecordError),
}

fn told(problems: &[SignerProblem]) -> String {
    let told: Vec<String> =
        problems.iter().map(|problem| format!("line {}: {}", problem.line, problem.message)).collect();
    told.join("; ")
}

/// Why a key may not sign.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Distrust {
    /// No line has it.
    Unknown,
    /// Its lines are for other purposes.
    OtherNamespace,
    /// Its lines are not valid now.
    NotNow,
}

impl Distrust {
    pub(crate) fn sentence(self) -> &'static str {
        match self {
            Self::Unknown => "its signer is not one of the allowed signers",
            Self::OtherNamespace => "its signer is allowed for other namespaces only",
            Self::NotNow => "its signer is allowed at other times only",
        }
    }
}

impl AllowedSigners {
    /// Returns the signers that the file at `path` allows.
    pub fn load(path: &Path) -> Result<Self, SignersError> {
        let mut text = String::new();
        let read = open_regular(path).and_then(|file| file.take(LONGEST_FILE).read_to_string(&mut text));
        match read {
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                let problems = vec![SignerProblem { line: 1, message: "it is not text".to_owned() }];
                return Err(SignersError::Invalid { path: path.to_owned(), problems });
            }
            read => read.map_err(RecordError::of("read", path))?,
        };
        Self::parse(&text).map_err(|problems| SignersError::Invalid { path: path.to_owned(), problems })
    }

    /// Returns the signers that `text` allows, or every line that cannot be used.
    pub fn parse(text: &str) -> Result<Self, Vec<SignerProblem>> {
        let mut signers = Vec::new();
        let mut problems = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            match signer(line) {
                Ok(signer) => signers.push(signer),
                Err(message) => problems.push(SignerProblem { line: index + 1, message }),
            }
        }
        if problems.is_empty() { Ok(Self(signers)) } else { Err(problems) }
    }

    /// Returns why `key` may not sign a bundle at `now`; none if it may.
    pub(crate) fn distrusts(&self, key: &KeyData, now: Timestamp) -> Option<Distrust> {
        let mut why = Distrust::Unknown;
        for signer in self.0.iter().filter(|signer| signer.key == *key) {
            let options = &signer.options;
            let seconds = now.as_micros().div_euclid(1_000_000);
            if !options.namespaces.as_ref().is_none_or(|patterns| matches_list(NAMESPACE, patterns)) {
                why = Distrust::OtherNamespace;
            } else if options.after.is_some_and(|after| seconds < after)
                || options.before.is_some_and(|before| seconds > before)
            {
                why = Distrust::NotNow;
            } else {
                return None;
            }
        }
        Some(why)
    }
}

fn signer(line: &str) -> Result<AllowedSigner, String> {
    let (principals, rest) = word(line).ok_or("a quote is not closed")?;
    if principals.is_empty() || rest.is_empty() {
        return Err("write PRINCIPALS [OPTIONS] KEY-TYPE KEY".to_owned());
    }
    if let Ok(key) = PublicKey::from_openssh(rest) {
        return Ok(AllowedSigner { key: key.key_data().clone(), options: Options::default() });
    }
    let (options, key) = word(rest).ok_or("a quote is not closed")?;
    // What could be a kind of key is one that was not understood.
    if options.starts_with("ssh-") || options.starts_with("ecdsa-") || options.starts_with("sk-") {
        return Err(format!("the key of kind {options} does not parse"));
    }
    let options = parse_options(options)?;
    let key = PublicKey::from_openssh(key).map_err(|_| "the key does not parse".to_owned())?;
    Ok(AllowedSigner { key: key.key_data().clone(), options })
}

/// Returns the first word of `text`, in which quoted blanks do not count, and what follows it.
fn word(text: &str) -> Option<(&str, &str)> {
    let mut quoted = false;
    for (at, c) in text.char_indices() {
        match c {
            '"' => quoted = !quoted,
            ' ' | '\t' if !quoted => return Some((&text[..at], text[at..].trim_start())),
            _ => {}
        }
    }
    (!quoted).then_some((text, ""))
}

fn parse_options(text: &str) -> Result<Options, String> {
    let mut options = Options::default();
    for option in split_unquoted(text) {
        let (name, value) =
            option.split_once('=').map_or((option, None), |(name, value)| (name, Some(value)));
        let value = value.map(|value| value.trim_matches('"'));
        match (name.to_ascii_lowercase().as_str(), value) {
            ("cert-authority", _) => {
                return Err("cert-authority is not supported: list the keys themselves".to_owned());
            }
            ("namespaces", Some(value)) => options.namespaces = Some(value.to_owned()),
            ("valid-after", Some(value)) => options.after = Some(moment(value)?),
            ("valid-before", Some(value)) => options.before = Some(moment(value)?),
            _ => return Err(format!("`{option}` is not an option; those known are {OPTIONS}")),
        }
    }
    Ok(options)
}

fn split_unquoted(text: &str) -> Vec<&str> {
    let mut quoted = false;
    text.split(|c: char| {
        quoted ^= c == '"';
        c == ',' && !quoted
    })
    .collect()
}

/// Returns seconds since the Unix epoch of `YYYYMMDD[HHMM[SS]][Z]`: UTC with the Z, else this machine's time.
fn moment(text: &str) -> Result<i64, String> {
    let wrong =
        || format!("`{text}` is no time: write YYYYMMDD, YYYYMMDDHHMM or YYYYMMDDHHMMSS, with Z for UTC");
    let (digits, zone) = match text.strip_suffix(['Z', 'z']) {
        Some(digits) => (digits, TimeZone::UTC),
        None => (text, TimeZone::system()),
    };
    if !matches!(digits.len(), 8 | 12 | 14) || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(wrong());
    }
    let number = |from: usize, len: usize| -> i16 {
        digits.get(from..from + len).and_then(|digits| digits.parse().ok()).unwrap_or(0)
    };
    let small = |from: usize| i8::try_from(number(from, 2)).unwrap_or(0);
    let moment = DateTime::new(number(0, 4), small(4), small(6), small(8), small(10), small(12), 0);
    let moment = moment.and_then(|moment| moment.to_zoned(zone)).map_err(|_| wrong())?;
    Ok(moment.timestamp().as_second())
}

/// Returns whether `text` matches one of the patterns of a list and none that begins with `!`.
fn matches_list(text: &str, patterns: &str) -> bool {
    let mut found = false;
    for pattern in patterns.split(',') {
        match pattern.strip_prefix('!') {
            Some(pattern) if matches(text.as_bytes(), pattern.as_bytes()) => return false,
            Some(_) => {}
            None => found |= matches(text.as_bytes(), pattern.as_bytes()),
        }
    }
    found
}

/// Returns whether `text` matches `pattern`, in which `*` is anything and `?` one byte.
fn matches(text: &[u8], pattern: &[u8]) -> bool {
    // Where to go on if what follows the last `*` does not fit: the usual way without recursion.
    let (mut t, mut p, mut star) = (0, 0, None);
    while t < text.len() {
        match pattern.get(p) {
            Some(b'*') => {
                star = Some((t, p));
                p += 1;
            }
            Some(b'?') => (t, p) = (t + 1, p + 1),
            Some(byte) if *byte == text[t] => (t, p) = (t + 1, p + 1),
            _ => match star {
                Some((from, at)) => {
                    (t, p) = (from + 1, at + 1);
                    star = Some((from + 1, at));
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|byte| *byte == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJBPpEb2ACF5JbVLzF5sHQ0oJ6mLpvQKvSXxUhUMj5kI";

    fn now(text: &str) -> Timestamp {
        Timestamp::parse(text).unwrap()
    }

    fn key() -> KeyData {
        PublicKey::from_openssh(KEY).unwrap().key_data().clone()
    }

    #[test]
    fn lines_allow_a_key_for_namespaces_and_times() {
        let at = now("2026-06-01T12:00:00Z");
        for (line, expected) in [
            (format!("ci@example.org {KEY} comment"), None),
            (format!("\"a b,c\" {KEY}"), None),
            (format!("* namespaces=\"stead-*\" {KEY}"), None),
            (format!("* namespaces=\"git,file\" {KEY}"), Some(Distrust::OtherNamespace)),
            (format!("* namespaces=\"*,!stead-bundle\" {KEY}"), Some(Distrust::OtherNamespace)),
            (format!("* valid-after=\"20260101Z\",valid-before=\"20261231Z\" {KEY}"), None),
            (format!("* VALID-AFTER=\"202606011200Z\" {KEY}"), None),
            (format!("* valid-after=\"20260601120001Z\" {KEY}"), Some(Distrust::NotNow)),
            (format!("* valid-before=\"20260601115959Z\" {KEY}"), Some(Distrust::NotNow)),
            ("# nobody\n\n".to_owned(), Some(Distrust::Unknown)),
        ] {
            let signers = AllowedSigners::parse(&line).unwrap();
            assert_eq!(signers.distrusts(&key(), at), expected, "{line}");
        }
        // One line that allows it is enough.
        let two = format!("a namespaces=\"git\" {KEY}\nb {KEY}\n");
        assert_eq!(AllowedSigners::parse(&two).unwrap().distrusts(&key(), at), None);
    }

    #[test]
    fn every_line_that_cannot_be_used_is_told() {
        let text = format!(
            "ok {KEY}\nonly\na cert-authority {KEY}\nb wild=1 {KEY}\nc valid-after=\"soon\" {KEY}\n\
             d ssh-ed25519 AAAA\ne \"open {KEY}\nf namespaces=\"x\" nokey\ng valid-before=\"20261340Z\" {KEY}\n"
        );
        let problems = AllowedSigners::parse(&text).unwrap_err();
        let lines: Vec<usize> = problems.iter().map(|problem| problem.line).collect();
        assert_eq!(lines, [2, 3, 4, 5, 6, 7, 8, 9], "{problems:?}");
        assert!(problems[1].message.contains("cert-authority is not supported"), "{problems:?}");
    }

    #[test]
    fn patterns_match_as_in_ssh() {
        for (text, pattern, expected) in [
            ("abc", "abc", true),
            ("abc", "a*", true),
            ("abc", "*c", true),
            ("abc", "a?c", true),
            ("abc", "a?", false),
            ("abc", "", false),
            ("", "*", true),
            ("aXbXc", "a*b*c", true),
            ("aXbXd", "a*b*c", false),
        ] {
            assert_eq!(matches(text.as_bytes(), pattern.as_bytes()), expected, "{text} {pattern}");
        }
    }
}
