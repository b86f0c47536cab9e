//! What an agent and its master tell each other: assignments come, heartbeats go, leases are granted.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use stead_engine::fleet::liveness::lease_until;
use stead_engine::fleet::reconcile;
use stead_model::fleet::state::{Assignment, Heartbeat, Seen};
use stead_model::fleet::{InstanceKey, Millis};
use tokio::task::JoinSet;

use super::look::FENCE;
use super::{Agent, Done, clock};
use crate::api::{Applied, Beat, CallError};
use crate::events::Ev;
use crate::worker::files::Cause;
use crate::worker::report::FULL_EVERY;
use crate::worker::{WorkerError, facts};

/// How long a master may take to say that nothing changed.
const POLL: Duration = Duration::from_secs(50);
/// Between two heartbeats there is at least this.
const SPACING: Millis = 200;
/// How long a call that failed waits: at first, and at most.
const AWAY: (Millis, Millis) = (250, 5_000);

impl Agent {
    pub(super) fn note_poll(
        &mut self,
        polled: Result<Option<Assignment>, CallError>,
    ) -> Result<(), WorkerError> {
        match polled {
            Ok(incoming) => {
                self.poll_failures = 0;
                if let Some(incoming) = incoming {
                    self.apply(incoming);
                }
            }
            Err(error) => self.note_away(&error, |agent| &mut agent.poll_failures)?,
        }
        self.poll();
        Ok(())
    }

    pub(super) fn note_away(
        &mut self,
        error: &CallError,
        failures: fn(&mut Self) -> &mut u32,
    ) -> Result<(), WorkerError> {
        if let CallError::Refused { code, .. } = error
            && code == "replaced"
        {
            return Err(WorkerError::Replaced);
        }
        let failures = failures(self);
        *failures = failures.saturating_add(1);
        if let (1, Some(events)) = (*failures, &self.settings.events) {
            events.say(&format!("{error}; what is assigned goes on"));
        }
        Ok(())
    }

    /// Stops what must not run twice: another agent is this worker now, and nobody is left to fence it here.
    pub(super) async fn give_way(&mut self) {
        self.work.shutdown().await;
        let mut stops = JoinSet::new();
        for record in self.hands.files.records().unwrap_or_default() {
            let assigned =
                self.applied.iter().flat_map(|applied| &applied.specs).find(|spec| spec.id == record.spec.id);
            if record.spec.singleton || assigned.is_some_and(|spec| spec.singleton) {
                let (hands, key) = (Arc::clone(&self.hands), record.instance);
                let reason = "another agent took over this worker's identity".to_owned();
                stops.spawn(async move { hands.stop(&key, FENCE, Cause { ev: Ev::Fenced, reason }).await });
            }
        }
        while stops.join_next().await.is_some() {}
    }

    /// Applies an assignment, unless it is older than what is applied; one that cannot be kept is asked for again.
    pub(super) fn apply(&mut self, mut incoming: Assignment) {
        let is_news = self.applied.as_ref().is_none_or(|applied| reconcile::is_newer(applied, &incoming));
        if !is_news {
            let numbers = |one: &Assignment| (one.epoch, one.generation, one.revision);
            let is_same = self.applied.as_ref().is_some_and(|applied| numbers(applied) == numbers(&incoming));
            self.figures.ignored.add(u64::from(!is_same));
            return;
        }
        self.fill_in(&mut incoming);
        if self.hands.files.set_assignment(&incoming).is_err() {
            self.poll_failures = self.poll_failures.saturating_add(1);
            return;
        }
        (self.settings.watch)("assignment");
        self.figures.applied(incoming.generation);
        self.applied = Some(incoming);
    }

    /// Goes on with its own spec where a master that began anew does not know what an instance runs.
    fn fill_in(&self, incoming: &mut Assignment) {
        for assigned in incoming.instances.iter_mut().filter(|assigned| assigned.frozen) {
            if usize::try_from(assigned.spec).is_ok_and(|at| at < incoming.specs.len()) {
                continue;
            }
            let record = self.hands.files.record(&assigned.instance);
            let Some(record) = record.filter(|record| record.vm_hash == assigned.vm_hash) else { continue };
            assigned.spec = u32::try_from(incoming.specs.len()).unwrap_or(u32::MAX);
            incoming.specs.push(record.spec);
        }
    }

    /// Asks for the next assignment.
    pub(super) fn poll(&mut self) {
        let applied = self.applied.as_ref().map_or_else(Applied::default, |applied| Applied {
            generation: applied.generation,
            revision: applied.revision,
        });
        let (master, name) = (Arc::clone(&self.master), self.name.clone());
        let pause = Duration::from_millis(backoff(self.poll_failures));
        self.work.spawn(async move {
            tokio::time::sleep(pause).await;
            Done::Polled(master.assignment(&name, applied, POLL).await)
        });
    }

    /// Sends a heartbeat if one is due.
    pub(super) fn tell(&mut self) {
        let now = clock::now();
        if self.is_telling || now < self.next_beat() {
            return;
        }
        let is_full = self.needs_full || now.saturating_sub(self.last_full) >= FULL_EVERY;
        self.seq += 1;
        // What is found out while it is on its way goes with the next.
        self.needs_full = false;
        self.is_telling = true;
        self.last_beat = Some(now);
        let applied = self.applied.as_ref();
        let heartbeat = Heartbeat {
            worker: self.name.clone(),
            boot_id: self.boot_id.clone(),
            session: self.session.number,
            process: self.session.process.clone(),
            seq: self.seq,
            seen_generation: applied.map_or(0, |applied| applied.generation),
            seen_revision: applied.map_or(0, |applied| applied.revision),
            full: is_full,
            instances: self.told.to_tell(is_full),
            facts: is_full.then(|| {
                let directory = self.hands.files.directory();
                facts::facts(&self.settings.file, directory, &self.abilities, self.used, &self.foreign)
            }),
        };
        let (master, snapshot) = (Arc::clone(&self.master), self.told.snapshot());
        self.work.spawn(async move {
            // Counted from before it is sent: whatever the way takes is lost to the lease.
            let sent_at = clock::now();
            let answer = master.report(heartbeat).await;
            Done::Told { sent_at, is_full, snapshot, answer }
        });
    }

    pub(super) fn note_told(
        &mut self,
        sent_at: Millis,
        is_full: bool,
        snapshot: BTreeMap<InstanceKey, Seen>,
        answer: Result<Beat, CallError>,
    ) -> Result<(), WorkerError> {
        self.is_telling = false;
        let beat = match answer {
            Ok(beat) => beat,
            Err(error) => {
                self.figures.rejected.add(1);
                self.needs_full |= is_full;
                return self.note_away(&error, |agent| &mut agent.beat_failures);
            }
        };
        self.figures.heartbeats.add(1);
        self.beat_failures = 0;
        self.interval = beat.interval.max(SPACING);
        self.told.was_told(snapshot);
        if is_full {
            self.last_full = sent_at;
        }
        self.needs_full |= beat.needs_full;
        if let Some(lease) = beat.lease {
            let until = lease_until(sent_at, lease);
            if until > self.lease_until {
                self.lease_until = until;
                if self.has_singletons {
                    self.keep_lease();
                }
            }
        }
        Ok(())
    }

    /// Writes the lease down, for the next agent and for what keeps machines; what cannot be written now is soon.
    pub(super) fn keep_lease(&mut self) {
        let until = self.lease_until;
        if self.kept_lease != until && self.hands.files.set_lease(until, &self.boot_id).is_ok() {
            self.kept_lease = until;
        }
    }

    pub(super) fn next_beat(&self) -> Millis {
        let Some(last) = self.last_beat else { return 0 };
        if self.beat_failures > 0 {
            return last + backoff(self.beat_failures);
        }
        let is_urgent = self.needs_full || self.told.has_news();
        last + if is_urgent { SPACING.min(self.interval) } else { self.interval }
    }
}

/// Returns how long to wait after so many failures.
pub(super) fn backoff(failures: u32) -> Millis {
    if failures == 0 { 0 } else { (AWAY.0 << (failures - 1).min(10)).min(AWAY.1) }
}
