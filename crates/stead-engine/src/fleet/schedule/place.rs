//! Settling: what may stay stays, the rest goes where it fits best.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use stead_model::fleet::state::{MoveReason, WorkerState};
use stead_model::fleet::vm::Resources;

use super::filter::{Purpose, reason};
use super::hrw;
use super::index::{Indexes, Marks};
use super::table::{Home, Row, Scheduler};
use super::{Move, spare};

/// Why instances that have no place lost theirs.
pub(super) type Reasons = BTreeMap<(u32, u32), MoveReason>;

impl Scheduler {
    /// Brings everything to its place and returns what moved, sorted. Settling twice moves nothing.
    pub fn settle(&mut self) -> Vec<Move> {
        let mut reasons = Reasons::new();
        self.new_places.clear();
        self.forget_lost();
        self.keep_pass(&mut reasons);
        let mut indexes = Indexes::default();
        self.place_pass(&mut indexes, &mut reasons);
        self.stay_on_draining();
        spare::rebalance(self, &mut reasons);
        let moves = self.moves(&reasons);
        self.has_lost = self
            .before
            .iter()
            .any(|(key, before)| before.is_some() && !self.row(key.0).places.contains_key(&key.1));
        self.before.clear();
        self.dirty.clear();
        moves
    }

    /// Looks again at every worker that changed: what may not stay is lifted.
    fn keep_pass(&mut self, reasons: &mut Reasons) {
        self.blocked.clear();
        let draining = self.live_slots().filter(|(_, slot)| slot.view.state == WorkerState::Draining);
        let draining: Vec<u32> = draining.map(|(index, _)| index).collect();
        self.dirty.extend(draining);
        let mut returning: BTreeMap<u32, Vec<(u32, u32)>> = BTreeMap::new();
        for (key, slot) in &self.before {
            if let Some(slot) = slot
                && !self.row(key.0).places.contains_key(&key.1)
            {
                returning.entry(*slot).or_default().push(*key);
            }
        }
        for slot in returning.keys() {
            if !self.slot(*slot).is_live {
                for key in returning.get(slot).into_iter().flatten() {
                    reasons.insert(*key, MoveReason::WorkerLost);
                }
            }
        }
        for slot in self.dirty.clone() {
            if !self.slot(slot).is_live {
                continue;
            }
            let mut members = self.slot(slot).members.clone();
            for (row, ordinal) in members.iter().rev() {
                self.lift(*row, *ordinal);
            }
            members.extend(returning.get(&slot).into_iter().flatten());
            members.sort_by(|a, b| {
                let of = |row: u32| (Reverse(self.row(row).spec.priority), &self.row(row).spec.id);
                (of(a.0), a.1).cmp(&(of(b.0), b.1))
            });
            for (row, ordinal) in members {
                self.keep(row, ordinal, slot, reasons);
            }
        }
    }

    /// Puts an instance back on its worker if it may stay there.
    fn keep(&mut self, row_index: u32, ordinal: u32, slot: u32, reasons: &mut Reasons) {
        let row = self.row(row_index);
        let need = row.need(ordinal);
        if self.policy.is_frozen(&row.spec.id) || self.policy.is_braked() {
            self.put(row_index, ordinal, slot, need);
            return;
        }
        match self.refusal(row, ordinal, slot, need, Purpose::Keep) {
            None => self.put(row_index, ordinal, slot, need),
            Some(refusal) => {
                reasons.insert((row_index, ordinal), reason(refusal, self.slot(slot)));
                if self.policy.keeps_copies {
                    self.lose(row_index, ordinal, slot, need);
                }
            }
        }
    }

    /// Finds a place for everything that has none, the most important and largest first.
    fn place_pass(&mut self, indexes: &mut Indexes, reasons: &mut Reasons) {
        let mut rows: Vec<u32> = (0_u32..)
            .zip(&self.rows)
            .filter(|(_, row)| self.misses_some(row))
            .map(|(index, _)| index)
            .collect();
        rows.sort_by(|a, b| {
            let of = |index: u32| {
                let spec = &self.row(index).spec;
                let size = (Reverse(spec.resources.mem_mib), Reverse(spec.resources.cpu_milli));
                (Reverse(spec.priority), size, &spec.id)
            };
            of(*a).cmp(&of(*b))
        });
        let mut at = 0;
        while let Some(row) = rows.get(at).copied() {
            at += 1;
            for evicted in self.place_row(row, indexes, reasons) {
                // What was evicted is less important, so its turn is still to come, or comes again.
                if !rows.iter().skip(at).any(|other| *other == evicted) {
                    let order = |index: u32| {
                        let spec = &self.row(index).spec;
                        let size = (Reverse(spec.resources.mem_mib), Reverse(spec.resources.cpu_milli));
                        (Reverse(spec.priority), size, spec.id.clone())
                    };
                    let place = rows.iter().skip(at).position(|other| order(*other) > order(evicted));
                    rows.insert(place.map_or(rows.len(), |place| at + place), evicted);
                }
            }
        }
    }

    fn misses_some(&self, row: &Row) -> bool {
        row.is_wanted
            && !self.policy.is_frozen(&row.spec.id)
            && row.places.range(..row.spec.replicas).count() < row.spec.replicas as usize
    }

    /// Whether an instance has been somewhere, and nothing goes elsewhere now.
    fn is_held_back(&self, row: u32, ordinal: u32) -> bool {
        let Some(homeless) = &self.policy.brake else { return false };
        let was_somewhere = self.before.get(&(row, ordinal)).is_some_and(Option::is_some);
        was_somewhere || homeless.contains(&self.key(row, ordinal))
    }

    /// Finds places for the instances of one VM and returns the VMs that lost some to it.
    fn place_row(&mut self, row_index: u32, indexes: &mut Indexes, reasons: &mut Reasons) -> Vec<u32> {
        let mut marks = self.marks(row_index);
        let mut evicted = Vec::new();
        let spec = std::sync::Arc::clone(&self.row(row_index).spec);
        let mut hopeless: Option<Resources> = None;
        for ordinal in 0..spec.replicas {
            if self.row(row_index).places.contains_key(&ordinal) || self.is_held_back(row_index, ordinal) {
                continue;
            }
            // What goes elsewhere in the middle of a rollout runs its old spec there.
            let need = self.row(row_index).need(ordinal);
            let mut is_put = false;
            let slot = match self.only_candidate(row_index, ordinal) {
                Some(candidate) => candidate.filter(|slot| {
                    let row = self.row(row_index);
                    self.refusal(row, ordinal, *slot, need, Purpose::Take).is_none()
                }),
                // Where it has copies there is other room for it than for the rest of its VM.
                None if self.copies_of(self.row(row_index), ordinal).is_some() => {
                    self.best_of_all(self.row(row_index), ordinal)
                }
                // Nothing is taken off between instances of one VM: what the last did not find is not there.
                None if hopeless == Some(need) => None,
                None => {
                    let key = hrw::hash(&self.key(row_index, ordinal).to_string());
                    let index = indexes.of(self, &spec, need);
                    let found = index.best(self, &spec, &self.row(row_index).spread, &marks, key);
                    if let Some(slot) = found {
                        self.put_at(row_index, ordinal, slot, need, index.value(slot));
                        is_put = true;
                    }
                    hopeless = found.is_none().then_some(need);
                    found
                }
            };
            let slot = slot.or_else(|| {
                let freed = spare::preempt(self, row_index, ordinal, reasons, &mut evicted);
                hopeless = hopeless.filter(|_| freed.is_none());
                freed
            });
            if let Some(slot) = slot {
                if !is_put {
                    self.put(row_index, ordinal, slot, need);
                }
                self.new_places.push((row_index, ordinal));
                marks.counts[slot as usize] += 1;
                indexes.changed(self, slot);
            }
        }
        evicted.sort_unstable();
        evicted.dedup();
        evicted
    }

    /// Returns the only worker an instance may go to, if its pin or its volumes say so; inside: if it is there.
    fn only_candidate(&self, row: u32, ordinal: u32) -> Option<Option<u32>> {
        let row = self.row(row);
        match (row.home(ordinal), &row.spec.pin) {
            (Some(Home::Slot(slot)), _) => Some(Some(slot).filter(|slot| self.slot(*slot).is_live)),
            (Some(Home::Gone), _) => Some(None),
            (None, Some(pin)) => Some(self.slot_named(pin)),
            (None, None) => None,
        }
    }

    fn marks(&self, row: u32) -> Marks {
        let row = self.row(row);
        let mut marks = Marks { counts: vec![0; self.slot_count()], barred: vec![false; self.slot_count()] };
        for (slot, count) in row.counts() {
            marks.counts[slot as usize] = count;
        }
        for rival in self.rivals(&row.spec) {
            for (slot, _) in rival.counts() {
                marks.barred[slot as usize] = true;
            }
        }
        marks
    }

    /// Puts back on draining workers what has no other place.
    fn stay_on_draining(&mut self) {
        let lifted: Vec<((u32, u32), u32)> = self
            .before
            .iter()
            .filter_map(|(key, slot)| Some((*key, (*slot)?)))
            .filter(|((row, ordinal), slot)| {
                self.slot(*slot).view.state == WorkerState::Draining
                    && self.slot(*slot).is_live
                    && !self.row(*row).places.contains_key(ordinal)
            })
            .collect();
        for ((row_index, ordinal), slot) in lifted {
            let row = self.row(row_index);
            let need = row.need(ordinal);
            let is_wanted = row.is_wanted && ordinal < row.spec.replicas;
            if is_wanted && self.refusal(row, ordinal, slot, need, Purpose::KeepAnyway).is_none() {
                self.put(row_index, ordinal, slot, need);
                self.blocked.insert((row_index, ordinal));
            }
        }
    }

    /// Returns what is elsewhere than it was.
    fn moves(&self, reasons: &Reasons) -> Vec<Move> {
        let mut found = Vec::new();
        for (key, before) in &self.before {
            let Some((slot, _)) = self.row(key.0).places.get(&key.1) else { continue };
            let Some(before) = before.filter(|before| before != slot) else { continue };
            let reason = reasons.get(key).copied().unwrap_or(MoveReason::WorkerLost);
            found.push((*key, Some(before), *slot, reason));
        }
        found.extend(self.new_places.iter().filter_map(|key| {
            let (slot, _) = self.row(key.0).places.get(&key.1)?;
            let is_new = self.before.get(key).is_none_or(Option::is_none);
            is_new.then_some((*key, None, *slot, MoveReason::New))
        }));
        if found.is_empty() {
            return Vec::new();
        }
        // An instance moves once, so its place among all of them is the whole order; numbers are compared faster than names.
        let ranks = self.ranks();
        found.sort_unstable_by_key(|(key, ..)| (ranks[key.0 as usize], key.1));
        let name = |slot: u32| self.slot(slot).view.id.clone();
        let moves = found.into_iter().map(|(key, from, to, reason)| Move {
            instance: self.key(key.0, key.1),
            from: from.map(name),
            to: name(to),
            reason,
        });
        moves.collect()
    }
}
