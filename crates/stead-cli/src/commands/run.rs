//! `stead run …`.

pub(super) mod load;
pub(super) mod manifest;
