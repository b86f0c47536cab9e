//! Fleets: machines kept as a Git commit says. Every decision of publisher, master and worker, as values.
//!
//! ```text
//! commit ─▶ watch::decide ─▶ (evaluate: site, or Nix outside) ─▶ canon (hashes) ─▶ accept ─▶ generation
//!                                                                                              │
//! heartbeats ─▶ liveness ─▶ states ─▶ schedule ─▶ placements ─▶ rollout ─▶ releases, stops ◀───┘
//!                                                      │
//! worker: reconcile(assignment, observed) ◀── assignment of each worker        converge, explain, plan: what people see
//! ```
//!
//! [`cluster::Cluster`] is the master's whole state and ties these together; the crate that acts holds one, feeds it
//! publications, heartbeats and time, stores what it says to store, and never decides. `now` is always a parameter, in
//! milliseconds of a clock that never goes back. Nothing here has a clock, a random number, a float or a map without
//! order, so that a run with the same inputs is the same run.

pub mod accept;
pub mod canon;
pub mod cluster;
pub mod converge;
pub mod explain;
pub mod liveness;
pub mod plan;
pub mod reconcile;
pub mod rollout;
pub mod schedule;
pub mod site;
#[cfg(test)]
mod testing;
pub mod ties;
pub mod watch;
