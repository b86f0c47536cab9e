//! Percentages, and a code for everything.

use super::*;
use crate::fleet::cluster::Durable;
use crate::fleet::cluster::tests::{cluster_with, obey, policy, publication};
use crate::fleet::testing::{requires, vm, worker_name};

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

/// Section 11: what a worker does without is told, and is no reason to be degraded; what is wrong with it comes first.
#[test]
fn what_a_worker_does_without_is_told() {
    let mut cluster = cluster_with(&[vm("a", 1, 500, 512)], &[("w1", "ssd")]);
    let before = status(&cluster, false);
    let mut say = |notes: &[&str], disk_pressure: bool| {
        let facts = cluster.durable.workers.get_mut(&worker_name("w1")).unwrap().as_mut().unwrap();
        facts.notes = notes.iter().map(|note| (*note).to_owned()).collect();
        facts.disk_pressure = disk_pressure;
        let shown = status(&cluster, false);
        (shown.workers[0].code, shown.workers[0].message.clone().unwrap_or_default(), shown.state)
    };
    assert_eq!(say(&[], false), (None, String::new(), before.state));
    assert_eq!(
        say(&["no quota", "no network"], false),
        (None, "no quota; no network".to_owned(), before.state)
    );
    let (code, message, _) = say(&["no quota"], true);
    assert_eq!((code, message.as_str()), (Some(Code::DiskPressure), Code::DiskPressure.advice()));
}

/// Case 1: a fleet of which nothing was published is on its way, and not there.
#[test]
fn nothing_published_is_nothing_converged() {
    let mut cluster = Cluster::resume(Durable::default(), 1, 0);
    let shown = |cluster: &Cluster| {
        let shown = status(cluster, false);
        (shown.state, shown.convergence_percent, shown.generation, shown.commit.is_some())
    };
    assert_eq!(shown(&cluster), (State::Converging, 0, 0, false));
    let message = policy(&mut cluster, 1, Default::default());
    assert_eq!(cluster.publish(&message, 0).outcome, Outcome::Accepted);
    cluster.tick(0);
    assert_eq!(shown(&cluster), (State::Converging, 0, 1, true));
    let message = publication(&mut cluster, 2, &[vm("none", 0, 1, 1)]);
    assert_eq!(cluster.publish(&message, 0).outcome, Outcome::Accepted);
    cluster.tick(0);
    assert_eq!(shown(&cluster), (State::Converged, 100, 2, true));
}

/// Section 14: what is shown first is what runs, and not a commit of which only the policy was taken.
#[test]
fn the_newest_is_what_runs() {
    let mut cluster = cluster_with(&[vm("a", 1, 500, 512)], &[("w1", "ssd")]);
    let message = policy(&mut cluster, 2, Default::default());
    assert_eq!(cluster.publish(&message, 0).outcome, Outcome::Accepted);
    let shown = status(&cluster, true);
    let default = shown.groups.iter().find(|group| !group.is_policy()).unwrap().active.clone().unwrap();
    assert_eq!((shown.generation, shown.commit), (1, Some(default.commit)));
    assert_eq!(cluster.generation(), 2);
}

/// Section 6: a generation that is held says why, and what it would stop.
#[test]
fn a_held_generation_says_what_it_would_stop() {
    let mut cluster = cluster_with(&[vm("a", 8, 100, 64), vm("b", 4, 100, 64)], &[("w1", "ssd")]);
    for (number, specs, reason, stops) in
        [(2, vec![vm("b", 4, 100, 64)], "too-many-stops", 8), (3, vec![], "empty-set", 12)]
    {
        let message = publication(&mut cluster, number, &specs);
        assert_eq!(cluster.publish(&message, 0).outcome, Outcome::Held);
        let held = status(&cluster, false).groups[0].held.clone().unwrap();
        assert_eq!((held.code, held.reason.as_deref()), (Code::HeldGeneration, Some(reason)));
        assert_eq!((held.generation, held.stops, held.running), (number, stops, 12));
    }
}

/// Section 14: an instance grows older though its worker has nothing new to say of it, as long as it is heard.
#[test]
fn uptime_goes_on() {
    let mut cluster = cluster_with(&[vm("a", 1, 500, 512)], &[("w1", "ssd")]);
    obey(&mut cluster, "w1", 1000);
    let uptime = |cluster: &mut Cluster, now: Millis| {
        cluster.tick(now);
        status(cluster, false).instances[0].uptime_ms
    };
    assert_eq!([1000, 6000, 16_000].map(|now| uptime(&mut cluster, now)), [60_000, 65_000, 75_000]);
    assert_eq!(uptime(&mut cluster, 100_000), 60_000, "it was last heard when it said so");
    assert_eq!(cluster.shown_state(&worker_name("w1")).word(), "unknown");
}
