//! The server of a site: specs for nodes, signals and jobs for their agents, reports for operators.
//!
//! One process serves one port for one site directory. It holds the site as one snapshot, which a
//! reload replaces as a whole, and what happened (signals, jobs, reports) in a store that outlives it.
//!
//! ```text
//!              ┌──────────────── serve ────────────────┐
//!  TLS port ──▶│ connection ─▶ route ─▶ handlers ─▶ … │──▶ snapshot (site, keys, resolved specs, clones)
//!  socket   ──▶│  (one task each)                      │──▶ store ─▶ journal (group commit)
//!              └───────────────────────────────────────┘──▶ log, audit log
//! ```
//!
//! Who uses it: `stead server`, and the runs that need a server ([`ensure`]). All functions here block; [`serve`] brings
//! its own runtime.
//!
//! | file below `STATE/server` | what |
//! |---|---|
//! | `cert.pem`, `key.pem` | the certificate, reused |
//! | `port` | the port that was found when any would do |
//! | `server-PORT.lock` | held by the server as long as it lives |
//! | `server-PORT.pid`, `server-PORT.sock` | there once it is bound and answers |
//! | `server-PORT.journal`, `server-PORT.outputs/` | signals, jobs, reports; what jobs wrote |
//! | `server-PORT.inputs/` | what jobs that have not ended read; it may be secret |
//! | `server-PORT.repos/` | bare clones |
//! | `server-PORT.plans/` | submitted plans: their runs, triggers, what must not happen twice |
//! | `server-PORT.log`, `audit.log` | requests; what operators did |

mod answer;
mod artifacts;
mod audit;
mod certificate;
mod connection;
mod daemon;
#[doc(hidden)]
pub mod fuzzing;
mod handle;
mod keys;
mod lock;
mod log;
mod meter;
mod moving;
mod parking;
mod place;
mod plans;
mod rates;
mod report;
mod repos;
mod route;
mod serve;
mod server;
mod snapshot;
mod socket;
mod store;

pub use certificate::{Certificate, CertificateError};
pub use daemon::{
    Reloaded, ServerError, Started, StatusReport, ensure, make_way, reload, reload_keys, reload_usable,
    status, stop,
};
pub use place::{ServerFacts, ServerOptions, ServerPlace};
pub use plans::{PlanEnd, PlanHead, TakenPlan};
pub use report::{ReloadReport, ServerReport};
pub use repos::ReposError;
pub use serve::{Attachment, ServeError, serve};
pub use snapshot::{SnapshotError, pack_repositories};
pub use socket::AskError;
pub use store::JournalError;
