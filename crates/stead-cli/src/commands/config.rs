//! `stead config …`: what a node does with its spec.

pub(super) mod apply;
pub(super) mod fetch;
mod host;
pub(super) mod observe;
