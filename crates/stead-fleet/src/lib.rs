//! What acts in a fleet. `stead_engine::fleet` decides, this crate does: it reads Git and Nix, keeps the master's state,
//! carries calls over TLS and drives machines.
//!
//! ```text
//! Git ─▶ publisher ──┐                     ┌──▶ store (one file, or etcd)
//!                    ├─▶ wire ─▶ api::Master ─▶ master ─▶ engine::fleet::Cluster
//! machines ◀─ worker ┘
//! ```
//!
//! | module | what |
//! |---|---|
//! | [`api`] | what a master does for others; the only thing that publisher, worker, wire and master share |
//! | [`events`] | what happened, on disk; every component has such a log |
//! | `publisher` | watches a Git ref, evaluates, builds, caches and publishes |
//! | `wire` | calls of [`api::Master`] in Cap'n Proto over TLS; `identity` says who calls |
//! | `store` | what a master keeps |
//! | `master` | a leader around `Cluster`, followers, status, page, events |
//! | [`metrics`] | figures for Prometheus, of every component |
//! | [`service`] | a whole master: store, authority, wire, page |
//! | `worker` | keeps a machine's instances as assigned |

pub mod api;
mod boottime;
pub mod events;
#[doc(hidden)]
pub mod fuzzing;
pub mod identity;
mod job;
pub mod master;
pub mod metrics;
mod nix_json;
pub mod publisher;
pub mod service;
pub mod store;
pub mod wire;
pub mod worker;
