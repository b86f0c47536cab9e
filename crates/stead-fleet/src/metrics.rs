//! Figures for Prometheus, in its text form: names begin with `stead_fleet_`, labels are few and bounded.

use std::fmt::{Display, Write as _};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use stead_runner::clock;

pub(crate) mod door;

/// Upper bounds of the buckets of [`Durations`], in microseconds.
const BOUNDS: [(&str, u64); 8] = [
    ("0.001", 1_000),
    ("0.005", 5_000),
    ("0.02", 20_000),
    ("0.1", 100_000),
    ("0.5", 500_000),
    ("2", 2_000_000),
    ("10", 10_000_000),
    ("60", 60_000_000),
];

/// Something that is counted.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Counts `more`.
    pub fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    /// Returns how many.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// How long something took, each time.
#[derive(Debug, Default)]
pub struct Durations {
    buckets: [AtomicU64; BOUNDS.len()],
    count: AtomicU64,
    micros: AtomicU64,
}

/// Measures until it is dropped.
#[derive(Debug)]
pub struct Measured<'a> {
    durations: &'a Durations,
    began: Instant,
}

impl Drop for Measured<'_> {
    fn drop(&mut self) {
        let micros = u64::try_from(self.began.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.durations.note(micros);
    }
}

impl Durations {
    /// Returns what measures from now on.
    pub fn start(&self) -> Measured<'_> {
        Measured { durations: self, began: clock::instant() }
    }

    /// Counts one that took so many microseconds.
    pub fn note(&self, micros: u64) {
        for (bucket, (_, bound)) in self.buckets.iter().zip(BOUNDS) {
            if micros <= bound {
                bucket.fetch_add(1, Ordering::Relaxed);
            }
        }
        self.count.fetch_add(1, Ordering::Relaxed);
        self.micros.fetch_add(micros, Ordering::Relaxed);
    }
}

/// A page of figures on its way.
#[derive(Debug, Default)]
pub struct Page {
    text: String,
}

impl Page {
    /// Writes the head of a figure: its name without `stead_fleet_`, its kind (`gauge`, `counter`) and what it is.
    pub fn head(&mut self, name: &str, kind: &str, help: &str) {
        self.line(format_args!("# HELP stead_fleet_{name} {help}"));
        self.line(format_args!("# TYPE stead_fleet_{name} {kind}"));
    }

    /// Writes one value of a figure.
    pub fn value(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display) {
        let labels = labels.iter().map(|(key, value)| {
            let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            format!("{key}=\"{value}\"")
        });
        let labels: Vec<String> = labels.collect();
        let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
        self.line(format_args!("stead_fleet_{name}{labels} {value}"));
    }

    /// Writes a figure with one value.
    pub fn one(&mut self, name: &str, kind: &str, help: &str, value: impl Display) {
        self.head(name, kind, help);
        self.value(name, &[], value);
    }

    /// Writes durations, in seconds.
    pub fn durations(&mut self, name: &str, help: &str, durations: &Durations) {
        self.head(name, "histogram", help);
        let bucket = format!("{name}_bucket");
        for (count, (bound, _)) in durations.buckets.iter().zip(BOUNDS) {
            self.value(&bucket, &[("le", bound)], count.load(Ordering::Relaxed));
        }
        let count = durations.count.load(Ordering::Relaxed);
        self.value(&bucket, &[("le", "+Inf")], count);
        let micros = durations.micros.load(Ordering::Relaxed);
        let seconds = format!("{}.{:06}", micros / 1_000_000, micros % 1_000_000);
        self.value(&format!("{name}_sum"), &[], seconds);
        self.value(&format!("{name}_count"), &[], count);
    }

    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        // Writing to memory does not fail.
        writeln!(self.text, "{line}").ok();
    }

    /// Returns the page.
    pub fn into_text(self) -> String {
        self.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_has_the_form_that_prometheus_reads() {
        let mut page = Page::default();
        page.one("leader", "gauge", "Whether this master leads.", 1);
        page.head("generation", "gauge", "The active generation.");
        page.value("generation", &[("group", "a\"b")], 7);
        let durations = Durations::default();
        durations.note(1_500);
        drop(durations.start());
        page.durations("store_txn_seconds", "How long transactions take.", &durations);
        let text = page.into_text();
        assert!(text.starts_with("# HELP stead_fleet_leader Whether this master leads.\n# TYPE stead_fleet_leader gauge\nstead_fleet_leader 1\n"));
        assert!(text.contains("stead_fleet_generation{group=\"a\\\"b\"} 7\n"));
        assert!(text.contains("stead_fleet_store_txn_seconds_bucket{le=\"0.005\"} 2\n"), "{text}");
        assert!(text.contains("stead_fleet_store_txn_seconds_count 2\n"));
    }
}
