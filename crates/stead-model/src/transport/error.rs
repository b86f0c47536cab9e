//! Why a text is not a transport: which part, where, and what to write.

use std::fmt;
use std::ops::Range;

/// Why a text is not a transport.
///
/// It repeats no secret: parts that may hold one are named, not shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransportSpecError {
    /// What is wrong.
    pub fault: TransportFault,
    /// The bytes of the text it is about; empty where something is missing.
    pub range: Range<usize>,
    /// The character, from 1, at which they begin.
    pub position: usize,
}

/// What is wrong with a transport. Texts in here are never secrets.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TransportFault {
    /// There is nothing.
    #[error("a transport is empty")]
    Empty,
    /// It has a blank or a control character in it.
    #[error("white space does not belong into a transport")]
    WhiteSpace,
    /// It is a word, which is never taken for a host's name.
    #[error("`{word}` is not a transport: a bare word is never taken for a host name")]
    BareWord {
        /// The word.
        word: String,
    },
    /// It has another scheme.
    #[error("`{scheme}://` is not a transport; there are `local` and `ssh://`")]
    Scheme {
        /// The scheme.
        scheme: String,
    },
    /// `local` with something behind it.
    #[error("`local` takes nothing behind it")]
    LocalWithMore,
    /// Nobody before `@`.
    #[error("the user before `@` is empty")]
    EmptyUser,
    /// A user that starts with `-`.
    #[error("a user does not start with `-`")]
    User,
    /// A colon in the user of the short form.
    #[error("a `:` does not belong into the user")]
    ColonInUser,
    /// Nothing between `:` and `@`.
    #[error("the password before `@` is empty")]
    EmptyPassword,
    /// No host.
    #[error("the host is empty")]
    EmptyHost,
    /// Something that cannot be a host.
    #[error("{}: {why}", named(host, "is not a host", "this is not a host"))]
    Host {
        /// What was given; empty if it may be a misplaced password.
        host: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// A port that is none.
    #[error("{}: digits of 1 to 65535 are", named(port, "is not a port", "this is not a port"))]
    Port {
        /// What was given; empty if it may be a misplaced password.
        port: String,
    },
    /// Text behind the host.
    #[error("a transport has no path")]
    Path,
    /// A `%` that is not followed by two hexadecimal digits, or bytes that are not text.
    #[error("`%` stands before two hexadecimal digits, and what they make is printable UTF-8")]
    Encoding,
    /// Something between `?` and `&` that is not `name=value`.
    #[error("an option is `name=value`")]
    OptionForm,
    /// An option there is not.
    #[error("`{name}` is not an option of a transport")]
    UnknownOption {
        /// What was given.
        name: String,
    },
    /// One option more than once.
    #[error("the option `{name}` is given twice")]
    OptionTwice {
        /// Which.
        name: &'static str,
    },
    /// A value the option does not take; it is not shown, as it may be a secret put in the wrong place.
    #[error("the option `{name}` takes {wanted}")]
    OptionValue {
        /// Which option.
        name: &'static str,
        /// What it takes.
        wanted: &'static str,
    },
}

/// Returns the sentence about `text`, or the one that leaves it out.
fn named(text: &str, about: &str, without: &str) -> String {
    if text.is_empty() { without.to_owned() } else { format!("`{text}` {about}") }
}

impl TransportSpecError {
    /// Returns the error about `range` of `text`.
    pub(super) fn new(fault: TransportFault, text: &str, range: Range<usize>) -> Self {
        let position = text.char_indices().take_while(|(at, _)| *at < range.start).count() + 1;
        Self { fault, range, position }
    }

    /// Returns what to do about it.
    pub fn help(&self) -> String {
        use crate::diagnostic::{nearest, suggest};
        match &self.fault {
            TransportFault::Empty => "write `local` or `ssh://user@host`".to_owned(),
            TransportFault::WhiteSpace => "a blank in a value is written `%20`".to_owned(),
            TransportFault::BareWord { word } => match nearest(word, ["local"]) {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!("write `ssh://{word}` or `user@{word}`"),
            },
            TransportFault::Scheme { scheme } => match nearest(scheme, ["ssh", "local"]) {
                Some(near) => format!("did you mean `{near}://`?"),
                None => "write `local` or `ssh://user@host`".to_owned(),
            },
            TransportFault::LocalWithMore => {
                "options are for SSH; `become` and the like are keys of the host in an inventory".to_owned()
            }
            TransportFault::EmptyUser => "leave out the `@`, with `ssh://` in front".to_owned(),
            TransportFault::User => String::new(),
            TransportFault::ColonInUser => {
                "a password needs `ssh://user:password@host`, better `?password=env:NAME`".to_owned()
            }
            TransportFault::EmptyPassword => "leave out the `:`".to_owned(),
            TransportFault::EmptyHost => "write `ssh://user@host`".to_owned(),
            TransportFault::Host { .. } | TransportFault::Port { .. } => String::new(),
            TransportFault::Path => "options begin with `?`".to_owned(),
            TransportFault::Encoding => "a `%` itself is written `%25`".to_owned(),
            TransportFault::OptionForm => "such as `?key=/path&agent=false`".to_owned(),
            TransportFault::UnknownOption { name } => suggest(name, super::OPTIONS),
            TransportFault::OptionTwice { .. } => "keep one".to_owned(),
            TransportFault::OptionValue { .. } => String::new(),
        }
    }
}

impl fmt::Display for TransportSpecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, at character {}", self.fault, self.position)?;
        let help = self.help();
        if help.is_empty() { Ok(()) } else { write!(f, " ({help})") }
    }
}

impl std::error::Error for TransportSpecError {}
