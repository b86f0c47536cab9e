//! `stead plan …`.

pub(super) mod graph;
pub(super) mod run;
pub(super) mod show;
