//! Percentages, and a code for everything.

use super::*;
use crate::fleet::cluster::tests::cluster_with;
use crate::fleet::testing::{requires, vm};

#[test]
fn percentages_are_exact_only_at_the_end() {
    for (converged, desired, orphans, shown) in
        [(0, 0, 0, 100), (3, 3, 0, 100), (999, 1000, 0, 99), (3, 3, 1, 75), (0, 0, 2, 0), (1, 3, 0, 33)]
    {
        assert_eq!(percent(converged, desired, orphans), shown);
    }
}

/// Case 23: whatever is not converged has a code and a sentence.
#[test]
fn everything_that_is_not_there_has_a_code() {
    let mut tied = vm("tied", 1, 500, 512);
    tied.selector = vec![requires("disk", "tape")];
    let cluster = cluster_with(&[vm("a", 1, 500, 512), tied], &[("w1", "ssd")]);
    let shown = status(&cluster, false);
    assert_eq!((shown.state, shown.counts.unschedulable, shown.counts.converging), (State::Degraded, 1, 1));
    let said: Vec<(Code, &str)> = shown
        .instances
        .iter()
        .map(|instance| (instance.code.unwrap(), instance.message.as_deref().unwrap()))
        .collect();
    assert_eq!(said[0].0, Code::WaitingForAssignment);
    assert_eq!(said[1].0, Code::NoFit);
    assert!(said[1].1.ends_with("(1 worker: 1 label disk=tape)"), "{}", said[1].1);
    assert_eq!(status(&cluster, true).state, State::Degraded);
    assert!(serde_json::to_value(&shown).unwrap()["groups"][0]["active"]["specsHash"].is_string());
}
