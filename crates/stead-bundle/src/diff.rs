//! Two runs compared: their captures, and everything else their bundles hold.
//!
//! [`load_bundle`] and [`load_capture`] give the two [`Side`]s, [`choose_roles`] says whose captures are wanted
//! and [`load_captures`] reads those. From there it is pure: [`compare`] compares, [`Threshold`]s decide whether
//! the difference fails, and [`render_diff`] shows it. [`diff_runs`] is all of it in one call.

mod captures;
mod generic;
mod lines;
mod load;
mod metrics;
mod numbers;
mod render;
mod runs;
mod sides;
mod summary;
mod threshold;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use regex::Regex;
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use captures::{CaptureDiff, CaptureFigures, Service, Skipped};
pub use generic::{Change, Generic, RoleChange, RunChange};
pub use lines::TextChange;
pub use load::{LoadedSide, load_bundle, load_capture, load_captures};
pub use metrics::Metric;
pub use numbers::Numbers;
pub use render::{render_captures, render_diff};
pub use runs::{DiffError, DiffRequest, Diffed, Target, TargetKind, diff_runs};
pub use sides::{RoleChoice, RoleError, RoleSide, Roles, Side, Which, choose_capture, choose_roles};
pub use summary::DiffSummary;
pub use threshold::{Threshold, ThresholdError, ThresholdResult};

/// Version of the format.
const SCHEMA: u32 = 1;

/// How to compare.
#[derive(Clone, Debug, Default)]
pub struct DiffOptions {
    /// Figures that are left out.
    pub skipped: Skipped,
    /// Lines of text files that do not count.
    pub ignored_lines: Vec<Regex>,
    /// Conditions under which the difference fails.
    pub thresholds: Vec<Threshold>,
}

/// What two runs differ in, seen from one role.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RoleDiff {
    /// Version of this format: 1.
    pub schema: u32,
    /// The role; null for two captures without one.
    pub role: Option<String>,
    /// The baseline as it was named.
    pub baseline_bundle: String,
    /// What is compared, as it was named.
    pub compare_bundle: String,
    /// The baseline's capture.
    pub baseline_pcap: Option<String>,
    /// The capture compared.
    pub compare_pcap: Option<String>,
    /// The baseline's `run_meta.json`.
    pub baseline_run_meta: Option<Value>,
    /// `run_meta.json` of what is compared.
    pub compare_run_meta: Option<Value>,
    /// The role's metadata in the baseline.
    pub baseline_role_meta: Option<Value>,
    /// The role's metadata in what is compared.
    pub compare_role_meta: Option<Value>,
    /// The captures compared; null if neither side has one.
    pub pcap_diff: Option<CaptureDiff>,
    /// Everything else compared.
    pub generic: Generic,
    /// The figures.
    pub summary: DiffSummary,
    /// The conditions and how they came out.
    pub thresholds: Vec<ThresholdResult>,
}

/// What two runs differ in, over all roles.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AllRolesDiff {
    /// Version of this format: 1.
    pub schema: u32,
    /// The baseline as it was named.
    pub baseline_bundle: String,
    /// What is compared, as it was named.
    pub compare_bundle: String,
    /// Each role.
    pub roles: BTreeMap<String, RoleDiff>,
    /// The figures of the role with the highest score.
    pub summary: DiffSummary,
    /// The conditions: failed if they failed for any role.
    pub thresholds: Vec<ThresholdResult>,
}

/// A difference: of one role or of all.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum RunDiff {
    /// Of one role, or of two captures.
    One(Box<RoleDiff>),
    /// Of all common roles.
    All(Box<AllRolesDiff>),
}

impl RunDiff {
    /// Returns the conditions and how they came out.
    pub fn thresholds(&self) -> &[ThresholdResult] {
        match self {
            Self::One(diff) => &diff.thresholds,
            Self::All(diff) => &diff.thresholds,
        }
    }

    /// Returns whether any condition failed.
    pub fn has_failed(&self) -> bool {
        self.thresholds().iter().any(|threshold| threshold.failed)
    }
}

/// Returns what differs between two sides for `role`; none for two captures without one.
pub fn compare(
    baseline: &Side,
    compare: &Side,
    role: Option<&str>,
    options: &DiffOptions,
) -> Result<RoleDiff, RoleError> {
    let (old, new) = (baseline.capture_of(role), compare.capture_of(role));
    let one_capture = |without| RoleError::OneCapture { without, role: role.unwrap_or("-").to_owned() };
    let pcap_diff = match (old, new) {
        (Some(old), Some(new)) => Some(CaptureDiff::of(old, new, options.skipped)),
        (None, None) => None,
        (None, Some(_)) => return Err(one_capture(Which::Baseline)),
        (Some(_), None) => return Err(one_capture(Which::Compare)),
    };
    let generic = Generic::of(baseline, compare, &options.ignored_lines);
    let summary = DiffSummary::of(pcap_diff.as_ref(), &generic);
    let mut diff = RoleDiff {
        schema: SCHEMA,
        role: role.map(str::to_owned),
        baseline_bundle: baseline.name.clone(),
        compare_bundle: compare.name.clone(),
        baseline_pcap: old.map(|capture| capture.path.clone()),
        compare_pcap: new.map(|capture| capture.path.clone()),
        baseline_run_meta: baseline.run_meta.clone(),
        compare_run_meta: compare.run_meta.clone(),
        baseline_role_meta: baseline.role_meta(role).cloned(),
        compare_role_meta: compare.role_meta(role).cloned(),
        pcap_diff,
        generic,
        summary,
        thresholds: Vec::new(),
    };
    diff.thresholds = options.thresholds.iter().map(|threshold| threshold.check(&diff)).collect();
    Ok(diff)
}

/// Returns what differs between two sides for each of `roles`.
pub fn compare_roles(
    baseline: &Side,
    compare_with: &Side,
    roles: &[String],
    options: &DiffOptions,
) -> Result<AllRolesDiff, RoleError> {
    let mut diffs = BTreeMap::new();
    for role in roles {
        diffs.insert(role.clone(), compare(baseline, compare_with, Some(role), options)?);
    }
    // The first of equals, so that the result does not depend on the order they were asked for.
    let worst = diffs.values().rev().max_by_key(|diff| diff.summary.diff_score);
    let summary = worst.map(|diff| diff.summary.clone()).ok_or(RoleError::NothingInCommon)?;
    let result = |index: usize| {
        let mut results = diffs.values().filter_map(move |diff| diff.thresholds.get(index));
        let first = results.clone().next();
        results.find(|result| result.failed).or(first).cloned()
    };
    let thresholds = (0..options.thresholds.len()).filter_map(result).collect();
    Ok(AllRolesDiff {
        schema: SCHEMA,
        baseline_bundle: baseline.name.clone(),
        compare_bundle: compare_with.name.clone(),
        roles: diffs,
        summary,
        thresholds,
    })
}
