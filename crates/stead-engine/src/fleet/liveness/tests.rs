//! Silence, the brake, and what comes back.

use super::*;
use crate::fleet::testing::worker_name;

fn heard(at: Millis) -> Heard {
    Heard { at: Some(at), session: 1, seq: 1, boot_id: String::new(), process: String::new() }
}

fn five(silent: usize) -> BTreeMap<WorkerName, Heard> {
    (0..5).map(|i| (worker_name(&format!("w{i}")), heard(if i < silent { 0 } else { 1_000_000 }))).collect()
}

fn at(workers: &BTreeMap<WorkerName, Heard>, memory: &mut Memory, now: Millis) -> Presence {
    liveness(workers, 0, &Policy::default(), memory, now)
}

/// F3, F4: the limits of section 9, to the millisecond.
#[test]
fn silence_has_its_names() {
    let workers: BTreeMap<WorkerName, Heard> = [(worker_name("w1"), heard(1000))].into();
    for (now, state) in [
        (1000, WorkerState::Ready),
        (16_000, WorkerState::Ready),
        (16_001, WorkerState::Late),
        (61_000, WorkerState::Late),
        (61_001, WorkerState::Unknown),
        (301_000, WorkerState::Unknown),
        (301_001, WorkerState::Lost),
    ] {
        let presence = at(&workers, &mut Memory::default(), now);
        assert_eq!(presence.states[&worker_name("w1")], state, "{now}");
    }
}

/// F23, section 9: a leader that has just begun knows of no silence.
#[test]
fn silence_counts_from_the_leaders_start() {
    let workers: BTreeMap<WorkerName, Heard> =
        [(worker_name("w1"), heard(5)), (worker_name("w2"), Heard::default())].into();
    let presence = liveness(&workers, 900_000, &Policy::default(), &mut Memory::default(), 900_100);
    assert!(presence.states.values().all(|state| *state == WorkerState::Ready));
}

/// F6: three of five silent is the network, not the workers.
#[test]
fn the_brake_holds_everything_back() {
    let mut memory = Memory::default();
    let presence = at(&five(3), &mut memory, 1_000_000);
    assert_eq!(presence.brake, Some(Brake { silent: 3, enrolled: 5 }));
    assert!(memory.given_up.is_empty());
    let presence = at(&five(2), &mut memory, 1_000_000);
    assert_eq!((presence.brake, memory.given_up.len()), (None, 1));
}

/// F4: one worker per `movePerWorker`, and none is given up twice or forgotten until it is heard.
#[test]
fn lost_workers_are_given_up_one_after_the_other() {
    let mut memory = Memory::default();
    let mut order = Vec::new();
    for now in (1_000_000..1_025_000).step_by(1000) {
        for name in at(&five(2), &mut memory, now).newly_given_up {
            order.push((now, name.to_string()));
        }
    }
    assert_eq!(order, [(1_000_000, "w0".to_owned()), (1_010_000, "w1".to_owned())]);
    let fleet = FleetFile::default();
    let presence = at(&five(2), &mut memory, 1_025_000);
    let state =
        |name: &str, memory: &Memory| presence.for_scheduling(&worker_name(name), memory, &fleet, false);
    assert_eq!(
        (state("w0", &memory), state("w0", &Memory::default())),
        (WorkerState::Lost, WorkerState::Unknown)
    );
    at(&five(0), &mut memory, 1_026_000);
    assert!(memory.given_up.is_empty(), "they came back");
}

/// F24: what was repeated, came late or is of an older session says nothing.
#[test]
fn heartbeats_count_once() {
    let heartbeat = |session, seq| Heartbeat {
        worker: worker_name("w1"),
        boot_id: "b".to_owned(),
        session,
        process: String::new(),
        seq,
        seen_generation: 0,
        seen_revision: 0,
        full: true,
        instances: vec![],
        facts: None,
    };
    assert_eq!(Heard::default().freshness(&heartbeat(0, 0)), Freshness::NewSession);
    let last = Heard { at: Some(1), session: 4, seq: 7, boot_id: "b".to_owned(), process: String::new() };
    for (session, seq, freshness) in [
        (4, 8, Freshness::Fresh),
        (4, 7, Freshness::Replayed),
        (4, 1, Freshness::Replayed),
        (3, 99, Freshness::Replayed),
        (5, 0, Freshness::NewSession),
    ] {
        assert_eq!(last.freshness(&heartbeat(session, seq)), freshness, "{session} {seq}");
    }
    // A copy of the worker's files counts on from the same number: it is another process, or another boot.
    let copies = [
        Heartbeat { process: "p".to_owned(), ..heartbeat(4, 8) },
        Heartbeat { boot_id: "c".to_owned(), ..heartbeat(4, 8) },
    ];
    for copy in copies {
        assert_eq!(last.freshness(&copy), Freshness::Replayed, "{copy:?}");
    }
}
