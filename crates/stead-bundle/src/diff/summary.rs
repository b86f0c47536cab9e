//! The figures of a difference, by name.

use serde::{Deserialize, Serialize};

use super::captures::CaptureDiff;
use super::generic::Generic;
use super::metrics::percent;
use crate::analysis::rounded;

/// The figures of a difference; null where one side has none.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DiffSummary {
    /// Services that came.
    pub services_added: Option<u64>,
    /// Services that went.
    pub services_removed: Option<u64>,
    /// Services that stayed.
    pub services_common: Option<u64>,
    /// Classes that came.
    pub classes_added: Option<u64>,
    /// Classes that went.
    pub classes_removed: Option<u64>,
    /// Classes that stayed.
    pub classes_common: Option<u64>,
    /// More packets.
    pub packet_count_delta: Option<i64>,
    /// More messages.
    pub cip_count_delta: Option<i64>,
    /// More latency, at the 95th percentile.
    pub latency_delta_ms: Option<f64>,
    /// The same in percent.
    pub latency_delta_pct: Option<f64>,
    /// More jitter of cyclic data.
    pub jitter_delta_ms: Option<f64>,
    /// How much longer the run took.
    pub duration_delta_s: Option<f64>,
    /// The same in percent.
    pub duration_delta_pct: Option<f64>,
    /// Roles that ended with another exit code or signal.
    pub exit_codes_changed: u64,
    /// Artifacts that came.
    pub files_added: u64,
    /// Artifacts that went.
    pub files_removed: u64,
    /// Artifacts that changed.
    pub files_changed: u64,
    /// Lines of text that came or went.
    pub text_lines_changed: u64,
    /// Whether the captures differ in anything that counts.
    pub has_significant_diff: bool,
    /// How much they differ, from 0 to 100.
    pub diff_score: u64,
}

impl DiffSummary {
    /// The names of all figures, in their order.
    pub(crate) const KEYS: [&'static str; 20] = [
        "services_added",
        "services_removed",
        "services_common",
        "classes_added",
        "classes_removed",
        "classes_common",
        "packet_count_delta",
        "cip_count_delta",
        "latency_delta_ms",
        "latency_delta_pct",
        "jitter_delta_ms",
        "duration_delta_s",
        "duration_delta_pct",
        "exit_codes_changed",
        "files_added",
        "files_removed",
        "files_changed",
        "text_lines_changed",
        "has_significant_diff",
        "diff_score",
    ];

    pub(crate) fn of(captures: Option<&CaptureDiff>, generic: &Generic) -> Self {
        let count = |count: fn(&CaptureDiff) -> usize| captures.map(|diff| count(diff) as u64);
        let delta = |figure: fn(&super::CaptureFigures) -> u64| {
            captures.map(|diff| figure(&diff.compare).cast_signed() - figure(&diff.baseline).cast_signed())
        };
        let p95 = captures.and_then(|diff| diff.latency(|latency| latency.p95));
        let jitter = captures.and_then(CaptureDiff::jitter);
        let diff_score = captures.map_or(0, CaptureDiff::score);
        Self {
            services_added: count(|diff| diff.added_services.len()),
            services_removed: count(|diff| diff.removed_services.len()),
            services_common: count(|diff| diff.common_services.len()),
            classes_added: count(|diff| diff.added_classes.len()),
            classes_removed: count(|diff| diff.removed_classes.len()),
            classes_common: count(|diff| diff.common_classes.len()),
            packet_count_delta: delta(|side| side.packets),
            cip_count_delta: delta(|side| side.cip.messages),
            latency_delta_ms: p95.map(|(old, new)| rounded(new - old)),
            latency_delta_pct: p95.and_then(|(old, new)| percent(old, new)),
            jitter_delta_ms: jitter.map(|(old, new)| rounded(new - old)),
            duration_delta_s: generic.run.duration_s.delta.map(rounded),
            duration_delta_pct: generic.run.duration_s.delta_pct,
            exit_codes_changed: generic.exit_codes_changed(),
            files_added: generic.files_added.len() as u64,
            files_removed: generic.files_removed.len() as u64,
            files_changed: generic.files_changed.len() as u64,
            text_lines_changed: generic.text.iter().map(|change| change.lines_changed).sum(),
            has_significant_diff: diff_score > 0,
            diff_score,
        }
    }

    /// Returns the figure called `key`; a truth is 1 or 0.
    pub(crate) fn value(&self, key: &str) -> Option<f64> {
        let fields = serde_json::to_value(self).ok()?;
        let field = fields.get(key)?;
        field.as_f64().or_else(|| field.as_bool().map(|truth| if truth { 1.0 } else { 0.0 }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diff::Side;

    #[test]
    fn every_figure_can_be_asked_for_by_its_name() {
        let nothing = Side::default();
        let summary = DiffSummary::of(None, &Generic::of(&nothing, &nothing, &[]));
        let json = serde_json::to_string(&summary).unwrap();
        let mut rest = json.as_str();
        for key in DiffSummary::KEYS {
            let at =
                rest.find(&format!("\"{key}\":")).unwrap_or_else(|| panic!("{key} is not next in {rest}"));
            rest = &rest[at + 1..];
        }
        assert_eq!(json.matches("\":").count(), DiffSummary::KEYS.len());
        assert_eq!(summary.value("has_significant_diff"), Some(0.0));
        assert_eq!(summary.value("latency_delta_ms"), None);
    }
}
