use std::sync::Arc;

use proptest::prelude::*;
use stead_model::plan::{Action, Digest, Function, Settings};

use super::*;

fn task(name: &str, depends_on: &[&str]) -> Task {
    Task {
        name: TaskName::parse(name).unwrap(),
        section: Section::Main,
        depends_on: depends_on.iter().map(|name| TaskName::parse(name).unwrap()).collect(),
        action: Action::Function(Function::default()),
        settings: Arc::new(Settings::default()),
        item: None,
        hash: Digest::default(),
    }
}

fn finally(name: &str, depends_on: &[&str]) -> Task {
    Task { section: Section::Finally, ..task(name, depends_on) }
}

fn messages(tasks: &[Task]) -> Vec<String> {
    Graph::build(tasks).unwrap_err().iter().map(|problem| problem.message(tasks)).collect()
}

#[test]
fn edges_are_found_from_both_ends() {
    let tasks = [task("a", &[]), task("b", &["a"]), task("c", &["a"]), task("d", &["c", "b", "c"])];
    let graph = Graph::build(&tasks).unwrap();
    assert_eq!(graph.dependencies(TaskIndex(3)), [TaskIndex(2), TaskIndex(1)]);
    assert_eq!(graph.dependents(TaskIndex(0)), [TaskIndex(1), TaskIndex(2)]);
    assert_eq!(graph.levels(), [0, 1, 1, 2]);
    assert_eq!(graph.roots().collect::<Vec<_>>(), [TaskIndex(0)]);
    assert_eq!(graph.index_of("c"), Some(TaskIndex(2)));
    assert_eq!(graph.index_of("x"), None);
    assert!(graph.is_upstream(TaskIndex(3), TaskIndex(0)));
    assert!(!graph.is_upstream(TaskIndex(0), TaskIndex(3)));
    assert!(!graph.is_upstream(TaskIndex(1), TaskIndex(2)));
    assert!(!graph.is_upstream(TaskIndex(1), TaskIndex(1)));
    assert_eq!(graph.upstream(TaskIndex(3)), [TaskIndex(0), TaskIndex(1), TaskIndex(2)]);
    assert!(Graph::build(&[]).unwrap().is_empty());
}

/// Case 2: diamond 3 levels, three independents 1, chain of three 3.
#[test]
fn levels_count_the_longest_way() {
    let count = |tasks: &[Task]| Graph::build(tasks).unwrap().levels().iter().max().unwrap() + 1;
    assert_eq!(count(&[task("a", &[]), task("b", &["a"]), task("c", &["a"]), task("d", &["b", "c"])]), 3);
    assert_eq!(count(&[task("a", &[]), task("b", &[]), task("c", &[])]), 1);
    assert_eq!(count(&[task("a", &[]), task("b", &["a"]), task("c", &["b"])]), 3);
}

/// Case 3 (graph part): every problem is found at once and the cycle is a path.
#[test]
fn all_problems_are_found_at_once() {
    let tasks = [
        task("x", &["nope"]),
        task("a", &["c"]),
        task("b", &["a"]),
        task("c", &["b"]),
        task("s", &["s"]),
        task("x", &[]),
        finally("f", &["x"]),
        task("n", &["g"]),
        finally("g", &[]),
    ];
    assert_eq!(
        messages(&tasks),
        [
            "two tasks are called `x`",
            "task `x` depends on `nope`, which does not exist",
            "task `s` depends on itself: s -> s",
            "`finally` task `f` depends on the normal task `x`",
            "task `n` depends on the `finally` task `g`",
            "tasks wait for each other: a -> b -> c -> a",
        ]
    );
}

#[test]
fn each_cyclic_component_is_reported_once_and_what_hangs_behind_it_is_not() {
    let tasks = [
        task("behind", &["b"]),
        task("b", &["a", "c"]),
        task("a", &["b"]),
        task("c", &["b"]),
        task("y", &["x"]),
        task("x", &["y"]),
    ];
    let found = messages(&tasks);
    assert_eq!(found, ["tasks wait for each other: b -> a -> b", "tasks wait for each other: y -> x -> y"]);
}

/// Case 30 (in part): `depends_on: p` waits for every instance of `p`.
#[test]
fn the_base_name_of_a_for_each_stands_for_all_instances() {
    let tasks = [task("p[eu]", &[]), task("p[us]", &[]), task("q", &["p"]), task("r", &["p[us]"])];
    let graph = Graph::build(&tasks).unwrap();
    assert_eq!(graph.dependencies(TaskIndex(2)), [TaskIndex(0), TaskIndex(1)]);
    assert_eq!(graph.dependencies(TaskIndex(3)), [TaskIndex(1)]);
    assert_eq!(graph.matching("p"), [TaskIndex(0), TaskIndex(1)]);
    assert_eq!(graph.matching("p[us]"), [TaskIndex(1)]);
}

/// Case 32 (graph part): depth is never recursion.
#[test]
fn a_deep_chain_and_a_long_cycle_do_not_overflow_the_stack() {
    let name = |i: usize| format!("t{i}");
    let mut tasks: Vec<Task> = (0..100_000)
        .map(|i| if i == 0 { task("t0", &[]) } else { task(&name(i), &[&name(i - 1)]) })
        .collect();
    let graph = Graph::build(&tasks).unwrap();
    assert_eq!(graph.levels().last(), Some(&99_999));
    assert!(graph.is_upstream(TaskIndex(99_999), TaskIndex(0)));
    tasks[0] = task("t0", &["t99999"]);
    let problems = Graph::build(&tasks).unwrap_err();
    assert!(matches!(&problems[..], [GraphProblem::Cycle { path }] if path.len() == 100_000));
}

/// Edges of a random DAG: every task depends only on tasks before it in a random order.
fn dag() -> impl Strategy<Value = Vec<Vec<usize>>> {
    (1usize..40).prop_flat_map(|count| {
        let rows: Vec<_> = (0..count).map(|i| prop::collection::vec(0..i.max(1), 0..4.min(i + 1))).collect();
        rows.prop_map(|rows| {
            rows.into_iter()
                .enumerate()
                .map(|(i, row)| row.into_iter().filter(|dependency| *dependency < i).collect())
                .collect()
        })
    })
}

fn build(rows: &[Vec<usize>], rank: &[usize]) -> Vec<Task> {
    // `rank[i]` is where task i stands in the plan, so plan order is no topological order.
    let mut tasks: Vec<(usize, Task)> = rows
        .iter()
        .enumerate()
        .map(|(i, row)| {
            let names: Vec<String> = row.iter().map(|d| format!("t{d}")).collect();
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            (rank[i], task(&format!("t{i}"), &names))
        })
        .collect();
    tasks.sort_by_key(|(rank, _)| *rank);
    tasks.into_iter().map(|(_, task)| task).collect()
}

proptest! {
    #[test]
    fn a_dag_has_no_cycle_and_dependents_lie_above(rows in dag(), seed in any::<u64>()) {
        let count = rows.len();
        let rank: Vec<usize> = (0..count).map(|i| (i.wrapping_mul(7919) ^ seed as usize) % 97).collect();
        let tasks = build(&rows, &rank);
        let graph = Graph::build(&tasks).unwrap();
        for (i, _) in tasks.iter().enumerate() {
            let upstream = graph.upstream(index(i));
            for other in (0..count).map(index) {
                prop_assert_eq!(graph.is_upstream(index(i), other), upstream.contains(&other));
            }
            for dependency in graph.dependencies(index(i)) {
                prop_assert!(graph.levels()[dependency.get()] < graph.levels()[i]);
                prop_assert!(graph.dependents(*dependency).contains(&index(i)));
            }
        }
    }

    #[test]
    fn a_planted_cycle_is_found_and_is_real(rows in dag(), length in 2usize..6, seed in any::<u64>()) {
        let mut rows = rows;
        let base = rows.len();
        for i in 0..length {
            rows.push(vec![base + (i + length - 1) % length]);
        }
        let rank: Vec<usize> = (0..rows.len()).map(|i| (i.wrapping_mul(7919) ^ seed as usize) % 97).collect();
        let tasks = build(&rows, &rank);
        let problems = Graph::build(&tasks).unwrap_err();
        let [GraphProblem::Cycle { path }] = &problems[..] else { panic!("{problems:?}") };
        prop_assert_eq!(path.len(), length);
        prop_assert_eq!(path.iter().min(), path.first());
        for (i, member) in path.iter().enumerate() {
            let next = path[(i + 1) % path.len()];
            prop_assert!(tasks[next.get()].depends_on.contains(&tasks[member.get()].name));
        }
    }
}
