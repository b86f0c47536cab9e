//! Finding the hosts of a target among ten thousand.

use std::hint::black_box;

use stead_engine::target::{HostSet, TargetExpr, resolve};
use stead_model::HostName;

use crate::Effort;
use crate::sample::time_both;
use crate::table::Table;

const HOSTS: usize = 10_000;

/// The contract's limit, in seconds.
const LIMIT: f64 = 0.005;

/// The lines about targets.
pub(crate) fn measure(effort: Effort, table: &mut Table) {
    let name = |i: usize| format!("host-{i:05}");
    let hosts = HostSet::new((0..HOSTS).map(|i| {
        let labels = [("role", ["web.front", "web", "db"][i % 3]), ("zone", ["a", "b"][i % 2])];
        let labels = labels.map(|(key, value)| (key.to_owned(), value.to_owned()));
        (HostName::parse(&name(i)).expect("a word"), labels.into())
    }));
    let listed: Vec<String> = (0..HOSTS).rev().map(name).collect();
    for (what, texts) in [
        ("a name", vec![name(HOSTS / 2)]),
        ("labels and a glob", vec!["role:web&!zone:a,host-*7,!host-00*".to_owned()]),
        ("one of a set", vec!["role:db&_any".to_owned()]),
        ("a list of all names", listed),
    ] {
        let exprs: Vec<TargetExpr> =
            texts.iter().map(|text| TargetExpr::parse(text).expect("it is right")).collect();
        let mut taken: Vec<f64> = (0..effort.samples())
            .map(|_| {
                let (wall, _) = time_both(|| {
                    let found = resolve(black_box(&exprs), &hosts, "run/task").expect("the hosts exist");
                    assert!(!black_box(found).is_empty());
                });
                wall.as_secs_f64()
            })
            .collect();
        taken.sort_by(f64::total_cmp);
        let median = taken[taken.len() / 2];
        let what = format!("resolve a target over 10,000 hosts, {what}");
        table.at_most(&what, millis(median), median, millis(LIMIT), LIMIT);
    }
}

/// Shows a time far below the limit as more than nothing.
fn millis(seconds: f64) -> String {
    format!("{:.2} ms", seconds * 1e3)
}
