//! VMs that go from one group to another in one commit.

use super::*;
use crate::fleet::testing::{Dice, vm_id};
use crate::fleet::ties::ties;

fn edge() -> GroupName {
    GroupName::parse("edge").unwrap()
}

fn default() -> GroupName {
    GroupName::default_group()
}

/// Returns what is published of a group: one instance of each VM.
fn of(cluster: &mut Cluster, number: u64, group: &GroupName, ids: &[&str]) -> Publication {
    let spec = |id: &&str| VmSpec { group: group.clone(), ..vm(id, 1, 100, 64) };
    let specs: Vec<VmSpec> = ids.iter().map(spec).collect();
    let message = publication(cluster, number, &specs);
    let intent_hash = intent_hash(&message.commit, group, &message.specs_hash);
    Publication { intent_hash, group: group.clone(), ..message }
}

/// Publishes both groups of a commit at once.
fn both(
    cluster: &mut Cluster,
    number: u64,
    in_default: &[&str],
    in_edge: &[&str],
    now: Millis,
) -> Vec<Verdict> {
    let messages = [of(cluster, number, &default(), in_default), of(cluster, number, &edge(), in_edge)];
    let verdicts = cluster.publish_together(&messages, now);
    cluster.tick(now);
    verdicts
}

/// Returns a fleet in which `default` has `a` and `x`, and `edge` has `e` and `y`, all of which run.
fn two_groups() -> Cluster {
    let mut cluster =
        cluster_with(&[vm("a", 1, 100, 64), vm("x", 1, 100, 64)], &[("w1", "ssd"), ("w2", "ssd")]);
    let message = of(&mut cluster, 2, &edge(), &["e", "y"]);
    assert_eq!(cluster.publish(&message, 0).outcome, Outcome::Accepted);
    cluster.tick(0);
    for worker in ["w1", "w2"] {
        obey(&mut cluster, worker, 1000);
    }
    cluster.tick(1000);
    cluster.take_events();
    cluster
}

fn outcomes(verdicts: &[Verdict]) -> Vec<Outcome> {
    verdicts.iter().map(|verdict| verdict.outcome).collect()
}

fn active(cluster: &Cluster) -> [Option<u64>; 2] {
    [default(), edge()].map(|group| cluster.durable.groups[&group].active)
}

fn hold_edge(cluster: &mut Cluster, until: Millis) {
    let (target, by, reason) = (HoldTarget::Group(edge()), "ann".to_owned(), "looking".to_owned());
    cluster.hold(Hold { id: "h1".to_owned(), target, until, by, reason });
}

/// Section 6: a VM goes to the other group, two groups give each other one, and all of it runs on where it is.
#[test]
fn vms_that_change_groups_run_on() {
    let mut cluster = two_groups();
    let placements = cluster.durable.placements.clone();
    let rounds: [(&[&str], &[&str]); 3] =
        [(&["a"], &["e", "x", "y"]), (&["a", "x"], &["e", "y"]), (&["a", "y"], &["e", "x"])];
    for (number, (in_default, in_edge)) in (3..).zip(rounds) {
        let verdicts = both(&mut cluster, number, in_default, in_edge, number * 1000);
        assert_eq!(outcomes(&verdicts), [Outcome::Accepted; 2], "{verdicts:?}");
        assert_eq!(active(&cluster), [Some(number); 2]);
        let again = both(&mut cluster, number, in_default, in_edge, number * 1000);
        assert_eq!(outcomes(&again), [Outcome::Duplicate; 2]);
    }
    assert_eq!(cluster.durable.placements, placements);
    let instances = cluster.take_events().into_iter().filter(|event| event.instance.is_some());
    assert_eq!(instances.count(), 0, "nothing happens to what runs");
}

/// Section 6: while one of the two has to wait, the other one keeps what it has, and says so; then both go on.
#[test]
fn groups_between_which_vms_move_wait_for_each_other() {
    let mut cluster = two_groups();
    hold_edge(&mut cluster, 9000);
    let verdicts = both(&mut cluster, 3, &["a", "y"], &["e", "x"], 2000);
    assert_eq!(outcomes(&verdicts), [Outcome::Suspended; 2]);
    assert_eq!((verdicts[0].active, verdicts[0].highest), (1, 3));
    assert_eq!(active(&cluster), [Some(1), Some(2)]);
    let why = cluster.durable.groups[&default()].why.clone().unwrap();
    assert_eq!(why.code, MOVES_TOGETHER);
    assert!(why.message.contains("`edge` waits"), "{}", why.message);
    let shown = status(&cluster, false);
    let held =
        |name: &GroupName| shown.groups.iter().find(|group| group.group == *name).unwrap().held.clone();
    assert_eq!(held(&default()).map(|held| (held.code, held.stops)), Some((MOVES_TOGETHER.to_owned(), 0)));
    assert_eq!(held(&edge()).unwrap().code, "suspended");
    cluster.tick(9000);
    assert_eq!(active(&cluster), [Some(3); 2]);
    assert_eq!(cluster.durable.placements.len(), 4);
    assert!(cluster.durable.groups.values().all(|group| group.why.is_none()));
}

/// Section 6: a commit that takes it back does not wait for what waits; and what waited is not active afterwards.
#[test]
fn a_move_that_waits_can_be_taken_back() {
    let mut cluster = two_groups();
    hold_edge(&mut cluster, 9000);
    both(&mut cluster, 3, &["a"], &["e", "x", "y"], 2000);
    let back = of(&mut cluster, 4, &default(), &["a", "x"]);
    assert_eq!(cluster.publish(&back, 3000).outcome, Outcome::Accepted, "it has `x`, and nobody else does");
    let other = of(&mut cluster, 4, &GroupName::parse("other").unwrap(), &["x"]);
    assert_eq!(cluster.publish(&other, 3000).outcome, Outcome::Invalid);
    // The commit's other group never comes: what it waited with is in two groups now.
    cluster.tick(9000);
    assert_eq!(active(&cluster), [Some(4), Some(2)]);
    assert_eq!(cluster.durable.groups[&edge()].why.as_ref().unwrap().code, "duplicate-id");
    let last = of(&mut cluster, 4, &edge(), &["e", "y"]);
    assert_eq!(cluster.publish(&last, 9500).outcome, Outcome::Accepted);
}

/// Section 6: where one of them is refused nothing of the others is stored, and the guard counts no move as a stop.
#[test]
fn groups_are_refused_together_and_moves_stop_nothing() {
    let mut cluster = two_groups();
    let mut broken = of(&mut cluster, 3, &edge(), &["e", "x", "y"]);
    broken.intent_hash = stead_model::plan::Digest([1; 32]);
    let good = of(&mut cluster, 3, &default(), &["a"]);
    let verdicts = cluster.publish_together(&[good, broken], 2000);
    assert_eq!(outcomes(&verdicts), [Outcome::Invalid; 2]);
    let codes: Vec<&str> = verdicts.iter().map(|verdict| verdict.problems[0].code.as_str()).collect();
    assert_eq!(codes, [MOVES_TOGETHER, "intent-hash"]);
    assert!(cluster.durable.groups.values().all(|group| group.highest().unwrap().number < 3));
    // Case 16: in both groups it is refused by whom it comes to, naming both.
    let twice = of(&mut cluster, 3, &edge(), &["e", "x", "y"]);
    let verdict = cluster.publish(&twice, 2000);
    assert!(verdict.problems[0].message.contains("`default` and of group `edge`"), "{verdict:?}");
    let mut fleet = FleetFile::default();
    fleet.policy.guard.min_instances = 1;
    fleet.policy.guard.max_stop_percent = 10;
    let message = policy(&mut cluster, 4, fleet);
    assert_eq!(cluster.publish(&message, 3000).outcome, Outcome::Accepted);
    assert_eq!(outcomes(&both(&mut cluster, 5, &["a"], &["e", "x", "y"], 4000)), [Outcome::Accepted; 2]);
    let gone = both(&mut cluster, 6, &["a", "x"], &["e"], 5000);
    assert_eq!(outcomes(&gone), [Outcome::Suspended, Outcome::Held], "`y` stops, `x` does not");
    assert_eq!(gone[1].problems[0].code, "too-many-stops");
}

/// Section 6, 10,000 commits: over any moves and holds ids are unique, what a commit keeps is never removed, and with the last
/// hold gone every group is what the newest commit says.
#[test]
fn whatever_moves_ids_stay_unique_and_nothing_is_lost() {
    let groups = ["default", "edge", "far"].map(|name| GroupName::parse(name).unwrap());
    let ids = ["a", "b", "c", "d", "e", "f"];
    for seed in 0..500 {
        let mut dice = Dice::new(seed);
        let mut cluster = Cluster::resume(Durable::default(), 1, 0);
        beat(&mut cluster, "w1", 1, "ssd", vec![], 0);
        let mut now = 0;
        for number in 1..=20 {
            now += 1000;
            let mut next: BTreeMap<&GroupName, Vec<&str>> =
                groups.iter().map(|group| (group, vec![])).collect();
            for (at, id) in ids.iter().enumerate() {
                // One stays in each group, so that none is empty.
                let at = if at < 3 || number == 1 { at % 3 } else { dice.below(3) as usize };
                next.entry(&groups[at]).or_default().push(id);
            }
            if dice.one_in(3) {
                let target = HoldTarget::Group(groups[dice.below(3) as usize].clone());
                let until = now + dice.below(4000);
                let (by, reason) = (String::new(), String::new());
                cluster.hold(Hold { id: format!("h{number}"), target, until, by, reason });
            }
            let messages: BTreeMap<&GroupName, Publication> =
                next.iter().map(|(group, ids)| (*group, of(&mut cluster, number, group, ids))).collect();
            let mut left: BTreeMap<GroupName, BTreeSet<VmId>> = next
                .iter()
                .map(|(group, ids)| ((*group).clone(), ids.iter().map(|id| vm_id(id)).collect()))
                .collect();
            while !left.is_empty() {
                // A hold may have ended meanwhile: who has what is asked anew.
                let active = cluster.desired().map(|spec| (spec.id.clone(), spec.group.clone())).collect();
                let list = ties(&active, &left).remove(0);
                left.retain(|group, _| !list.contains(group));
                let list: Vec<Publication> = list.iter().map(|group| messages[group].clone()).collect();
                for verdict in cluster.publish_together(&list, now) {
                    let is_good = matches!(verdict.outcome, Outcome::Accepted | Outcome::Suspended);
                    assert!(is_good, "seed {seed}: {verdict:?}");
                }
                now += 300;
                cluster.tick(now);
                let desired: BTreeSet<&VmId> = cluster.desired().map(|spec| &spec.id).collect();
                assert_eq!(desired.len(), cluster.desired().count(), "seed {seed}: an id is in two groups");
            }
            let removed = cluster.take_events().into_iter().filter(|event| event.ev == EventKind::Removed);
            assert_eq!(removed.count(), 0, "seed {seed}, commit {number}: what every commit has is removed");
        }
        cluster.tick(now + 10_000);
        for group in groups.iter().map(|group| &cluster.durable.groups[group]) {
            assert_eq!((group.active, &group.why), (Some(20), &None), "seed {seed}");
        }
    }
}
