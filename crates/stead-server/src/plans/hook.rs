//! Requests that fire triggers: who may, and what they bring.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use hmac::{Hmac, KeyInit, Mac};
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use stead_model::PlanName;
use stead_model::node::wire::{WireCode, WireError};
use stead_model::plan::{PlanSubmission, SecretRef};
use stead_runner::clock;
use stead_runner::readable_secrets;
use stead_runner::redact::Redactor;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::timeout;

use super::{Fired, NotTaken, Plans, armed};

/// How long secrets may take to be read.
const PATIENCE: Duration = Duration::from_secs(5);
/// The most bytes of all bodies together that nobody answers for yet.
const UNPROVEN_BYTES: u32 = 64 << 20;

/// A hook that somebody asks for.
pub(crate) struct Hook {
    plan: PlanName,
    /// The name of its trigger.
    trigger: String,
    submission: Arc<PlanSubmission>,
    looking: Arc<Semaphore>,
    secret: String,
}

impl Hook {
    /// Whether a bearer is the hook's secret.
    pub(crate) fn is_opened_by(&self, bearer: &str) -> bool {
        // Of hashes nothing is learnt by how long it takes to compare them.
        Sha256::digest(bearer) == Sha256::digest(&self.secret)
    }

    /// Whether a body was signed with the hook's secret.
    pub(crate) fn has_signed(&self, signature: &str, body: &[u8]) -> bool {
        is_signed(&self.secret, signature, body)
    }
}

/// Whether `signature` is `sha256=` and the HMAC of `body` by `secret`.
pub(crate) fn is_signed(secret: &str, signature: &str, body: &[u8]) -> bool {
    let signature = signature.strip_prefix("sha256=").and_then(stead_model::plan::Digest::parse);
    signature.is_some_and(|signature| {
        let mac = Hmac::<Sha256>::new_from_slice(secret.as_bytes());
        mac.is_ok_and(|mut mac| {
            mac.update(body);
            mac.verify_slice(&signature.0).is_ok()
        })
    })
}

/// Returns what a body says: JSON, or the text it is.
pub(crate) fn payload_of(body: &[u8]) -> Value {
    serde_json::from_slice(body).unwrap_or_else(|_| Value::from(String::from_utf8_lossy(body).into_owned()))
}

/// Room for bodies that nobody answers for yet.
pub(super) fn unproven() -> Semaphore {
    Semaphore::new(UNPROVEN_BYTES as usize)
}

impl Plans {
    /// Returns the hook at `path`.
    pub(crate) async fn hook_at(&self, path: &str) -> Result<Hook, WireError> {
        let found = self.lock().armed.values().find_map(|armed| {
            let (trigger, secret) = armed.hook(path)?;
            let from = armed.submission.plan.secrets.get(secret)?.clone();
            let hook = Hook {
                plan: armed.name().clone(),
                trigger: trigger.to_owned(),
                submission: Arc::clone(&armed.submission),
                looking: Arc::clone(&armed.looking),
                secret: String::new(),
            };
            Some((hook, BTreeMap::from([(secret.to_owned(), from)])))
        });
        let Some((mut hook, secret)) = found else {
            return Err(WireError::new(WireCode::E200, "there is no such hook"));
        };
        // Of all the plan's secrets this one: nobody has shown yet that they may ask.
        let read = self.read_secrets(&hook.looking, secret).await?;
        let secret = read.into_values().next();
        hook.secret =
            secret.ok_or_else(|| WireError::new(WireCode::E500, "the secret of this hook cannot be read"))?;
        Ok(hook)
    }

    /// Reads secrets, as far as they can be, where that holds nobody else up.
    async fn read_secrets(
        &self,
        looking: &Arc<Semaphore>,
        secrets: BTreeMap<String, SecretRef>,
    ) -> Result<BTreeMap<String, String>, WireError> {
        let (environment, site) = (Arc::clone(&self.environment), self.place.site.clone());
        let reading = async {
            let one_of_few = Arc::clone(looking).acquire_owned().await.ok()?;
            let read = move || {
                let _one_of_few = one_of_few;
                readable_secrets(&secrets, &environment, &site).0
            };
            tokio::task::spawn_blocking(read).await.ok()
        };
        let read = timeout(PATIENCE, reading).await.ok().flatten();
        read.ok_or_else(|| WireError::new(WireCode::E500, "the secrets of this plan cannot be read now"))
    }

    /// Returns room for a body of so many bytes that nobody answers for yet.
    pub(crate) fn room_for(&self, bytes: u64) -> Result<SemaphorePermit<'_>, WireError> {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX).min(UNPROVEN_BYTES);
        let full = || WireError::new(WireCode::E105, "too many send something just now; come again");
        self.unproven.try_acquire_many(bytes).map_err(|_| full())
    }

    /// Fires a hook's trigger for who knows its secret; `delivery` tells this request from others, if its sender says so.
    pub(crate) async fn knock(
        &self,
        hook: &Hook,
        delivery: Option<&str>,
        body: &[u8],
    ) -> Result<Fired, WireError> {
        let mut payload = payload_of(body);
        let secrets = self.read_secrets(&hook.looking, hook.submission.plan.secrets.clone()).await?;
        let unmasked =
            |_| WireError::new(WireCode::E500, "the secrets of this plan are too long to be masked");
        Redactor::new(secrets.values()).map_err(unmasked)?.redact_value(&mut payload);
        let now = clock::now();
        let (plan, name) = (&hook.plan, &hook.trigger);
        let id = match delivery {
            Some(delivery) => format!("webhook:{plan}:{name}:{delivery}"),
            None => format!("{}{plan}:{name}:{}", super::ONCE, clock::new_run_id(now)),
        };
        let trigger = armed::trigger("webhook", id, now, ("payload", payload));
        let fired = self.fire(plan, name, &trigger, now).await;
        self.wake.notify_one();
        fired.map_err(|why| match why {
            NotTaken::Invalid(problems) => WireError::new(WireCode::E400, problems.to_string()),
            NotTaken::Refused(error) => error,
        })
    }
}

#[cfg(test)]
mod tests {
    use stead_model::plan::{Digest, Plan};

    use super::*;

    fn hook(secret: &str) -> Hook {
        let plan = Plan::new(PlanName::parse("p").unwrap());
        let submission = PlanSubmission {
            plan_hash: plan.digest(),
            plan,
            source: None,
            vars: BTreeMap::new(),
            idempotency_key: "k".to_owned(),
            yes: false,
        };
        Hook {
            plan: submission.plan.name.clone(),
            trigger: "t".to_owned(),
            submission: Arc::new(submission),
            looking: Arc::new(Semaphore::new(1)),
            secret: secret.to_owned(),
        }
    }

    #[test]
    fn a_hook_is_opened_by_its_secret_alone() {
        let sign = |secret: &str, body: &[u8]| {
            let mut mac = Hmac::<Sha256>::new_from_slice(secret.as_bytes()).unwrap();
            mac.update(body);
            let bytes: [u8; 32] = mac.finalize().into_bytes().into();
            format!("sha256={}", Digest(bytes))
        };
        let hook = hook("open sesame");
        assert!(hook.is_opened_by("open sesame"));
        assert!(!hook.is_opened_by("open") && !hook.is_opened_by(""));
        let signature = sign("open sesame", b"{}");
        assert!(hook.has_signed(&signature, b"{}"));
        assert!(!hook.has_signed(&signature, b"[]"));
        assert!(!hook.has_signed(&sign("other", b"{}"), b"{}"));
        assert!(!hook.has_signed("sha256=zz", b"{}"));
    }

    /// However many send something without having shown that they may, they fill only so much memory.
    #[test]
    fn there_is_only_so_much_room_for_who_has_shown_nothing() {
        let state = tempfile::tempdir().unwrap();
        let place =
            crate::place::ServerPlace { site: state.path().to_owned(), state: state.path().to_owned() };
        let plans = Plans::open(&place, 1, "/bin/false".into()).unwrap();
        let most = plans.room_for(u64::MAX).unwrap();
        assert_eq!(plans.room_for(1).unwrap_err().code, WireCode::E105);
        drop(most);
        let (a, b) = (plans.room_for(8 << 20), plans.room_for(8 << 20));
        assert!(a.is_ok() && b.is_ok());
    }
}
