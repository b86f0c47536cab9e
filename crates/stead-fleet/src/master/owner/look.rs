//! What a master shows: its status, why an instance is where it is, and what happened as it is written down.

use std::sync::Arc;
use std::time::Duration;

use stead_engine::fleet::cluster::{Cluster, Event, EventKind};
use stead_engine::fleet::explain::explain;
use stead_model::fleet::InstanceKey;
use stead_runner::clock;

use super::super::calls::{Patience, Whose};
use super::super::status::{Shown, Stage};
use super::{Owner, Past, Role};
use crate::api::{CallError, Json};
use crate::events::{Ev, Fields};

/// A status that takes so long is shown again for a while.
const DEAR: Duration = Duration::from_millis(50);

/// How long a status stays as it is while nothing happens.
const FRESH: Duration = Duration::from_secs(1);

impl Owner {
    pub(super) fn cluster_for(&mut self, whose: Whose) -> Result<&Cluster, CallError> {
        let has_peers = self.settings.peers.is_some();
        let now = self.time.now();
        match &mut self.role {
            Role::Leader(lead) => Ok(&lead.cluster),
            Role::Follower(follow)
                if has_peers && whose == Whose::Leaders && !follow.record.address.is_empty() =>
            {
                Err(CallError::NotLeader { leader: follow.record.address.clone() })
            }
            Role::Follower(follow) => follow.cluster(now),
            Role::Nobody => Err(CallError::Away("no master leads yet".to_owned())),
        }
    }

    pub(super) fn explain(&mut self, instance: &InstanceKey, whose: Whose) -> Result<Json, CallError> {
        let past: Vec<Past> =
            self.past.iter().filter(|past| past.event.instance.as_ref() == Some(instance)).cloned().collect();
        let cluster = self.cluster_for(whose)?;
        let explanation = explain(cluster, instance).map_err(|unknown| CallError::Refused {
            code: "unknown-instance".to_owned(),
            message: unknown.to_string(),
        })?;
        let mut value = serde_json::to_value(&explanation).unwrap_or_default();
        value["history"] = serde_json::to_value(past).unwrap_or_default();
        Ok(Json(value.to_string()))
    }

    /// Returns what a status shows; none: it waits for a change.
    pub(super) fn show(
        &mut self,
        after: u64,
        patience: Patience,
        whose: Whose,
    ) -> Option<Result<Arc<Shown>, CallError>> {
        if let Err(error) = self.cluster_for(whose) {
            return Some(Err(error));
        }
        if self.seq <= after && patience == Patience::Change {
            return None;
        }
        let now = clock::instant();
        if let Some((view, at, cost)) = &self.view {
            // A large status is not made anew for everybody who looks.
            let is_dear = *cost > DEAR;
            let is_young = now.duration_since(*at) < *cost * 3 || self.commit.is_some();
            // Time goes on though nothing happens.
            let is_same = view.seq == self.seq && now.duration_since(*at) < FRESH;
            if is_same || (view.seq > after && is_dear && is_young) {
                return Some(Ok(Arc::clone(view)));
            }
        }
        // What is not stored yet is shown to nobody.
        if self.commit.is_some() {
            return None;
        }
        let mut stage = Stage {
            fleet: self.fleet.clone(),
            seq: self.seq,
            now: self.time.now(),
            store_kind: self.settings.store.kind(),
            pipeline: self.pipeline.clone(),
            rebuilding: None,
        };
        let leader = match &self.role {
            Role::Leader(lead) => {
                stage.rebuilding =
                    lead.rebuilding.as_ref().map(|rebuilding| rebuilding.missing(&lead.cluster));
                (lead.record.clone(), lead.away.clone())
            }
            Role::Follower(follow) => {
                // What was heard only the leader knows.
                let why = || Some("this master follows, and the leader does not answer it".to_owned());
                (follow.record.clone(), follow.away.clone().or_else(why))
            }
            Role::Nobody => return Some(Err(CallError::Away("no master leads yet".to_owned()))),
        };
        let shown = match self.cluster_for(Whose::Own) {
            Ok(cluster) => Arc::new(Shown::new(cluster, stage, leader)),
            Err(error) => return Some(Err(error)),
        };
        self.view = Some((Arc::clone(&shown), now, now.elapsed()));
        Some(Ok(shown))
    }
}

/// Returns an event of the engine as it is written down.
pub(super) fn of_engine(event: &Event) -> (Ev, Fields) {
    let (ev, reason) = match event.ev {
        EventKind::Verdict => (Ev::Verdict, ""),
        EventKind::Activated => (Ev::Activated, ""),
        EventKind::WorkerJoined => (Ev::WorkerJoined, ""),
        EventKind::WorkerState => (Ev::WorkerState, ""),
        EventKind::Placed => (Ev::Placed, ""),
        EventKind::Moved => (Ev::Moved, ""),
        EventKind::Removed => (Ev::Removed, "not-wanted"),
        EventKind::Released => (Ev::Released, ""),
        EventKind::RolloutHeld => (Ev::RolloutHeld, ""),
        EventKind::RolloutDone => (Ev::RolloutDone, ""),
        EventKind::Brake => (Ev::Brake, ""),
        EventKind::Hold => (Ev::Hold, ""),
        EventKind::Replaced => (Ev::Removed, "replaced"),
    };
    let fields = Fields {
        commit: event.commit.clone(),
        generation: event.generation,
        group: event.group.clone(),
        instance: event.instance.clone(),
        worker: event.worker.clone(),
        reason: if event.reason.is_empty() { reason.to_owned() } else { event.reason.clone() },
        ..Fields::default()
    };
    (ev, fields)
}
