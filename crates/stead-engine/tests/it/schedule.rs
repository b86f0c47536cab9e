//! Scheduling: no barrier, limits, mutexes, batches, and shapes of ten thousand.

use std::time::Duration;

use stead_engine::run::ResumeChoice;
use stead_model::event::EventKind;
use stead_model::plan::{Backoff, HostFailure, Mutex, MutexScope, Retry, Settings, Size};
use stead_model::{ErrorClass, Event, Status};

use super::simulate::{World, assert_ordered, compile, on_hosts, simulate, task};

fn position(events: &[Event], wanted: impl Fn(&EventKind) -> bool) -> usize {
    events.iter().position(|event| wanted(&event.kind)).expect("the event is there")
}

fn fine(_: &str, _: Option<&str>, _: u32) -> Status {
    Status::Changed
}

/// Case 4: a task starts as soon as its own dependencies are finished.
#[test]
fn there_is_no_level_barrier() {
    let plan = compile(
        |_| {},
        vec![
            task("a", &[], Settings::default()),
            task("b", &[], Settings::default()),
            task("c", &["b"], Settings::default()),
        ],
    );
    let mut world = World::new(&plan, &fine);
    world.begin();
    // Pending are a and b; b ends, then c, and only then a.
    assert!(world.step(1) && world.step(1) && world.step(0));
    let finished = |name: &'static str| move |kind: &EventKind| matches!(kind, EventKind::TaskFinished { task, .. } if task.as_str() == name);
    assert!(position(&world.events, finished("c")) < position(&world.events, finished("a")));
}

#[test]
fn tasks_that_share_a_mutex_never_overlap_and_are_served_in_order() {
    let settings = Settings {
        mutex: vec![Mutex { name: "apt".to_owned(), scope: MutexScope::Run }],
        ..Settings::default()
    };
    let tasks = (0..20).map(|i| task(&format!("t{i}"), &[], settings.clone())).collect();
    let plan = compile(|_| {}, tasks);
    let mut world = World::new(&plan, &fine);
    world.begin();
    world.finish(&[0]);
    assert_eq!(world.most_at_once, 1);
    let started: Vec<String> = world
        .events
        .iter()
        .filter_map(|event| match &event.kind {
            EventKind::TaskStarted { task, .. } => Some(task.to_string()),
            _ => None,
        })
        .collect();
    assert_eq!(started, (0..20).map(|i| format!("t{i}")).collect::<Vec<_>>());
}

#[test]
fn a_blocked_task_does_not_hold_back_the_ones_behind_it() {
    let held = Settings {
        mutex: vec![Mutex { name: "m".to_owned(), scope: MutexScope::Run }],
        ..Settings::default()
    };
    let tasks = vec![task("a", &[], held.clone()), task("b", &[], held), task("c", &[], Settings::default())];
    let plan = compile(|plan| plan.limits.parallel = 2, tasks);
    let mut world = World::new(&plan, &fine);
    world.begin();
    let started = |name: &'static str| move |kind: &EventKind| matches!(kind, EventKind::TaskStarted { task, .. } if task.as_str() == name);
    position(&world.events, started("c"));
    assert!(!world.events.iter().any(|event| started("b")(&event.kind)));
}

#[test]
fn a_failed_canary_leaves_the_others_out() {
    let settings =
        Settings { canary: Some(Size::Count(1)), host_failure: HostFailure::All, ..Settings::default() };
    let plan = compile(|_| {}, vec![on_hosts("roll", &[], 4, settings)]);
    let fails_on_first = |_: &str, host: Option<&str>, _: u32| {
        if host == Some("h0") { Status::Failed } else { Status::Changed }
    };
    let (report, events) = simulate(&plan, &fails_on_first, &[0]);
    assert_ordered(&plan, &events);
    let row = &report.tasks[0];
    assert_eq!(row.status, Status::Failed);
    let statuses: Vec<Status> = row.hosts.iter().map(|host| host.status).collect();
    assert_eq!(statuses, [Status::Failed, Status::NotRun, Status::NotRun, Status::NotRun]);
    assert_eq!(row.hosts[1].reason.as_deref(), Some("canary failed: h0"));
}

/// Case 15: tolerated failures are partial; each host retries on its own.
#[test]
fn host_failures_within_the_policy_are_tolerated() {
    let settings = Settings { host_failure: HostFailure::Percent(50), ..Settings::default() };
    let plan = compile(|_| {}, vec![on_hosts("a", &[], 4, settings), task("b", &["a"], Settings::default())]);
    let one_fails = |_: &str, host: Option<&str>, _: u32| {
        if host == Some("h2") { Status::Failed } else { Status::Changed }
    };
    let (report, _) = simulate(&plan, &one_fails, &[3, 1, 2]);
    assert_eq!((report.tasks[0].status, report.tasks[0].partial), (Status::Changed, true));
    assert_eq!(report.tasks[1].status, Status::Changed);
    let hosts: Vec<&str> = report.tasks[0].hosts.iter().map(|row| row.host.as_str()).collect();
    assert_eq!(hosts, ["h0", "h1", "h2", "h3"]);
    assert!(report.is_success() || report.exit_code.code() == 0);
}

#[test]
fn batches_wait_for_each_other_and_for_their_pause() {
    let settings =
        Settings { batch: vec![Size::Count(2)], batch_pause: Duration::from_secs(60), ..Settings::default() };
    let plan = compile(|_| {}, vec![on_hosts("a", &[], 5, settings)]);
    let mut world = World::new(&plan, &fine);
    world.begin();
    let report = world.finish(&[1, 0]);
    assert_eq!(world.most_at_once, 2);
    assert_eq!(report.tasks[0].status, Status::Changed);
    let batches: Vec<u32> = world
        .events
        .iter()
        .filter_map(|event| match &event.kind {
            EventKind::AttemptStarted { batch, .. } => Some(*batch),
            _ => None,
        })
        .collect();
    assert_eq!(batches, [1, 1, 2, 2, 3]);
}

/// Case 32: ten thousand wide, ten thousand deep; depth is never recursion.
#[test]
fn ten_thousand_wide_and_deep_plans_end() {
    const MANY: usize = 10_000;
    let wide = (0..MANY).map(|i| task(&format!("t{i}"), &[], Settings::default())).collect();
    let (report, _) = simulate(&compile(|_| {}, wide), &fine, &[0]);
    assert_eq!(report.counts.changed as usize, MANY);
    let deep = |outcome: &dyn Fn(&str, Option<&str>, u32) -> Status| {
        let names: Vec<String> = (0..MANY).map(|i| format!("t{i}")).collect();
        let settings = Settings { on_error: stead_model::plan::OnError::Continue, ..Settings::default() };
        let chain = (0..MANY)
            .map(|i| {
                if i == 0 {
                    task(&names[0], &[], settings.clone())
                } else {
                    task(&names[i], &[&names[i - 1]], settings.clone())
                }
            })
            .collect();
        simulate(&compile(|_| {}, chain), outcome, &[0]).0
    };
    assert_eq!(deep(&fine).counts.changed as usize, MANY);
    assert_eq!(deep(&|_, _, _| Status::Failed).counts.skipped as usize, MANY - 1);
}

/// Section 11: a run that died in a delay has its remaining attempts, and the delay begins anew.
#[test]
fn a_delay_begins_anew_after_a_resume() {
    let retry = Retry { times: 1, backoff: Backoff::EXPONENTIAL, ..Retry::default() };
    for hosts in [0, 1] {
        let settings = Settings { retry: retry.clone(), idempotent: true, ..Settings::default() };
        let tasks = match hosts {
            0 => vec![task("a", &[], settings)],
            hosts => vec![on_hosts("a", &[], hosts, settings)],
        };
        let plan = compile(|_| {}, tasks);
        let always_fails = |_: &str, _: Option<&str>, _: u32| Status::Failed;
        let mut world = World::new(&plan, &always_fails);
        world.begin();
        assert!(world.step(0));
        assert!(matches!(world.events.last().unwrap().kind, EventKind::AttemptFailed { attempt: 1, .. }));

        let mut resumed = World::new(&plan, &always_fails);
        resumed.run.replay(&world.events).unwrap();
        resumed.events = world.events;
        resumed.resume(ResumeChoice::default());
        assert!(resumed.run.deadline().is_some(), "it waits");
        assert!(!matches!(resumed.events.last().unwrap().kind, EventKind::AttemptStarted { .. }));
        let report = resumed.finish(&[0]);
        assert_eq!((report.tasks[0].status, report.tasks[0].attempts), (Status::Failed, 2));
        assert_ordered(&plan, &resumed.events);
    }
}

/// Section 5: a question that was answered is not asked again after a resume.
#[test]
fn a_confirmed_task_is_not_asked_about_again() {
    let settings = Settings { confirm: Some("really?".to_owned()), idempotent: true, ..Settings::default() };
    let plan = compile(|_| {}, vec![task("a", &[], settings)]);
    let mut world = World::new(&plan, &fine);
    world.begin();
    assert!(world.step(0), "the answer");
    let mut resumed = World::new(&plan, &fine);
    resumed.run.replay(&world.events).unwrap();
    resumed.events = world.events;
    resumed.resume(ResumeChoice::default());
    resumed.finish(&[0]);
    let answers = resumed.events.iter().filter(|event| matches!(event.kind, EventKind::Confirmed { .. }));
    assert_eq!(answers.count(), 1);
}

/// A task that starts over is waited for by all behind it, also through tasks that are kept.
#[test]
fn a_resume_keeps_what_is_done_and_runs_nothing_ahead_of_what_starts_over() {
    let chain = [("a", &[][..]), ("b", &["a"]), ("c", &["b"]), ("b2", &["a"]), ("d", &["b", "b2", "c"])];
    let tasks = chain.map(|(name, after)| task(name, after, Settings::default()));
    let plan = compile(|_| {}, tasks.to_vec());
    let c_fails = |name: &str, _: Option<&str>, _: u32| match name {
        "c" => Status::Failed,
        _ => Status::Changed,
    };
    let (_, events) = simulate(&plan, &c_fails, &[0]);

    let mut resumed = World::new(&plan, &fine);
    resumed.run.replay(&events).unwrap();
    let before = events.len();
    resumed.events = events;
    let replaced = [stead_model::TaskName::parse("a").unwrap()].into();
    resumed.resume(ResumeChoice { forced: Some((plan.hash, replaced)), ..ResumeChoice::default() });
    let report = resumed.finish(&[0]);
    assert_eq!((resumed.most_at_once, report.counts.changed), (1, 5));
    let started = resumed.events[before..].iter().filter_map(|event| match &event.kind {
        EventKind::TaskStarted { task, .. } => Some(task.as_str()),
        _ => None,
    });
    assert_eq!(started.collect::<Vec<_>>(), ["a", "c", "d"]);
    let mut replayed = World::new(&plan, &fine);
    replayed.run.replay(&resumed.events).unwrap();
    assert_eq!(replayed.run.report(), report);
}

/// Section 11: attempts that were interrupted together are all told of, and each stays so until a person decides about it.
#[test]
fn every_interrupted_attempt_waits_for_a_decision_of_its_own() {
    let tasks = ["a", "b"].map(|name| on_hosts(name, &[], 2, Settings::default()));
    let plan = compile(|_| {}, tasks.to_vec());
    let mut world = World::new(&plan, &fine);
    world.begin();
    let mut events = world.events;
    assert_eq!(attempts_of("b", &events), [1, 1], "both are under way when the driver dies");

    let mut resume = |rerun: &[&str], assume_done: &[&str]| {
        let names = |names: &[&str]| {
            names.iter().map(|name| stead_model::TaskName::parse(name).unwrap()).collect::<Vec<_>>()
        };
        let choice =
            ResumeChoice { rerun: names(rerun), assume_done: names(assume_done), ..ResumeChoice::default() };
        let mut resumed = World::new(&plan, &fine);
        resumed.run.replay(&events).unwrap();
        resumed.events = std::mem::take(&mut events);
        resumed.resume(choice);
        let report = resumed.finish(&[0]);
        let mut replayed = World::new(&plan, &fine);
        replayed.run.replay(&resumed.events).unwrap();
        assert_eq!(replayed.run.report(), report);
        events = resumed.events;
        let interrupted = report.tasks.iter().map(|task| task.class == Some(ErrorClass::Interrupted));
        (interrupted.collect::<Vec<_>>(), attempts_of("a", &events), attempts_of("b", &events))
    };
    assert_eq!(resume(&[], &[]), (vec![true, true], vec![1, 1], vec![1, 1]), "both are told of");
    // One decision is none about the other, which fails and stops what was begun.
    let (interrupted, _, b) = resume(&["a"], &[]);
    assert_eq!((interrupted[1], b), (true, vec![1, 1]));
    let (interrupted, a, b) = resume(&[], &["b"]);
    assert_eq!(
        (interrupted, b),
        (vec![false, false], vec![1, 1]),
        "`b` was assumed done and never ran again"
    );
    assert!(
        a.iter().any(|attempt| *attempt > 1) && !a[2..].contains(&1),
        "numbers go on, and so do logs: {a:?}"
    );
}

fn attempts_of(name: &str, events: &[Event]) -> Vec<u32> {
    let started = events.iter().filter_map(|event| match &event.kind {
        EventKind::AttemptStarted { task, attempt, .. } if task.as_str() == name => Some(*attempt),
        _ => None,
    });
    started.collect()
}
