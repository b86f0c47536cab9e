//! Runs, nodes and fleet: going from one to the other, filtering, opening, replaying.

use serde_json::json;
use stead_model::event::RowResult;
use stead_model::time::Timestamp;
use stead_model::{Event, EventKind, HostName, NodeName};

use super::*;
use crate::tui::nodes::Seen;
use crate::tui::replay::Recording;
use crate::tui::trouble::Trouble;
use crate::tui::watched::{Liveness, Verbosity, Watched};

fn at(millis: i64) -> Timestamp {
    Timestamp::from_micros(millis * 1_000)
}

fn host_ended(task_name: &str, host: &str, status: Status, error: Option<&str>) -> EventKind {
    let mut result = RowResult::new(status);
    (result.duration_ms, result.error) = (700, error.map(str::to_owned));
    let host = HostName::parse(host).unwrap();
    EventKind::HostResult { task: task(task_name), host, attempt: 2, result: Box::new(result) }
}

fn wrote_on(task_name: &str, host: &str, offset: u64, len: u64) -> EventKind {
    EventKind::Log {
        task: task(task_name),
        host: Some(HostName::parse(host).unwrap()),
        attempt: 1,
        stream: Stream::Stdout,
        file: format!("logs/{task_name}/{host}.1.stdout"),
        offset,
        len,
    }
}

/// What happened in a plan of two tasks: `deploy` on two hosts, one of which fails; a run below has two tasks.
fn events() -> Vec<Event> {
    let hosts = ["web1", "web2"].map(|host| HostName::parse(host).unwrap()).to_vec();
    let below = |event: serde_json::Value| EventKind::Delegated {
        task: task("guests"),
        origin: vec![NodeName::parse("edge").unwrap()],
        event: Box::new(event),
    };
    let kinds = vec![
        run_started(RunKind::Plan),
        EventKind::TaskStarted { task: task("deploy"), hosts, batches: Vec::new() },
        wrote_on("deploy", "web1", 0, 6),
        host_ended("deploy", "web1", Status::Changed, None),
        host_ended("deploy", "web2", Status::Failed, Some("no space left on device")),
        phase_ended("deploy", Status::Failed, Some("1 of 2 hosts failed")),
        phase_started("guests"),
        below(json!({"ev": "task_started", "t": "1970-01-01T00:00:01Z", "seq": 3, "task": "create-leaf"})),
        below(json!({"ev": "task_finished", "t": "1970-01-01T00:00:02Z", "seq": 4, "task": "create-leaf",
            "status": "changed", "changed": true, "duration_ms": 900})),
        below(json!({"ev": "something_new", "task": "x"})),
        phase_ended("guests", Status::Changed, None),
        run_ended(RunStatus::Failed),
    ];
    let numbered = kinds.into_iter().enumerate();
    numbered.map(|(i, kind)| Event { seq: i as u64 + 1, t: at(i as i64 * 1_000), kind }).collect()
}

fn unbegun(key: u64) -> Box<Watched> {
    let mut run = Watched::new(key, "/lab/runs".into(), Verbosity::Quiet);
    run.bundle = Some("/lab/runs/r1".into());
    ["deploy", "guests"].iter().for_each(|task| run.expect_phase(task));
    Box::new(run)
}

/// A screen that shows the recorded run.
fn recorded() -> TestScreen {
    let mut stage = TestScreen::new();
    stage.send(Message::Bundles(Ok(vec![listed("r1")])));
    let intents = stage.press(Key::Enter);
    let [Intent::OpenBundle { key, .. }] = intents.as_slice() else { panic!("{intents:?}") };
    let mut run = unbegun(*key);
    events().iter().for_each(|event| drop(run.apply(event)));
    stage.send(Message::Recorded(Ok(run)));
    stage
}

/// A screen that shows it again.
fn replayed() -> TestScreen {
    let mut stage = recorded();
    let intents = stage.press(Key::Char('p'));
    let [Intent::ReadRecording { key, .. }] = intents.as_slice() else { panic!("{intents:?}") };
    let recording = Recording { run: unbegun(*key), events: events(), damaged: 0, left_out: 0 };
    stage.send(Message::Replayable { key: *key, recording: Ok(Box::new(recording)) });
    stage
}

fn nodes() -> TestScreen {
    let mut stage = TestScreen::new();
    assert_eq!(stage.press(Key::Char('2')), [Intent::LookAtNodes]);
    stage.send(Message::Nodes(Ok(Seen::of(&nodes_status()))));
    stage
}

fn fleet() -> TestScreen {
    let mut stage = TestScreen::new();
    assert_eq!(stage.press(Key::Char('3')), [Intent::AskFleet]);
    stage.send(Message::Fleet(Box::new(Ok(fleet_status()))));
    stage
}

#[test]
fn numbers_and_tab_go_to_every_view_and_esc_back_to_the_runs() {
    let mut stage = TestScreen::new();
    for (key, tab) in [('2', "[2 Nodes]"), ('3', "[3 Fleet]"), ('4', "[4 Orchestration]"), ('1', "[1 Runs]")]
    {
        stage.press(Key::Char(key));
        assert!(stage.shows(tab), "{}", stage.draw());
    }
    for tab in ["[2 Nodes]", "[3 Fleet]", "[4 Orchestration]"] {
        stage.press(Key::Tab);
        assert!(stage.shows(tab), "{}", stage.draw());
    }
    // In the panel Tab goes between its own two views; Shift-Tab leaves it.
    stage.press(Key::Tab);
    assert!(stage.shows("[Agent]"));
    stage.press(Key::Tab);
    assert!(stage.shows("[Controller]"));
    for tab in ["[3 Fleet]", "[2 Nodes]", "[1 Runs]", "[4 Orchestration]", "[3 Fleet]"] {
        stage.press(Key::BackTab);
        assert!(stage.shows(tab), "{}", stage.draw());
    }
    stage.press(Key::Esc);
    assert!(stage.shows("[1 Runs]"));
    assert!(stage.press(Key::Esc).is_empty() && stage.shows("[1 Runs]"));
}

#[test]
fn a_view_is_found_again_as_it_was_left() {
    let mut stage = recorded();
    stage.press(Key::Char('2'));
    assert!(stage.shows("[2 Nodes]"));
    stage.press(Key::Char('1'));
    assert!(stage.shows("Recorded run"), "{}", stage.draw());
    // From a run, its own number leads to the list.
    stage.press(Key::Char('1'));
    assert!(!stage.shows("Recorded run") && stage.state.recorded.is_none());
}

#[test]
fn runs_are_filtered_by_id_kind_status_and_name() {
    let mut stage = TestScreen::new();
    let mut failed = listed("r-two");
    (failed.status, failed.plan, failed.kind) = ("failed".into(), Some("Web".into()), Some("plan".into()));
    stage.send(Message::Bundles(Ok(vec![listed("r-one"), failed])));
    for (text, one, two) in [
        ("two", false, true),
        ("plan", false, true),
        ("FAIL", false, true),
        ("web", false, true),
        ("r-", true, true),
    ] {
        stage.press(Key::Char('/'));
        stage.type_text(text);
        assert_eq!((stage.shows("r-one"), stage.shows("r-two")), (one, two), "{text}\n{}", stage.draw());
        stage.press(Key::Enter);
        assert!(stage.shows(&format!("filter: {text}")), "{}", stage.draw());
        // One level back is the whole list.
        stage.press(Key::Esc);
        assert!(stage.shows("r-one") && stage.shows("r-two"));
    }
    stage.press(Key::Char('/'));
    assert!(stage.type_text("q?1x").is_empty(), "keys are text");
    assert!(stage.shows("nothing fits `q?1x`: Esc shows all"), "{}", stage.draw());
    assert!(
        stage.press(Key::Enter).is_empty() && stage.press(Key::Enter).is_empty(),
        "there is none to open"
    );
    stage.press(Key::Esc);
    stage.press(Key::Char('/'));
    stage.send(Message::Paste("two\n".to_owned()));
    stage.press(Key::Enter);
    assert_eq!(stage.press(Key::Enter), [Intent::OpenBundle { path: "/lab/runs/r-two".into(), key: 1 }]);
}

#[test]
fn what_is_on_the_screen_is_asked_for_again_and_nothing_else() {
    let mut stage = TestScreen::new();
    assert_eq!(stage.send(Message::Tick(at(0))), [Intent::ListBundles]);
    assert!(stage.send(Message::Tick(at(30_000))).is_empty(), "an answer is on its way");
    stage.send(Message::Bundles(Ok(Vec::new())));
    assert!(stage.send(Message::Tick(at(31_000))).is_empty());
    assert_eq!(stage.send(Message::Tick(at(32_000))), [Intent::ListBundles]);
    assert_eq!(stage.press(Key::Char('2')), [Intent::LookAtNodes]);
    // A status that takes long holds nothing up, and says that it takes long.
    stage.send(Message::Tick(at(40_000)));
    assert!(stage.shows("looking for 8 s…"), "{}", stage.draw());
    stage.press(Key::Char('3'));
    assert!(stage.shows("asking the fleet's master…"));
    stage.press(Key::Char('2'));
    stage.send(Message::Nodes(Ok(Seen::of(&nodes_status()))));
    assert!(stage.send(Message::Tick(at(42_000))).is_empty());
    assert_eq!(stage.send(Message::Tick(at(43_000))), [Intent::LookAtNodes]);
    assert!(stage.press(Key::Char('4')).is_empty());
    assert!(stage.send(Message::Tick(at(99_000))).is_empty());
}

#[test]
fn a_run_that_goes_on_elsewhere_is_followed() {
    let mut stage = TestScreen::new();
    stage.send(Message::Bundles(Ok(vec![listed("r1")])));
    stage.press(Key::Enter);
    let mut run = unbegun(1);
    drop(run.apply(&events()[0]));
    run.liveness = Liveness::Live;
    stage.send(Message::Recorded(Ok(run)));
    assert!(stage.shows("running") && stage.state.is_moving());
    let intents = stage.send(Message::Tick(at(1_000)));
    let [Intent::FollowRun { key: 1, read_to: (1, 0), .. }] = intents.as_slice() else {
        panic!("{intents:?}")
    };
    assert!(stage.send(Message::Tick(at(2_000))).is_empty());
    let follow = |events: &[Event], liveness| Message::Followed {
        key: 1,
        events: events.to_vec(),
        read_to: (events.last().map_or(0, |event| event.seq), 500),
        liveness,
    };
    let reads = stage.send(follow(&events()[1..4], Liveness::Live));
    assert!(matches!(reads.as_slice(), [Intent::ReadOutput { .. }]), "{reads:?}");
    assert!(stage.shows("deploy") && stage.shows("running"), "{}", stage.draw());
    let intents = stage.send(Message::Tick(at(3_000)));
    assert!(matches!(intents.as_slice(), [Intent::FollowRun { read_to: (4, 500), .. }]), "{intents:?}");
    stage.send(follow(&events()[4..], Liveness::Live));
    assert!(stage.shows("status") && stage.shows("failed") && !stage.state.is_moving(), "{}", stage.draw());
    assert!(stage.send(Message::Tick(at(9_000))).is_empty(), "nothing more will come");
}

#[test]
fn a_run_whose_process_is_gone_is_lost() {
    let mut stage = TestScreen::new();
    stage.send(Message::Bundles(Ok(vec![listed("r1")])));
    stage.press(Key::Enter);
    let mut run = unbegun(1);
    drop(run.apply(&events()[0]));
    stage.send(Message::Recorded(Ok(run)));
    assert!(stage.shows("lost: `stead resume` takes it up") && !stage.state.is_moving(), "{}", stage.draw());
}

#[test]
fn a_run_is_drilled_into_down_to_what_a_host_wrote() {
    let mut stage = recorded();
    stage.press(Key::Enter);
    let shown = stage.draw();
    for row in ["deploy", "web1", "web2", "guests", "edge/create-leaf"] {
        assert!(shown.contains(row), "{row}\n{shown}");
    }
    assert!(shown.contains("1 of 2 hosts failed"), "the task at the cursor is told in full\n{shown}");
    stage.press(Key::Down);
    stage.press(Key::Down);
    assert!(stage.shows("no space left on device") && stage.shows("attempt  2"), "{}", stage.draw());
    assert!(stage.press(Key::Enter).is_empty(), "web2 wrote nothing");
    assert!(stage.shows("it wrote nothing"));
    stage.press(Key::Up);
    assert!(stage.shows("Output: deploy@web1"), "{}", stage.draw());
    let intents = stage.press(Key::Enter);
    assert!(matches!(intents.as_slice(), [Intent::ReadPage { .. }]), "{intents:?}");
    assert!(stage.shows("Full log: deploy@web1"), "{}", stage.draw());
    // Every Esc goes back by one level.
    stage.press(Key::Esc);
    assert!(stage.shows("Tasks (2/5)"), "{}", stage.draw());
    stage.press(Key::Char('/'));
    stage.type_text("leaf");
    stage.press(Key::Enter);
    assert!(stage.shows("edge/create-leaf") && !stage.shows("web2"), "{}", stage.draw());
    stage.press(Key::Esc);
    assert!(stage.shows("web2"));
    stage.press(Key::Esc);
    assert!(stage.shows("Result") && stage.shows("Recorded run"), "{}", stage.draw());
    stage.press(Key::Esc);
    assert!(stage.shows("[1 Runs]") && !stage.shows("Recorded run"));
}

#[test]
fn a_replay_is_stepped_and_played_by_keys() {
    let mut stage = replayed();
    assert!(stage.shows("Event 0/12") && stage.shows("paused") && stage.shows("×1"), "{}", stage.draw());
    stage.press(Key::Right);
    stage.press(Key::Right);
    assert!(stage.shows("Event 2/12") && stage.shows("[start] deploy"), "{}", stage.draw());
    let reads = stage.press(Key::Right);
    let [Intent::ReadOutput { key, read }] = reads.as_slice() else { panic!("{reads:?}") };
    let parts = vec![(read.pieces[0].clone(), b"hello\n".to_vec())];
    stage.send(Message::Output { key: *key, reader: read.reader, parts });
    assert!(stage.shows("hello"), "{}", stage.draw());
    stage.press(Key::End);
    assert!(stage.shows("Event 12/12") && stage.shows("at its end") && stage.shows("1 of 2 hosts failed"));
    stage.press(Key::Left);
    assert!(stage.shows("Event 11/12") && !stage.shows(" status "), "{}", stage.draw());
    stage.press(Key::Home);
    assert!(stage.shows("Event 0/12"));
    stage.type_text("++");
    assert!(stage.shows("×4"));
    stage.send(Message::Tick(at(100_000)));
    stage.press(Key::Char(' '));
    assert!(stage.shows("playing") && stage.state.is_moving());
    stage.send(Message::Tick(at(101_000)));
    assert!(stage.shows("Event 5/12"), "four seconds have passed\n{}", stage.draw());
    stage.press(Key::Char(' '));
    stage.send(Message::Tick(at(200_000)));
    assert!(stage.shows("Event 5/12") && stage.shows("paused"));
    stage.press(Key::Char('t'));
    assert!(stage.shows("Tasks (1/"), "{}", stage.draw());
    stage.press(Key::Esc);
    stage.press(Key::Esc);
    assert!(stage.shows("Recorded run"), "{}", stage.draw());
    // One that comes when nobody waits for it any more is not shown.
    stage.press(Key::Char('p'));
    stage.press(Key::Esc);
    let recording = Recording { run: unbegun(1), events: events(), damaged: 0, left_out: 0 };
    stage.send(Message::Replayable { key: 1, recording: Ok(Box::new(recording)) });
    assert!(stage.state.replay.is_none());
}

#[test]
fn nodes_are_a_tree_and_one_is_told_in_full() {
    let mut stage = nodes();
    let shown = stage.draw();
    assert!(shown.contains("host local") && shown.contains("manifest lab"), "{shown}");
    assert!(shown.contains("node/gone: its machine is not there any more"), "{shown}");
    stage.press(Key::Char('/'));
    stage.type_text("not converged");
    stage.press(Key::Enter);
    assert!(!stage.shows("leaf"), "{}", stage.draw());
    let intents = stage.press(Key::Enter);
    let [Intent::AskNode(place)] = intents.as_slice() else { panic!("{intents:?}") };
    assert_eq!((place.host.as_str(), place.manifest.as_str(), place.node.as_str()), ("local", "lab", "gone"));
    assert!(stage.shows("asking the server of its level…"), "{}", stage.draw());
    // The sentence of `stead explain`.
    assert!(stage.shows("The state knows it, its host does not"), "{}", stage.draw());
    assert!(stage.shows("spec digest") && stage.shows("agent        stale"), "{}", stage.draw());
    let trouble = Trouble { lines: vec!["no server".to_owned()], hints: vec!["start it".to_owned()] };
    stage.send(Message::NodeTold { place: place.clone(), told: Err(trouble) });
    assert!(stage.shows("no server; start it"), "{}", stage.draw());
    let told = json!({"node": "gone", "agent": "stale", "seq": 7, "reports": [{"seq": 7, "at": "2026-11-15T10:00:00Z",
        "kind": "config", "status": "failed", "error": "no such package", "changed": 2, "duration_seconds": 1.0}]});
    let told = serde_json::from_value(told).unwrap();
    stage.send(Message::NodeTold { place: place.clone(), told: Ok(Some(Box::new(told))) });
    assert!(stage.shows("config failed, 2 changed:"), "{}", stage.draw());
    stage.press(Key::Esc);
    assert!(stage.shows("filter: not converged"));
}

#[test]
fn trouble_with_nodes_is_said_where_they_would_be() {
    let mut stage = TestScreen::new();
    stage.press(Key::Char('2'));
    assert!(stage.shows("looking at the nodes of the site…"));
    let trouble = || Trouble {
        lines: vec!["there is no site directory".to_owned()],
        hints: vec!["`stead init nodes` writes one that works".to_owned()],
    };
    stage.send(Message::Nodes(Err(trouble())));
    assert!(
        stage.shows("there is no site directory") && stage.shows("→ `stead init nodes`"),
        "{}",
        stage.draw()
    );
    stage.send(Message::Nodes(Ok(Seen::of(&json!({"nodes": [], "manifests": ["lab", "web"]})))));
    assert!(stage.shows("stead create") && stage.shows("lab, web"), "{}", stage.draw());
    stage.send(Message::Nodes(Ok(Seen::of(&nodes_status()))));
    stage.send(Message::Nodes(Err(trouble())));
    assert!(stage.shows("there is no site directory") && stage.shows("edge"), "{}", stage.draw());
}

#[test]
fn a_fleet_shows_what_is_wrong_first_and_explains_it() {
    let mut stage = fleet();
    let shown = stage.draw();
    assert!(shown.contains("degraded 50 %  1 of 2 instances  generation 3 at 2fa0982e8386"), "{shown}");
    assert!(shown.contains("crash-loop: it ends again and again: read its log"), "{shown}");
    assert!(shown.contains("held: generation 4 of lab"), "{shown}");
    assert_eq!(stage.press(Key::Enter), [Intent::ExplainInstance("web/1".to_owned())]);
    assert!(stage.shows("asking why it is there…"), "{}", stage.draw());
    let explained = Ok(vec!["web/1 is on w2: new".to_owned()]);
    stage.send(Message::Explained { instance: "web/1".to_owned(), explained });
    assert!(stage.shows("web/1 is on w2: new") && stage.shows("attempts         3"), "{}", stage.draw());
    assert!(stage.shows("It ends soon after every start"), "{}", stage.draw());
    stage.press(Key::Esc);
    stage.press(Key::Char('/'));
    stage.type_text("workers lost");
    stage.press(Key::Enter);
    assert!(stage.press(Key::Enter).is_empty(), "a worker is told by the status");
    assert!(stage.shows("Worker w2") && stage.shows("has              web/1 backoff"), "{}", stage.draw());
}

#[test]
fn without_a_fleet_it_says_how_to_get_one() {
    let mut stage = TestScreen::new();
    stage.press(Key::Char('3'));
    let trouble = Trouble {
        lines: vec!["nobody has joined a fleet here".to_owned()],
        hints: vec!["mint a token".to_owned(), "`stead fleet dev lab`".to_owned()],
    };
    stage.send(Message::Fleet(Box::new(Err(trouble))));
    assert!(
        stage.shows("nobody has joined a fleet here") && stage.shows("→ mint a token"),
        "{}",
        stage.draw()
    );
}

/// Every view at every size, also such that nobody can use.
#[test]
fn no_size_breaks_a_view() {
    let views: [fn() -> TestScreen; 6] = [TestScreen::new, recorded, replayed, nodes, fleet, || {
        let mut stage = recorded();
        stage.press(Key::Enter);
        stage
    }];
    for view in views {
        for size in [(0, 0), (1, 1), (5, 2), (20, 6), (40, 10), (40, 24), (80, 24), (300, 100)] {
            let mut stage = view();
            stage.send(Message::Resized { columns: size.0, rows: size.1 });
            stage.draw();
            stage.press(Key::Char('/'));
            stage.type_text("e");
            stage.draw();
            stage.press(Key::Enter);
            for key in [Key::Down, Key::PageDown, Key::End, Key::Up, Key::Home, Key::Right, Key::Enter] {
                stage.press(key);
                stage.draw();
            }
            stage.press(Key::Char('?'));
            stage.draw();
        }
    }
}

/// At 40 columns the view that is shown is named, and help is offered.
#[test]
fn forty_columns_are_enough_to_find_the_way() {
    for (stage, tab) in [(recorded(), "[1 Runs]"), (nodes(), "[2 Nodes]"), (fleet(), "[3 Fleet]")] {
        let mut stage = stage;
        stage.send(Message::Resized { columns: 40, rows: 16 });
        let shown = stage.draw();
        assert!(shown.contains(tab), "{shown}");
        assert!(shown.lines().last().unwrap().contains("? help"), "{shown}");
    }
    let mut stage = nodes();
    stage.send(Message::Resized { columns: 40, rows: 16 });
    assert!(stage.shows("not converged") && stage.shows("edge"), "{}", stage.draw());
}

/// A run's name gives way to how it fares.
#[test]
fn a_narrow_screen_says_how_a_run_ended() {
    let mut stage = recorded();
    stage.send(Message::Resized { columns: 30, rows: 16 });
    let shown = stage.draw();
    let head = shown.lines().nth(1).unwrap();
    assert!(head.contains("Run 2026") && head.contains('…') && head.contains("failed"), "{shown}");
}

mod screens {
    //! As they look at 80 × 24.

    use super::*;

    #[test]
    fn the_tasks_of_a_run() {
        let mut stage = recorded();
        stage.press(Key::Enter);
        stage.press(Key::Down);
        stage.press(Key::Down);
        insta::assert_snapshot!(stage.draw());
    }

    #[test]
    fn a_replay() {
        let mut stage = replayed();
        (0..4).for_each(|_| drop(stage.press(Key::Right)));
        insta::assert_snapshot!(stage.draw());
    }

    #[test]
    fn the_nodes() {
        insta::assert_snapshot!(nodes().draw());
    }

    #[test]
    fn a_node() {
        let mut stage = nodes();
        stage.press(Key::End);
        stage.press(Key::Enter);
        insta::assert_snapshot!(stage.draw());
    }

    #[test]
    fn the_fleet() {
        insta::assert_snapshot!(fleet().draw());
    }

    #[test]
    fn a_worker() {
        let mut stage = fleet();
        (0..4).for_each(|_| drop(stage.press(Key::Down)));
        stage.press(Key::Enter);
        insta::assert_snapshot!(stage.draw());
    }
}
