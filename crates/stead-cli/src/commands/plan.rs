//! `stead plan …`.

pub(super) mod drive;
pub(super) mod graph;
pub(super) mod keep;
pub(super) mod present;
pub(super) mod run;
pub(super) mod show;
pub(super) mod source;
pub(super) mod submit;
