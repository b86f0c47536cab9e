//! Readiness that is looked at from the driver: `from: driver`.
//!
//! The supervisor reads the role's streams as always; whether an address answers is asked here. Whoever is first
//! counts.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Map;
use stead_model::report::Warning;
use stead_model::role::{Address, Probe, ProbeAnswer, ProbeFrom, Readiness, ReadyMethod, RoleEvent};
use tokio::time::Instant;

use crate::operation::OpError;

use super::Agent;

/// Looks from the driver, before a role starts, whether its address already answers where `from: driver` asks for that.
///
/// Agents look by themselves when `from` is theirs. A fallback that answers is switched off with a warning.
///
/// # Errors
/// If the role must not start: what answers is not this role.
pub async fn look_before_start(
    driver: &dyn Agent,
    ready: &mut Readiness,
) -> Result<Option<Warning>, OpError> {
    let (ProbeFrom::Driver, Some((address, is_fallback))) = (ready.from, ready.address()) else {
        return Ok(None);
    };
    let address = address.clone();
    if !driver.probe(&Probe::Tcp(address.clone())).await?.ok {
        return Ok(None);
    }
    if !is_fallback {
        return Err(OpError::operation(taken(&address)));
    }
    if let ReadyMethod::StructuredStdout { fallback, .. } = &mut ready.method {
        *fallback = None;
    }
    Ok(Some(taken_fallback(&address)))
}

/// Returns what is said when an address answers before its role was started.
pub fn taken(address: &Address) -> String {
    format!("{address} already accepts connections before the role is started: another program listens there")
}

/// Returns the warning that a fallback is of no use.
pub fn taken_fallback(address: &Address) -> Warning {
    let text = format!(
        "{address} already accepts connections before the role is started; it is not taken as a sign"
    );
    Warning::new("run/fallback-off", text)
}

/// Looks whether a role is ready, from the driver.
pub(super) struct DriverLooks {
    driver: Arc<dyn Agent>,
    ready: Readiness,
    workdir: String,
    /// What is looked at, from the role's start on.
    looking: Option<Looking>,
    /// Whether it is known.
    is_settled: bool,
}

struct Looking {
    probe: Probe,
    by: &'static str,
    started: Instant,
    next: Instant,
    seen: String,
    /// The look that is being made. Kept here: events come and go while one takes its time.
    look: Option<Look>,
}

type Look = Pin<Box<dyn Future<Output = Result<ProbeAnswer, OpError>> + Send>>;

impl fmt::Debug for DriverLooks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DriverLooks").field("ready", &self.ready).finish_non_exhaustive()
    }
}

impl DriverLooks {
    /// Returns the looks that `ready` asks for; nothing if they are the agent's.
    pub(super) fn new(driver: Arc<dyn Agent>, ready: &Readiness, workdir: &str) -> Option<Self> {
        match ready.from {
            ProbeFrom::Agent => None,
            ProbeFrom::Driver => Some(Self {
                driver,
                ready: ready.clone(),
                workdir: workdir.to_owned(),
                looking: None,
                is_settled: false,
            }),
        }
    }

    /// Takes note of an event; returns whether it is to be told.
    pub(super) fn lets_through(&mut self, event: &RoleEvent) -> bool {
        match event {
            RoleEvent::Started { at, .. } => {
                self.begin(at.as_micros());
                true
            }
            RoleEvent::Ready { .. } | RoleEvent::NotReady { .. } => {
                self.looking = None;
                !std::mem::replace(&mut self.is_settled, true)
            }
            RoleEvent::Exited(_) | RoleEvent::NotStarted { .. } => {
                self.looking = None;
                true
            }
            RoleEvent::Warning { .. } | RoleEvent::Logged { .. } | RoleEvent::Stopping { .. } => true,
        }
    }

    fn begin(&mut self, started_micros: i64) {
        let started = Instant::now();
        let (probe, by, next) = match (&self.ready.method, self.ready.probe(&self.workdir, started_micros)) {
            (method, Some(probe)) => (probe, method.as_str(), started),
            (ReadyMethod::StructuredStdout { fallback: Some(fallback), .. }, None) => {
                let next = started + Duration::from_millis(fallback.after_ms);
                (Probe::Tcp(fallback.address.clone()), "tcp_connect", next)
            }
            (_, None) => return,
        };
        self.looking = Some(Looking { probe, by, started, next, seen: "nothing yet".to_owned(), look: None });
    }

    /// Returns how the looking ended; never if there is nothing to look at. Cancel safe.
    pub(super) async fn next_event(&mut self) -> RoleEvent {
        let Some(looking) = &mut self.looking else { return std::future::pending().await };
        let is_only_fallback = matches!(self.ready.method, ReadyMethod::StructuredStdout { .. });
        let deadline = looking.started + Duration::from_millis(self.ready.timeout_ms);
        loop {
            if Instant::now() >= deadline {
                if is_only_fallback {
                    // The supervisor knows when the time is over.
                    return std::future::pending().await;
                }
                let timeout = stead_model::duration::to_exact(Duration::from_millis(self.ready.timeout_ms));
                let reason = format!(
                    "{} from the driver: not so within {timeout}; last seen: {}",
                    looking.by, looking.seen
                );
                return RoleEvent::NotReady { reason, last_stderr: Vec::new() };
            }
            if looking.look.is_none() {
                tokio::time::sleep_until(looking.next.min(deadline)).await;
                let (driver, probe) = (Arc::clone(&self.driver), looking.probe.clone());
                looking.look = Some(Box::pin(async move { driver.probe(&probe).await }));
            }
            let Some(look) = &mut looking.look else { continue };
            let looked = tokio::time::timeout_at(deadline, look).await;
            looking.look = None;
            match looked {
                Ok(Ok(answer)) if answer.ok => {
                    let after = looking.started.elapsed().as_millis();
                    return RoleEvent::Ready {
                        by: looking.by.to_owned(),
                        after_ms: u64::try_from(after).unwrap_or(u64::MAX),
                        values: Map::new(),
                    };
                }
                Ok(Ok(answer)) => looking.seen = answer.seen,
                Ok(Err(error)) => looking.seen = error.message,
                Err(_) => {}
            }
            looking.next = Instant::now() + Duration::from_millis(self.ready.interval_ms);
        }
    }
}
