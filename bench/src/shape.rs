//! The graphs that are walked: names and edges, the same on every machine.

/// How the tasks of a plan hang together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// Each task after the one before: nothing runs at once.
    Chain,
    /// No edges: everything is ready at once.
    Wide,
    /// Layers of a hundred, each task after three of the layer before, chosen by a fixed pseudo-random sequence.
    Layered,
}

/// How many tasks a layer has.
const LAYER: usize = 100;

impl Shape {
    pub(crate) const ALL: [Self; 3] = [Self::Chain, Self::Wide, Self::Layered];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Chain => "chain",
            Self::Wide => "wide",
            Self::Layered => "layered",
        }
    }

    pub(crate) fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|shape| shape.name() == name)
    }

    /// Returns which tasks each of `tasks` tasks waits for, in order.
    pub(crate) fn edges(self, tasks: usize) -> Vec<Vec<usize>> {
        let mut random = Xorshift(0x9e37_79b9_7f4a_7c15);
        (0..tasks)
            .map(|task| match self {
                Self::Wide => Vec::new(),
                Self::Chain => task.checked_sub(1).into_iter().collect(),
                Self::Layered => {
                    let Some(layer) = (task / LAYER).checked_sub(1) else { return Vec::new() };
                    let mut before: Vec<usize> =
                        (0..3).map(|_| layer * LAYER + random.below(LAYER)).collect();
                    before.sort_unstable();
                    before.dedup();
                    before
                }
            })
            .collect()
    }
}

/// Returns the name of a task: at most 16 bytes.
pub(crate) fn task_name(task: usize) -> String {
    format!("task-{task:07}")
}

/// A small generator with a fixed seed, so that every run walks the same graph.
struct Xorshift(u64);

impl Xorshift {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 33).unwrap_or(0) % bound
    }
}
