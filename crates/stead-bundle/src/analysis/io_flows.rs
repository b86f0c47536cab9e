//! Cyclic data: packets of each flow and the times between them.

use std::collections::HashMap;

use super::packet::Endpoint;
use super::samples::{Samples, rounded};
use super::summary::{Intervals, Io, IoFlow};

/// How many flows are told apart; packets of later ones are counted in the total only.
const MOST_FLOWS: usize = 65_536;

/// What a flow is told by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct FlowKey {
    pub(crate) source: Endpoint,
    pub(crate) destination: Endpoint,
    pub(crate) connection_id: u32,
}

#[derive(Debug)]
struct Flow {
    packets: u64,
    last: i64,
    gaps: u64,
    sum: i64,
    min: i64,
    max: i64,
}

/// The interval expected between packets of a flow.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Expected {
    pub(crate) millis: f64,
    pub(crate) tolerance_pct: f64,
}

/// All flows of a capture.
#[derive(Debug)]
pub(crate) struct IoFlows {
    expected: Expected,
    packets: u64,
    flows: HashMap<FlowKey, Flow>,
    gaps: Samples,
    violations: u64,
}

impl IoFlows {
    /// Returns no flows, of which `expected` is expected.
    pub(crate) fn new(expected: Expected) -> Self {
        Self { expected, packets: 0, flows: HashMap::new(), gaps: Samples::default(), violations: 0 }
    }

    /// Counts a packet of `key` seen at `time`.
    pub(crate) fn add(&mut self, key: FlowKey, time: i64) {
        self.packets += 1;
        let Some(flow) = self.flows.get_mut(&key) else {
            if self.flows.len() < MOST_FLOWS {
                self.flows
                    .insert(key, Flow { packets: 1, last: time, gaps: 0, sum: 0, min: i64::MAX, max: 0 });
            }
            return;
        };
        flow.packets += 1;
        let gap = time - flow.last;
        flow.last = time;
        if self.gaps.record(gap) {
            flow.gaps += 1;
            flow.sum += gap;
            flow.min = flow.min.min(gap);
            flow.max = flow.max.max(gap);
            let expected = self.expected.millis * 1_000.0;
            let violated = (gap as f64 - expected).abs() > expected * self.expected.tolerance_pct / 100.0;
            self.violations += u64::from(violated);
        }
    }

    /// Returns what was found.
    pub(crate) fn finish(self) -> Io {
        let mut flows: Vec<(FlowKey, Flow)> = self.flows.into_iter().collect();
        flows.sort_unstable_by_key(|(key, _)| *key);
        let jitter = |flow: &Flow| (flow.gaps > 0).then(|| (flow.max - flow.min) as f64 / 1_000.0);
        let largest = flows.iter().filter_map(|(_, flow)| jitter(flow)).reduce(f64::max);
        let count = self.gaps.count();
        let intervals_ms = Intervals {
            count,
            min: self.gaps.min(),
            max: self.gaps.percentile(100),
            mean: self.gaps.mean(),
            std_dev: self.gaps.deviation(),
            jitter: largest,
            p50: self.gaps.percentile(50),
            p90: self.gaps.percentile(90),
            p95: self.gaps.percentile(95),
            p99: self.gaps.percentile(99),
            expected: self.expected.millis,
            violations: self.violations,
            violation_pct: (count > 0).then(|| rounded(self.violations as f64 * 100.0 / count as f64)),
        };
        let flow = |(key, flow): (FlowKey, Flow)| IoFlow {
            src: key.source.to_string(),
            dst: key.destination.to_string(),
            connection_id: key.connection_id,
            packets: flow.packets,
            mean_ms: (flow.gaps > 0).then(|| rounded(flow.sum as f64 / flow.gaps as f64 / 1_000.0)),
            jitter_ms: jitter(&flow),
        };
        Io { packets: self.packets, flows: flows.into_iter().map(flow).collect(), intervals_ms }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(connection_id: u32) -> FlowKey {
        let end = Endpoint { address: 1, port: 2222 };
        FlowKey { source: end, destination: end, connection_id }
    }

    #[test]
    fn gaps_are_those_of_one_flow_and_jitter_is_the_largest_of_a_flow() {
        let mut flows = IoFlows::new(Expected { millis: 20.0, tolerance_pct: 10.0 });
        for (id, millis) in [(1, 0), (2, 5), (1, 20), (2, 28), (1, 42), (2, 48), (1, 42), (2, 20_000)] {
            flows.add(key(id), millis * 1_000);
        }
        let io = flows.finish();
        assert_eq!((io.packets, io.flows.len()), (8, 2));
        let gaps = &io.intervals_ms;
        assert_eq!((gaps.count, gaps.min, gaps.max), (4, Some(20.0), Some(23.0)));
        assert_eq!((gaps.jitter, gaps.violations, gaps.violation_pct), (Some(3.0), 1, Some(25.0)));
        assert_eq!((io.flows[0].mean_ms, io.flows[0].jitter_ms), (Some(21.0), Some(2.0)));
    }
}
