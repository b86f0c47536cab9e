//! What carries calls, so that a client can be tried without a network.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use rustls::ClientConfig;

use super::request::{Answer, Request};
use crate::api::CallError;

/// As whom somebody connects.
#[derive(Clone)]
pub enum Mode {
    /// As a member of this fleet, with its certificate.
    Member {
        /// How TLS is spoken.
        tls: Arc<ClientConfig>,
        /// The fleet.
        fleet: String,
    },
    /// To become one.
    Joiner(Arc<ClientConfig>),
}

impl fmt::Debug for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Member { fleet, .. } => f.debug_tuple("Member").field(fleet).finish(),
            Self::Joiner(_) => f.write_str("Joiner"),
        }
    }
}

/// Makes connections.
#[async_trait]
pub trait Transport: Send + Sync + fmt::Debug {
    /// Returns a connection to the master at `address`, once both sides have said hello.
    async fn connect(&self, address: &str, mode: &Mode) -> Result<Arc<dyn Link>, CallError>;
}

/// One connection.
#[async_trait]
pub trait Link: Send + Sync + fmt::Debug {
    /// Returns the answer to `request`. Whoever does not wait for it should [`Link::close`].
    async fn call(&self, request: Request) -> Result<Answer, CallError>;

    /// Whether it can still be used.
    fn is_open(&self) -> bool;

    /// Ends it, and with it every call that has no answer.
    fn close(&self);
}
