//! The shape of a plan: who waits for whom, by task index.
//!
//! Owns the edges in both directions (compressed rows: a few dozen bytes per task), the levels and the
//! lookup of names. It refuses everything that is not a DAG, all problems at once. Nothing here recurses:
//! a chain of a million tasks costs a million steps, not a million stack frames.

use std::collections::{BTreeMap, VecDeque};
use std::hash::{Hash, Hasher};

use stead_model::plan::{Section, TaskIndex};
use stead_model::{Task, TaskName};

mod cycle;

/// The checked DAG of a plan's tasks.
#[derive(Clone, PartialEq, Eq)]
pub struct Graph {
    names: NameTable,
    dependencies: Rows,
    dependents: Rows,
    levels: Box<[u32]>,
    /// Instances of each `for_each` task by base name, in plan order.
    instances: BTreeMap<Box<str>, Box<[TaskIndex]>>,
}

/// Why tasks do not form a DAG.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GraphProblem {
    /// Two tasks have one name.
    DuplicateName {
        /// The first with the name.
        first: TaskIndex,
        /// The other.
        again: TaskIndex,
    },
    /// A task depends on one that does not exist.
    UnknownDependency {
        /// The task.
        task: TaskIndex,
        /// The name nothing has.
        name: TaskName,
    },
    /// A task depends on itself.
    SelfEdge {
        /// The task.
        task: TaskIndex,
    },
    /// Tasks wait for each other.
    Cycle {
        /// The tasks from dependency to dependent, starting at the one first in plan order, which is not
        /// repeated at the end.
        path: Vec<TaskIndex>,
    },
    /// A normal task depends on a `finally` task, or the other way round.
    AcrossSections {
        /// The task.
        task: TaskIndex,
        /// What it depends on.
        dependency: TaskIndex,
    },
}

impl GraphProblem {
    /// Returns the task the problem is best shown at.
    pub fn task(&self) -> TaskIndex {
        match self {
            Self::DuplicateName { again, .. } => *again,
            Self::UnknownDependency { task, .. }
            | Self::SelfEdge { task }
            | Self::AcrossSections { task, .. } => *task,
            Self::Cycle { path } => path.first().copied().unwrap_or(TaskIndex(0)),
        }
    }

    /// Returns the problem in one sentence, with the names of `tasks`.
    pub fn message(&self, tasks: &[Task]) -> String {
        let name = |index: &TaskIndex| tasks[index.get()].name.as_str();
        match self {
            Self::DuplicateName { again, .. } => format!("two tasks are called `{}`", name(again)),
            Self::UnknownDependency { task, name: missing } => {
                format!("task `{}` depends on `{missing}`, which does not exist", name(task))
            }
            Self::SelfEdge { task } => format!("task `{0}` depends on itself: {0} -> {0}", name(task)),
            Self::Cycle { path } => {
                let mut text = String::from("tasks wait for each other: ");
                for index in path {
                    text.push_str(name(index));
                    text.push_str(" -> ");
                }
                text + path.first().map_or("", name)
            }
            Self::AcrossSections { task, dependency } => {
                let (task, section) = (name(task), tasks[task.get()].section);
                match section {
                    Section::Finally => {
                        let dependency = name(dependency);
                        format!("`finally` task `{task}` depends on the normal task `{dependency}`")
                    }
                    Section::Main | Section::Rollback => {
                        format!("task `{task}` depends on the `finally` task `{}`", name(dependency))
                    }
                }
            }
        }
    }
}

impl Graph {
    /// Returns the graph of `tasks`, or every reason why they form none.
    ///
    /// A dependency on the base name of a `for_each` task is one on each of its instances; a repeated
    /// dependency counts once.
    pub fn build(tasks: &[Task]) -> Result<Self, Vec<GraphProblem>> {
        let mut problems = Vec::new();
        let (names, duplicates) = NameTable::build(tasks);
        problems.extend(
            duplicates.into_iter().map(|(first, again)| GraphProblem::DuplicateName { first, again }),
        );
        let instances = instances(tasks);
        let dependencies = edges(tasks, &names, &instances, &mut problems);
        let dependents = dependencies.reversed();
        let (levels, unfinished) = levels(&dependencies, &dependents);
        if !unfinished.is_empty() {
            let cycles = cycle::find(&unfinished, &dependencies, &dependents);
            problems.extend(cycles.into_iter().map(|path| GraphProblem::Cycle { path }));
        }
        if problems.is_empty() {
            Ok(Self { names, dependencies, dependents, levels: levels.into(), instances })
        } else {
            Err(problems)
        }
    }

    /// Returns how many tasks there are.
    pub fn len(&self) -> usize {
        self.levels.len()
    }

    /// Whether there is no task.
    pub fn is_empty(&self) -> bool {
        self.levels.is_empty()
    }

    /// Returns what `task` waits for, in written order.
    pub fn dependencies(&self, task: TaskIndex) -> &[TaskIndex] {
        self.dependencies.row(task)
    }

    /// Returns who waits for `task`, in plan order.
    pub fn dependents(&self, task: TaskIndex) -> &[TaskIndex] {
        self.dependents.row(task)
    }

    /// Returns every task's level: roots 0, others one more than their highest dependency.
    pub fn levels(&self) -> &[u32] {
        &self.levels
    }

    /// Returns the tasks that wait for nothing, in plan order.
    pub fn roots(&self) -> impl Iterator<Item = TaskIndex> + '_ {
        (0..index(self.len()).0).map(TaskIndex).filter(|task| self.dependencies(*task).is_empty())
    }

    /// Whether `of` waits for `candidate`, directly or through others.
    pub fn is_upstream(&self, of: TaskIndex, candidate: TaskIndex) -> bool {
        if self.dependencies(of).contains(&candidate) {
            return true;
        }
        // An ancestor lies on a lower level than every path to it, so nothing below that level is visited.
        let floor = self.levels[candidate.get()];
        if floor >= self.levels[of.get()] {
            return false;
        }
        let mut seen = std::collections::HashSet::new();
        let mut queue = VecDeque::from([of]);
        while let Some(task) = queue.pop_front() {
            for &dependency in self.dependencies(task) {
                if dependency == candidate {
                    return true;
                }
                if self.levels[dependency.get()] > floor && seen.insert(dependency) {
                    queue.push_back(dependency);
                }
            }
        }
        false
    }

    /// Returns everything `of` waits for, directly or through others, in plan order. Costs as much as there is.
    pub fn upstream(&self, of: TaskIndex) -> Vec<TaskIndex> {
        let mut seen = std::collections::BTreeSet::new();
        let mut queue = vec![of];
        while let Some(task) = queue.pop() {
            for &dependency in self.dependencies(task) {
                if seen.insert(dependency) {
                    queue.push(dependency);
                }
            }
        }
        seen.into_iter().collect()
    }

    /// Returns the task called `name`.
    pub fn index_of(&self, name: &str) -> Option<TaskIndex> {
        self.names.get(name)
    }

    /// Returns the instances of the `for_each` task `base`, in plan order; none if it is no such task.
    pub fn instances(&self, base: &str) -> &[TaskIndex] {
        self.instances.get(base).map_or(&[], |instances| instances)
    }

    /// Returns the task called `name`, or all instances if it is the base name of a `for_each` task.
    pub fn matching(&self, name: &str) -> Vec<TaskIndex> {
        match self.index_of(name) {
            Some(task) => vec![task],
            None => self.instances(name).to_vec(),
        }
    }

    /// Returns the name of `task`.
    pub fn name(&self, task: TaskIndex) -> &TaskName {
        &self.names.names[task.get()]
    }
}

impl std::fmt::Debug for Graph {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Graph({} tasks, {} edges)", self.len(), self.dependencies.items.len())
    }
}

/// Lists of task indices, one per task, in one allocation.
#[derive(Clone, PartialEq, Eq)]
struct Rows {
    // Invariant: row i is `items[starts[i]..starts[i + 1]]`; `starts` has one element more than there are rows.
    starts: Box<[u32]>,
    items: Box<[TaskIndex]>,
}

impl Rows {
    fn row(&self, task: TaskIndex) -> &[TaskIndex] {
        &self.items[self.starts[task.get()] as usize..self.starts[task.get() + 1] as usize]
    }

    fn len(&self) -> usize {
        self.starts.len() - 1
    }

    /// Returns the same edges seen from the other end.
    fn reversed(&self) -> Self {
        let mut starts = vec![0u32; self.starts.len()];
        for item in &self.items {
            starts[item.get() + 1] += 1;
        }
        for i in 1..starts.len() {
            starts[i] += starts[i - 1];
        }
        let mut next = starts.clone();
        let mut items = vec![TaskIndex(0); self.items.len()];
        for row in 0..self.len() {
            for item in self.row(index(row)) {
                items[next[item.get()] as usize] = index(row);
                next[item.get()] += 1;
            }
        }
        Self { starts: starts.into(), items: items.into() }
    }
}

/// Finds tasks by name: an open-addressing table of indices, 8 to 16 bytes per task beside the names.
#[derive(Clone, PartialEq, Eq)]
struct NameTable {
    names: Box<[TaskName]>,
    slots: Box<[u32]>,
}

const FREE: u32 = u32::MAX;

impl NameTable {
    /// Returns the table and the pairs of tasks that share a name; the first keeps it.
    fn build(tasks: &[Task]) -> (Self, Vec<(TaskIndex, TaskIndex)>) {
        let mut table = Self {
            names: tasks.iter().map(|task| task.name.clone()).collect(),
            slots: vec![FREE; (tasks.len() * 2).next_power_of_two()].into(),
        };
        let mut duplicates = Vec::new();
        for (i, task) in tasks.iter().enumerate() {
            let slot = table.slot(task.name.as_str());
            match table.slots[slot] {
                FREE => table.slots[slot] = index(i).0,
                first => duplicates.push((TaskIndex(first), index(i))),
            }
        }
        (table, duplicates)
    }

    /// Returns the slot that holds `name`, or the free one where it belongs.
    fn slot(&self, name: &str) -> usize {
        // The default hasher with its fixed keys: the same plan gives the same table.
        let mut hasher = std::hash::DefaultHasher::new();
        name.hash(&mut hasher);
        let mask = self.slots.len() - 1;
        let mut slot = usize::try_from(hasher.finish() & mask as u64).unwrap_or(0);
        while self.slots[slot] != FREE && self.names[self.slots[slot] as usize].as_str() != name {
            slot = (slot + 1) & mask;
        }
        slot
    }

    fn get(&self, name: &str) -> Option<TaskIndex> {
        match self.slots[self.slot(name)] {
            FREE => None,
            found => Some(TaskIndex(found)),
        }
    }
}

fn index(i: usize) -> TaskIndex {
    TaskIndex(u32::try_from(i).expect("a plan has at most 1,000,000 tasks"))
}

fn instances(tasks: &[Task]) -> BTreeMap<Box<str>, Box<[TaskIndex]>> {
    let mut found: BTreeMap<&str, Vec<TaskIndex>> = BTreeMap::new();
    for (i, task) in tasks.iter().enumerate() {
        if task.name.base().len() < task.name.as_str().len() {
            found.entry(task.name.base()).or_default().push(index(i));
        }
    }
    found.into_iter().map(|(base, members)| (base.into(), members.into())).collect()
}

fn edges(
    tasks: &[Task],
    names: &NameTable,
    instances: &BTreeMap<Box<str>, Box<[TaskIndex]>>,
    problems: &mut Vec<GraphProblem>,
) -> Rows {
    let mut starts = Vec::with_capacity(tasks.len() + 1);
    let mut items: Vec<TaskIndex> = Vec::with_capacity(tasks.iter().map(|task| task.depends_on.len()).sum());
    // For each task, the last dependent that named it: finds repeats without a set per task.
    let mut named_by = vec![FREE; tasks.len()];
    starts.push(0);
    for (i, task) in tasks.iter().enumerate() {
        let from = index(i);
        for name in &task.depends_on {
            let one = names.get(name.as_str());
            let found = match &one {
                Some(one) => std::slice::from_ref(one),
                None => instances.get(name.as_str()).map_or(&[][..], |members| members),
            };
            if found.is_empty() {
                problems.push(GraphProblem::UnknownDependency { task: from, name: name.clone() });
            }
            for &dependency in found {
                if dependency == from || tasks[dependency.get()].name == task.name {
                    problems.push(GraphProblem::SelfEdge { task: from });
                } else if named_by[dependency.get()] != from.0 {
                    named_by[dependency.get()] = from.0;
                    if tasks[dependency.get()].section != task.section {
                        problems.push(GraphProblem::AcrossSections { task: from, dependency });
                    }
                    items.push(dependency);
                }
            }
        }
        starts.push(u32::try_from(items.len()).expect("fewer than 2^32 edges"));
    }
    Rows { starts: starts.into(), items: items.into() }
}

/// Returns every task's level, and the tasks that are on or behind a cycle.
fn levels(dependencies: &Rows, dependents: &Rows) -> (Vec<u32>, Vec<TaskIndex>) {
    let count = dependencies.len();
    let mut levels = vec![0u32; count];
    let mut waiting: Vec<u32> =
        (0..count).map(|i| dependencies.starts[i + 1] - dependencies.starts[i]).collect();
    let mut ready: VecDeque<TaskIndex> =
        (0..count).map(index).filter(|task| waiting[task.get()] == 0).collect();
    while let Some(task) = ready.pop_front() {
        for dependent in dependents.row(task) {
            levels[dependent.get()] = levels[dependent.get()].max(levels[task.get()] + 1);
            waiting[dependent.get()] -= 1;
            if waiting[dependent.get()] == 0 {
                ready.push_back(*dependent);
            }
        }
    }
    let unfinished = (0..count).map(index).filter(|task| waiting[task.get()] > 0).collect();
    (levels, unfinished)
}

#[cfg(test)]
mod tests;
