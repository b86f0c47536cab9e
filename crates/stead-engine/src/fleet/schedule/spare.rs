//! Moves that only a policy grants: taking the place of what is less important, and balance.

use std::collections::BTreeMap;

use stead_model::fleet::state::MoveReason;
use stead_model::fleet::vm::Resources;

use super::filter::{Purpose, short_of};
use super::index::load;
use super::place::Reasons;
use super::table::{Row, Scheduler};

/// Makes room for an instance by lifting less important ones from one worker, and returns that worker.
///
/// The worker is the one whose most important victim is least important, then with the fewest victims, then by name.
pub(super) fn preempt(
    scheduler: &mut Scheduler,
    row_index: u32,
    ordinal: u32,
    reasons: &mut Reasons,
    evicted: &mut Vec<u32>,
) -> Option<u32> {
    if !scheduler.policy.preempt {
        return None;
    }
    let row = scheduler.row(row_index);
    let choices = scheduler.live_slots().filter_map(|(index, slot)| {
        let victims = victims(scheduler, row, ordinal, index)?;
        let most = victims.iter().map(|(row, _)| scheduler.row(*row).spec.priority).max()?;
        Some(((most, victims.len(), slot.view.id.clone()), index, victims))
    });
    let (_, slot, victims) = choices.min_by(|a, b| a.0.cmp(&b.0))?;
    for (row, ordinal) in victims {
        scheduler.lift(row, ordinal);
        reasons.insert((row, ordinal), MoveReason::Preempted);
        evicted.push(row);
    }
    Some(slot)
}

/// Returns what has to go from a worker so that the instance fits; none if that is not enough.
fn victims(scheduler: &Scheduler, row: &Row, ordinal: u32, slot_index: u32) -> Option<Vec<(u32, u32)>> {
    let need = row.need(ordinal);
    // Everything but room has to be right already.
    match scheduler.refusal(row, ordinal, slot_index, Resources::default(), Purpose::Take) {
        None => {}
        Some(_) => return None,
    }
    let slot = scheduler.slot(slot_index);
    let mut candidates = slot.members.clone();
    candidates.retain(|(index, ordinal)| {
        let other = scheduler.row(*index);
        let is_fixed = other.is_bound(*ordinal) || scheduler.policy.is_frozen(&other.spec.id);
        other.spec.priority < row.spec.priority && !is_fixed
    });
    candidates.sort_by(|a, b| {
        let of = |row: u32| (scheduler.row(row).spec.priority, &scheduler.row(row).spec.id);
        (of(a.0), b.1).cmp(&(of(b.0), a.1))
    });
    let (mut used, need) = scheduler.beside(row, ordinal, slot, need);
    let mut chosen = Vec::new();
    for victim in candidates {
        if short_of(&slot.view.allocatable, used, need).is_none() {
            break;
        }
        let taken = scheduler.row(victim.0).places.get(&victim.1).map(|(_, need)| *need);
        used = used.minus(taken.unwrap_or_default());
        chosen.push(victim);
    }
    (!chosen.is_empty() && short_of(&slot.view.allocatable, used, need).is_none()).then_some(chosen)
}

/// Moves as many instances as the policy grants from the fullest workers to emptier ones.
///
/// A move has to help: the receiving worker stays at least two tenths below what the giving one had.
pub(super) fn rebalance(scheduler: &mut Scheduler, reasons: &mut Reasons) {
    for _ in 0..scheduler.policy.rebalance {
        let Some(((row, ordinal), slot)) = helpful_move(scheduler) else { return };
        let Some((_, need)) = scheduler.lift(row, ordinal) else { return };
        scheduler.put(row, ordinal, slot, need);
        reasons.insert((row, ordinal), MoveReason::Rebalance);
    }
}

fn helpful_move(scheduler: &Scheduler) -> Option<((u32, u32), u32)> {
    let full = |index: u32, need: Resources| {
        let slot = scheduler.slot(index);
        load(&slot.view.allocatable, slot.taken(), need)
    };
    let mut givers: Vec<u32> = scheduler
        .live_slots()
        .filter(|(_, slot)| slot.view.state.receives())
        .map(|(index, _)| index)
        .collect();
    let empty = Resources::default();
    givers.sort_by_key(|index| (std::cmp::Reverse(full(*index, empty)), &scheduler.slot(*index).view.id));
    let loads: BTreeMap<u32, u64> = givers.iter().map(|index| (*index, full(*index, empty))).collect();
    let (most, least) = (loads.values().max()?, loads.values().min()?);
    if most - least < 2 {
        return None;
    }
    for giver in &givers {
        let mut members = scheduler.slot(*giver).members.clone();
        members.sort_by_key(|(row, ordinal)| {
            let spec = &scheduler.row(*row).spec;
            (spec.priority, spec.id.clone(), *ordinal)
        });
        for (row_index, ordinal) in members {
            let row = scheduler.row(row_index);
            let is_fixed = row.spec.stops_first()
                || row.is_bound(ordinal)
                || scheduler.policy.is_frozen(&row.spec.id)
                // One move for each instance at most.
                || scheduler.before.get(&(row_index, ordinal)).is_some_and(|before| *before != Some(*giver));
            if is_fixed {
                continue;
            }
            let need = row.need(ordinal);
            let takers = givers.iter().filter(|taker| {
                **taker != *giver
                    && full(**taker, need) + 2 <= loads[giver]
                    && scheduler.refusal(row, ordinal, **taker, need, Purpose::Take).is_none()
            });
            let name = |taker: &u32| (full(*taker, need), scheduler.slot(*taker).view.id.clone());
            if let Some(taker) = takers.min_by_key(|taker| name(taker)) {
                return Some(((row_index, ordinal), *taker));
            }
        }
    }
    None
}
