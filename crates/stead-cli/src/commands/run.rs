//! `stead run …`.

pub(crate) mod act;
pub(crate) mod drive;
pub(crate) mod load;
pub(crate) mod manifest;
pub(crate) mod shown;
