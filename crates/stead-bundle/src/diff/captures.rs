//! Two captures compared: which services and classes came and went, and a score of how much that is.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::analysis::{Capture, Cip, Intervals, Latency, ServiceCount};

/// What two captures differ in.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CaptureDiff {
    /// Services that only the new capture has.
    pub added_services: Vec<Service>,
    /// Services that only the baseline has.
    pub removed_services: Vec<Service>,
    /// Services that both have.
    pub common_services: Vec<Service>,
    /// Classes that only the new capture has.
    pub added_classes: Vec<u16>,
    /// Classes that only the baseline has.
    pub removed_classes: Vec<u16>,
    /// Classes that both have.
    pub common_classes: Vec<u16>,
    /// What the baseline holds.
    pub baseline: CaptureFigures,
    /// What the new capture holds.
    pub compare: CaptureFigures,
}

/// A service, in requests or in replies; how often it was used does not matter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Service {
    /// Its code.
    pub service: u8,
    /// Its name.
    pub name: String,
    /// The class it was used on; 0 in replies.
    pub class: u16,
    /// Whether these are replies.
    pub response: bool,
}

/// The figures of one capture.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CaptureFigures {
    /// Packets.
    pub packets: u64,
    /// Messages.
    pub cip: Cip,
    /// From request to reply; null if timing was left out.
    pub latency_ms: Option<Latency>,
    /// Between packets of cyclic data; null if intervals were left out.
    pub intervals_ms: Option<Intervals>,
}

/// Which figures of captures are left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Skipped {
    /// Latency.
    pub timing: bool,
    /// Intervals of cyclic data.
    pub intervals: bool,
}

impl CaptureDiff {
    /// Returns what differs between two captures.
    pub fn of(baseline: &Capture, compare: &Capture, skipped: Skipped) -> Self {
        let (before, after) = (services(baseline), services(compare));
        let only = |here: &BTreeMap<Key, Service>, there: &BTreeMap<Key, Service>| {
            here.iter()
                .filter(|(key, _)| !there.contains_key(*key))
                .map(|(_, service)| service.clone())
                .collect()
        };
        let common = after.iter().filter(|(key, _)| before.contains_key(*key));
        let (old, new) = (classes(baseline), classes(compare));
        Self {
            added_services: only(&after, &before),
            removed_services: only(&before, &after),
            common_services: common.map(|(_, service)| service.clone()).collect(),
            added_classes: (&new - &old).into_iter().collect(),
            removed_classes: (&old - &new).into_iter().collect(),
            common_classes: (&old & &new).into_iter().collect(),
            baseline: figures(baseline, skipped),
            compare: figures(compare, skipped),
        }
    }

    /// Returns how much differs, from 0 to 100.
    pub fn score(&self) -> u64 {
        let points = |each: usize, count: usize, most: usize| (each * count).min(most) as u64;
        let services =
            points(10, self.added_services.len(), 30) + points(10, self.removed_services.len(), 30);
        let classes = points(5, self.added_classes.len(), 15) + points(5, self.removed_classes.len(), 15);
        let latency = self.latency(|latency| latency.p95);
        let slower = latency.is_some_and(|(old, new)| old > 0.0 && (new - old).abs() > 0.1 * old);
        (services + classes + if slower { 10 } else { 0 }).min(100)
    }

    /// Returns a figure of latency on both sides.
    pub(crate) fn latency(&self, figure: impl Fn(&Latency) -> Option<f64>) -> Option<(f64, f64)> {
        let of = |side: &CaptureFigures| side.latency_ms.as_ref().and_then(&figure);
        of(&self.baseline).zip(of(&self.compare))
    }

    /// Returns the jitter on both sides.
    pub(crate) fn jitter(&self) -> Option<(f64, f64)> {
        let of = |side: &CaptureFigures| side.intervals_ms.as_ref().and_then(|intervals| intervals.jitter);
        of(&self.baseline).zip(of(&self.compare))
    }
}

type Key = (u8, u16, bool);

fn services(capture: &Capture) -> BTreeMap<Key, Service> {
    let keyed = |count: &ServiceCount| {
        let ServiceCount { service, name, class, response, count: _ } = count.clone();
        ((service, class, response), Service { service, name, class, response })
    };
    capture.cip.services.iter().map(keyed).collect()
}

fn classes(capture: &Capture) -> BTreeSet<u16> {
    capture.cip.classes.iter().copied().collect()
}

fn figures(capture: &Capture, skipped: Skipped) -> CaptureFigures {
    CaptureFigures {
        packets: capture.packets,
        cip: capture.cip.clone(),
        latency_ms: (!skipped.timing).then(|| capture.latency_ms.clone()),
        intervals_ms: (!skipped.intervals).then(|| capture.io.intervals_ms.clone()),
    }
}
