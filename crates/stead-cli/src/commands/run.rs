//! `stead run …`.

pub(crate) mod act;
mod drive;
pub(crate) mod load;
pub(super) mod manifest;
mod shown;
