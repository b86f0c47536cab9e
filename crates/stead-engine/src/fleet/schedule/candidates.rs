//! What every worker would be for one instance.

use std::cmp::Reverse;

use stead_model::fleet::InstanceKey;
use stead_model::fleet::vm::Resources;

use super::super::explain::{Candidate, CandidateVerdict};
use super::filter::Purpose;
use super::hrw;
use super::index::load;
use super::table::{Row, Scheduler, Slot};

impl Scheduler {
    /// Returns every worker as a place for `instance`, which is thought of as being nowhere; the best first.
    pub fn candidates(&self, instance: &InstanceKey) -> Vec<Candidate> {
        let Some(row_index) = self.row_index(&instance.vm) else { return Vec::new() };
        let mut without = self.clone();
        let here = without.take_off(row_index, instance.ordinal).map(|(slot, _)| slot);
        let row = without.row(row_index);
        let key = hrw::hash(&instance.to_string());
        let mut found = Vec::new();
        for (index, slot) in without.live_slots() {
            let need = row.need(instance.ordinal);
            let refusal = without.refusal(row, instance.ordinal, index, need, Purpose::Take);
            let (used, need) = without.beside(row, instance.ordinal, slot, need);
            let (spread, count, full, Reverse(weight)) = without.score(row, (index, slot), (used, need), key);
            let verdict = match (here == Some(index), refusal) {
                (true, _) => CandidateVerdict::Here,
                (false, None) => CandidateVerdict::Fits,
                (false, Some(_)) => CandidateVerdict::Refuses,
            };
            let order = (verdict, spread, count, full, Reverse(weight));
            let score =
                vec![spread.to_string(), count.to_string(), full.to_string(), format!("{weight:016x}")];
            let refusal = refusal.filter(|_| verdict == CandidateVerdict::Refuses);
            let filter = refusal.map(|refusal| refusal.filter);
            let why = refusal.map(|refusal| refusal.describe(row, slot, used, need));
            found.push((order, Candidate { worker: slot.view.id.clone(), verdict, filter, why, score }));
        }
        found.sort_by(|a, b| (&a.0, &a.1.worker).cmp(&(&b.0, &b.1.worker)));
        found.into_iter().map(|(_, candidate)| candidate).collect()
    }

    /// Returns the best worker for an instance that is nowhere, each looked at on its own.
    pub(super) fn best_of_all(&self, row: &Row, ordinal: u32) -> Option<u32> {
        let key = hrw::hash(&InstanceKey::new(&row.spec.id, ordinal).to_string());
        let need = row.need(ordinal);
        let takers = self
            .live_slots()
            .filter(|(index, _)| self.refusal(row, ordinal, *index, need, Purpose::Take).is_none());
        let best = takers.min_by_key(|(index, slot)| {
            let room = self.beside(row, ordinal, slot, need);
            (self.score(row, (*index, slot), room, key), &slot.view.id)
        });
        best.map(|(index, _)| index)
    }

    /// Returns how good a worker is for an instance with this hash, the least being the best.
    fn score(
        &self,
        row: &Row,
        (index, slot): (u32, &Slot),
        (used, need): (Resources, Resources),
        key: u64,
    ) -> (u32, u32, u64, Reverse<u64>) {
        let value = row.spec.spread.key.as_ref().map(|key| slot.view.label(key).unwrap_or_default());
        let spread = value.and_then(|value| row.spread.get(value)).copied().unwrap_or_default();
        let full = load(&slot.view.allocatable, used, need);
        (spread, row.count_on(index), full, Reverse(hrw::mix(key, slot.hash)))
    }
}
