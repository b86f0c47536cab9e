//! What every worker would be for one instance.

use std::cmp::Reverse;

use stead_model::fleet::InstanceKey;

use super::super::explain::{Candidate, CandidateVerdict};
use super::filter::Purpose;
use super::hrw;
use super::index::load;
use super::table::Scheduler;

impl Scheduler {
    /// Returns every worker as a place for `instance`, which is thought of as being nowhere; the best first.
    pub fn candidates(&self, instance: &InstanceKey) -> Vec<Candidate> {
        let Some(row_index) = self.row_index(&instance.vm) else { return Vec::new() };
        let mut without = self.clone();
        let here = without.take_off(row_index, instance.ordinal).map(|(slot, _)| slot);
        let row = without.row(row_index);
        let spec = &row.spec;
        let key = hrw::hash(&instance.to_string());
        let mut found = Vec::new();
        for (index, slot) in without.live_slots() {
            let refusal = without.refusal(row, instance.ordinal, index, spec.resources, Purpose::Take);
            let value = spec.spread.key.as_ref().map(|key| slot.view.label(key).unwrap_or_default());
            let spread = value.and_then(|value| row.spread.get(value)).copied().unwrap_or_default();
            let used = slot.used.plus(slot.leaving);
            let full = load(&slot.view.allocatable, used, spec.resources);
            let weight = hrw::mix(key, slot.hash);
            let verdict = match (here == Some(index), refusal) {
                (true, _) => CandidateVerdict::Here,
                (false, None) => CandidateVerdict::Fits,
                (false, Some(_)) => CandidateVerdict::Refuses,
            };
            let count = row.count_on(index);
            let order = (verdict, spread, count, full, Reverse(weight));
            let score =
                vec![spread.to_string(), count.to_string(), full.to_string(), format!("{weight:016x}")];
            let refusal = refusal.filter(|_| verdict == CandidateVerdict::Refuses);
            let filter = refusal.map(|refusal| refusal.filter);
            let why = refusal.map(|refusal| refusal.describe(row, slot, used));
            found.push((order, Candidate { worker: slot.view.id.clone(), verdict, filter, why, score }));
        }
        found.sort_by(|a, b| (&a.0, &a.1.worker).cmp(&(&b.0, &b.1.worker)));
        found.into_iter().map(|(_, candidate)| candidate).collect()
    }
}
