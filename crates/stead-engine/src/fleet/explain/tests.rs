//! Why things are where they are.

use super::*;
use crate::fleet::cluster::tests::cluster_with;
use crate::fleet::testing::{requires, vm};

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
