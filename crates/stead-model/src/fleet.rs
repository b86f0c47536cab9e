//! The nouns of a fleet: machines kept as a Git commit says.
//!
//! What is wanted comes in as [`VmSpec`]s, as an evaluator or the wire gives them, and as the [`FleetFile`] beside them;
//! [`services`] are the files of the three daemons. Specs have one spelling ([`VmSpec::to_canonical`]), and hashes of it
//! are what everybody compares. [`state`] has what travels and what is kept: workers, placements, assignments,
//! observations, generations. `stead-engine::fleet` decides over these values; nothing here reads a clock or a file.

pub mod artifact;
pub mod code;
pub mod fleet_file;
pub mod instance;
pub mod labels;
pub mod nix_signature;
pub mod peer;
pub mod policy;
pub mod services;
pub mod starter;
pub mod state;
pub mod vm;
pub mod webhook;

pub use artifact::Artifact;
pub use code::Code;
pub use fleet_file::FleetFile;
pub use instance::{CommitId, InstanceKey};
pub use policy::Policy;
pub use vm::VmSpec;

/// A moment or a length of time in milliseconds, of a clock that never goes back.
pub type Millis = u64;
