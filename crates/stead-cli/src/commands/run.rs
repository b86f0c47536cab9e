//! `stead run …`.

pub(crate) mod act;
mod drive;
pub(crate) mod load;
pub(super) mod manifest;
pub(super) mod resume;
mod shown;
