//! Patterns and helpers shared by the JSON Schemas that `stead schema` prints.

/// The durations [`crate::duration::parse`] reads, as a regular expression.
pub const DURATION_PATTERN: &str = "^(?=.)([0-9]+h)?([0-9]+m)?([0-9]+s)?([0-9]+ms)?$";
