//! The `stead` command: arguments, settings, wiring and rendering.
//!
//! ```text
//!  argv ──▶ args ──▶ commands ──▶ stead-engine, stead-runner, stead-bundle
//!  env  ──▶ settings    │                     │ events
//!                       ▼                     ▼
//!          failure ──▶ output ◀────────── render
//! ```
//!
//! Args say what was typed, [`settings`] what the surroundings mean, [`commands`] call one library
//! function each, [`render`] reads events and reports, and [`output`] is the only way to the terminal.
//! No orchestration is decided here.

pub mod args;
pub mod commands;
pub mod confirm;
mod entry;
pub mod failure;
pub mod output;
mod reach;
pub mod render;
pub mod settings;
pub mod signals;
mod tui;

pub use entry::main;
