//! Finds one cycle per cyclic group of tasks, without recursion.

use std::collections::{BTreeMap, VecDeque};

use stead_model::plan::TaskIndex;

use super::Rows;

/// Returns, for each strongly connected component among `suspects` with more than one task, a shortest cycle through
/// the member first in plan order, from dependency to dependent.
pub(super) fn find(suspects: &[TaskIndex], dependencies: &Rows, dependents: &Rows) -> Vec<Vec<TaskIndex>> {
    let component = components(suspects, dependencies);
    let mut first: BTreeMap<u32, TaskIndex> = BTreeMap::new();
    let mut size: BTreeMap<u32, usize> = BTreeMap::new();
    for task in suspects {
        let Some(&id) = component.get(task) else { continue };
        first.entry(id).or_insert(*task);
        *size.entry(id).or_default() += 1;
    }
    let mut starts: Vec<TaskIndex> =
        first.iter().filter(|(id, _)| size[id] > 1).map(|(_, task)| *task).collect();
    starts.sort_unstable();
    starts.into_iter().map(|start| through(start, &component, dependents)).collect()
}

/// Returns a shortest cycle through `start` inside its component.
fn through(start: TaskIndex, component: &BTreeMap<TaskIndex, u32>, dependents: &Rows) -> Vec<TaskIndex> {
    let id = component.get(&start);
    let mut came_from: BTreeMap<TaskIndex, TaskIndex> = BTreeMap::new();
    let mut queue = VecDeque::from([start]);
    while let Some(task) = queue.pop_front() {
        for &next in dependents.row(task) {
            if next == start {
                let mut path = vec![task];
                while let Some(&before) = path.last().and_then(|last| came_from.get(last)) {
                    path.push(before);
                }
                path.reverse();
                return path;
            }
            if component.get(&next) == id && !came_from.contains_key(&next) {
                came_from.insert(next, task);
                queue.push_back(next);
            }
        }
    }
    vec![start]
}

/// Tarjan's algorithm with its own stack: the component of each task.
fn components(tasks: &[TaskIndex], edges: &Rows) -> BTreeMap<TaskIndex, u32> {
    const UNSEEN: u32 = u32::MAX;
    let mut order = vec![UNSEEN; edges.len()];
    let mut low = vec![UNSEEN; edges.len()];
    let mut component = BTreeMap::new();
    let mut open: Vec<TaskIndex> = Vec::new();
    let mut visits: Vec<(TaskIndex, usize)> = Vec::new();
    let (mut counter, mut next_id) = (0u32, 0u32);
    for &root in tasks {
        if order[root.get()] != UNSEEN {
            continue;
        }
        visits.push((root, 0));
        while let Some((task, edge)) = visits.pop() {
            let at = task.get();
            if edge == 0 {
                order[at] = counter;
                low[at] = counter;
                counter += 1;
                open.push(task);
            }
            if let Some(&next) = edges.row(task).get(edge) {
                visits.push((task, edge + 1));
                if order[next.get()] == UNSEEN {
                    visits.push((next, 0));
                } else if !component.contains_key(&next) {
                    low[at] = low[at].min(order[next.get()]);
                }
                continue;
            }
            if low[at] == order[at] {
                while let Some(member) = open.pop() {
                    component.insert(member, next_id);
                    if member == task {
                        break;
                    }
                }
                next_id += 1;
            }
            if let Some((parent, _)) = visits.last() {
                low[parent.get()] = low[parent.get()].min(low[at]);
            }
        }
    }
    component
}
