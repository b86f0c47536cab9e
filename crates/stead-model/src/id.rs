//! Identifiers: each kind is its own type, and having one means it is valid.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Why a text is not an identifier of the wanted kind.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{}` is not {} {kind}: {rule}", Beginning(text), article(kind))]
pub struct InvalidId {
    /// What was wanted, in words.
    pub kind: &'static str,
    /// What was given.
    pub text: String,
    /// The grammar, in words.
    pub rule: &'static str,
}

/// As much of a text as a message repeats: a name that is too long by a million letters is known by its first.
struct Beginning<'t>(&'t str);

impl fmt::Display for Beginning<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const MOST: usize = 200;
        match self.0.char_indices().nth(MOST) {
            Some((end, _)) => write!(f, "{}…", self.0.get(..end).unwrap_or_default()),
            None => f.write_str(self.0),
        }
    }
}

fn article(kind: &str) -> &'static str {
    if kind.starts_with(['a', 'e', 'i', 'o']) { "an" } else { "a" }
}

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $kind:literal, $rule:literal, $valid:expr) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(Arc<str>);

        impl $name {
            /// The grammar, in words, for messages.
            pub const RULE: &'static str = $rule;

            /// Returns the identifier `text` names, or why it names none.
            pub fn parse(text: &str) -> Result<Self, InvalidId> {
                let valid: fn(&str) -> bool = $valid;
                if valid(text) {
                    Ok(Self(text.into()))
                } else {
                    Err(InvalidId { kind: $kind, text: text.to_owned(), rule: $rule })
                }
            }

            /// Returns the identifier's text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&self.0, f)
            }
        }

        impl Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl std::str::FromStr for $name {
            type Err = InvalidId;
            fn from_str(text: &str) -> Result<Self, InvalidId> {
                Self::parse(text)
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(&self.0)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = String::deserialize(deserializer)?;
                Self::parse(&text).map_err(serde::de::Error::custom)
            }
        }
    };
}

/// Whether `text` is a word of `[A-Za-z0-9][A-Za-z0-9._-]*` of at most `longest` bytes.
fn is_word(text: &str, longest: usize) -> bool {
    let bytes = text.as_bytes();
    bytes.len() <= longest
        && bytes.first().is_some_and(u8::is_ascii_alphanumeric)
        && bytes.iter().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(b))
}

/// Whether `text` is a word of `[a-z][a-z0-9-]*` of at most 128 bytes: the names in a catalogue.
pub(crate) fn is_lower_word(text: &str) -> bool {
    let bytes = text.as_bytes();
    bytes.len() <= 128
        && bytes.first().is_some_and(u8::is_ascii_lowercase)
        && bytes.iter().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || *b == b'-')
}

/// Whether `text` is a DNS label in lower case.
fn is_dns_label(text: &str) -> bool {
    let bytes = text.as_bytes();
    let is_end = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    bytes.len() <= 63
        && bytes.first().is_some_and(is_end)
        && bytes.last().is_some_and(is_end)
        && bytes.iter().all(|byte| is_end(byte) || *byte == b'-')
}

/// Whether `text` is a task name, or `name[key]` as `for_each` makes them.
fn is_task_name(text: &str) -> bool {
    match text.strip_suffix(']').and_then(|head| head.split_once('[')) {
        Some((base, key)) => is_word(base, 128) && is_word(key, 128),
        None => is_word(text, 128),
    }
}

id!(
    /// A task's name within its plan: a word, or `word[key]` for an instance of a `for_each` task.
    TaskName,
    "task name",
    "a letter or digit, then letters, digits, `.`, `_` or `-`, at most 128 in all",
    is_task_name
);

id!(
    /// A plan's name.
    PlanName,
    "plan name",
    "a letter or digit, then letters, digits, `.`, `_` or `-`, at most 128 in all",
    |text| is_word(text, 128)
);

id!(
    /// The name of one run: its directory, and what `STEAD_RUN_ID` holds.
    RunId,
    "run id",
    "a letter or digit, then letters, digits, `.`, `_` or `-`, at most 128 in all",
    |text| is_word(text, 128)
);

id!(
    /// A host as the inventory names it (an ad hoc host: its canonical `user@host:port`).
    HostName,
    "host name",
    "letters, digits, `.`, `_`, `-`, `@`, `:`, `%`, `[` or `]`, at most 1000 in all, none of `.-@:]` in front",
    |text| {
        let bytes = text.as_bytes();
        // An ad hoc host has the user and the port in its name as well.
        bytes.len() <= 1000
            && bytes.first().is_some_and(|b| b.is_ascii_alphanumeric() || b"_%[".contains(b))
            && bytes.iter().all(|b| b.is_ascii_alphanumeric() || b"._-@:%[]".contains(b))
    }
);

id!(
    /// The dotted name of an operation, such as `file.present`.
    OperationName,
    "operation name",
    "lower-case words joined by dots, such as `file.present`",
    |text| {
        text.len() <= 128
            && text.split('.').all(|word| {
                word.as_bytes().first().is_some_and(u8::is_ascii_lowercase)
                    && word.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
            })
    }
);

id!(
    /// A step's name within its catalogue. Every step id is a task name.
    StepId,
    "step id",
    "a lower-case letter, then lower-case letters, digits or `-`, at most 128 in all",
    is_lower_word
);

id!(
    /// A node of a manifest: a DNS label.
    NodeName,
    "node name",
    "lower-case letters, digits or `-`, at most 63 in all, no `-` at either end",
    is_dns_label
);

id!(
    /// A VM of a fleet: a DNS label.
    VmId,
    "VM id",
    "lower-case letters, digits or `-`, at most 63 in all, no `-` at either end",
    is_dns_label
);

id!(
    /// A group of VMs that is published on its own: a DNS label.
    GroupName,
    "group name",
    "lower-case letters, digits or `-`, at most 63 in all, no `-` at either end",
    is_dns_label
);

id!(
    /// A worker of a fleet: DNS labels with dots between.
    WorkerName,
    "worker name",
    "lower-case letters, digits, `-` or `.`, at most 63 in all, a letter or digit at either end of each label",
    |text| text.len() <= 63 && text.split('.').all(is_dns_label)
);

id!(
    /// What a file of a site directory is called by: its name without `.yaml`.
    SiteKey,
    "name of a site file",
    "a lower-case letter or digit, then lower-case letters, digits, `.`, `_` or `-`, at most 63 in all, no `..`",
    |text| {
        let bytes = text.as_bytes();
        bytes.len() <= 63
            && bytes.first().is_some_and(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
            && bytes
                .iter()
                .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"._-".contains(byte))
            && !text.contains("..")
    }
);

id!(
    /// A signal or job of a server: its place among them, with a letter in front.
    MessageId,
    "id of a signal or job",
    "`s` or `j`, then a number without leading zeros",
    |text| {
        text.strip_prefix(['s', 'j']).is_some_and(|digits| {
            (1..=18).contains(&digits.len())
                && !digits.starts_with('0')
                && digits.bytes().all(|digit| digit.is_ascii_digit())
        })
    }
);

impl MessageId {
    /// Returns the id of the signal at this place.
    pub fn signal(sequence: u64) -> Self {
        Self(format!("s{sequence}").into())
    }

    /// Returns the id of the job at this place.
    pub fn job(sequence: u64) -> Self {
        Self(format!("j{sequence}").into())
    }

    /// Returns its place among all signals and jobs of its server.
    pub fn sequence(&self) -> u64 {
        self.0.get(1..).and_then(|digits| digits.parse().ok()).unwrap_or(0)
    }
}

impl GroupName {
    /// Returns the group of VMs that are in no other.
    pub fn default_group() -> Self {
        Self("default".into())
    }

    /// Returns the group that `fleet.yaml` forms.
    pub fn fleet() -> Self {
        Self("fleet".into())
    }
}

impl HostName {
    /// Returns the name of the machine Stead itself runs on.
    pub fn local() -> Self {
        Self("local".into())
    }
}

impl From<&StepId> for TaskName {
    fn from(id: &StepId) -> Self {
        Self(Arc::clone(&id.0))
    }
}

impl TaskName {
    /// Returns the name without a `for_each` key: `probe` for `probe[eu]`.
    pub fn base(&self) -> &str {
        self.0.split_once('[').map_or(&self.0, |(base, _)| base)
    }

    /// Returns the name of this task's instance for `key`, or why the key does not fit.
    pub fn instance(&self, key: &str) -> Result<Self, InvalidId> {
        Self::parse(&format!("{}[{key}]", self.base()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn task_names_follow_the_grammar() {
        for good in ["a", "install-nginx", "9.x_Y", "p[eu]", "p[0]"] {
            assert_eq!(TaskName::parse(good).unwrap().as_str(), good);
        }
        for bad in ["", "-a", ".a", "a b", "a/b", "p[]", "p[", "p]", "p[a][b]", "ä", &"x".repeat(129)] {
            assert!(TaskName::parse(bad).is_err(), "{bad:?}");
        }
        assert_eq!(TaskName::parse("p[eu]").unwrap().base(), "p");
    }

    #[test]
    fn run_ids_cannot_leave_their_directory() {
        for bad in ["../x", "a/b", ".", "..", "", "-x"] {
            assert!(RunId::parse(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn node_names_are_labels_and_site_keys_are_file_stems() {
        for good in ["a", "9", "web-1", &"x".repeat(63)] {
            assert!(NodeName::parse(good).is_ok() && SiteKey::parse(good).is_ok(), "{good:?}");
        }
        for bad in ["", "-a", "a-", "A", "a.b", "a_b", "ä", &"x".repeat(64)] {
            assert!(NodeName::parse(bad).is_err(), "{bad:?}");
        }
        assert!(SiteKey::parse("vm-small_2.x-").is_ok());
        for bad in ["", ".", "..", "a..b", "-a", "_a", "A", "a/b", "a\0", &"x".repeat(64)] {
            assert!(SiteKey::parse(bad).is_err(), "{bad:?}");
        }
    }

    /// A file that is one line of a megabyte is told of in a line that can be read.
    #[test]
    fn a_name_that_is_far_too_long_is_shown_by_its_beginning() {
        let shown = NodeName::parse(&"ä".repeat(1 << 20)).unwrap_err().to_string();
        assert!(shown.starts_with(&format!("`{}…` is not", "ä".repeat(200))), "{}", shown.len());
        assert!(shown.len() < 1000);
        let whole = NodeName::parse(&"x".repeat(200)).unwrap_err().to_string();
        assert!(whole.starts_with(&format!("`{}` is not", "x".repeat(200))), "{whole}");
    }

    #[test]
    fn worker_names_are_labels_with_dots() {
        for good in ["w1", "a.b-c", "9"] {
            assert!(WorkerName::parse(good).is_ok(), "{good:?}");
        }
        for bad in ["", ".", "a.", "a..b", "W1", "a-", "a/b", &"x".repeat(64)] {
            assert!(WorkerName::parse(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn operation_names_are_dotted_words() {
        assert!(OperationName::parse("file.present").is_ok());
        assert!(OperationName::parse("assert").is_ok());
        for bad in ["", ".", "File.x", "a..b", "a.", "1.b"] {
            assert!(OperationName::parse(bad).is_err(), "{bad:?}");
        }
    }
}
