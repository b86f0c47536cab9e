//! Site directories on disk: finding one, reading all of it within bounds, starting a new one, changing its keyring,
//! unpacking one that was handed down.

mod discover;
mod keyring;
mod load;
mod start;
mod unpack;

pub use discover::{DiscoverError, SiteSearch, discover};
pub use keyring::{KeyringError, change_keyring, new_signing_key, new_token_id};
pub use load::{LoadError, Loaded, Manifests, TRACKED_SECRETS, load, read_bounded};
pub use start::{StartError, start};
pub use unpack::{AUTHORIZED_KEYS, UnpackError, keys_above, unpack};
pub(crate) use unpack::{clear, unpacked_name};
