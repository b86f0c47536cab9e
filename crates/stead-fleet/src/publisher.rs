//! Watches a Git ref and publishes what its commits say.
//!
//! ```text
//! look (git ls-remote) ─▶ engine::fleet::watch ─▶ inspect (fetch, ancestry, signatures) ─▶ accepted: takes its generation
//!                                                                                            │
//!   state.json ◀─ owner ◀── progress ── pipeline, per group: evaluate ▸ build ▸ cache ▸ read back ▸ submit ─▶ Master
//!                   └──▶ reporter ─▶ Master (for `status` and `wait`)
//! ```
//!
//! [`run`] goes on until it is told to stop, [`once`] publishes the head and ends. One task owns the state and decides with
//! the engine; looks, pipelines and reports are tasks of its own that send it what they found. A newer head ends the pipeline
//! of an older one, its processes killed as groups. What is kept survives a kill at any moment: an accepted commit whose
//! pipeline had not ended is taken up again, and the master knows what it has.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use stead_model::fleet::CommitId;
use stead_model::fleet::services::PublisherFile;
use stead_model::fleet::state::Outcome;
use tokio_util::sync::CancellationToken;

use crate::api::{Master, PipelineReport};
use crate::events::Events;

mod artifacts;
mod cache;
mod failure;
pub(crate) mod fuzzing;
mod git;
mod hook;
mod kept;
mod key;
mod look;
mod metrics;
mod nix;
mod owner;
mod pipeline;
mod plan;
mod site;
mod source;
mod tied;

pub use key::ensure_key;
pub use metrics::Metrics;
pub use plan::{PlanError, PlanRequest, Planned, plan};

/// What a publisher needs.
#[derive(Clone, Debug)]
pub struct Settings {
    /// What `publisher.yaml` and flags say; its paths are taken as they are.
    pub file: PublisherFile,
    /// `STATE/fleet`. Everything the publisher keeps is in `publisher/` below it.
    pub directory: PathBuf,
    /// What it is called: the name in its certificate.
    pub name: String,
    /// Publish this commit instead of the head; the ref has to contain it (`--commit`).
    pub commit: Option<CommitId>,
    /// Where what happens is written down.
    pub events: Option<Arc<Events>>,
    /// What is counted. Who looks on this machine finds it at `/metrics` of `observe`, and of where hooks are taken.
    pub metrics: Arc<Metrics>,
}

/// Why a publisher does not work at all.
#[derive(Debug, thiserror::Error)]
pub enum PublishError {
    /// Another publisher works in its directory.
    #[error("another publisher works in {}", .0.display())]
    Locked(PathBuf),
    /// The settings cannot be used.
    #[error("{0}")]
    Settings(String),
    /// A file cannot be used.
    #[error("failed to {what} {}", path.display())]
    File {
        /// What was done.
        what: &'static str,
        /// With which file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The address for hooks, or for figures, cannot be used.
    #[error("failed to listen at {address}")]
    Listen {
        /// Which.
        address: SocketAddr,
        /// Why.
        #[source]
        source: std::io::Error,
    },
}

/// What became of the head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Published {
    /// What became of it.
    pub ending: Ending,
    /// What is shown of it, as the master was told.
    pub report: PipelineReport,
}

/// What became of the head, the worst of its groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The head was published before.
    NothingNew,
    /// Every group is with the master.
    Published,
    /// Evaluation, build, cache or something else on the way failed.
    Failed,
    /// Specs or `fleet.yaml` are invalid.
    Invalid,
    /// The ref was rewritten, or a signature is not good.
    Rejected,
    /// The master did not take it, or holds it.
    Refused(Outcome),
    /// The repository or the master is away.
    Away,
    /// Somebody ended it before it was known.
    Cancelled,
}

impl Ending {
    /// Returns the exit code of `stead fleet publish --once`.
    pub const fn exit_code(self) -> u8 {
        match self {
            Self::NothingNew | Self::Published => 0,
            Self::Failed => 1,
            Self::Invalid => 3,
            Self::Rejected | Self::Refused(_) => 4,
            Self::Away => 7,
            Self::Cancelled => 130,
        }
    }

    /// Returns its word in documents.
    pub const fn word(self) -> &'static str {
        match self {
            Self::NothingNew => "nothing-new",
            Self::Published => "published",
            Self::Failed => "failed",
            Self::Invalid => "invalid",
            Self::Rejected => "rejected",
            Self::Refused(Outcome::Held) => "held",
            Self::Refused(_) => "refused",
            Self::Away => "away",
            Self::Cancelled => "cancelled",
        }
    }
}

/// Watches and publishes until `shutdown`. Needs `git`, and `nix` for flakes. Returns when everything it started has ended.
///
/// # Errors
/// If another publisher works in its directory, or the settings cannot be used. Nothing that happens later is an error: it is
/// shown in the status.
pub async fn run(
    settings: Settings,
    master: Arc<dyn Master>,
    shutdown: CancellationToken,
) -> Result<(), PublishError> {
    owner::Owner::open(settings, master)?.run(shutdown).await
}

/// Publishes the head, or the commit that is asked for, and ends. What failed at an earlier try is tried again; what is away
/// is not waited for.
///
/// # Errors
/// As [`run`].
pub async fn once(
    settings: Settings,
    master: Arc<dyn Master>,
    shutdown: CancellationToken,
) -> Result<Published, PublishError> {
    owner::Owner::open(settings, master)?.once(shutdown).await
}
