//! Which files may hold a secret of a test.

use std::path::Path;

use globset::{Glob, GlobSet, GlobSetBuilder};

/// The files that may hold a secret: lines of `GLOB # WHY` in `ci/secrets-allowed`.
#[derive(Debug)]
pub struct Allowed(GlobSet);

/// Why the list cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum AllowedError {
    /// A line has no reason.
    #[error("line {0} does not say why: write `GLOB # WHY`")]
    NoReason(usize),
    /// A line is no glob.
    #[error("line {line} is no glob")]
    Glob {
        /// Counted from 1.
        line: usize,
        /// Why.
        #[source]
        source: globset::Error,
    },
}

impl Allowed {
    /// The list of this repository.
    pub const LISTED: &str = include_str!("../../../ci/secrets-allowed");

    /// Returns the list that `text` is.
    pub fn parse(text: &str) -> Result<Self, AllowedError> {
        let mut globs = GlobSetBuilder::new();
        for (index, line) in text.lines().enumerate() {
            if line.trim().is_empty() || line.starts_with('#') {
                continue;
            }
            let (glob, why) = line.split_once(" # ").ok_or(AllowedError::NoReason(index + 1))?;
            if why.trim().is_empty() {
                return Err(AllowedError::NoReason(index + 1));
            }
            let glob = Glob::new(&format!("**/{}", glob.trim()));
            globs.add(glob.map_err(|source| AllowedError::Glob { line: index + 1, source })?);
        }
        globs.build().map(Self).map_err(|source| AllowedError::Glob { line: 0, source })
    }

    /// Whether the file may hold a secret.
    pub fn may_hold(&self, path: &Path) -> bool {
        self.0.is_match(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_says_why_of_each() {
        let allowed = Allowed::parse(Allowed::LISTED).unwrap();
        assert!(allowed.may_hold(Path::new("/tmp/x/secrets.yaml")));
        assert!(!allowed.may_hold(Path::new("/tmp/x/state/runs/r1/events.jsonl")));
        assert!(matches!(Allowed::parse("*.key\n"), Err(AllowedError::NoReason(1))));
    }
}
