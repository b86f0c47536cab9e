//! Manifests of nodes: what is built where, in which order and by whom.
//!
//! [`check_manifest`] turns what a manifest says into a [`Forest`] and tells every problem it has with itself, with the
//! files it names and with the host it is for; [`check_site`] does so for a whole site. Everything here walks without
//! recursion: a forest may be as deep as memory allows.

mod check;
mod delegate;
pub mod drift;
pub mod drivers;
mod forest;
mod hosts;
mod mode;
mod pattern;
mod problems;
mod references;
mod select;
mod self_address;
pub mod test_report;
#[cfg(test)]
mod tests;

pub use check::{Checked, CheckedNode, ForHost, check_manifest, check_site, check_site_for};
pub use delegate::{Above, context_below, host_below, host_manifest, peers_outside, sub_manifest, sub_site};
pub use forest::{Forest, ForestNode};
pub use hosts::{ChosenHost, FindHostError, HostOrigin, find_host, host_as_read, is_elsewhere};
pub use mode::{Modes, modes};
pub use pattern::{infer, violation};
pub use select::{Added, Choice, SelectError, Selection, Verb, check_known, means, select};
pub use self_address::{
    Given as SelfAddressGiven, SelfAddress, SelfAddressError, Source as SelfAddressSource, address_below,
    self_address,
};
