//! What a recording shows, forwards and back.

use stead_model::event::RunKind;
use stead_model::{RunStatus, Status};

use super::*;
use crate::tui::testing::{
    phase_ended, phase_started, role_exited, role_started, run_ended, run_started, wrote,
};
use crate::tui::watched::{Verbosity, Watched};

fn at(millis: i64) -> Timestamp {
    Timestamp::from_micros(millis * 1_000)
}

/// A run of a second: an event every hundred milliseconds.
fn recording(middle: usize) -> Replay {
    let mut kinds = vec![
        run_started(RunKind::Run),
        role_started("client", "local"),
        phase_started("client_done"),
        wrote("client", stead_model::event::Stream::Stdout, 0, 5),
    ];
    kinds.extend((0..middle).map(|i| wrote("client", stead_model::event::Stream::Stdout, 5 + i as u64, 1)));
    kinds.push(role_exited("client", Some(3), None));
    kinds.push(phase_ended("client_done", Status::Failed, Some("role `client` exited with 3")));
    kinds.push(run_ended(RunStatus::Failed));
    let events = kinds.into_iter().enumerate().map(|(i, kind)| Event {
        seq: i as u64 + 1,
        t: at(i as i64 * 100),
        kind,
    });
    let mut run = Watched::new(7, "/lab/runs".into(), Verbosity::Quiet);
    run.expect_phase("client_done");
    Replay::new(Recording { run: Box::new(run), events: events.collect(), damaged: 0, left_out: 0 })
}

fn state(replay: &Replay) -> (usize, String, String) {
    let word = replay.run.phases[0].word(true).to_owned();
    let role = replay.run.roles.first().map_or_else(String::new, |role| role.words());
    (replay.place().0, word, role)
}

fn is(replay: &Replay, at: usize, phase: &str, role: &str) {
    assert_eq!(state(replay), (at, phase.to_owned(), role.to_owned()));
}

/// Before its first event a run is called what it is afterwards.
#[test]
fn a_replay_knows_what_it_shows_before_anything_has_happened() {
    for kind in [RunKind::Run, RunKind::Plan, RunKind::Nodes] {
        let run = Box::new(Watched::new(7, "/lab/runs".into(), Verbosity::Quiet));
        let events = vec![Event { seq: 1, t: at(0), kind: run_started(kind) }];
        let mut replay = Replay::new(Recording { run, events, damaged: 0, left_out: 0 });
        let before = replay.run.has_phases();
        assert_eq!(before, kind == RunKind::Run);
        replay.step(1);
        assert_eq!(replay.run.has_phases(), before);
        replay.step(-1);
        assert_eq!(replay.run.has_phases(), before);
    }
}

#[test]
fn every_step_forwards_and_back_shows_the_run_as_it_was() {
    let mut replay = recording(0);
    is(&replay, 0, "waiting", "");
    assert_eq!(replay.said(), "nothing has happened");
    replay.step(1);
    replay.step(1);
    is(&replay, 2, "waiting", "running");
    replay.step(1);
    is(&replay, 3, "running", "running");
    assert_eq!(replay.said(), "[start] client_done");
    let reads = replay.step(1);
    assert_eq!(reads.len(), 1, "what it wrote is read");
    replay.step(1);
    is(&replay, 5, "running", "exited 3");
    assert_eq!(replay.said(), "[role_exited] client");
    replay.step(-1);
    is(&replay, 4, "running", "running");
    replay.step(-9);
    is(&replay, 0, "waiting", "");
    replay.step(99);
    is(&replay, 7, "failed", "exited 3");
    assert_eq!(replay.run.ended.map(|ended| ended.status), Some(RunStatus::Failed));
    replay.step(-1);
    assert_eq!(replay.run.ended, None, "it goes on again");
    assert_eq!(replay.times(), (500, 600));
}

#[test]
fn playing_follows_the_recorded_pace_times_the_speed() {
    let mut replay = recording(0);
    replay.toggle(at(50_000));
    replay.tick(at(50_000));
    is(&replay, 1, "waiting", "");
    replay.tick(at(50_250));
    is(&replay, 3, "running", "running");
    // Twice as fast from here on.
    replay.change_speed(1, at(50_250));
    assert_eq!(replay.speed(), "×2");
    replay.tick(at(50_300));
    is(&replay, 4, "running", "running");
    replay.tick(at(50_450));
    assert!(!replay.is_playing(), "it is at its end");
    is(&replay, 7, "failed", "exited 3");
    // From the end it begins again.
    replay.toggle(at(60_000));
    is(&replay, 0, "waiting", "");
    replay.toggle(at(60_000));
    assert!(!replay.is_playing());
    replay.change_speed(-9, at(0));
    assert_eq!(replay.speed(), "×0.25");
    replay.change_speed(99, at(0));
    assert_eq!(replay.speed(), "×1000");
}

#[test]
fn a_step_by_hand_ends_the_playing() {
    let mut replay = recording(0);
    replay.toggle(at(0));
    replay.step(1);
    assert!(!replay.is_playing() && replay.tick(at(9_000)).is_empty());
    is(&replay, 1, "waiting", "");
}

#[test]
fn going_back_in_a_long_run_does_not_begin_at_its_beginning() {
    let mut replay = recording(20_000);
    replay.go(usize::MAX);
    assert!(replay.kept.len() > KEPT && replay.kept.len() < 2 * KEPT, "{}", replay.kept.len());
    let written = |replay: &Replay| replay.run.roles[0].written();
    assert_eq!(written(&replay), 20_005);
    replay.go(10_004);
    assert_eq!((written(&replay), replay.place()), (10_005, (10_004, 20_007)));
    let reads = replay.go(10_003);
    let [read] = reads.as_slice() else { panic!("{reads:?}") };
    assert_eq!(read.pieces.iter().map(|piece| piece.len).sum::<u64>(), 10_004);
}

#[test]
fn what_cannot_be_shown_is_said() {
    let mut whole = recording(0);
    assert_eq!(whole.note, None);
    let events: Vec<Event> = whole.events.to_vec();
    whole = Replay::new(Recording { run: whole.run, events, damaged: 2, left_out: 5 });
    let note = whole.note.unwrap();
    assert!(note.contains("2 lines") && note.contains("last 5 events"), "{note}");
    let nothing = Watched::new(1, "/lab".into(), Verbosity::Quiet);
    let mut empty =
        Replay::new(Recording { run: Box::new(nothing), events: Vec::new(), damaged: 0, left_out: 0 });
    assert!(empty.step(1).is_empty() && empty.step(-1).is_empty() && empty.toggle(at(0)).is_empty());
    empty.tick(at(1));
    assert!(!empty.is_playing());
}
