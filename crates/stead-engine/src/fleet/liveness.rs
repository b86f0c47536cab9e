//! Who is there: silence becomes late, unknown, lost; and how fast what a lost worker had may go elsewhere.
//!
//! Time is the leader's monotonic clock. Silence counts from the later of the last heartbeat and the leader's own start,
//! so that neither a restart nor a jump of a clock declares anyone lost.

use std::collections::{BTreeMap, BTreeSet};

use stead_model::WorkerName;
use stead_model::fleet::policy::{Policy, millis};
use stead_model::fleet::state::{Heartbeat, WorkerState};
use stead_model::fleet::{FleetFile, Millis};

#[cfg(test)]
mod tests;

/// When a worker was last heard, by this leader.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Heard {
    /// When.
    pub at: Option<Millis>,
    /// In which session.
    pub session: u64,
    /// Which of the session.
    pub seq: u64,
    /// Of the machine's boot.
    pub boot_id: String,
    /// Of the agent's process.
    pub process: String,
}

/// Whether a heartbeat says something new.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Freshness {
    /// It does.
    Fresh,
    /// It is the first of a session.
    NewSession,
    /// It was repeated, came late, is of an older session, or of another process that calls itself the same session.
    Replayed,
}

impl Heard {
    /// Returns whether `heartbeat` is newer than what was heard.
    pub fn freshness(&self, heartbeat: &Heartbeat) -> Freshness {
        if self.at.is_none() && self.session == 0 || heartbeat.session > self.session {
            return Freshness::NewSession;
        }
        // The number alone is not the session: whoever copies a worker's files copies that too.
        let is_same_process = (&heartbeat.boot_id, &heartbeat.process) == (&self.boot_id, &self.process);
        if heartbeat.session < self.session || !is_same_process || heartbeat.seq <= self.seq {
            return Freshness::Replayed;
        }
        Freshness::Fresh
    }
}

/// What is remembered between two looks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// Lost workers whose instances may go elsewhere.
    pub given_up: BTreeSet<WorkerName>,
    /// When the last of them was given up.
    pub last_at: Option<Millis>,
}

/// What is known of the workers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Presence {
    /// The state of each, as it is shown.
    pub states: BTreeMap<WorkerName, WorkerState>,
    /// Whether so many are silent that nothing goes elsewhere.
    pub brake: Option<Brake>,
    /// Who was given up just now.
    pub newly_given_up: Vec<WorkerName>,
}

/// Why nothing goes elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Brake {
    /// How many are silent.
    pub silent: u32,
    /// Of how many.
    pub enrolled: u32,
}

/// Returns who is there; `leader_since` is when this leader began to listen.
///
/// Lost workers are given up one per `movePerWorker`, the longest silent first, and none while the brake is on.
pub fn liveness(
    workers: &BTreeMap<WorkerName, Heard>,
    leader_since: Millis,
    policy: &Policy,
    memory: &mut Memory,
    now: Millis,
) -> Presence {
    let mut presence = Presence::default();
    let mut lost: Vec<(Millis, &WorkerName)> = Vec::new();
    let mut silent = 0;
    for (name, heard) in workers {
        let since = heard.at.unwrap_or(leader_since).max(leader_since);
        let silence = now.saturating_sub(since);
        let state = state_after(silence, policy);
        if !state.is_present() {
            silent += 1;
        }
        if state == WorkerState::Lost {
            lost.push((since, name));
        } else {
            memory.given_up.remove(name);
        }
        presence.states.insert(name.clone(), state);
    }
    memory.given_up.retain(|name| workers.contains_key(name));
    let enrolled = u32::try_from(workers.len()).unwrap_or(u32::MAX);
    let many = u64::from(silent) * 100 >= u64::from(policy.brake.percent) * u64::from(enrolled);
    if many && silent >= policy.brake.min {
        presence.brake = Some(Brake { silent, enrolled });
        return presence;
    }
    lost.sort();
    let pause = millis(policy.liveness.move_per_worker);
    for (_, name) in lost {
        if memory.given_up.contains(name) {
            continue;
        }
        let is_due = memory.last_at.is_none_or(|last| now.saturating_sub(last) >= pause);
        if !is_due {
            break;
        }
        memory.given_up.insert(name.clone());
        memory.last_at = Some(now);
        presence.newly_given_up.push(name.clone());
    }
    presence
}

fn state_after(silence: Millis, policy: &Policy) -> WorkerState {
    let limits = &policy.liveness;
    if silence > millis(limits.lost) {
        WorkerState::Lost
    } else if silence > millis(limits.unknown) {
        WorkerState::Unknown
    } else if silence > millis(limits.late) {
        WorkerState::Late
    } else {
        WorkerState::Ready
    }
}

impl Presence {
    /// Returns what the scheduler may do with a worker: a lost one that is not given up yet keeps what it has, and what
    /// `fleet.yaml` and holds say counts for those who are there.
    pub fn for_scheduling(
        &self,
        name: &WorkerName,
        memory: &Memory,
        fleet: &FleetFile,
        is_held: bool,
    ) -> WorkerState {
        let state = self.states.get(name).copied().unwrap_or(WorkerState::Unknown);
        let entry = fleet.worker(name);
        match state {
            WorkerState::Lost if memory.given_up.contains(name) && !entry.suspend => WorkerState::Lost,
            WorkerState::Lost | WorkerState::Unknown => WorkerState::Unknown,
            WorkerState::Ready
            | WorkerState::Late
            | WorkerState::Cordoned
            | WorkerState::Draining
            | WorkerState::Suspended => {
                if entry.suspend {
                    WorkerState::Suspended
                } else if entry.drain {
                    WorkerState::Draining
                } else if entry.cordon || is_held {
                    WorkerState::Cordoned
                } else {
                    state
                }
            }
        }
    }
}

/// Returns until when a worker may run singletons: the lease counts from when it sent the heartbeat that was answered.
pub fn lease_until(sent_at: Millis, lease: Millis) -> Millis {
    sent_at.saturating_add(lease)
}
