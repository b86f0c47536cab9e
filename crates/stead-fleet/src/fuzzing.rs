//! What others send, for those who try readers with any bytes; no part of what this crate offers.

use crate::nix_json;

pub use crate::publisher::fuzzing::narinfo;
pub use crate::wire::fuzzing::messages;

/// Reads `path-info --json`.
pub fn path_infos(text: &str) {
    drop(nix_json::path_infos(text));
}

/// Reads `build --json`.
pub fn built(text: &str) {
    drop(nix_json::built(text));
}
