//! Why things are where they are.

use stead_model::GroupName;
use stead_model::fleet::state::Outcome;

use super::*;
use crate::fleet::cluster::EventKind;
use crate::fleet::cluster::tests::{cluster_with, commit, obey, policy, publication};
use crate::fleet::testing::{requires, vm, worker_name};

#[test]
fn every_worker_has_its_verdict_and_the_best_is_first() {
    let mut web = vm("web", 2, 500, 512);
    web.selector = vec![requires("disk", "ssd")];
    let cluster = cluster_with(&[web], &[("w1", "ssd"), ("w2", "hdd"), ("w3", "ssd")]);
    let found = explain(&cluster, &InstanceKey::parse("web/0").unwrap()).unwrap();
    assert_eq!(found.worker.as_ref(), Some(&found.candidates[0].worker));
    let verdicts: Vec<CandidateVerdict> =
        found.candidates.iter().map(|candidate| candidate.verdict).collect();
    assert_eq!(verdicts, [CandidateVerdict::Here, CandidateVerdict::Fits, CandidateVerdict::Refuses]);
    assert_eq!(found.candidates[2].filter, Some(Filter::Selector));
    let why = found.candidates[2].why.as_deref();
    assert_eq!(why, Some("it wants the label disk=ssd, and the worker's is `hdd`"));
    assert_eq!((found.why_here, found.candidates[0].score.len()), (Some(MoveReason::New), 4));
    assert!(found.why_not_yet.unwrap().starts_with("waiting-for-assignment: "));
    assert_eq!(found.last_changed_by.unwrap().generation, 1);
}

#[test]
fn what_is_not_there_names_what_is_near() {
    let cluster = cluster_with(&[vm("web", 2, 500, 512)], &[("w1", "ssd")]);
    let error = explain(&cluster, &InstanceKey::parse("wep/7").unwrap()).unwrap_err();
    assert_eq!(error.to_string(), "there is no instance `wep/7`; did you mean `web/1`?");
    let error = explain(&cluster, &InstanceKey::parse("web/2").unwrap()).unwrap_err();
    assert_eq!(error.nearest, InstanceKey::parse("web/1").ok());
}

/// Section 14: a worker that has no room says what is wanted and what is free.
#[test]
fn a_worker_without_room_says_what_is_free() {
    let cluster = cluster_with(&[vm("big", 1, 3500, 512), vm("web", 1, 1000, 512)], &[("w1", "ssd")]);
    let key = |text: &str| InstanceKey::parse(text).unwrap();
    let homeless = ["big/0", "web/0"]
        .map(key)
        .into_iter()
        .find(|key| cluster.durable.placements.get(key).is_none_or(|placement| placement.worker.is_none()));
    let found = explain(&cluster, &homeless.unwrap()).unwrap();
    let why = found.candidates[0].why.as_deref();
    assert_eq!(why, Some("it needs 1000 mCPU, and 500 of 4000 mCPU are free"));
}

/// Section 14: commit, generation and moment are those of the last change, be it in place or to another worker.
#[test]
fn the_last_change_has_its_commit_and_its_moment() {
    let mut cluster = cluster_with(&[vm("a", 1, 500, 512)], &[("w1", "ssd"), ("w2", "ssd")]);
    let key = InstanceKey::parse("a/0").unwrap();
    let changed = |cluster: &Cluster| explain(cluster, &key).unwrap().last_changed_by.unwrap();
    let place = |cluster: &Cluster| cluster.durable.placements[&key].worker.clone().unwrap();
    let first = place(&cluster);
    obey(&mut cluster, first.as_str(), 1000);
    let mut next = vm("a", 1, 500, 512);
    next.runtime.argv = vec!["new".to_owned()];
    let message = publication(&mut cluster, 2, &[next]);
    cluster.publish(&message, 20_000);
    cluster.tick(20_000);
    assert_eq!(changed(&cluster), Change { commit: Some(commit(2)), generation: 2, at: 20_000 });
    let mut fleet = stead_model::fleet::FleetFile::default();
    fleet.workers.entry(worker_name(first.as_str())).or_default().drain = true;
    let message = policy(&mut cluster, 3, fleet);
    cluster.publish(&message, 30_000);
    let mut same = vm("a", 1, 500, 512);
    same.runtime.argv = vec!["new".to_owned()];
    let message = publication(&mut cluster, 3, &[same]);
    cluster.publish(&message, 30_000);
    cluster.tick(30_000);
    assert_ne!(place(&cluster), first);
    assert_eq!(changed(&cluster), Change { commit: Some(commit(3)), generation: 3, at: 30_000 });
}

/// Section 14: what `fleet.yaml` moves goes back to its commit, and not to the one before, though it is published first.
#[test]
fn what_fleet_yaml_moves_goes_back_to_its_commit() {
    let mut cluster = cluster_with(&[vm("a", 1, 500, 512)], &[("w1", "ssd"), ("w2", "ssd")]);
    let key = InstanceKey::parse("a/0").unwrap();
    let home = cluster.durable.placements[&key].worker.clone().unwrap();
    let mut fleet = stead_model::fleet::FleetFile::default();
    fleet.workers.entry(home).or_default().drain = true;
    cluster.take_events();
    let message = policy(&mut cluster, 2, fleet);
    assert_eq!(cluster.publish(&message, 0).outcome, Outcome::Accepted);
    cluster.tick(0);
    let changed = explain(&cluster, &key).unwrap().last_changed_by.unwrap();
    assert_eq!((changed.generation, changed.commit), (2, Some(commit(2))));
    let events = cluster.take_events();
    let moved = events.iter().find(|event| event.ev == EventKind::Moved).unwrap();
    assert_eq!((moved.generation, moved.group.clone()), (Some(2), Some(GroupName::fleet())));
}
