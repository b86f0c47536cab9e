//! Reports that the server has not taken yet: one file each, delivered in order, the oldest given up when there are too
//! many.

use std::io;
use std::path::PathBuf;

use stead_model::node::wire::NodeReport;

use super::place::{self, AGENT, NodeFiles};

/// How many are kept.
const MOST: usize = 1000;
const FOLDER: &str = "reports";

/// Reports on their way.
#[derive(Debug)]
pub(super) struct Spool {
    directory: PathBuf,
    // Invariant: sorted, and every one was on the disk at some time.
    waiting: Vec<u64>,
}

impl Spool {
    pub(super) fn open(files: &NodeFiles) -> io::Result<Self> {
        let directory = files.directory(&format!("{AGENT}/{FOLDER}"))?;
        let number = |name: std::ffi::OsString| name.to_str()?.strip_suffix(".json")?.parse().ok();
        let mut waiting: Vec<u64> =
            std::fs::read_dir(&directory)?.flatten().filter_map(|entry| number(entry.file_name())).collect();
        waiting.sort_unstable();
        Ok(Self { directory, waiting })
    }

    /// Keeps a report; returns how many older ones were given up for it.
    pub(super) fn push(&mut self, report: &NodeReport) -> io::Result<usize> {
        let number = self.waiting.last().map_or(1, |last| last + 1);
        place::write(&self.file(number), &serde_json::to_vec(report)?, 0o600)?;
        self.waiting.push(number);
        let given_up = self.waiting.len().saturating_sub(MOST);
        for number in self.waiting.drain(..given_up).collect::<Vec<_>>() {
            place::remove(&self.file(number))?;
        }
        Ok(given_up)
    }

    /// Returns the oldest report; one that cannot be read is given up.
    pub(super) fn first(&mut self) -> Option<(u64, NodeReport)> {
        while let Some(number) = self.waiting.first().copied() {
            let bytes = place::read(&self.file(number)).ok().flatten();
            match bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok()) {
                Some(report) => return Some((number, report)),
                None => self.done(number),
            }
        }
        None
    }

    /// Forgets a report.
    pub(super) fn done(&mut self, number: u64) {
        self.waiting.retain(|waiting| *waiting != number);
        // One that stays is delivered twice, which does no harm.
        place::remove(&self.file(number)).ok();
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    fn file(&self, number: u64) -> PathBuf {
        self.directory.join(format!("{number:012}.json"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stead_model::node::wire::{ReportKind, ReportStatus};

    fn report(changed: u64) -> NodeReport {
        NodeReport { changed, ..NodeReport::new(ReportKind::Config, ReportStatus::Failed) }
    }

    #[test]
    fn reports_are_kept_in_order_over_restarts_and_the_oldest_given_up() {
        let dir = tempfile::tempdir().unwrap();
        let files = NodeFiles::below(dir.path());
        let mut spool = Spool::open(&files).unwrap();
        assert!(spool.is_empty() && spool.first().is_none());
        for changed in 0..3 {
            assert_eq!(spool.push(&report(changed)).unwrap(), 0);
        }
        let (number, first) = spool.first().unwrap();
        assert_eq!(first.changed, 0);
        spool.done(number);
        let mut again = Spool::open(&files).unwrap();
        assert_eq!(again.first().unwrap().1.changed, 1);
        std::fs::write(again.file(again.waiting[0]), "half").unwrap();
        assert_eq!(again.first().unwrap().1.changed, 2, "one that cannot be read is given up");
        // As if there were many, without writing them all.
        again.waiting.splice(0..0, (0..MOST as u64).map(|_| 1));
        assert_eq!(again.push(&report(9)).unwrap(), 2);
        assert_eq!(again.waiting.len(), MOST);
    }
}
