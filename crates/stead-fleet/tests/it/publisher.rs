//! The publisher with real git and real Nix, and a master around the engine's own cluster.

mod branch;
mod hooks;
mod killed;
mod nix;
mod plan;
mod remembered;
mod site;
mod web;
mod world;
