//! Numbers in JSON files compared, each by its place.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::Number;

use super::numbers::Numbers;
use crate::analysis::rounded;

/// A number on both sides.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Metric {
    /// In the baseline; null if it is not there.
    pub baseline: Option<Number>,
    /// In what is compared; null if it is not there.
    pub compare: Option<Number>,
    /// The new less the old; null if one is missing.
    pub delta: Option<f64>,
    /// The same in percent of the old; null if that is 0.
    pub delta_pct: Option<f64>,
}

impl Metric {
    /// Returns a metric of two numbers.
    pub(crate) fn of(baseline: Option<Number>, compare: Option<Number>) -> Self {
        let float = |number: &Option<Number>| number.as_ref().and_then(Number::as_f64);
        let both = float(&baseline).zip(float(&compare));
        let delta = both.map(|(old, new)| new - old).filter(|delta| delta.is_finite());
        let delta_pct = both.and_then(|(old, new)| percent(old, new));
        Self { baseline, compare, delta, delta_pct }
    }

    /// Returns a metric of two floats.
    pub(crate) fn of_floats(baseline: Option<f64>, compare: Option<f64>) -> Self {
        let number = |float: Option<f64>| float.and_then(Number::from_f64);
        Self::of(number(baseline), number(compare))
    }
}

/// Returns how much `new` is more than `old` in percent; none if `old` is 0.
pub(crate) fn percent(old: f64, new: f64) -> Option<f64> {
    let percent = (new - old) * 100.0 / old.abs();
    (old != 0.0 && percent.is_finite()).then(|| rounded(percent))
}

/// Adds every number of two documents to `metrics`, called `<file>#<JSON pointer>`.
pub(crate) fn compare_documents(
    file: &str,
    Numbers(old): &Numbers,
    Numbers(new): &Numbers,
    metrics: &mut BTreeMap<String, Metric>,
) {
    let pointers: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    for pointer in pointers {
        let metric = Metric::of(old.get(pointer).cloned(), new.get(pointer).cloned());
        metrics.insert(format!("{file}#{pointer}"), metric);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_number_is_compared_by_its_pointer() {
        let old = json!({"rps": 1000, "zero": 0, "deep": [{"a/b~": 2.5}], "gone": 1, "text": "5"});
        let new = json!({"rps": 800, "zero": 3, "deep": [{"a/b~": 5}], "came": 2, "text": 5});
        let mut metrics = BTreeMap::new();
        let [old, new] = [old, new].map(|document| {
            Numbers::read(&serde_json::to_vec(&document).unwrap(), &mut usize::MAX.clone()).unwrap()
        });
        compare_documents("client/out.json", &old, &new, &mut metrics);
        let shown: Vec<String> = metrics
            .iter()
            .map(|(key, metric)| format!("{key} {:?} {:?}", metric.delta, metric.delta_pct))
            .collect();
        assert_eq!(
            shown,
            [
                "client/out.json#/came None None",
                "client/out.json#/deep/0/a~1b~0 Some(2.5) Some(100.0)",
                "client/out.json#/gone None None",
                "client/out.json#/rps Some(-200.0) Some(-20.0)",
                "client/out.json#/text None None",
                "client/out.json#/zero Some(3.0) None",
            ]
        );
    }

    #[test]
    fn a_percentage_of_a_negative_number_keeps_its_sign() {
        assert_eq!(percent(-10.0, -5.0), Some(50.0));
        assert_eq!(percent(0.0, 5.0), None);
    }
}
