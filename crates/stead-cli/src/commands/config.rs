//! `stead config …`: what a node does with its spec.

pub(super) mod apply;
pub(super) mod fetch;
pub(super) mod observe;
