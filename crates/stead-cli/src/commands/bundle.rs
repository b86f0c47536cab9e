//! `stead bundle …`.

pub(super) mod info;
pub(super) mod list;
pub(super) mod verify;
