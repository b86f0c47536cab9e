//! Finished bundles through the built binary: verify, sign, export, report, replay and diff.
//!
//! Bundles of runs are written by hand, as the format says they are, so that every state of them can be had.

mod archives;
mod attesting;
mod diffing;
mod fixture;
mod real_runs;
mod replaying;
mod reporting;
mod signing;
