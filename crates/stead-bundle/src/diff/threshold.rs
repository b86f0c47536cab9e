//! Conditions under which a difference fails: `NAME` or `NAME OP NUMBER`.

use std::fmt;

use serde::{Deserialize, Serialize};
use stead_model::diagnostic::suggest;

use super::RoleDiff;
use super::metrics::{Metric, percent};
use super::summary::DiffSummary;
use crate::analysis::Latency;

const METRIC: &str = "metric:";
const DELTA: &str = ".delta";
const DELTA_PCT: &str = ".delta_pct";

/// A condition, parsed.
#[derive(Clone, Debug, PartialEq)]
pub struct Threshold {
    expr: String,
    name: Name,
    /// None means "not zero".
    comparison: Option<(Operator, f64)>,
}

/// How a condition came out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ThresholdResult {
    /// The condition as it was written.
    pub expr: String,
    /// What was compared; null if there is no such value.
    pub value: Option<f64>,
    /// Whether it is true, or could not be decided.
    pub failed: bool,
}

/// Why a condition cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ThresholdError {
    /// It is neither a name nor a comparison with a number.
    #[error("`{expr}` is no condition; write NAME, or NAME OP NUMBER with one of > >= < <= == !=")]
    Malformed {
        /// What was written.
        expr: String,
    },
    /// Nothing is called so.
    #[error("`{name}` in `{expr}` is not known; {}", suggest(.name, .candidates.iter().map(String::as_str)))]
    UnknownName {
        /// What was written.
        expr: String,
        /// The name in it.
        name: String,
        /// What it could have been.
        candidates: Vec<String>,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operator {
    Greater,
    GreaterOrEqual,
    Less,
    LessOrEqual,
    Equal,
    NotEqual,
}

impl Operator {
    /// The longer spellings first, since the shorter ones begin them.
    const SPELLINGS: [(&'static str, Self); 6] = [
        (">=", Self::GreaterOrEqual),
        ("<=", Self::LessOrEqual),
        ("==", Self::Equal),
        ("!=", Self::NotEqual),
        (">", Self::Greater),
        ("<", Self::Less),
    ];

    #[expect(clippy::float_cmp, reason = "the user asks for equality")]
    fn holds(self, value: f64, bound: f64) -> bool {
        match self {
            Self::Greater => value > bound,
            Self::GreaterOrEqual => value >= bound,
            Self::Less => value < bound,
            Self::LessOrEqual => value <= bound,
            Self::Equal => value == bound,
            Self::NotEqual => value != bound,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Name {
    Summary(&'static str),
    Latency(LatencyFigure, Unit),
    Metric(String, Unit),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unit {
    Difference,
    Percent,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LatencyFigure {
    P50,
    P90,
    P95,
    P99,
    Mean,
    Max,
}

impl LatencyFigure {
    const ALL: [(&'static str, Self); 6] = [
        ("p50", Self::P50),
        ("p90", Self::P90),
        ("p95", Self::P95),
        ("p99", Self::P99),
        ("mean", Self::Mean),
        ("max", Self::Max),
    ];

    fn of(self, latency: &Latency) -> Option<f64> {
        match self {
            Self::P50 => latency.p50,
            Self::P90 => latency.p90,
            Self::P95 => latency.p95,
            Self::P99 => latency.p99,
            Self::Mean => latency.mean,
            Self::Max => latency.max,
        }
    }
}

impl fmt::Display for Threshold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.expr)
    }
}

impl Threshold {
    /// Returns the condition that `expr` writes.
    pub fn parse(expr: &str) -> Result<Self, ThresholdError> {
        let (name, comparison) = match split(expr) {
            Some((name, operator, bound)) => (name, Some((operator, bound))),
            None => (expr.trim(), None),
        };
        let malformed = || ThresholdError::Malformed { expr: expr.to_owned() };
        // A key of a metric may hold any character; other names hold none of an operator.
        let has_operator = name.contains(['<', '>', '=', '!']) && !name.starts_with(METRIC);
        if name.is_empty() || has_operator {
            return Err(malformed());
        }
        let Some(known) = parse_name(name) else {
            let (expr, name) = (expr.to_owned(), name.to_owned());
            let candidates = candidates(&name);
            return Err(ThresholdError::UnknownName { expr, name, candidates });
        };
        Ok(Self { expr: expr.trim().to_owned(), name: known, comparison })
    }

    /// Returns how the condition comes out for `diff`.
    pub(crate) fn check(&self, diff: &RoleDiff) -> ThresholdResult {
        let value = self.value(diff);
        let failed = match (value, self.comparison) {
            (None, _) => true,
            (Some(value), None) => value != 0.0,
            (Some(value), Some((operator, bound))) => operator.holds(value, bound),
        };
        ThresholdResult { expr: self.expr.clone(), value, failed }
    }

    fn value(&self, diff: &RoleDiff) -> Option<f64> {
        match &self.name {
            Name::Summary(key) => diff.summary.value(key),
            Name::Latency(figure, unit) => {
                let (old, new) = diff.pcap_diff.as_ref()?.latency(|latency| figure.of(latency))?;
                match unit {
                    Unit::Difference => Some(crate::analysis::rounded(new - old)),
                    Unit::Percent => percent(old, new),
                }
            }
            Name::Metric(key, unit) => {
                let Metric { delta, delta_pct, .. } = diff.generic.metrics.get(key)?;
                match unit {
                    Unit::Difference => *delta,
                    Unit::Percent => *delta_pct,
                }
            }
        }
    }
}

/// Splits `expr` at its last operator, if a number follows that.
fn split(expr: &str) -> Option<(&str, Operator, f64)> {
    let last = expr.rfind(['<', '>', '='])?;
    let (head, tail) = expr.split_at(last + 1);
    let bound: f64 = tail.trim().parse().ok().filter(|bound: &f64| bound.is_finite())?;
    let (spelling, operator) =
        Operator::SPELLINGS.into_iter().find(|(spelling, _)| head.ends_with(spelling))?;
    Some((head.strip_suffix(spelling)?.trim(), operator, bound))
}

fn parse_name(name: &str) -> Option<Name> {
    if let Some(metric) = name.strip_prefix(METRIC) {
        let percent = metric.strip_suffix(DELTA_PCT).map(|key| (key, Unit::Percent));
        let (key, unit) =
            percent.or_else(|| metric.strip_suffix(DELTA).map(|key| (key, Unit::Difference)))?;
        return (!key.is_empty()).then(|| Name::Metric(key.to_owned(), unit));
    }
    if let Some(key) = DiffSummary::KEYS.into_iter().find(|key| *key == name) {
        return Some(Name::Summary(key));
    }
    let (figure, unit) = name.strip_prefix("latency_")?.split_once("_delta_")?;
    let unit = match unit {
        "ms" => Unit::Difference,
        "pct" => Unit::Percent,
        _ => return None,
    };
    let (_, figure) = LatencyFigure::ALL.into_iter().find(|(spelling, _)| *spelling == figure)?;
    Some(Name::Latency(figure, unit))
}

/// Returns the names there are; for a metric without its ending, that metric with both.
fn candidates(name: &str) -> Vec<String> {
    if name.starts_with(METRIC) {
        return [DELTA, DELTA_PCT].map(|ending| format!("{name}{ending}")).to_vec();
    }
    let latency = LatencyFigure::ALL
        .into_iter()
        .flat_map(|(figure, _)| ["ms", "pct"].map(|unit| format!("latency_{figure}_delta_{unit}")));
    let metric = [DELTA, DELTA_PCT].map(|ending| format!("{METRIC}KEY{ending}"));
    DiffSummary::KEYS.into_iter().map(str::to_owned).chain(latency).chain(metric).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_are_names_or_comparisons() {
        let parsed =
            |expr: &str| Threshold::parse(expr).map(|parsed| (parsed.name, parsed.comparison)).unwrap();
        assert_eq!(parsed("services_added"), (Name::Summary("services_added"), None));
        assert_eq!(
            parsed(" latency_delta_ms >= -1.5e1 "),
            (Name::Summary("latency_delta_ms"), Some((Operator::GreaterOrEqual, -15.0)))
        );
        assert_eq!(
            parsed("latency_p99_delta_pct!=3"),
            (Name::Latency(LatencyFigure::P99, Unit::Percent), Some((Operator::NotEqual, 3.0)))
        );
        assert_eq!(
            parsed("metric:client/out.json#/rps.delta_pct<-5"),
            (Name::Metric("client/out.json#/rps".to_owned(), Unit::Percent), Some((Operator::Less, -5.0)))
        );
        assert_eq!(
            parsed("metric:client/a.json#/x<3.delta==0"),
            (Name::Metric("client/a.json#/x<3".to_owned(), Unit::Difference), Some((Operator::Equal, 0.0)))
        );
        assert_eq!(
            parsed("metric:client/a.json#/x=y.delta"),
            (Name::Metric("client/a.json#/x=y".to_owned(), Unit::Difference), None)
        );
    }

    #[test]
    fn what_is_no_condition_is_said() {
        for expr in [
            "",
            "  ",
            ">5",
            "services_added >",
            "services_added > many",
            "services_added > NaN",
            "a = 5",
            "x=>5",
        ] {
            let error = Threshold::parse(expr).unwrap_err();
            assert!(matches!(error, ThresholdError::Malformed { .. }), "{expr}: {error}");
        }
    }

    #[test]
    fn unknown_names_come_with_candidates() {
        let error = |expr: &str| Threshold::parse(expr).unwrap_err().to_string();
        assert_eq!(
            error("service_added>1"),
            "`service_added` in `service_added>1` is not known; did you mean `services_added`?"
        );
        assert!(error("speed").contains("known: services_added, services_removed"), "{}", error("speed"));
        assert!(error("metric:a.json#/x").contains("did you mean `metric:a.json#/x.delta`?"));
        assert!(error("latency_p42_delta_ms").contains("latency_p"), "{}", error("latency_p42_delta_ms"));
    }
}
