//! What keys, answers and signals make of the screen, and what is drawn of it.

use stead_bundle::Listed;
use stead_model::event::{RunKind, Stream};
use stead_model::{ExitCode, RunStatus, Status};

use super::*;
use crate::tui::agents::{CheckState, Registered};
use crate::tui::form::{Field, Problem};
use crate::tui::picker::Entry;
use crate::tui::state::{RunEnd, Why};
use crate::tui::testing::*;

mod snapshots;
mod views;

fn listed(run_id: &str) -> Listed {
    Listed {
        run_id: run_id.to_owned(),
        path: format!("/lab/runs/{run_id}"),
        plan: None,
        kind: Some("run".to_owned()),
        status: "success".to_owned(),
        started_at: None,
        duration_seconds: Some(1.5),
        sealed: true,
    }
}

#[test]
fn keys_move_in_the_list_and_enter_opens() {
    let mut stage = TestScreen::new();
    assert!(stage.press(Key::Enter).is_empty());
    stage.send(Message::Bundles(Ok((0..50).map(|i| listed(&format!("r{i}"))).collect())));
    stage.type_text("jjk");
    stage.press(Key::Down);
    let intents = stage.press(Key::Enter);
    assert_eq!(intents, [Intent::OpenBundle { path: "/lab/runs/r2".into(), key: 1 }]);
    stage.press(Key::End);
    assert!(stage.shows("r49") && stage.shows("50/50"));
    // The list got shorter: the cursor stays in it.
    stage.send(Message::Bundles(Ok(vec![listed("only")])));
    assert_eq!(stage.press(Key::Enter), [Intent::OpenBundle { path: "/lab/runs/only".into(), key: 2 }]);
}

#[test]
fn while_a_text_is_edited_keys_are_text() {
    let mut stage = TestScreen::new();
    stage.type_text("ojj");
    assert_eq!(stage.state.controller.form.field(), Field::Timeout);
    stage.press(Key::Enter);
    stage.press(Key::DeleteLine);
    assert!(stage.type_text("qrvdxo?7").is_empty());
    stage.send(Message::Paste("s\n".to_owned()));
    stage.press(Key::Enter);
    assert_eq!(stage.state.controller.form.request().timeout, "qrvdxo?7s");
    assert!(stage.state.overlay.is_none());
}

#[test]
fn a_manifest_is_chosen_in_the_picker_and_its_roles_are_asked_for() {
    let mut stage = TestScreen::new();
    stage.press(Key::Char('o'));
    assert_eq!(stage.press(Key::Enter), [Intent::ListEntries { directory: String::new() }]);
    let entries = vec![Entry::File("a.yaml".to_owned()), Entry::File("b.yaml".to_owned())];
    stage.send(Message::Entries { directory: String::new(), entries });
    assert!(stage.shows("a.yaml") && stage.shows("b.yaml"));
    stage.press(Key::Down);
    let intents = stage.press(Key::Enter);
    let [Intent::Load { serial, why: Why::Roles, request }] = intents.as_slice() else {
        panic!("{intents:?}")
    };
    assert_eq!(request.manifest, "b.yaml");
    stage.send(Message::Loaded { serial: *serial, why: Why::Roles, result: Ok(manifest()) });
    assert!(stage.shows("server  service  on edge (ssh://lab@10.20.0.7:2222)"), "{}", stage.draw());
    assert!(stage.shows("client  task     on local"));
}

#[test]
fn a_path_can_be_typed_at_once() {
    let mut stage = TestScreen::new();
    stage.press(Key::Char('o'));
    stage.type_text("/labs/rq.yaml");
    stage.press(Key::Enter);
    assert_eq!(stage.state.controller.form.request().manifest, "/labs/rq.yaml");
}

#[test]
fn every_problem_is_shown_with_its_line_and_all_can_be_reached() {
    let mut stage = TestScreen::new();
    stage.press(Key::Char('o'));
    assert!(stage.press(Key::Char('v')).is_empty());
    assert!(stage.shows("no manifest is named"));
    stage.state.controller.form.set_manifest("lab.yaml");
    let intents = stage.press(Key::Char('v'));
    let [Intent::Load { serial, why: Why::Validate, .. }] = intents.as_slice() else { panic!("{intents:?}") };
    let problems = (1..=30).map(|line| Problem {
        place: format!("lab.yaml:{line}:3 roles.r{line}"),
        message: "there is no such key".to_owned(),
        help: "use `command`".to_owned(),
    });
    stage.send(Message::Loaded { serial: *serial, why: Why::Validate, result: Err(problems.collect()) });
    assert!(stage.shows("30 problems"));
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..20 {
        let screen = stage.draw();
        seen.extend((1..=30).filter(|line| screen.contains(&format!("lab.yaml:{line}:3"))));
        stage.press(Key::PageDown);
    }
    assert_eq!(seen.len(), 30);
}

#[test]
fn every_field_is_part_of_what_is_asked_for() {
    let mut stage = TestScreen::new();
    stage.press(Key::Char('o'));
    stage.state.controller.form.set_manifest("lab.yaml");
    for text in ["elsewhere", "7s"] {
        stage.press(Key::Down);
        stage.press(Key::Enter);
        stage.press(Key::DeleteLine);
        stage.type_text(text);
        stage.press(Key::Enter);
    }
    stage.press(Key::Down);
    stage.press(Key::Char(' '));
    stage.press(Key::Down);
    stage.press(Key::Right);
    let intents = stage.press(Key::Char('r'));
    let [Intent::DryRun { request, .. }] = intents.as_slice() else {
        panic!("a dry run was asked for: {intents:?}")
    };
    assert_eq!(
        (request.bundle_dir.as_str(), request.timeout.as_str(), request.verbose),
        ("elsewhere", "7s", true)
    );
    stage.press(Key::Up);
    stage.press(Key::Left);
    let intents = stage.press(Key::Char('r'));
    let [Intent::Run { request, .. }] = intents.as_slice() else { panic!("{intents:?}") };
    assert_eq!(
        (request.bundle_dir.as_str(), request.timeout.as_str(), request.verbose),
        ("elsewhere", "7s", true)
    );
}

#[test]
fn an_answer_to_an_earlier_question_is_not_shown() {
    let mut stage = TestScreen::new();
    stage.press(Key::Char('o'));
    stage.state.controller.form.set_manifest("lab.yaml");
    let first = stage.press(Key::Char('d'));
    stage.press(Key::Char('v'));
    let [Intent::DryRun { serial, .. }] = first.as_slice() else { panic!("{first:?}") };
    stage.send(Message::DryRun { serial: *serial, result: Ok(vec!["init".to_owned()]) });
    assert!(!stage.shows("Dry run ─") && stage.shows("reading…"));
}

#[test]
fn x_stops_once_and_kills_once() {
    let mut stage = TestScreen::new();
    let key = stage.start();
    stage.happen(key, run_started(RunKind::Run));
    assert_eq!(stage.press(Key::Char('x')), [Intent::StopRun]);
    assert!(stage.shows("stopping"));
    assert_eq!(stage.press(Key::Char('x')), [Intent::StopRun]);
    assert!(stage.press(Key::Char('x')).is_empty());
    stage.happen(key, run_ended(RunStatus::Cancelled));
    let ended = RunEnd { bundle: Some("/lab/runs/r1".into()), ..RunEnd::default() };
    stage.send(Message::RunEnded { key, result: Ok(ended) });
    assert!(stage.shows("cancelled") && stage.shows("/lab/runs/r1"));
    assert!(stage.press(Key::Char('x')).is_empty());
    // Enter goes back to the form, with what was typed.
    let intents = stage.press(Key::Enter);
    assert!(matches!(intents.as_slice(), [Intent::Load { why: Why::Roles, .. }]), "{intents:?}");
    assert!(stage.shows("lab.yaml"));
}

#[test]
fn leaving_during_a_run_asks_first() {
    let mut stage = TestScreen::new();
    let key = stage.start();
    assert!(stage.press(Key::Char('q')).is_empty());
    assert!(stage.shows("A run goes on."));
    assert!(stage.press(Key::Char('n')).is_empty());
    assert!(!stage.shows("A run goes on.") && stage.state.is_running());
    stage.press(Key::Esc);
    assert!(stage.shows("a run goes on"), "the list of runs says so");
    stage.press(Key::Char('q'));
    assert_eq!(stage.press(Key::Char('y')), [Intent::StopRun]);
    let ended = RunEnd::default();
    let intents = stage.send(Message::RunEnded { key, result: Ok(ended) });
    assert!(intents.contains(&Intent::Quit(ExitCode::Success)), "{intents:?}");
    assert_eq!(TestScreen::new().press(Key::Char('q')), [Intent::Quit(ExitCode::Success)]);
}

#[test]
fn a_signal_leaves_when_the_run_has_ended() {
    assert_eq!(TestScreen::new().send(Message::Signal), [Intent::Quit(ExitCode::Cancelled)]);
    assert_eq!(TestScreen::new().press(Key::Interrupt), [Intent::Quit(ExitCode::Cancelled)]);
    let mut stage = TestScreen::new();
    let key = stage.start();
    assert!(stage.send(Message::Signal).is_empty(), "the run was told already");
    assert!(stage.shows("leaving when the run has ended"));
    // A text that is edited does not keep Ctrl-C from working.
    assert_eq!(stage.press(Key::Interrupt), [Intent::StopRun]);
    let intents = stage.send(Message::RunEnded { key, result: Err(Vec::new()) });
    assert!(intents.contains(&Intent::Quit(ExitCode::Cancelled)));
}

#[test]
fn a_run_that_cannot_start_says_why_in_the_form() {
    let mut stage = TestScreen::new();
    let key = stage.start();
    let problem = Problem {
        place: "lab.yaml:3:1".to_owned(),
        message: "run_id `r1` is taken".to_owned(),
        help: String::new(),
    };
    stage.send(Message::RunEnded { key, result: Err(vec![problem]) });
    assert!(stage.shows("run_id `r1` is taken") && stage.shows("Controller"));
    assert!(!stage.state.is_running());
}

#[test]
fn output_is_asked_for_where_it_lies_and_shown() {
    let mut stage = TestScreen::new();
    let key = stage.start();
    stage.happen(key, run_started(RunKind::Run));
    stage.happen(key, role_started("client", "local"));
    let intents = stage.happen(key, wrote("client", Stream::Stdout, 0, 6));
    let [Intent::ReadOutput { read, .. }] = intents.as_slice() else { panic!("{intents:?}") };
    assert_eq!(read.directory, std::path::Path::new("/lab/runs/2026-11-15_10-00-00"));
    let parts = vec![(read.pieces[0].clone(), b"hello\n".to_vec())];
    stage.send(Message::Output { key, reader: read.reader, parts });
    assert!(stage.shows("hello") && stage.shows("Output: client"));
    // Of a run that is not there any more nothing is shown.
    let parts = vec![(read.pieces[0].clone(), b"stray\n".to_vec())];
    stage.send(Message::Output { key: key + 1, reader: read.reader, parts });
    assert!(!stage.shows("stray"));
}

#[test]
fn tab_shows_the_agents_and_checks_do_not_block() {
    let mut stage = TestScreen::new();
    stage.press(Key::Char('o'));
    assert_eq!(stage.press(Key::Tab), [Intent::LookAtAgents]);
    assert!(stage.shows("looking at this machine…"));
    let agent = |name: &str| Registered {
        name: name.to_owned(),
        transport: format!("ssh://lab@{name}:22"),
        description: Some("the edge".to_owned()),
        state: CheckState::Unchecked,
    };
    stage.send(Message::Registry(Ok(vec![agent("edge1"), agent("edge2")])));
    assert_eq!(
        stage.press(Key::Char('C')),
        [Intent::CheckAgents(vec!["edge1".to_owned(), "edge2".to_owned()])]
    );
    assert!(stage.shows("checking…"));
    stage.press(Key::Tab);
    assert!(stage.shows("Bundle directory"));
    let state = CheckState::Failed("no route to host".to_owned());
    stage.send(Message::Checked { name: "edge1".to_owned(), state });
    stage.press(Key::Tab);
    assert!(stage.shows("no route to host"));
}

/// Section 9: at 80 × 24 everything can be reached by scrolling.
#[test]
fn every_phase_role_and_artifact_can_be_reached() {
    let mut stage = TestScreen::new();
    let key = stage.start();
    stage.happen(key, run_started(RunKind::Run));
    for i in 0..40 {
        stage.happen(key, role_started(&format!("r{i}"), "local"));
        stage.happen(key, phase_started(&format!("r{i}_start")));
        stage.happen(key, phase_ended(&format!("r{i}_start"), Status::Changed, None));
        stage.happen(key, artifact(&format!("r{i}"), "out.json", 4096));
    }
    stage.happen(key, run_ended(RunStatus::Success));
    stage.send(Message::RunEnded { key, result: Ok(RunEnd::default()) });
    let (mut phases, mut artifacts, mut roles) = (0, 0, 0);
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..150 {
        for line in stage.draw().lines() {
            seen.insert(line.to_owned());
        }
        stage.press(Key::Down);
        stage.press(Key::Right);
    }
    for i in 0..40 {
        phases += usize::from(seen.iter().any(|line| line.contains(&format!(" r{i}_start "))));
        artifacts += usize::from(seen.iter().any(|line| line.contains(&format!(" r{i}/out.json"))));
        roles += usize::from(seen.iter().any(|line| line.contains(&format!("Output: r{i} "))));
    }
    assert_eq!((phases, artifacts, roles), (40, 40, 40));
}

#[test]
fn no_size_breaks_the_screen() {
    for size in [(0, 0), (1, 1), (5, 2), (20, 6), (80, 24), (300, 100)] {
        let mut stage = TestScreen::new();
        stage.send(Message::Resized { columns: size.0, rows: size.1 });
        stage.draw();
        stage.send(Message::Bundles(Ok(vec![listed("r1")])));
        stage.draw();
        stage.press(Key::Char('?'));
        stage.draw();
        stage.press(Key::Esc);
        stage.press(Key::Char('o'));
        stage.draw();
        stage.press(Key::Enter);
        stage.draw();
        stage.press(Key::Esc);
        stage.press(Key::Tab);
        stage.draw();
        stage.press(Key::Tab);
        stage.press(Key::Esc);
        let key = stage.start();
        stage.happen(key, run_started(RunKind::Run));
        stage.happen(key, role_started("client", "local"));
        stage.draw();
        stage.press(Key::Char('l'));
        stage.draw();
        stage.press(Key::Esc);
        stage.press(Key::Char('q'));
        stage.draw();
    }
}
