//! Percentages, and a code for everything.

use super::*;
use crate::fleet::cluster::Durable;
use crate::fleet::cluster::tests::{cluster_with, heartbeat, obey, policy, publication};
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

/// Section 10: machines that are not of the fleet are told of with their worker, by name, and degrade nothing.
#[test]
fn foreign_machines_are_told_of() {
    let mut cluster = cluster_with(&[vm("a", 1, 500, 512)], &[("w1", "ssd")]);
    obey(&mut cluster, "w1", 1000);
    let before = status(&cluster, false);
    let facts = cluster.durable.workers.get_mut(&worker_name("w1")).unwrap().as_mut().unwrap();
    facts.foreign.insert("sandbox lab/other/web-0".to_owned());
    let shown = status(&cluster, false);
    let worker = &shown.workers[0];
    assert_eq!((worker.code, shown.state), (Some(Code::Foreign), before.state));
    assert!(worker.message.as_ref().unwrap().contains("lab/other/web-0"), "{:?}", worker.message);
}

/// Section 11: an instance says what really makes it.
#[test]
fn what_stands_in_for_a_driver_is_shown() {
    let mut cluster = cluster_with(&[vm("a", 1, 500, 512)], &[("w1", "ssd")]);
    let driver = cluster.desired().next().unwrap().runtime.driver;
    assert_eq!(status(&cluster, false).instances[0].driver, Some(driver.word()));
    let facts = cluster.durable.workers.get_mut(&worker_name("w1")).unwrap().as_mut().unwrap();
    facts.mapped.insert(driver, Driver::Qemu);
    assert_eq!(status(&cluster, false).instances[0].driver, Some("qemu (mapped)"));
}

/// Section 10: what was built on its worker says so, and is as it should be.
#[test]
fn what_was_built_there_says_so_and_counts() {
    let mut cluster = cluster_with(&[vm("a", 1, 500, 512)], &[("w1", "ssd")]);
    obey(&mut cluster, "w1", 1000);
    let converged = status(&cluster, false);
    let ear = cluster.ears.get_mut(&worker_name("w1")).unwrap();
    ear.seen.values_mut().for_each(|sighting| sighting.seen.code = Some(Code::BuiltLocally));
    let shown = status(&cluster, false);
    assert_eq!((shown.instances[0].code, shown.counts), (Some(Code::BuiltLocally), converged.counts));
    assert_eq!((shown.state, shown.convergence_percent), (converged.state, 100));
}

/// Case 1: a fleet of which nothing was published is on its way, and not there.
#[test]
fn nothing_published_is_nothing_converged() {
    let mut cluster = Cluster::resume(Durable::default(), 1, 0);
    let shown = |cluster: &Cluster| {
        let shown = status(cluster, false);
        (shown.state, shown.convergence_percent, shown.generation, shown.commit.is_some())
    };
    assert_eq!(shown(&cluster), (State::Converging, 100, 0, false));
    let message = policy(&mut cluster, 1, Default::default());
    assert_eq!(cluster.publish(&message, 0).outcome, Outcome::Accepted);
    cluster.tick(0);
    assert_eq!(shown(&cluster), (State::Converging, 100, 1, true));
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
        assert_eq!(held.code, reason);
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

/// Section 14: what is right and ready is converged though it stays on a draining worker, and carries its code.
#[test]
fn what_a_drain_leaves_behind_is_converged() {
    let mut cluster = cluster_with(&[vm("a", 1, 500, 512)], &[("w1", "ssd")]);
    let mut fleet = stead_model::fleet::FleetFile::default();
    fleet.workers.entry(worker_name("w1")).or_default().drain = true;
    let message = policy(&mut cluster, 2, fleet);
    assert_eq!(cluster.publish(&message, 0).outcome, Outcome::Accepted);
    cluster.tick(0);
    obey(&mut cluster, "w1", 1000);
    cluster.tick(1000);
    let shown = status(&cluster, false);
    assert_eq!(shown.instances[0].code, Some(Code::DrainBlocked));
    assert_eq!((shown.counts.converged, shown.convergence_percent, shown.state), (1, 100, State::Converged));
}

/// Section 14: a generation that waits for a suspension waits for what somebody meant: nothing is wrong.
#[test]
fn a_suspended_group_is_not_degraded() {
    let mut cluster = cluster_with(&[vm("a", 1, 500, 512)], &[("w1", "ssd")]);
    obey(&mut cluster, "w1", 1000);
    let mut fleet = stead_model::fleet::FleetFile::default();
    fleet.groups.entry(GroupName::default_group()).or_default().suspend = true;
    let message = policy(&mut cluster, 2, fleet);
    assert_eq!(cluster.publish(&message, 1000).outcome, Outcome::Accepted);
    let message = publication(&mut cluster, 3, &[vm("a", 2, 500, 512)]);
    assert_eq!(cluster.publish(&message, 1000).outcome, Outcome::Suspended);
    cluster.tick(1000);
    let shown = status(&cluster, false);
    let held = shown.groups[0].held.as_ref().unwrap();
    assert_eq!((held.code.as_str(), shown.state), ("suspended", State::Converged));
}

/// Section 14: a rollout that is paused says so with a code of the list.
#[test]
fn a_paused_rollout_is_suspended() {
    let mut cluster = cluster_with(&[vm("a", 1, 500, 512)], &[("w1", "ssd")]);
    obey(&mut cluster, "w1", 1000);
    let mut next = vm("a", 1, 500, 512);
    next.runtime.argv = vec!["new".to_owned()];
    next.rollout.pause = true;
    let message = publication(&mut cluster, 2, &[next]);
    assert_eq!(cluster.publish(&message, 1000).outcome, Outcome::Accepted);
    cluster.tick(1000);
    let shown = status(&cluster, false);
    assert_eq!(
        (shown.instances[0].code, shown.rollouts[0].code),
        (Some(Code::Suspended), Some(Code::Suspended))
    );
    let said = [&shown.instances[0].message, &shown.rollouts[0].message];
    assert!(said.iter().all(|said| said.as_deref().unwrap().contains("`rollout.pause: false`")), "{said:?}");
}

/// Sections 2, 14: what a freeze keeps running though nobody wants it is told of, and the fleet is not converged.
#[test]
fn what_a_freeze_keeps_is_told_of() {
    let mut freeze = stead_model::fleet::FleetFile::default();
    freeze.suspend.vms.insert(vm("a", 1, 1, 1).id);
    let mut freeze_all = stead_model::fleet::FleetFile::default();
    freeze_all.suspend.all = true;
    let other = || vm("b", 1, 500, 512);
    let fewer = vec![vm("a", 1, 500, 512), other()];
    for (fleet, specs, kept, percent) in [
        (freeze, fewer.clone(), &["a/1"][..], 66),
        (freeze_all.clone(), fewer, &["a/1"], 66),
        (freeze_all, vec![other()], &["a/0", "a/1"], 33),
    ] {
        let mut cluster = cluster_with(&[vm("a", 2, 500, 512), other()], &[("w1", "ssd")]);
        obey(&mut cluster, "w1", 1000);
        let message = policy(&mut cluster, 2, fleet);
        assert_eq!(cluster.publish(&message, 1000).outcome, Outcome::Accepted);
        cluster.tick(1000);
        let message = publication(&mut cluster, 2, &specs);
        assert_eq!(cluster.publish(&message, 1000).outcome, Outcome::Accepted);
        cluster.tick(1000);
        obey(&mut cluster, "w1", 2000);
        let shown = status(&cluster, false);
        let frozen = shown.instances.iter().filter(|instance| instance.code == Some(Code::Suspended));
        let frozen: Vec<&InstanceStatus> = frozen.collect();
        let keys: Vec<String> = frozen.iter().map(|instance| instance.key.to_string()).collect();
        assert_eq!(keys, kept);
        assert!(frozen.iter().all(|one| {
            one.group == Some(GroupName::default_group()) && one.driver.is_some() && one.generation == 1
        }));
        assert_eq!((shown.state, shown.convergence_percent), (State::Converging, percent));
        assert_eq!(shown.counts.orphans as usize, kept.len());
        assert_eq!(shown.workers[0].instances as usize, shown.instances.len());
        // The next leader says the same.
        let mut next = Cluster::resume(cluster.durable.clone(), 2, 3000);
        next.tick(3000);
        obey(&mut next, "w1", 3000);
        next.tick(3000);
        assert_eq!(status(&next, false).counts, shown.counts);
    }
}

/// Sections 2, 14: the same for a hold, which also says that somebody has to look; what ends with it is removed.
#[test]
fn what_a_hold_keeps_is_told_of() {
    let mut cluster = cluster_with(&[vm("a", 3, 500, 512)], &[("w1", "ssd")]);
    obey(&mut cluster, "w1", 1000);
    let target = stead_model::fleet::state::HoldTarget::Vm(vm("a", 1, 1, 1).id);
    let (by, reason) = ("ops".to_owned(), "look".to_owned());
    let hold = stead_model::fleet::state::Hold { id: "h1".to_owned(), target, until: 5000, by, reason };
    cluster.hold(hold);
    cluster.tick(1000);
    let message = publication(&mut cluster, 2, &[vm("a", 2, 500, 512)]);
    assert_eq!(cluster.publish(&message, 1000).outcome, Outcome::Accepted);
    let mut shown = |now: Millis| {
        cluster.tick(now);
        obey(&mut cluster, "w1", now);
        let shown = status(&cluster, false);
        (shown.state, shown.convergence_percent, shown.instances.get(2).and_then(|third| third.code))
    };
    assert_eq!(shown(1001), (State::Degraded, 66, Some(Code::Suspended)));
    assert_eq!(shown(5001), (State::Converged, 100, None));
}

/// Section 14: a copy that leaves says of which group it is, what makes it, and what released it.
#[test]
fn a_copy_that_leaves_says_what_it_is() {
    let mut tied = vm("a", 1, 500, 512);
    tied.selector = vec![requires("disk", "ssd")];
    let mut cluster = cluster_with(&[tied.clone()], &[("w1", "ssd"), ("w2", "hdd")]);
    obey(&mut cluster, "w1", 1000);
    tied.selector = vec![requires("disk", "hdd")];
    let message = publication(&mut cluster, 2, &[tied]);
    assert_eq!(cluster.publish(&message, 1000).outcome, Outcome::Accepted);
    cluster.tick(1000);
    let shown = status(&cluster, false);
    let left = shown.instances.iter().find(|instance| instance.leaving).unwrap();
    assert_eq!((left.worker.as_ref().unwrap().as_str(), left.code), ("w1", None));
    assert_eq!((left.group.clone(), left.generation), (Some(GroupName::default_group()), 2));
    assert!(left.driver.is_some());
}

/// Section 9: a worker that joined is there at once, and not silent because nobody has looked since.
#[test]
fn a_worker_that_joins_is_there_at_once() {
    let mut cluster = cluster_with(&[vm("a", 1, 500, 512)], &[("w1", "ssd")]);
    cluster.tick(100_000);
    cluster.heartbeat(&heartbeat("w2", 1, "ssd", vec![]), 100_020);
    let shown = status(&cluster, false);
    let joined = shown.workers.iter().find(|worker| worker.id == worker_name("w2")).unwrap();
    assert_eq!((joined.state, joined.code, joined.since), ("ready", None, 100_000));
    cluster.take_events();
    cluster.tick(100_030);
    assert!(cluster.take_events().iter().all(|event| event.worker != Some(worker_name("w2"))));
}
