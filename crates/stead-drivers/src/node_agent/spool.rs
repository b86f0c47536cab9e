//! Reports that the server has not taken yet: one file each, delivered in order.
//!
//! They are bounded in number and in bytes. Too many: first go reports of a spec that a newer one replaces, then the
//! oldest. Too large: the oldest reports of jobs lose what the jobs wrote, but not how they ended.

use std::io;
use std::path::PathBuf;

use stead_model::node::wire::{NodeReport, ReportKind};

use super::place::{self, AGENT, NodeFiles};

/// How many are kept.
const MOST: usize = 1000;
/// How many bytes of them.
const MOST_BYTES: u64 = 128 << 20;
const FOLDER: &str = "reports";

/// What a report is about, as far as its name says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum About {
    /// The node's spec: a newer one says more.
    Spec,
    /// A job, or the node's end: nothing else says it.
    Other,
}

/// A report on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Waiting {
    number: u64,
    about: About,
    bytes: u64,
}

impl Waiting {
    /// Returns the report that a file of this name is.
    fn parse(name: &str, bytes: u64) -> Option<Self> {
        let stem = name.strip_suffix(".json")?;
        let (number, about) = match stem.strip_suffix("-spec") {
            Some(number) => (number, About::Spec),
            None => (stem, About::Other),
        };
        Some(Self { number: number.parse().ok()?, about, bytes })
    }

    fn name(&self) -> String {
        match self.about {
            About::Spec => format!("{:012}-spec.json", self.number),
            About::Other => format!("{:012}.json", self.number),
        }
    }
}

/// Reports on their way.
#[derive(Debug)]
pub(super) struct Spool {
    directory: PathBuf,
    // Invariant: sorted, and every one was on the disk at some time.
    waiting: Vec<Waiting>,
}

impl Spool {
    pub(super) fn open(files: &NodeFiles) -> io::Result<Self> {
        let directory = files.directory(&format!("{AGENT}/{FOLDER}"))?;
        let mut waiting: Vec<Waiting> = std::fs::read_dir(&directory)?
            .flatten()
            .filter_map(|entry| Waiting::parse(entry.file_name().to_str()?, entry.metadata().ok()?.len()))
            .collect();
        waiting.sort_unstable_by_key(|report| report.number);
        Ok(Self { directory, waiting })
    }

    /// Keeps a report; returns how many older ones were given up for it.
    pub(super) fn push(&mut self, report: &NodeReport) -> io::Result<usize> {
        let number = self.waiting.last().map_or(1, |last| last.number + 1);
        let about = match report.kind {
            ReportKind::Config => About::Spec,
            ReportKind::Job | ReportKind::Link | ReportKind::Terminated => About::Other,
        };
        let content = serde_json::to_vec(report)?;
        let kept = Waiting { number, about, bytes: content.len() as u64 };
        place::write(&self.directory.join(kept.name()), &content, 0o600)?;
        self.waiting.push(kept);
        let mut given_up = 0;
        while self.waiting.len() > MOST {
            let last = self.waiting.iter().rposition(|report| report.about == About::Spec);
            let replaced = self.waiting.iter().position(|report| report.about == About::Spec);
            let at = replaced.filter(|at| Some(*at) != last).unwrap_or(0);
            let gone = self.waiting.remove(at);
            place::remove(&self.directory.join(gone.name()))?;
            given_up += 1;
        }
        self.lighten()?;
        Ok(given_up)
    }

    /// Drops what jobs wrote from the oldest reports until all that are left are small enough.
    fn lighten(&mut self) -> io::Result<()> {
        let mut all: u64 = self.waiting.iter().map(|report| report.bytes).sum();
        for at in 0..self.waiting.len() {
            if all <= MOST_BYTES {
                break;
            }
            let file = self.directory.join(self.waiting[at].name());
            let Some(mut report) = read(&file) else { continue };
            if report.stdout.is_empty() && report.stderr.is_empty() {
                continue;
            }
            (report.stdout, report.stderr, report.truncated) = (String::new(), String::new(), true);
            let content = serde_json::to_vec(&report)?;
            place::write(&file, &content, 0o600)?;
            all = all.saturating_sub(self.waiting[at].bytes).saturating_add(content.len() as u64);
            self.waiting[at].bytes = content.len() as u64;
        }
        Ok(())
    }

    /// Returns the oldest report; one that cannot be read is given up.
    pub(super) fn first(&mut self) -> Option<(u64, NodeReport)> {
        while let Some(oldest) = self.waiting.first().copied() {
            match read(&self.directory.join(oldest.name())) {
                Some(report) => return Some((oldest.number, report)),
                None => self.done(oldest.number),
            }
        }
        None
    }

    /// Forgets a report.
    pub(super) fn done(&mut self, number: u64) {
        let gone = self.waiting.iter().position(|waiting| waiting.number == number);
        if let Some(gone) = gone.map(|at| self.waiting.remove(at)) {
            // One that stays is delivered twice, which does no harm.
            place::remove(&self.directory.join(gone.name())).ok();
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}

fn read(file: &std::path::Path) -> Option<NodeReport> {
    serde_json::from_slice(&place::read(file).ok().flatten()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use stead_model::node::wire::ReportStatus;

    fn report(changed: u64) -> NodeReport {
        NodeReport { changed, ..NodeReport::new(ReportKind::Config, ReportStatus::Failed) }
    }

    fn of_job(stdout: &str) -> NodeReport {
        let stdout = stdout.to_owned();
        NodeReport { stdout, rc: Some(3), ..NodeReport::new(ReportKind::Job, ReportStatus::Complete) }
    }

    #[test]
    fn reports_are_kept_in_order_over_restarts() {
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
        std::fs::write(again.directory.join(again.waiting[0].name()), "half").unwrap();
        assert_eq!(again.first().unwrap().1.changed, 2, "one that cannot be read is given up");
    }

    /// How a job ended is told by its report alone; what a node became is told again by the next.
    #[test]
    fn the_end_of_a_job_is_given_up_last() {
        let dir = tempfile::tempdir().unwrap();
        let mut spool = Spool::open(&NodeFiles::below(dir.path())).unwrap();
        spool.push(&of_job("")).unwrap();
        spool.push(&report(1)).unwrap();
        // As if there were a thousand, as promised, without writing them all.
        let other = Waiting { about: About::Other, ..spool.waiting[0] };
        let filler = (3..=1000).map(|number| Waiting { number, ..other });
        spool.waiting.extend(filler);
        assert_eq!(spool.push(&report(2)).unwrap(), 1);
        assert_eq!(spool.waiting[0].number, 1, "the job's");
        assert!(spool.waiting.iter().all(|waiting| waiting.number != 2), "a newer report replaces it");
        assert_eq!(spool.push(&of_job("")).unwrap(), 1);
        assert_eq!(spool.waiting.last().unwrap().about, About::Other);
        assert!(
            spool.waiting.iter().any(|waiting| waiting.about == About::Spec),
            "the newest is not replaced"
        );
    }

    #[test]
    fn too_many_bytes_cost_what_jobs_wrote_and_not_how_they_ended() {
        let dir = tempfile::tempdir().unwrap();
        let mut spool = Spool::open(&NodeFiles::below(dir.path())).unwrap();
        spool.push(&of_job("first")).unwrap();
        spool.push(&of_job("second")).unwrap();
        spool.waiting[0].bytes = MOST_BYTES;
        assert_eq!(spool.push(&of_job("third")).unwrap(), 0);
        let read_all = |spool: &Spool| -> Vec<NodeReport> {
            spool.waiting.iter().filter_map(|waiting| read(&spool.directory.join(waiting.name()))).collect()
        };
        let kept = read_all(&spool);
        assert_eq!((kept[0].stdout.as_str(), kept[0].truncated, kept[0].rc), ("", true, Some(3)));
        assert_eq!((kept[1].stdout.as_str(), kept[2].stdout.as_str()), ("second", "third"));
    }
}
