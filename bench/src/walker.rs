//! A baseline, not a product: the least a DAG walker on tokio can do, in the manner of steno's executor.
//!
//! Every node is a spawned task that tells the walker when it is done; the walker appends start and end to a log in
//! memory and starts what became ready, at most [`PARALLEL`] at once. It has no names, guards, retries, cancellation,
//! results, report or journal.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;

use crate::sample::time_both;
use crate::shape::Shape;

/// As many as Stead's default.
const PARALLEL: usize = 64;

#[derive(Clone, Copy, Debug)]
enum Entry {
    Started(usize),
    Succeeded(usize),
}

/// A node's work under way.
type Work = Pin<Box<dyn Future<Output = ()> + Send>>;
/// A node's work.
type Action = Arc<dyn Fn() -> Work + Send + Sync>;

/// Walks a graph of actions that do nothing and returns how long that took.
pub(crate) fn walk(shape: Shape, tasks: usize) -> (Duration, Duration) {
    let edges = shape.edges(tasks);
    let actions: Vec<Action> =
        (0..tasks).map(|_| Arc::new(|| -> Work { Box::pin(async {}) }) as Action).collect();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    time_both(|| {
        let log = runtime.block_on(walk_graph(&edges, &actions));
        let nodes = |wanted: fn(&Entry) -> Option<usize>| log.iter().filter_map(wanted).sum::<usize>();
        let started = nodes(|entry| if let Entry::Started(node) = entry { Some(*node) } else { None });
        let succeeded = nodes(|entry| if let Entry::Succeeded(node) = entry { Some(*node) } else { None });
        assert!(log.len() == 2 * tasks && started == succeeded, "every node ran once");
    })
}

#[expect(
    clippy::disallowed_methods,
    reason = "the baseline spawns as plainly as can be; it waits for every node"
)]
async fn walk_graph(edges: &[Vec<usize>], actions: &[Action]) -> Vec<Entry> {
    let mut dependents = vec![Vec::new(); edges.len()];
    let mut waiting: Vec<usize> = edges.iter().map(Vec::len).collect();
    for (node, before) in edges.iter().enumerate() {
        for other in before {
            dependents[*other].push(node);
        }
    }
    let mut ready: VecDeque<usize> = (0..edges.len()).filter(|node| waiting[*node] == 0).collect();
    let (sender, mut ended) = mpsc::channel(1024);
    let (mut running, mut log) = (0, Vec::new());
    loop {
        while running < PARALLEL
            && let Some(node) = ready.pop_front()
        {
            log.push(Entry::Started(node));
            running += 1;
            let (action, sender) = (Arc::clone(&actions[node]), sender.clone());
            tokio::spawn(async move {
                action().await;
                sender.send(node).await.expect("the walker waits for every node it started");
            });
        }
        if running == 0 {
            return log;
        }
        let node = ended.recv().await.expect("this function keeps a sender");
        running -= 1;
        log.push(Entry::Succeeded(node));
        for dependent in &dependents[node] {
            waiting[*dependent] -= 1;
            if waiting[*dependent] == 0 {
                ready.push_back(*dependent);
            }
        }
    }
}
