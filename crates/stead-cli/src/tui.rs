//! `stead tui`: runs, recorded and live, nodes and a fleet on a whole screen.
//!
//! ```text
//!  keys, size, signals ──┐
//!  events of a run ──────┼─ Message ──▶ update ──▶ State ──▶ view ──▶ terminal
//!  answers ──────────────┘                │
//!       ▲                                 ▼
//!       └──────────── worker ◀───────── Intent
//! ```
//!
//! [`update`] is the only place that changes the state, and [`view`] only reads it; both are pure. The panel reads
//! events and sends intents: what a run is and how it stops is decided by the library, as on the command line.

mod agents;
mod filter;
mod fleet;
mod form;
mod key;
mod nodes;
mod pace;
mod pager;
mod picker;
mod replay;
mod screen;
pub(crate) mod scroll;
mod state;
mod tasks;
#[cfg(test)]
mod testing;
mod text_field;
mod theme;
mod transcript;
mod trouble;
mod update;
mod view;
mod watched;
mod worker;

pub(crate) use screen::run;
