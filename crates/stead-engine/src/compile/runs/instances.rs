//! The instances of roles, and the order in which roles start.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};
use stead_model::run_manifest::RoleForm;

/// One instance of a role.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Instance {
    /// Its name: the role's, with a number if there are several.
    pub(super) name: String,
    /// From 1.
    pub(super) index: u32,
    /// Its values of the matrix.
    pub(super) matrix: Map<String, Value>,
    /// From 1, if the role is repeated.
    pub(super) repeat_index: Option<u32>,
}

/// Returns how many instances a role has.
pub(super) fn count(form: &RoleForm<'_>) -> u64 {
    let combinations = form.matrix.iter().map(|(_, values)| values.len() as u64);
    combinations.fold(u64::from(form.repeat), u64::saturating_mul)
}

/// Returns the instances of the role `name`: one per combination of its matrix, the last key varying fastest, each
/// repeated.
pub(super) fn expand(name: &str, form: &RoleForm<'_>) -> Vec<Instance> {
    let mut combinations = vec![Map::new()];
    for (key, values) in &form.matrix {
        let with = |combination: &Map<String, Value>, value: Value| {
            let mut combination = combination.clone();
            combination.insert(key.clone(), value);
            combination
        };
        combinations = combinations
            .iter()
            .flat_map(|combination| values.iter().map(|value| with(combination, value.to_json())))
            .collect();
    }
    let is_only = count(form) == 1;
    let repeated =
        combinations.iter().flat_map(|matrix| (1..=form.repeat).map(move |repeat| (matrix, repeat)));
    (1..)
        .zip(repeated)
        .map(|(index, (matrix, repeat))| Instance {
            name: if is_only { name.to_owned() } else { format!("{name}-{index}") },
            index,
            matrix: matrix.clone(),
            repeat_index: (form.repeat > 1).then_some(repeat),
        })
        .collect()
}

/// Returns roles in the order in which they start: each after those it needs, else as they are written. Those of a cycle
/// are left out.
pub(super) fn start_order(needs: &[BTreeSet<usize>]) -> Vec<usize> {
    let mut waiting: BTreeMap<usize, BTreeSet<usize>> = needs.iter().cloned().enumerate().collect();
    let mut order = Vec::with_capacity(needs.len());
    while let Some(next) = waiting.iter().find(|(_, needs)| needs.is_empty()).map(|(role, _)| *role) {
        waiting.remove(&next);
        waiting.values_mut().for_each(|needs| {
            needs.remove(&next);
        });
        order.push(next);
    }
    order
}

/// Returns a cycle among roles, its first role again at its end, if there is one.
pub(super) fn cycle(needs: &[BTreeSet<usize>]) -> Option<Vec<usize>> {
    let ordered: BTreeSet<usize> = start_order(needs).into_iter().collect();
    let mut path: Vec<usize> = vec![(0..needs.len()).find(|role| !ordered.contains(role))?];
    loop {
        let last = *path.last()?;
        // What is not in order needs something that is not in order either.
        let next = *needs[last].iter().find(|role| !ordered.contains(role))?;
        if let Some(at) = path.iter().position(|role| *role == next) {
            path.push(next);
            return Some(path.split_off(at));
        }
        path.push(next);
    }
}

/// Returns for each role all that it needs, directly or not.
pub(super) fn closure(needs: &[BTreeSet<usize>]) -> Vec<BTreeSet<usize>> {
    let all = |role: usize| {
        let mut found = BTreeSet::new();
        let mut queue: Vec<usize> = needs[role].iter().copied().collect();
        while let Some(next) = queue.pop() {
            if found.insert(next) {
                queue.extend(&needs[next]);
            }
        }
        found
    };
    (0..needs.len()).map(all).collect()
}
