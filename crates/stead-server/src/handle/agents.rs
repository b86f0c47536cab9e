//! What agents ask for: what to do next, to be heard, a new token.

use std::time::Duration;

use hyper::{HeaderMap, StatusCode};
use stead_drivers::site::new_token_id;
use stead_model::node::wire::{JOB_REPORT_BYTES, NodeReport, RenewedToken, WireCode, WireError};
use stead_model::time::Timestamp;
use stead_model::token::{Audience, Claims, Endpoint, Version, mint};
use stead_model::{MessageId, NodeName};
use stead_runner::clock;

use super::{Asked, Refused};
use crate::answer::{self, Answer};

impl Asked<'_> {
    pub(super) async fn next(
        &mut self,
        node: &NodeName,
        after: Option<MessageId>,
        wait: u64,
    ) -> Result<Answer, Refused> {
        self.authorize(Endpoint::Node, Some(node.as_str()))?;
        // Thousands of agents wait here, none of them with what it has sent.
        self.headers = HeaderMap::new();
        let waiting = self.server.store.next(node, after.as_ref(), Duration::from_secs(wait));
        Ok(match waiting.await? {
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
        self.server.store.report(node, report).await?;
        Ok(answer::empty(StatusCode::ACCEPTED))
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
