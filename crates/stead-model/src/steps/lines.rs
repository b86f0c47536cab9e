//! Lines that a step speaks on its standard output: `::check`, `::suggest`, `::changed`, `::output`.
//!
//! Pure and shared: the operation collects them, the renderer shows them. Everything else a step prints is plain text.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A longer line is plain text.
pub const LONGEST: usize = 64 * 1024;

/// How a check of a step went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CheckLevel {
    /// As it should be.
    Ok,
    /// Not as it should be: the step fails.
    Bad,
    /// A person should look.
    Warn,
}

impl CheckLevel {
    /// Every level, in the order summaries count them.
    pub const ALL: [Self; 3] = [Self::Ok, Self::Bad, Self::Warn];

    /// Returns the word used in lines and documents.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Bad => "bad",
            Self::Warn => "warn",
        }
    }

    /// Returns the word a person reads, such as `[OK]`.
    pub const fn mark(self) -> &'static str {
        match self {
            Self::Ok => "[OK]",
            Self::Bad => "[BAD]",
            Self::Warn => "[WARN]",
        }
    }
}

impl fmt::Display for CheckLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// One check of a step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Check {
    /// How it went.
    pub level: CheckLevel,
    /// What was checked.
    pub key: String,
    /// What was found.
    pub message: String,
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.level.mark(), self.key)?;
        if self.message.is_empty() { Ok(()) } else { write!(f, " {}", self.message) }
    }
}

/// What a line says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Spoken {
    /// One check.
    Check(Check),
    /// A remedy.
    Suggest(String),
    /// Whether something is different now.
    Changed(bool),
    /// A value for later steps.
    Output {
        /// Its name.
        key: String,
        /// The value.
        value: String,
    },
    /// A line that was meant to say something: plain text, and a warning that says what is wrong.
    Malformed(String),
    /// Plain text.
    Text,
}

/// Returns what a line without its newline says.
pub fn parse(line: &str) -> Spoken {
    let Some(spoken) = line.strip_prefix("::") else { return Spoken::Text };
    let (word, rest) = spoken.split_once([' ', '\t']).unwrap_or((spoken, ""));
    let meaning = match word {
        "check" => check,
        "suggest" => suggest,
        "changed" => changed,
        "output" => output,
        _ => return Spoken::Text,
    };
    if line.len() > LONGEST {
        return Spoken::Malformed(format!("a `::{word}` line may have up to {LONGEST} bytes"));
    }
    meaning(rest.trim_start_matches([' ', '\t'])).unwrap_or_else(|rule| Spoken::Malformed(rule.to_owned()))
}

fn check(rest: &str) -> Result<Spoken, &'static str> {
    const RULE: &str = "write `::check ok|bad|warn KEY message`, KEY of letters, digits and `_.:/-`";
    let (level, rest) = rest.split_once([' ', '\t']).ok_or(RULE)?;
    let level = CheckLevel::ALL.into_iter().find(|known| known.as_str() == level).ok_or(RULE)?;
    let rest = rest.trim();
    let (key, message) = rest.split_once([' ', '\t']).unwrap_or((rest, ""));
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"_.:/-".contains(&byte);
    if key.is_empty() || !key.bytes().all(fits) {
        return Err(RULE);
    }
    Ok(Spoken::Check(Check { level, key: key.to_owned(), message: message.trim().to_owned() }))
}

fn suggest(rest: &str) -> Result<Spoken, &'static str> {
    match rest.trim() {
        "" => Err("write `::suggest COMMAND`"),
        command => Ok(Spoken::Suggest(command.to_owned())),
    }
}

fn changed(rest: &str) -> Result<Spoken, &'static str> {
    match rest.trim_end() {
        "true" => Ok(Spoken::Changed(true)),
        "false" => Ok(Spoken::Changed(false)),
        _ => Err("write `::changed true` or `::changed false`"),
    }
}

fn output(rest: &str) -> Result<Spoken, &'static str> {
    const RULE: &str =
        "write `::output KEY=VALUE`, KEY of letters, digits and `_`, not beginning with a digit";
    let (key, value) = rest.split_once('=').ok_or(RULE)?;
    let is_name = key.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
        && key.bytes().next().is_some_and(|first| !first.is_ascii_digit());
    if !is_name {
        return Err(RULE);
    }
    if value.contains('\0') {
        return Err("a value of `::output` cannot hold a NUL byte");
    }
    Ok(Spoken::Output { key: key.to_owned(), value: value.to_owned() })
}

/// Makes lines of output that comes in pieces. A line that cannot speak is not kept, however long it is.
#[derive(Clone, Debug, Default)]
pub struct LineReader {
    // Invariant: the beginning of a line that may still speak, at most one byte longer than the longest.
    pending: Vec<u8>,
    is_text: bool,
}

impl LineReader {
    /// Takes the next piece; calls `hear` with what each line that ends in it says, plain text left out.
    pub fn push(&mut self, bytes: &[u8], mut hear: impl FnMut(&str, Spoken)) {
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            let (content, ended) = match piece.strip_suffix(b"\n") {
                Some(content) => (content, true),
                None => (piece, false),
            };
            if !self.is_text {
                let room = (LONGEST + 1).saturating_sub(self.pending.len());
                self.pending.extend_from_slice(&content[..content.len().min(room)]);
                self.is_text = !may_speak(&self.pending);
            }
            if ended {
                self.end(&mut hear);
            }
        }
    }

    /// Takes the end of the output: a last line may have no newline.
    pub fn finish(&mut self, mut hear: impl FnMut(&str, Spoken)) {
        self.end(&mut hear);
    }

    fn end(&mut self, hear: &mut impl FnMut(&str, Spoken)) {
        if !self.is_text && !self.pending.is_empty() {
            let line = String::from_utf8_lossy(&self.pending);
            match parse(&line) {
                Spoken::Text => {}
                spoken @ (Spoken::Check(_)
                | Spoken::Suggest(_)
                | Spoken::Changed(_)
                | Spoken::Output { .. }
                | Spoken::Malformed(_)) => hear(&line, spoken),
            }
        }
        self.pending.clear();
        self.is_text = false;
    }
}

/// Whether a line that begins so may say something.
pub fn may_speak(beginning: &[u8]) -> bool {
    let length = beginning.len().min(2);
    beginning[..length] == b"::"[..length]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_of(level: CheckLevel, key: &str, message: &str) -> Spoken {
        Spoken::Check(Check { level, key: key.to_owned(), message: message.to_owned() })
    }

    #[test]
    fn lines_say_what_the_contract_lists() {
        assert_eq!(parse("::check ok dns/a.b:1 all well"), check_of(CheckLevel::Ok, "dns/a.b:1", "all well"));
        assert_eq!(
            parse("::check bad volume:x  still  there "),
            check_of(CheckLevel::Bad, "volume:x", "still  there")
        );
        assert_eq!(parse("::check warn k"), check_of(CheckLevel::Warn, "k", ""));
        assert_eq!(parse("::suggest  ./run.sh --only 32 "), Spoken::Suggest("./run.sh --only 32".to_owned()));
        assert_eq!(parse("::changed true"), Spoken::Changed(true));
        assert_eq!(parse("::changed false"), Spoken::Changed(false));
        let output = Spoken::Output { key: "_url1".to_owned(), value: "http://x?a=b  ".to_owned() };
        assert_eq!(parse("::output _url1=http://x?a=b  "), output);
        assert_eq!(
            parse("::output EMPTY="),
            Spoken::Output { key: "EMPTY".to_owned(), value: String::new() }
        );
    }

    #[test]
    fn other_lines_are_plain_text() {
        for line in
            ["", ":", "plain", " ::changed true", "::", "::group x", "::checks ok a", "x ::changed true"]
        {
            assert_eq!(parse(line), Spoken::Text, "{line}");
        }
    }

    #[test]
    fn malformed_lines_are_told() {
        for line in [
            "::check",
            "::check maybe x",
            "::check ok",
            "::check ok a$b message",
            "::suggest ",
            "::changed",
            "::changed yes",
            "::output",
            "::output KEY",
            "::output 1A=x",
            "::output =x",
            "::output A B=x",
            "::output A=x\0y",
        ] {
            assert!(matches!(parse(line), Spoken::Malformed(_)), "{line}");
        }
        let long = format!("::output A={}", "x".repeat(LONGEST));
        assert!(matches!(parse(&long), Spoken::Malformed(_)));
    }

    #[test]
    fn pieces_become_lines_however_they_are_cut() {
        let text = format!(
            "hello\n::changed true\n{}\n::output A=1\n::check maybe x\n:: no\n::output B={}\n::suggest last",
            "y".repeat(3 * LONGEST),
            "z".repeat(2 * LONGEST)
        );
        for size in [1, 2, 3, 1000, text.len()] {
            let (mut reader, mut heard) = (LineReader::default(), Vec::new());
            for piece in text.as_bytes().chunks(size) {
                reader.push(piece, |_, spoken| heard.push(spoken));
            }
            reader.finish(|_, spoken| heard.push(spoken));
            assert_eq!(heard.len(), 5, "{size}");
            assert_eq!(heard[0], Spoken::Changed(true));
            assert_eq!(heard[1], Spoken::Output { key: "A".to_owned(), value: "1".to_owned() });
            assert!(matches!(&heard[2], Spoken::Malformed(_)));
            assert!(matches!(&heard[3], Spoken::Malformed(text) if text.contains("65536")));
            assert_eq!(heard[4], Spoken::Suggest("last".to_owned()));
        }
    }
}
