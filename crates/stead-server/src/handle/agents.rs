//! What agents ask for: what to do next, to be heard, a new token.

use std::sync::Arc;
use std::time::Duration;

use hyper::StatusCode;
use hyper::body::Body;
use stead_drivers::site::new_token_id;
use stead_model::node::wire::{JOB_REPORT_BYTES, NodeReport, RenewedToken, WireCode, WireError};
use stead_model::time::Timestamp;
use stead_model::token::{Audience, Claims, Endpoint, Version, mint};
use stead_model::{MessageId, NodeName};
use stead_runner::clock;

use super::{Asked, Refused};
use crate::answer::{self, Answer};
use crate::parking::Parked;
use crate::store::Taken;

impl Asked<'_> {
    pub(super) async fn next(
        &mut self,
        node: &NodeName,
        after: Option<u64>,
        wait: u64,
    ) -> Result<Answer, Refused> {
        let claims = self.authorize(Endpoint::Node, Some(node.as_str()))?;
        let taken = match after {
            None => Taken::Unsaid,
            Some(0) => Taken::NothingSince(Timestamp::from_micros(claims.iat.saturating_mul(1_000_000))),
            Some(after) => Taken::UpTo(after),
        };
        let may_know = || self.server.verify_again(&claims);
        let wait = Duration::from_secs(wait);
        let mut waiting = self.server.store.next(node, taken, Duration::ZERO, may_know).await?;
        if waiting.is_none() && !wait.is_zero() {
            if self.is_kept_alive && self.body.is_end_stream() {
                let noted = self.noted.clone();
                self.pulse.park(Parked { node: node.clone(), taken, wait, noted });
                // The connection's task takes over, and drops this.
                return std::future::pending().await;
            }
            waiting = self.server.store.next(node, taken, wait, may_know).await?;
        }
        Ok(match waiting {
            Some(signal) => answer::json(StatusCode::OK, &signal),
            None => answer::empty(StatusCode::NO_CONTENT),
        })
    }

    pub(super) async fn report(
        &mut self,
        node: &NodeName,
        job: Option<MessageId>,
    ) -> Result<Answer, Refused> {
        self.authorize(Endpoint::Node, Some(node.as_str()))?;
        let is_of_job = job.is_some_and(|job| self.server.store.has_job(node, &job));
        let most = self.limits().body_bytes + if is_of_job { JOB_REPORT_BYTES } else { 0 };
        let report = NodeReport::parse(&self.read_body(most).await?)?;
        let (server, node) = (Arc::clone(self.server), node.clone());
        self.server.see_through(async move { server.store.report(&node, report).await }).await??;
        Ok(answer::empty(StatusCode::ACCEPTED))
    }

    /// Answers with what a job that the node was given reads.
    pub(super) async fn job_input(&mut self, node: &NodeName, id: &MessageId) -> Result<Answer, Refused> {
        self.authorize(Endpoint::Node, Some(node.as_str()))?;
        let input = self.server.store.input(node, id).await?;
        Ok(answer::bytes(StatusCode::OK, "application/octet-stream", input.into()))
    }

    /// Answers with a token that says the same and lives longer, and with how the server is known from now on.
    pub(super) fn renew(&mut self, node: &NodeName) -> Result<Answer, Refused> {
        let claims = self.authorize(Endpoint::Node, Some(node.as_str()))?;
        let now = clock::now().as_micros() / 1_000_000;
        let unsafe_now = |why: &str| WireError::new(WireCode::E500, why);
        let ring = self.snapshot.ring(now);
        let ring = ring.as_ref().as_ref().map_err(|_| unsafe_now("there is no usable key"))?;
        let key = ring.minting().map_err(|_| unsafe_now("no key signs new tokens"))?;
        let lifetime = self.snapshot.site.settings.value.server.token_ttl.as_secs();
        let iat = ring.issue_time(&claims.node, now);
        let exp = iat.saturating_add(i64::try_from(lifetime).unwrap_or(i64::MAX / 2));
        let jti = new_token_id().map_err(|_| unsafe_now("there is no randomness"))?;
        let version = Version::V2 { exp, kid: key.kid(), aud: Audience::Node, jti };
        let renewed = RenewedToken {
            token: mint(key, &Claims { iat, version, ..claims }),
            expires_at: Timestamp::from_micros(exp.saturating_mul(1_000_000)),
            pins: self.snapshot.certificate.pins().clone(),
        };
        Ok(answer::json(StatusCode::OK, &renewed))
    }
}
