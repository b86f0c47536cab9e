//! `stead plan …`.

pub(super) mod graph;
pub(super) mod present;
pub(super) mod run;
pub(super) mod show;
