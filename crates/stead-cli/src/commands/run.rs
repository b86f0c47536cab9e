//! `stead run manifest FILE`.

pub(crate) mod act;
pub(crate) mod drive;
pub(crate) mod shown;
