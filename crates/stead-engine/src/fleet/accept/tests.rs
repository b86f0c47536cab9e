//! Each row of the table, and that nothing is told by halves.

use stead_model::fleet::CommitId;
use stead_model::fleet::fleet_file::GroupEntry;
use stead_model::fleet::state::BrokenVm;

use super::*;
use crate::fleet::testing::{vm, vm_id};

fn commit(digit: char) -> CommitId {
    CommitId::parse(&digit.to_string().repeat(40)).unwrap()
}

fn publication(digit: char, generation: u64, specs: Vec<VmSpec>) -> Publication {
    let group = GroupName::default_group();
    let specs_hash = specs_hash(&specs);
    let intent_hash = intent_hash(&commit(digit), &group, &specs_hash);
    let specs = specs.into_iter().map(Arc::new).collect();
    let commit = commit(digit);
    let broken = Vec::new();
    Publication { group, commit, generation, intent_hash, specs_hash, specs, policy: None, broken }
}

fn stored(message: &Publication) -> Generation {
    Generation {
        number: message.generation,
        commit: message.commit.clone(),
        intent_hash: message.intent_hash,
        specs_hash: message.specs_hash,
        specs: message.specs.clone(),
        policy: None,
        waits: None,
    }
}

struct Setting {
    highest: Generation,
    taken: BTreeMap<VmId, GroupName>,
    running: Vec<InstanceKey>,
    fleet: FleetFile,
}

impl Setting {
    fn new(running: u32) -> Self {
        let message = publication('a', 5, vec![vm("web", running, 1, 1)]);
        let running = (0..running).map(|ordinal| InstanceKey::new(&vm_id("web"), ordinal)).collect();
        Self { highest: stored(&message), taken: BTreeMap::new(), running, fleet: FleetFile::default() }
    }

    fn standing(&self, reserved: u64) -> Standing<'_> {
        Standing {
            highest: Some(&self.highest),
            active: Some(&self.highest),
            taken: &self.taken,
            reserved: Some(reserved),
            known_specs: None,
            running: &self.running,
            elsewhere: &[],
            fleet: &self.fleet,
            is_suspended: false,
        }
    }
}

fn codes(verdict: &Verdict) -> Vec<&str> {
    verdict.problems.iter().map(|problem| problem.code.as_str()).collect()
}

/// Case 8: verdicts as tabled.
#[test]
fn each_situation_has_its_verdict() {
    let setting = Setting::new(2);
    let next = publication('b', 6, vec![vm("web", 2, 1, 1)]);
    let verdict = accept(&setting.standing(6), &next);
    assert_eq!((verdict.outcome, verdict.active, verdict.highest), (Outcome::Accepted, 6, 6));
    let same = publication('a', 5, vec![vm("web", 2, 1, 1)]);
    assert_eq!(accept(&setting.standing(5), &same).outcome, Outcome::Duplicate);
    let other = publication('b', 5, vec![vm("web", 2, 1, 1)]);
    assert_eq!(accept(&setting.standing(5), &other).outcome, Outcome::Conflict);
    let late = publication('0', 4, vec![]);
    assert_eq!(accept(&setting.standing(4), &late).outcome, Outcome::Stale);
    assert_eq!(accept(&setting.standing(7), &next).outcome, Outcome::Conflict);
    let suspended = Standing { is_suspended: true, ..setting.standing(6) };
    let verdict = accept(&suspended, &next);
    assert_eq!((verdict.outcome, verdict.active, verdict.highest), (Outcome::Suspended, 5, 6));
}

/// Case 8, 16: all problems at once, with VM and field.
#[test]
fn everything_that_is_broken_is_told() {
    let mut setting = Setting::new(2);
    setting.taken.insert(vm_id("db"), GroupName::parse("edge").unwrap());
    let mut single = vm("one", 2, 1, 1);
    single.singleton = true;
    let mut strange = vm("strange", 1, 1, 1);
    strange.group = GroupName::parse("edge").unwrap();
    let mut message = publication('b', 6, vec![vm("db", 1, 1, 1), vm("db", 1, 1, 1), single, strange]);
    message.intent_hash = Digest([0; 32]);
    message.specs_hash = Digest([1; 32]);
    let standing = Standing { known_specs: Some(Digest([9; 32])), ..setting.standing(6) };
    let verdict = accept(&standing, &message);
    assert_eq!(verdict.outcome, Outcome::Invalid);
    assert_eq!(
        codes(&verdict),
        [
            "conflict",
            "duplicate-id",
            "duplicate-id",
            "duplicate-id",
            "evaluation-not-deterministic",
            "intent-hash",
            "specs-hash",
            "wrong-group"
        ]
    );
    assert!(verdict.problems[1].message.contains("`edge`") && verdict.problems[1].subject == "db.id");
}

/// Section 6: what cannot be read is told with everything else.
#[test]
fn broken_vms_are_told_with_the_rest() {
    let mut setting = Setting::new(2);
    setting.taken.insert(vm_id("db"), GroupName::parse("edge").unwrap());
    let problem = |subject: &str| Problem {
        code: "fleet/out-of-range".to_owned(),
        message: "too small".to_owned(),
        subject: subject.to_owned(),
    };
    let broken = |id: &str| BrokenVm { id: Some(vm_id(id)), problems: vec![problem(id)] };
    let mut message = publication('b', 6, vec![vm("web", 1, 1, 1)]);
    message.intent_hash = Digest([0; 32]);
    message.broken = vec![broken("db"), broken("web"), BrokenVm { id: None, problems: vec![problem("[3]")] }];
    let verdict = accept(&setting.standing(6), &message);
    assert_eq!(verdict.outcome, Outcome::Invalid);
    let told: Vec<(&str, &str)> =
        verdict.problems.iter().map(|problem| (problem.code.as_str(), problem.subject.as_str())).collect();
    assert_eq!(
        told,
        [
            ("duplicate-id", "db.id"),
            ("duplicate-id", "web.id"),
            ("fleet/out-of-range", "[3]"),
            ("fleet/out-of-range", "db"),
            ("fleet/out-of-range", "web"),
            ("intent-hash", "default"),
        ]
    );
    assert_eq!((verdict.active, verdict.highest), (5, 5), "nothing of it is stored");
}

/// Section 6: a commit may have other specs than before where `fleet.yaml` says so.
#[test]
fn specs_of_a_commit_may_differ_where_that_is_allowed() {
    let mut setting = Setting::new(2);
    let next = publication('b', 6, vec![vm("web", 2, 1, 1)]);
    let known = Some(Digest([9; 32]));
    let verdict = accept(&Standing { known_specs: known, ..setting.standing(6) }, &next);
    assert_eq!((verdict.outcome, codes(&verdict)), (Outcome::Invalid, vec!["evaluation-not-deterministic"]));
    setting.fleet.policy.require_same_specs = false;
    let verdict = accept(&Standing { known_specs: known, ..setting.standing(6) }, &next);
    assert_eq!(verdict.outcome, Outcome::Accepted);
}

/// F26: an empty list and too many stops wait, unless they are approved; replacements are no stops.
#[test]
fn what_stops_much_waits_for_approval() {
    let mut setting = Setting::new(10);
    let empty = publication('b', 6, vec![]);
    let verdict = accept(&setting.standing(6), &empty);
    assert_eq!((verdict.outcome, codes(&verdict), verdict.active), (Outcome::Held, vec!["empty-set"], 5));
    let few = publication('b', 6, vec![vm("web", 4, 1, 1)]);
    let verdict = accept(&setting.standing(6), &few);
    assert_eq!((verdict.outcome, codes(&verdict)), (Outcome::Held, vec!["too-many-stops"]));
    assert!(verdict.problems[0].message.starts_with("6 of 10 running instances"), "{:?}", verdict.problems);
    assert!(verdict.problems[0].message.contains(&few.specs_hash.to_string()));
    let half = publication('b', 6, vec![vm("web", 5, 2, 2)]);
    assert_eq!(accept(&setting.standing(6), &half).outcome, Outcome::Accepted);
    setting.fleet.approve.insert(few.specs_hash);
    assert_eq!(accept(&setting.standing(6), &few).outcome, Outcome::Accepted);
    // That a group may go says nothing of how much stops with it.
    for fleet in [
        GroupEntry { removed: true, ..GroupEntry::default() },
        GroupEntry { allow_empty: true, ..GroupEntry::default() },
    ] {
        setting.fleet.groups.insert(GroupName::default_group(), fleet);
        let verdict = accept(&setting.standing(6), &empty);
        assert_eq!((verdict.outcome, codes(&verdict)), (Outcome::Held, vec!["too-many-stops"]));
        let mut small = Setting::new(9);
        small.fleet = setting.fleet.clone();
        assert_eq!(accept(&small.standing(6), &empty).outcome, Outcome::Accepted);
    }
    let small = Setting::new(9);
    assert_eq!(codes(&accept(&small.standing(6), &empty)), ["empty-set"]);
    assert_eq!(
        accept(&small.standing(6), &publication('b', 6, vec![vm("web", 1, 1, 1)])).outcome,
        Outcome::Accepted
    );
}

/// Section 6: a list of its own hash and any intent of it is a duplicate only of itself; over random lists no verdict but
/// Accepted changes what is active.
#[test]
fn only_accepted_changes_what_is_active() {
    use crate::fleet::testing::{Dice, any_vms};
    let mut dice = Dice::new(4);
    for case in 0..10_000 {
        let mut setting = Setting::new(u32::try_from(dice.below(20)).unwrap());
        if dice.one_in(5) {
            setting.taken.insert(vm_id("v0"), GroupName::parse("edge").unwrap());
        }
        let specs = if dice.one_in(6) {
            vec![]
        } else {
            any_vms(&mut dice).iter().map(|vm| VmSpec::clone(vm)).collect()
        };
        let mut message = publication(*dice.pick(&['a', 'b']), 4 + dice.below(4), specs);
        if dice.one_in(8) {
            message.intent_hash = Digest([7; 32]);
        }
        let standing = Standing { is_suspended: dice.one_in(4), ..setting.standing(4 + dice.below(4)) };
        let verdict = accept(&standing, &message);
        let accepted = verdict.outcome == Outcome::Accepted;
        assert_eq!(verdict.active, if accepted { message.generation } else { 5 }, "case {case}");
        assert!(!accepted || message.generation > 5, "case {case}: generations grow");
        let has_reason = matches!(verdict.outcome, Outcome::Invalid | Outcome::Conflict | Outcome::Held);
        assert_eq!(has_reason, !verdict.problems.is_empty(), "case {case}");
    }
}
