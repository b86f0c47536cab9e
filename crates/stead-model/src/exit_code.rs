//! The exit codes of the `stead` command, in one place.

use serde::{Deserialize, Serialize};

/// How a `stead` process ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ExitCode {
    /// Done; converged; nothing wrong.
    Success,
    /// The work failed: a task, step, role, node or check.
    Failed,
    /// A bad flag or argument.
    Usage,
    /// Invalid input: a file, a key, a schema.
    Invalid,
    /// Verification failed: bundle, journal, diff over threshold, drift.
    Verification,
    /// Another run holds this target.
    Locked,
    /// Confirmation is needed.
    Confirmation,
    /// A host, server or master cannot be reached.
    Unreachable,
    /// Timed out.
    TimedOut,
    /// A fleet is on its way.
    Converging,
    /// Something in a fleet needs somebody.
    Degraded,
    /// Cancelled by a signal; the bundle is complete.
    Cancelled,
}

impl ExitCode {
    /// Every exit code, in the order of their numbers.
    pub const ALL: [Self; 12] = [
        Self::Success,
        Self::Failed,
        Self::Usage,
        Self::Invalid,
        Self::Verification,
        Self::Locked,
        Self::Confirmation,
        Self::Unreachable,
        Self::TimedOut,
        Self::Converging,
        Self::Degraded,
        Self::Cancelled,
    ];

    /// Returns the number the process exits with.
    pub const fn code(self) -> u8 {
        match self {
            Self::Success => 0,
            Self::Failed => 1,
            Self::Usage => 2,
            Self::Invalid => 3,
            Self::Verification => 4,
            Self::Locked => 5,
            Self::Confirmation => 6,
            Self::Unreachable => 7,
            Self::TimedOut => 8,
            Self::Converging => 10,
            Self::Degraded => 11,
            Self::Cancelled => 130,
        }
    }

    /// Returns the exit code of number `code`, if it is one of ours.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|known| known.code() == code)
    }
}

impl Serialize for ExitCode {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u8(self.code())
    }
}

impl<'de> Deserialize<'de> for ExitCode {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let code = u8::deserialize(deserializer)?;
        Self::from_code(code).ok_or_else(|| serde::de::Error::custom(format!("unknown exit code {code}")))
    }
}
