//! Who may call what: the fleet's authority, certificates, join tokens.
//!
//! ```text
//! first master ── Authority::open ──▶ Ledger: the authority's key, the join key, who was enrolled
//! operator ────── mint ─────────────▶ token sj1.…
//! joiner ──────── join(token, CSR) ─▶ certificate stead://FLEET/ROLE/NAME, 90 days ── renew ──▶ the next one
//! ```
//!
//! [`Authority`] is the master's side: it admits, renews and revokes, and every change is one write to a [`Ledger`], which
//! the master's store is ([`crate::store::StoreLedger`]). [`Identity`] is everybody's own side: a key, its certificate, and the authority that
//! masters are checked against. `tls` makes both into connections: TLS 1.3 and nothing older. Roles and the form of
//! tokens are in `stead_model`; nothing here knows what is called over a connection.

use std::io;
use std::path::PathBuf;

use stead_model::token::join::{JoinCode, JoinRefusal};

mod authority;
mod certificate;
mod keep;
mod ledger;
#[cfg(test)]
mod tests;
mod tls;

pub use authority::{Admitted, Authority, MintOrder};
pub use certificate::{LIFETIME, Member};
pub use keep::{Identity, Request};
pub use ledger::{Enrolment, Founding, Issued, Ledger, LedgerError, MemoryLedger};
pub use tls::{client_config, join_config};

/// Why somebody has no identity, or not the one they want.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// The join is refused.
    #[error(transparent)]
    Join(#[from] JoinRefusal),
    /// What was asked for cannot be.
    #[error("{message} ({code})")]
    Refused {
        /// Such as `bad-request`, `revoked`, `unknown`.
        code: &'static str,
        /// Why, and what to do.
        message: String,
    },
    /// What is kept could not be read or written.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// A key or certificate could not be made.
    #[error("failed to make a certificate")]
    Make(#[source] rcgen::Error),
    /// A certificate cannot be used.
    #[error("the certificate cannot be used")]
    Unusable(#[source] rustls::Error),
    /// A file could not be used.
    #[error("failed to {what} {}", path.display())]
    File {
        /// What was done.
        what: &'static str,
        /// With which file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

impl IdentityError {
    /// Returns the code that answers.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Join(refusal) => refusal.code.word(),
            Self::Refused { code, .. } => code,
            Self::Ledger(_) => "store-unavailable",
            Self::Make(_) | Self::Unusable(_) | Self::File { .. } => "identity",
        }
    }

    fn refused(code: &'static str, message: impl Into<String>) -> Self {
        Self::Refused { code, message: message.into() }
    }

    fn join(code: JoinCode, message: impl Into<String>) -> Self {
        Self::Join(JoinRefusal::new(code, message))
    }
}
