//! Fetching a node's spec, with patience.

use std::time::Duration;

use stead_model::NodeName;
use stead_model::node::ConfigFailed;
use stead_model::node::marker::{MarkedPhase, MarkedStatus};
use stead_model::time::Timestamp;
use stead_runner::clock;

use crate::server_client::{ClientError, FetchedSpec, ServerClient};

/// How often a server is asked, and how long to wait in between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// How often at most; at least once.
    pub attempts: u32,
    /// How long to wait before the second attempt; doubles each time.
    pub backoff: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self { attempts: 5, backoff: Duration::from_secs(10) }
    }
}

impl Patience {
    /// Returns how long to wait after the `attempt`-th attempt, counted from 1, has failed with `error`; nothing if it
    /// was the last.
    pub(super) fn pause(self, attempt: u32, error: &ClientError) -> Option<Duration> {
        if attempt >= self.attempts || !error.may_pass() {
            return None;
        }
        let doubled = self.backoff.saturating_mul(2_u32.saturating_pow(attempt.saturating_sub(1)));
        Some(error.retry_after().map_or(doubled, |asked| asked.max(doubled)))
    }
}

/// Why there is no spec, and how often it was tried.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no spec after {attempts} attempt{}", if *.attempts == 1 { "" } else { "s" })]
pub struct FetchFailed {
    /// What the last attempt failed with.
    #[source]
    pub error: Box<ClientError>,
    /// How often it was tried.
    pub attempts: u32,
    /// When first.
    pub first_attempt: Timestamp,
    /// When last.
    pub last_attempt: Timestamp,
    /// What happened, attempt by attempt.
    pub log: Vec<String>,
}

impl FetchFailed {
    /// Returns what the node keeps of it.
    pub fn marker(&self, node: Option<&NodeName>, server: &str) -> ConfigFailed {
        let error = match &*self.error {
            ClientError::Refused { .. } => "refused",
            ClientError::Unreachable { .. } => "unreachable",
            ClientError::Untrusted { .. } => "untrusted",
            ClientError::Answer(_) => "spec-invalid",
            ClientError::Invalid(_) => "invalid",
        };
        ConfigFailed {
            phase: MarkedPhase::Config,
            status: MarkedStatus::Failed,
            error: error.to_owned(),
            code: self.error.code().map_or("", |code| code.as_str()).to_owned(),
            message: self.error.to_string(),
            node: node.cloned(),
            spec: None,
            spec_digest: None,
            server: Some(server.to_owned()),
            attempts: self.attempts,
            first_attempt: self.first_attempt,
            last_attempt: self.last_attempt,
            log: self.log.clone(),
        }
    }
}

/// Fetches the spec of a node; nothing if it is still the one with digest `known`. Each failed attempt is told.
///
/// Cancel safe: dropping it ends the waiting.
pub async fn fetch(
    client: &ServerClient,
    node: &NodeName,
    known: Option<&str>,
    patience: Patience,
    tell: &(dyn Fn(&str) + Send + Sync),
) -> Result<Option<FetchedSpec>, FetchFailed> {
    let first_attempt = clock::now();
    let mut log = Vec::new();
    let mut attempt = 1;
    loop {
        let at = clock::now();
        let error = match client.spec(node, known).await {
            Ok(spec) => return Ok(spec),
            Err(error) => error,
        };
        let pause = patience.pause(attempt, &error);
        let line = format!("attempt {attempt} of {}: {error}", patience.attempts);
        tell(&pause.map_or_else(
            || line.clone(),
            |pause| format!("{line}; the next in {}", stead_model::duration::to_exact(pause)),
        ));
        log.push(format!("{at} {line}"));
        match pause {
            Some(pause) => tokio::time::sleep(pause).await,
            None => {
                let error = Box::new(error);
                return Err(FetchFailed { error, attempts: attempt, first_attempt, last_attempt: at, log });
            }
        }
        attempt += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(status: u16, retry_after: Option<u64>) -> ClientError {
        let retry_after = retry_after.map(Duration::from_secs);
        ClientError::Refused { status, code: None, message: String::new(), retry_after }
    }

    /// Section 5: waits of 0, 10, 20, 40, 80 s before five attempts.
    #[test]
    fn waits_double_and_end_with_the_last_attempt() {
        let away = ClientError::Unreachable { server: String::new(), why: String::new() };
        let pauses: Vec<_> = (1..=5).map(|attempt| Patience::default().pause(attempt, &away)).collect();
        let seconds = |pause: &Option<Duration>| pause.map(|pause| pause.as_secs());
        assert_eq!(
            pauses.iter().map(seconds).collect::<Vec<_>>(),
            [Some(10), Some(20), Some(40), Some(80), None]
        );
        assert_eq!(
            Patience { attempts: u32::MAX, ..Patience::default() }.pause(1000, &away).map(|_| ()),
            Some(())
        );
    }

    #[test]
    fn only_what_may_pass_is_tried_again_and_not_before_the_server_says() {
        let pause = |error: ClientError| Patience::default().pause(1, &error).map(|pause| pause.as_secs());
        assert_eq!(pause(refused(500, None)), Some(10));
        assert_eq!(pause(refused(429, Some(17))), Some(17));
        assert_eq!(pause(refused(429, Some(3))), Some(10));
        for status in [400, 401, 403, 404, 408, 422] {
            assert_eq!(pause(refused(status, Some(1))), None, "{status}");
        }
        assert_eq!(pause(ClientError::Answer(String::new())), None);
    }
}
