//! One measurement in a process of its own.
//!
//! The parent starts this program again with the words of a [`Case`]; the child takes the case and prints one line
//! that [`Sample::parse`] reads.

use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

use crate::shape::Shape;
use crate::{engine, interrupt, runner, walker};

/// What walks the graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Walker {
    /// The pure engine, answered at once.
    Engine,
    /// The runner with closures that do nothing, not recorded.
    Runner,
    /// The same, recorded: journal, report and seal.
    Recorded,
    /// The baseline of [`walker`].
    Baseline,
}

impl Walker {
    const ALL: [Self; 4] = [Self::Engine, Self::Runner, Self::Recorded, Self::Baseline];

    fn name(self) -> &'static str {
        match self {
            Self::Engine => "engine",
            Self::Runner => "runner",
            Self::Recorded => "recorded",
            Self::Baseline => "baseline",
        }
    }
}

/// What is measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Case {
    pub(crate) walker: Walker,
    pub(crate) shape: Shape,
    pub(crate) tasks: usize,
}

/// What came out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    /// How long the walk took, the plan being built already.
    pub(crate) walk: Duration,
    /// How long processors worked on it, over all threads: what a busy machine cannot distort.
    pub(crate) cpu: Duration,
    /// How far the resident memory grew above what the process had before the plan was built, in bytes.
    pub(crate) growth: u64,
}

/// The word that makes this program a child.
const CHILD: &str = "sample";
/// The word that makes it a child under a profiler: `valgrind --tool=cachegrind stead-bench profile runner wide 20000`.
const PROFILED: &str = "profile";

/// Whether a profiler counts: valgrind does not survive the way the processor time is asked for.
static IS_PROFILED: AtomicBool = AtomicBool::new(false);

impl Case {
    /// Returns the case a child is to take.
    pub(crate) fn parse(words: &[String]) -> Option<Self> {
        let [child, walker, shape, tasks] = words else { return None };
        match child.as_str() {
            CHILD => {}
            PROFILED => IS_PROFILED.store(true, Ordering::Relaxed),
            _ => return None,
        }
        Some(Self {
            walker: Walker::ALL.into_iter().find(|kind| kind.name() == walker)?,
            shape: Shape::parse(shape)?,
            tasks: tasks.parse().ok()?,
        })
    }

    /// Takes the case in this process.
    pub(crate) fn take(self) -> Sample {
        let before = memory("VmRSS:");
        let (walk, cpu) = match self.walker {
            Walker::Engine => engine::walk(self.shape, self.tasks),
            Walker::Runner => runner::walk(self.shape, self.tasks, false),
            Walker::Recorded => runner::walk(self.shape, self.tasks, true),
            Walker::Baseline => walker::walk(self.shape, self.tasks),
        };
        Sample { walk, cpu, growth: memory("VmHWM:").saturating_sub(before) }
    }

    /// Takes the case once in a child process.
    pub(crate) fn sample(self) -> Sample {
        let program = std::env::current_exe().expect("this program has a path");
        let tasks = self.tasks.to_string();
        let output = Command::new(program)
            .args([CHILD, self.walker.name(), self.shape.name(), &tasks])
            .stderr(Stdio::inherit())
            .output()
            .expect("this program can be started again");
        interrupt::check();
        assert!(output.status.success(), "{self:?} failed");
        Sample::parse(&String::from_utf8_lossy(&output.stdout)).expect("a child prints its sample")
    }

    /// Returns the medians of several samples.
    pub(crate) fn median(self, samples: usize) -> Sample {
        let taken: Vec<Sample> = (0..samples).map(|_| self.sample()).collect();
        Sample {
            walk: median(taken.iter().map(|sample| sample.walk).collect()),
            cpu: median(taken.iter().map(|sample| sample.cpu).collect()),
            growth: median(taken.iter().map(|sample| sample.growth).collect()),
        }
    }
}

impl Sample {
    #[expect(clippy::print_stdout, reason = "how a child answers its parent")]
    pub(crate) fn print(self) {
        println!("{} {} {}", self.walk.as_nanos(), self.cpu.as_nanos(), self.growth);
    }

    fn parse(line: &str) -> Option<Self> {
        let figures: Vec<u64> = line.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        let [walk, cpu, growth] = figures[..] else { return None };
        Some(Self { walk: Duration::from_nanos(walk), cpu: Duration::from_nanos(cpu), growth })
    }

    /// Returns the time per task in seconds.
    pub(crate) fn per_task(self, tasks: usize) -> f64 {
        self.walk.as_secs_f64() / tasks as f64
    }

    /// Returns the processor time per task in seconds.
    pub(crate) fn cpu_per_task(self, tasks: usize) -> f64 {
        self.cpu.as_secs_f64() / tasks as f64
    }
}

/// Returns the middle value.
pub(crate) fn median<T: Ord + Copy>(mut values: Vec<T>) -> T {
    values.sort_unstable();
    values[values.len() / 2]
}

/// Returns how long `work` takes.
pub(crate) fn time(work: impl FnOnce()) -> Duration {
    interrupt::check();
    let start = Instant::now();
    work();
    start.elapsed()
}

/// Returns how long `work` takes, and how long processors work on it.
pub(crate) fn time_both(work: impl FnOnce()) -> (Duration, Duration) {
    let cpu = processor_time();
    let walk = time(work);
    (walk, processor_time() - cpu)
}

fn processor_time() -> Duration {
    if IS_PROFILED.load(Ordering::Relaxed) {
        return Duration::ZERO;
    }
    let now = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(u64::try_from(now.tv_sec).unwrap_or(0), u32::try_from(now.tv_nsec).unwrap_or(0))
}

/// Returns a line of this process's memory figures, in bytes.
fn memory(line: &str) -> u64 {
    memory_of(std::process::id(), line)
}

/// Returns a line of a process's memory figures, in bytes.
pub(crate) fn memory_of(process: u32, line: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status"));
    let status = status.expect("Linux tells a process's memory");
    let kib = status
        .lines()
        .find_map(|text| text.strip_prefix(line)?.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok());
    kib.expect("the figure is there") * 1024
}
