//! What a publisher counts, in the text form of Prometheus. Labels are bounded: stages, and nothing else.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What a publisher counts.
#[derive(Debug, Default)]
pub struct Metrics(Mutex<Counts>);

#[derive(Debug, Default)]
struct Counts {
    head_generation: u64,
    polled: Option<Instant>,
    stages: BTreeMap<String, Sum>,
    published: Sum,
}

#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    count: u64,
    total: Duration,
}

impl Sum {
    fn add(&mut self, time: Duration) {
        self.count += 1;
        self.total += time;
    }
}

impl Metrics {
    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The repository answered.
    pub(super) fn polled(&self) {
        self.counts().polled = Some(Instant::now());
    }

    /// A commit has its number.
    pub(super) fn reserved(&self, generation: u64) {
        self.counts().head_generation = generation;
    }

    /// A group came to a stage.
    pub(super) fn reached(&self, stage: &str, time: Duration) {
        self.counts().stages.entry(stage.to_owned()).or_default().add(time);
    }

    /// The master answered, so long after the commit was accepted.
    pub(super) fn published(&self, time: Duration) {
        self.counts().published.add(time);
    }

    /// Returns everything as text.
    pub fn to_text(&self) -> String {
        let counts = self.counts();
        let mut text = String::new();
        let mut line = |args: std::fmt::Arguments<'_>| {
            // A text takes everything.
            writeln!(text, "{args}").unwrap_or(());
        };
        line(format_args!("# TYPE stead_fleet_head_generation gauge"));
        line(format_args!("stead_fleet_head_generation {}", counts.head_generation));
        if let Some(polled) = counts.polled {
            line(format_args!("# TYPE stead_fleet_last_poll_age_seconds gauge"));
            line(format_args!("stead_fleet_last_poll_age_seconds {:.3}", polled.elapsed().as_secs_f64()));
        }
        line(format_args!("# TYPE stead_fleet_pipeline_seconds summary"));
        for (stage, sum) in &counts.stages {
            let total = sum.total.as_secs_f64();
            line(format_args!("stead_fleet_pipeline_seconds_sum{{stage=\"{stage}\"}} {total:.6}"));
            line(format_args!("stead_fleet_pipeline_seconds_count{{stage=\"{stage}\"}} {}", sum.count));
        }
        line(format_args!("# TYPE stead_fleet_publish_seconds summary"));
        line(format_args!("stead_fleet_publish_seconds_sum {:.6}", counts.published.total.as_secs_f64()));
        line(format_args!("stead_fleet_publish_seconds_count {}", counts.published.count));
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_counted_is_told() {
        let metrics = Metrics::default();
        metrics.reserved(7);
        metrics.polled();
        metrics.reached("built", Duration::from_millis(1500));
        metrics.reached("built", Duration::from_millis(500));
        metrics.published(Duration::from_secs(3));
        let text = metrics.to_text();
        for line in [
            "stead_fleet_head_generation 7",
            "stead_fleet_pipeline_seconds_sum{stage=\"built\"} 2.000000",
            "stead_fleet_pipeline_seconds_count{stage=\"built\"} 2",
            "stead_fleet_publish_seconds_count 1",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}: {text}");
        }
        assert!(text.contains("stead_fleet_last_poll_age_seconds 0."), "{text}");
    }
}
