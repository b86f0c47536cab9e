//! Properties over random plans: whatever happens in whatever order, every task has one end.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use stead_engine::compile::CompiledPlan;
use stead_engine::run::{ResumeChoice, Run, RunOptions};
use stead_model::Status;
use stead_model::event::{CancelReason, Mode};
use stead_model::plan::{
    Backoff, OnError, OnFailure, Op, Retry, Section, Settings, Size, Task, TriggerRule, Undo,
};
use stead_model::report::Report;

use super::simulate::{World, assert_ordered, compile, on_hosts, simulate, task};

#[derive(Clone, Debug)]
struct Sketch {
    tasks: Vec<(Vec<prop::sample::Index>, Settings, usize)>,
    finally: usize,
    rollback: bool,
    parallel: u32,
    failures: Vec<bool>,
    choices: Vec<usize>,
}

fn settings() -> impl Strategy<Value = Settings> {
    let rule = prop_oneof![
        4 => Just(TriggerRule::AllOk),
        1 => Just(TriggerRule::AllRan),
        1 => Just(TriggerRule::AllDone),
        1 => Just(TriggerRule::AnyOk),
        1 => Just(TriggerRule::AnyFailed),
        1 => Just(TriggerRule::AllFailed),
    ];
    (
        rule,
        prop::bool::weighted(0.7),
        0..3_u32,
        0..3_u32,
        prop::option::of(1..3_u32),
        any::<bool>(),
        any::<bool>(),
    )
        .prop_map(|(trigger_rule, go_on, retries, mutex, batch, idempotent, undo)| Settings {
            trigger_rule,
            on_error: if go_on { OnError::Continue } else { OnError::StopAll },
            retry: Retry { times: retries, backoff: Backoff::EXPONENTIAL, ..Retry::default() },
            mutex: (0..mutex)
                .map(|i| stead_model::plan::Mutex { name: format!("m{i}"), scope: Default::default() })
                .collect(),
            batch: batch.map(Size::Count).into_iter().collect(),
            batch_pause: Duration::from_secs(u64::from(batch.unwrap_or(0) % 2)),
            idempotent,
            undo: undo
                .then(|| Undo::Op(Op { operation: "assert".parse().unwrap(), params: BTreeMap::new() })),
            ..Settings::default()
        })
}

fn sketch() -> impl Strategy<Value = Sketch> {
    let one = (prop::collection::vec(any::<prop::sample::Index>(), 0..4), settings(), 0..4_usize);
    (
        prop::collection::vec(one, 0..14),
        0..3_usize,
        any::<bool>(),
        prop_oneof![Just(1_u32), Just(2), Just(64)],
        prop::collection::vec(prop::bool::weighted(0.3), 1..24),
        prop::collection::vec(0..50_usize, 1..24),
    )
        .prop_map(|(tasks, finally, rollback, parallel, failures, choices)| Sketch {
            tasks,
            finally,
            rollback,
            parallel,
            failures,
            choices,
        })
}

impl Sketch {
    fn compile(&self) -> CompiledPlan {
        let mut tasks: Vec<Task> = Vec::new();
        for (i, (edges, settings, hosts)) in self.tasks.iter().enumerate() {
            let mut after: Vec<String> = if i == 0 {
                Vec::new()
            } else {
                edges.iter().map(|edge| format!("t{}", edge.index(i))).collect()
            };
            after.sort();
            after.dedup();
            let after: Vec<&str> = after.iter().map(String::as_str).collect();
            let mut settings = settings.clone();
            if after.is_empty() && settings.trigger_rule.needs_dependencies() {
                settings.trigger_rule = TriggerRule::AllOk;
            }
            let name = format!("t{i}");
            tasks.push(match hosts {
                0 => task(&name, &after, Settings { batch: Vec::new(), undo: None, ..settings }),
                hosts => on_hosts(&name, &after, *hosts, settings),
            });
        }
        for i in 0..self.finally {
            let settings = Settings { on_error: OnError::Continue, idempotent: true, ..Settings::default() };
            tasks.push(Task { section: Section::Finally, ..task(&format!("f{i}"), &[], settings) });
        }
        compile(
            |plan| {
                plan.limits.parallel = self.parallel;
                plan.on_failure = if self.rollback { OnFailure::Rollback } else { OnFailure::Keep };
            },
            tasks,
        )
    }

    /// Outcomes depend on the task and the try alone, so that two runs can be compared.
    fn outcome(&self, name: &str, host: Option<&str>, tries: u32) -> Status {
        let number =
            name.bytes().chain(host.unwrap_or("").bytes()).fold(0_usize, |sum, b| sum * 31 + usize::from(b));
        if self.failures[(number + tries as usize) % self.failures.len()] {
            return Status::Failed;
        }
        if number % 3 == 0 { Status::Unchanged } else { Status::Changed }
    }
}

/// Name, status, changed, reason and host rows of a task.
type Essence = (String, Status, bool, Option<String>, Vec<(String, Status, bool)>);

/// What two reports must agree on.
fn essence(report: &Report) -> Vec<Essence> {
    let rows = report.tasks.iter().map(|row| {
        let hosts = row.hosts.iter().map(|host| (host.host.to_string(), host.status, host.changed)).collect();
        (row.name.to_string(), row.status, row.changed, row.reason.clone(), hosts)
    });
    rows.collect()
}

fn replayed(plan: &CompiledPlan, events: &[stead_model::Event]) -> Run {
    struct None_;
    impl stead_engine::run::Hosts for None_ {
        fn resolve(
            &self,
            _: &[String],
            _: &str,
        ) -> Result<Vec<stead_model::HostName>, stead_engine::run::Unresolved> {
            Err(stead_engine::run::Unresolved::Wrong("a replay resolves nothing".to_owned()))
        }
        fn slots(&self, _: &stead_model::HostName, _: Option<u32>) -> u32 {
            1
        }
    }
    let mut run = Run::new(plan, Arc::new(None_), RunOptions::new(Mode::Run));
    run.replay(events).unwrap();
    run
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    /// Case 32: any interleaving gives one final status per task, and replaying the events gives the same state.
    #[test]
    fn every_task_ends_once_and_replay_agrees(sketch in sketch()) {
        let plan = sketch.compile();
        let outcome = |name: &str, host: Option<&str>, tries: u32| sketch.outcome(name, host, tries);
        let mut world = World::new(&plan, &outcome);
        world.begin();
        let report = world.finish(&sketch.choices);
        prop_assert!(world.most_at_once <= sketch.parallel as usize);
        assert_ordered(&plan, &world.events);
        prop_assert_eq!(report.tasks.len(), plan.plan.tasks.len());
        prop_assert!(world.run.states().iter().all(|state| state.decision().is_some()));
        let again = replayed(&plan, &world.events);
        prop_assert_eq!(again.states(), world.run.states());
        prop_assert_eq!(again.report(), report);
    }

    /// The same plan and outcomes give the same events when one thing happens at a time, whatever the world's order.
    #[test]
    fn one_slot_gives_one_sequence(sketch in sketch(), other in prop::collection::vec(0..50_usize, 1..9)) {
        let sketch = Sketch { parallel: 1, ..sketch };
        let plan = sketch.compile();
        let outcome = |name: &str, host: Option<&str>, tries: u32| sketch.outcome(name, host, tries);
        let (_, one) = simulate(&plan, &outcome, &sketch.choices);
        let (_, two) = simulate(&plan, &outcome, &other);
        prop_assert_eq!(one, two);
    }

    /// Stopping at any moment leaves nothing undecided and still runs `finally`.
    #[test]
    fn cancelling_at_any_moment_ends_the_run(sketch in sketch(), after in 0..40_usize, kill in any::<bool>()) {
        let plan = sketch.compile();
        let outcome = |name: &str, host: Option<&str>, tries: u32| sketch.outcome(name, host, tries);
        let mut world = World::new(&plan, &outcome);
        world.begin();
        for i in 0..after {
            if !world.step(sketch.choices[i % sketch.choices.len()]) {
                break;
            }
        }
        world.cancel(CancelReason::Signal);
        if kill {
            world.input(stead_engine::run::Input::Kill);
        }
        let report = world.finish(&sketch.choices);
        assert_ordered(&plan, &world.events);
        prop_assert!(report.tasks.iter().all(|row| row.status != Status::Unknown));
        if !kill {
            let finally = report.tasks.iter().filter(|row| row.section == Section::Finally);
            prop_assert!(finally.clone().all(|row| row.status != Status::NotRun), "{:?}", finally.collect::<Vec<_>>());
        }
        prop_assert_eq!(replayed(&plan, &world.events).report(), report);
    }

    /// A crash after any event: the resumed run ends as the uninterrupted one does.
    #[test]
    fn resuming_after_any_event_gives_the_same_report(sketch in sketch(), cut in any::<prop::sample::Index>()) {
        // Every attempt may simply be made again, and no failure depends on how often it was tried.
        let mut sketch = sketch;
        for (_, settings, _) in &mut sketch.tasks {
            settings.idempotent = true;
            settings.on_error = OnError::Continue;
        }
        let outcome = |name: &str, host: Option<&str>, _: u32| sketch.outcome(name, host, 0);
        let plan = sketch.compile();
        let (whole, events) = simulate(&plan, &outcome, &sketch.choices);
        let cut = 1 + cut.index(events.len());
        let mut world = World::new(&plan, &outcome);
        world.run.replay(&events[..cut]).unwrap();
        world.events = events[..cut].to_vec();
        if world.run.is_finished() {
            return Ok(());
        }
        world.resume(ResumeChoice::default());
        let resumed = world.finish(&sketch.choices);
        assert_ordered(&plan, &world.events);
        prop_assert_eq!(essence(&resumed), essence(&whole));
        prop_assert_eq!(resumed.status, whole.status);
        prop_assert_eq!(resumed.segments, 2);
        prop_assert_eq!(replayed(&plan, &world.events).report(), resumed);
    }
}
