//! What a master has while another one leads: a copy of what is stored.

use std::collections::BTreeMap;

use stead_engine::fleet::cluster::Cluster;
use stead_model::fleet::Millis;

use super::campaign::LeaderRecord;
use super::keys::Mirror;
use super::leader::Lead;
use crate::api::CallError;
use crate::store::{Change, Entry};

/// What a follower has.
pub(super) struct Follow {
    /// Who leads; its address is empty while nobody does.
    pub(super) record: LeaderRecord,
    /// Why the store cannot be used, if it cannot.
    pub(super) away: Option<String>,
    entries: BTreeMap<String, Entry>,
    /// What the entries say; none: not read yet since they changed.
    cluster: Option<Box<Cluster>>,
}

impl Follow {
    pub(super) fn new(record: LeaderRecord, entries: Vec<Entry>) -> Self {
        let entries = entries.into_iter().map(|entry| (entry.key.clone(), entry)).collect();
        Self { record, away: None, entries, cluster: None }
    }

    /// Returns what a leader has that was deposed: what it knew, until it hears who leads.
    pub(super) fn after(lead: Lead) -> Self {
        let record = LeaderRecord { address: String::new(), ..lead.record };
        let mut cluster = lead.cluster;
        cluster.restore(lead.mirror.durable().clone(), cluster.leader_since);
        Self { record, away: lead.away, entries: BTreeMap::new(), cluster: Some(Box::new(cluster)) }
    }

    pub(super) fn change(&mut self, changes: Vec<Change>) {
        self.away = None;
        for change in changes {
            match change {
                Change::Put(entry) => drop(self.entries.insert(entry.key.clone(), entry)),
                Change::Deleted { key, .. } => {
                    if key == super::campaign::LEADER {
                        self.record.address.clear();
                    }
                    self.entries.remove(&key);
                }
            }
        }
        self.cluster = None;
    }

    /// Returns what is stored, as a cluster that nobody reports to.
    pub(super) fn cluster(&mut self, now: Millis) -> Result<&Cluster, CallError> {
        if self.cluster.is_none() {
            let entries: Vec<Entry> = self.entries.values().cloned().collect();
            let mirror = Mirror::load(&entries).map_err(|error| CallError::Away(error.to_string()))?;
            let cluster = Cluster::resume(mirror.durable().clone(), self.record.epoch, now);
            self.cluster = Some(Box::new(cluster));
        }
        self.cluster.as_deref().ok_or_else(|| CallError::Away("nothing is stored".to_owned()))
    }
}
