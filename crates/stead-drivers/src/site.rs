//! Site directories on disk: finding one, reading all of it within bounds, starting a new one, changing its keyring.

mod discover;
mod keyring;
mod load;
mod start;

pub use discover::{DiscoverError, SiteSearch, discover};
pub use keyring::{KeyringError, change_keyring, new_signing_key, new_token_id};
pub use load::{LoadError, Loaded, Manifests, load, read_bounded};
pub use start::{StartError, start};
