//! What events make of a run.

use stead_model::event::{RunKind, RunResumed, Stream};
use stead_model::time::Timestamp;
use stead_model::{Event, EventKind, RunStatus, Status};

use super::*;
use crate::tui::testing::{
    phase_ended, phase_started, role_exited, role_ready, role_started, role_stop, run_ended, run_started,
    wrote,
};

struct Fed {
    run: Watched,
    seq: u64,
}

impl Fed {
    fn new(verbosity: Verbosity) -> Self {
        let mut fed = Self { run: Watched::new(1, "/lab/runs".into(), verbosity), seq: 0 };
        fed.run.expect_role("server", "edge");
        fed.run.expect_role("client", "local");
        fed
    }

    fn feed(&mut self, kind: EventKind) -> Vec<Read> {
        self.seq += 1;
        self.run.apply(&Event { seq: self.seq, t: Timestamp::from_micros(0), kind })
    }

    fn words(&self) -> Vec<String> {
        self.run.roles.iter().map(Role::words).collect()
    }
}

#[test]
fn roles_go_through_their_states() {
    let mut fed = Fed::new(Verbosity::Quiet);
    fed.feed(run_started(RunKind::Run));
    assert_eq!(fed.words(), ["waiting", "waiting"]);
    fed.feed(role_started("server", "edge"));
    assert_eq!(fed.words(), ["running", "waiting"]);
    fed.feed(role_ready("server"));
    let lost = stead_model::event::AgentLost { agent: "edge".to_owned(), error: None };
    fed.feed(EventKind::AgentLost(Box::new(lost)));
    assert_eq!(fed.words(), ["connection lost", "waiting"]);
    let back = stead_model::event::AgentBack { agent: "edge".to_owned() };
    fed.feed(EventKind::AgentBack(Box::new(back)));
    assert_eq!(fed.words(), ["ready", "waiting"]);
    fed.feed(role_stop("server"));
    assert_eq!(fed.words(), ["stopping (TERM)", "waiting"]);
    fed.feed(role_exited("server", None, Some("KILL")));
    fed.feed(run_ended(RunStatus::Cancelled));
    assert_eq!(fed.words(), ["ended by KILL", "not started"]);
    assert_eq!(fed.run.bundle, Some("/lab/runs/2026-11-15_10-00-00".into()));
}

#[test]
fn the_newest_role_is_shown_until_a_person_chooses() {
    let mut fed = Fed::new(Verbosity::Quiet);
    fed.feed(run_started(RunKind::Run));
    fed.feed(role_started("server", "edge"));
    assert_eq!(fed.run.chosen(), Chosen::Role(0));
    let reads = fed.feed(wrote("server", Stream::Stdout, 0, 10));
    assert_eq!(reads.len(), 1);
    fed.feed(role_started("client", "local"));
    assert_eq!(fed.run.chosen(), Chosen::Role(1));
    assert!(fed.feed(wrote("server", Stream::Stdout, 10, 5)).is_empty(), "nobody looks at it");
    let read = fed.run.choose(-1).unwrap();
    assert_eq!((read.pieces[0].offset, read.pieces[0].len), (0, 15));
    fed.feed(role_started("late", "local"));
    assert_eq!(fed.run.chosen(), Chosen::Role(0));
    fed.run.choose(-1);
    assert_eq!(fed.run.chosen(), Chosen::Log);
    fed.run.choose(1);
    assert_eq!(fed.run.chosen(), Chosen::Role(0));
}

#[test]
fn output_of_an_earlier_choice_is_dropped() {
    let mut fed = Fed::new(Verbosity::Quiet);
    fed.feed(run_started(RunKind::Run));
    fed.feed(role_started("server", "edge"));
    let read = fed.feed(wrote("server", Stream::Stdout, 0, 4)).remove(0);
    fed.run.choose(1);
    fed.run.choose(-1);
    fed.run.take_output(read.reader, &[(read.pieces[0].clone(), b"old\n".to_vec())]);
    assert_eq!(fed.run.shown().all().count(), 0);
    let read = fed.feed(wrote("server", Stream::Stdout, 4, 4)).remove(0);
    fed.run.take_output(read.reader, &[(read.pieces[0].clone(), b"new\n".to_vec())]);
    assert_eq!(fed.run.shown().all().count(), 1);
}

#[test]
fn a_verbose_log_holds_the_output_of_all_roles() {
    for (verbosity, expected) in [(Verbosity::Quiet, 1), (Verbosity::Verbose, 2)] {
        let mut fed = Fed::new(verbosity);
        fed.feed(run_started(RunKind::Run));
        fed.feed(role_started("client", "local"));
        let reads = fed.feed(wrote("client", Stream::Stderr, 0, 6));
        assert_eq!(reads.len(), expected);
        for read in reads {
            fed.run.take_output(read.reader, &[(read.pieces[0].clone(), b"hello\n".to_vec())]);
        }
        let logged = fed.run.log().all().any(|(_, line)| line == "client | hello");
        assert_eq!(logged, verbosity == Verbosity::Verbose);
    }
}

#[test]
fn memory_holds_places_not_output_and_little_of_them() {
    let mut fed = Fed::new(Verbosity::Quiet);
    fed.feed(run_started(RunKind::Run));
    fed.feed(role_started("client", "local"));
    // Two streams in turn: pieces cannot be joined.
    for i in 0..10_000 {
        let stream = if i % 2 == 0 { Stream::Stdout } else { Stream::Stderr };
        fed.feed(wrote("client", stream, (i / 2) * 1_000, 1_000));
    }
    assert_eq!(fed.run.roles[1].written(), 10_000_000);
    fed.run.choose(1);
    let read = fed.run.choose(-1).unwrap();
    assert_eq!(read.pieces.iter().map(|piece| piece.len).sum::<u64>(), TAIL_BYTES);
    assert!(read.pieces.len() < 100);
    let huge = fed.feed(wrote("client", Stream::Stdout, 5_000_000, 4 << 30)).remove(0);
    assert_eq!(huge.pieces[0].len, TAIL_BYTES);
    fed.run.take_output(huge.reader, &[(huge.pieces[0].clone(), b"end\n".to_vec())]);
    assert!(fed.run.shown().all().any(|(kind, _)| kind == LineKind::Note));
}

#[test]
fn a_failed_run_shows_the_role_that_failed() {
    let mut fed = Fed::new(Verbosity::Quiet);
    fed.feed(run_started(RunKind::Run));
    fed.feed(role_started("server", "edge"));
    fed.feed(role_started("client", "local"));
    fed.feed(phase_started("server_ready"));
    fed.feed(phase_ended("server_ready", Status::Failed, Some("not ready after 2s")));
    fed.feed(run_ended(RunStatus::Failed));
    assert_eq!(fed.run.chosen(), Chosen::Role(0));
    assert_eq!(fed.run.error.as_deref(), Some("server_ready: not ready after 2s"));
}

/// What stopped a run is not told of it any more once it was taken up again and succeeded.
#[test]
fn a_run_that_succeeded_after_all_has_no_error() {
    let mut fed = Fed::new(Verbosity::Quiet);
    fed.feed(run_started(RunKind::Plan));
    fed.feed(phase_started("convert"));
    fed.feed(phase_ended("convert", Status::Failed, Some("it was interrupted")));
    fed.feed(run_ended(RunStatus::Failed));
    assert_eq!(fed.run.error.as_deref(), Some("convert: it was interrupted"));
    fed.feed(EventKind::RunResumed(Box::new(RunResumed { segment: 2, ..RunResumed::default() })));
    assert_eq!(fed.run.error, None);
    fed.feed(phase_started("convert"));
    fed.feed(phase_ended("convert", Status::Changed, None));
    fed.feed(run_ended(RunStatus::Success));
    assert_eq!(fed.run.error, None);
}

#[test]
fn a_bundle_from_anywhere_names_no_file_outside() {
    let mut fed = Fed::new(Verbosity::Quiet);
    fed.feed(run_started(RunKind::Plan));
    for file in ["/etc/passwd", "../../secret", "", "roles/../../x"] {
        let EventKind::Log { task, host, attempt, stream, offset, .. } = wrote("a", Stream::Stdout, 0, 1)
        else {
            unreachable!()
        };
        let file = file.to_owned();
        assert!(fed.feed(EventKind::Log { task, host, attempt, stream, file, offset, len: 1 }).is_empty());
    }
    assert_eq!(fed.run.roles.len(), 2);
    assert_eq!(fed.feed(wrote("a", Stream::Stdout, 0, 1)).len(), 1);
    assert_eq!(fed.run.roles[2].name, "a@local");
}
