//! Rollouts that meet a suspension, a hold, or another leader.

use stead_model::fleet::Code;

use super::*;
use crate::fleet::converge::Status;
use crate::fleet::rollout::Phase;

const WORKERS: [&str; 3] = ["w1", "w2", "w3"];
/// How often workers report.
const STEP: Millis = 15_000;

/// Returns `web` with something to run.
fn web(argv: &str) -> VmSpec {
    let mut spec = vm("web", 3, 500, 512);
    spec.runtime.argv = vec![argv.to_owned()];
    spec
}

/// Returns a fleet with one instance of `web` on each worker, all of which are ready.
fn settled() -> (Cluster, Millis) {
    let mut cluster = cluster_with(&[web("old")], &WORKERS.map(|name| (name, "ssd")));
    let now = run(&mut cluster, 0, 10 * STEP, "");
    assert_eq!(status(&cluster, false).state, State::Converged);
    (cluster, now)
}

/// Has every worker but `slow` do as it is told for so long, and returns when that is. What is frozen stays as it is, and so
/// does all that is on `slow`.
fn run(cluster: &mut Cluster, from: Millis, length: Millis, slow: &str) -> Millis {
    let until = from + length;
    for now in (from..=until).step_by(usize::try_from(STEP).unwrap()) {
        for name in WORKERS {
            let assignment = cluster.assignment(&worker_name(name)).unwrap();
            let mut seen = obedient(cluster, name, 60_000);
            for (seen, assigned) in seen.iter_mut().zip(&assignment.instances) {
                let before = cluster.ears[&worker_name(name)].seen.get(&seen.key);
                if let Some(before) = before.filter(|_| assigned.frozen || name == slow) {
                    *seen = before.seen.clone();
                }
            }
            beat(cluster, name, now + 2, "ssd", seen, now);
        }
        cluster.tick(now);
    }
    until
}

fn set_policy(cluster: &mut Cluster, number: u64, fleet: FleetFile, now: Millis) {
    let message = policy(cluster, number, fleet);
    assert_eq!(cluster.publish(&message, now).outcome, Outcome::Accepted);
    cluster.tick(now);
}

fn publish_web(cluster: &mut Cluster, number: u64, now: Millis) {
    let message = publication(cluster, number, &[web("new")]);
    assert_eq!(cluster.publish(&message, now).outcome, Outcome::Accepted);
}

fn suspended(worker: &WorkerName) -> FleetFile {
    let mut fleet = FleetFile::default();
    fleet.workers.entry(worker.clone()).or_default().suspend = true;
    fleet
}

/// Returns where `web/0` is.
fn place(cluster: &Cluster) -> WorkerName {
    cluster.durable.placements[&InstanceKey::parse("web/0").unwrap()].worker.clone().unwrap()
}

fn codes(shown: &Status) -> Vec<Option<Code>> {
    shown.instances.iter().map(|instance| instance.code).collect()
}

/// Sections 7, 8: what is on a suspended worker stays as it is and says so; everything else goes on, as was planned, and it
/// follows once the suspension ends.
#[test]
fn a_suspended_worker_stops_no_rollout() {
    let (mut cluster, now) = settled();
    let kept = place(&cluster);
    set_policy(&mut cluster, 2, suspended(&kept), now);
    let specs = [Arc::new(web("new"))];
    let (group, number) = (GroupName::default_group(), commit(3));
    let proposal = Proposal { commit: &number, group: &group, specs: &specs };
    let planned = plan(&cluster.snapshot(now), &proposal).replace;
    let planned: Vec<String> = planned.iter().map(|change| change.instance.to_string()).collect();
    assert_eq!(planned, ["web/1", "web/2"]);
    publish_web(&mut cluster, 3, now);
    cluster.take_events();
    let now = run(&mut cluster, now, 1_800_000, "");
    let released = cluster.take_events().into_iter().filter(|event| event.ev == EventKind::Released);
    let released: Vec<String> =
        released.map(|event| event.instance.map(|key| key.to_string()).unwrap_or_default()).collect();
    assert_eq!(released, planned);
    let shown = status(&cluster, false);
    assert_eq!((shown.state, codes(&shown)), (State::Converging, vec![Some(Code::Suspended), None, None]));
    assert_eq!((shown.rollouts[0].state, shown.rollouts[0].updated), (Phase::Running, 2));
    set_policy(&mut cluster, 4, FleetFile::default(), now);
    run(&mut cluster, now, 10 * STEP, "");
    let shown = status(&cluster, false);
    assert_eq!((shown.state, shown.rollouts[0].state), (State::Converged, Phase::Done));
}

/// Section 10: a suspended worker is told that everything on it stays as it is, nobody else is, and it hears when that ends.
#[test]
fn a_suspended_worker_is_told_that_everything_stays() {
    let (mut cluster, now) = settled();
    let kept = place(&cluster);
    let told = |cluster: &Cluster| {
        WORKERS.map(|name| {
            let assignment = cluster.assignment(&worker_name(name)).unwrap();
            assert_eq!(assignment.instances.len(), 1);
            (assignment.instances[0].frozen, assignment.revision)
        })
    };
    let before = told(&cluster);
    assert!(before.iter().all(|(frozen, _)| !frozen));
    set_policy(&mut cluster, 2, suspended(&kept), now);
    let during = told(&cluster);
    for ((name, before), during) in WORKERS.iter().zip(&before).zip(&during) {
        let is_kept = kept == worker_name(name);
        assert_eq!((during.0, during.1 > before.1), (is_kept, is_kept), "{name}");
    }
    set_policy(&mut cluster, 3, FleetFile::default(), now);
    let after = told(&cluster);
    assert!(after.iter().all(|(frozen, _)| !frozen));
    assert_ne!(after, during);
}

/// Section 8: the deadline of what was released and may then not be replaced begins anew once it may.
#[test]
fn a_deadline_begins_anew_when_a_freeze_ends() {
    let mut by_vm = FleetFile::default();
    by_vm.suspend.vms.insert(web("").id);
    let (cluster, _) = settled();
    let slow = place(&cluster);
    for freeze in [Some(suspended(&slow)), Some(by_vm), None] {
        let (mut cluster, now) = settled();
        publish_web(&mut cluster, 2, now);
        // Its worker has heard of it, and has not acted yet.
        let now = run(&mut cluster, now, 20 * STEP, slow.as_str());
        match &freeze {
            Some(freeze) => set_policy(&mut cluster, 3, freeze.clone(), now),
            None => {
                let target = HoldTarget::Vm(web("").id);
                let (by, reason) = ("ann".to_owned(), "looking".to_owned());
                cluster.hold(Hold { id: "h1".to_owned(), target, until: now + 1_800_000, by, reason });
            }
        }
        let now = run(&mut cluster, now, 1_800_000 - STEP, slow.as_str());
        let shown = status(&cluster, false);
        let is_paused = freeze != Some(suspended(&slow));
        let state = if is_paused { Phase::Paused } else { Phase::Running };
        assert_eq!((shown.rollouts[0].state, codes(&shown)[0]), (state, Some(Code::Suspended)), "{freeze:?}");
        let now = now + STEP;
        if freeze.is_some() {
            set_policy(&mut cluster, 4, FleetFile::default(), now);
        }
        let now = run(&mut cluster, now, 570_000, slow.as_str());
        assert_eq!(status(&cluster, false).rollouts[0].state, Phase::Running, "{freeze:?}");
        run(&mut cluster, now, 60_000, slow.as_str());
        let shown = status(&cluster, false).rollouts.remove(0);
        assert_eq!((shown.state, shown.code), (Phase::Held, Some(Code::NotReady)), "{freeze:?}");
    }
}

/// Sections 8, 13: a rollout that was over stays so under the next leader, whatever becomes of its instances; what that leader
/// releases has its deadline.
#[test]
fn a_new_leader_knows_that_a_rollout_was_over() {
    let (mut cluster, now) = settled();
    let ended = place(&cluster);
    let mut next = Cluster::resume(cluster.durable.clone(), 2, now);
    next.tick(now);
    let mut seen = obedient(&next, ended.as_str(), 0);
    seen.iter_mut().for_each(|seen| seen.ready = false);
    beat(&mut next, ended.as_str(), 1, "ssd", seen, now);
    run(&mut next, now, 1_200_000, ended.as_str());
    let shown = status(&next, false);
    assert_eq!((shown.rollouts[0].state, codes(&shown)[0]), (Phase::Done, Some(Code::NotReady)));
    // The last leader took a commit and did nothing about it.
    publish_web(&mut cluster, 2, now);
    let mut next = Cluster::resume(cluster.durable.clone(), 2, now);
    next.tick(now);
    let seen = obedient(&cluster, ended.as_str(), 60_000);
    beat(&mut next, ended.as_str(), 1, "ssd", seen, now);
    run(&mut next, now, 1_200_000, ended.as_str());
    let shown = status(&next, false).rollouts.remove(0);
    assert_eq!((shown.state, shown.code), (Phase::Held, Some(Code::NotReady)));
}
