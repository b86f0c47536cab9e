//! `_any`: a host that is not reached is passed over for the next.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use stead_engine::compile::CompiledPlan;
use stead_engine::run::{Attempt, Command, Hosts, Input, Now, Run, RunOptions, Turn, Unresolved};
use stead_engine::target::{self, HostSet, TargetExpr};
use stead_model::event::{Event, EventKind, Mode, RowResult, decode, encode};
use stead_model::plan::{Retry, Settings};
use stead_model::report::Report;
use stead_model::time::Timestamp;
use stead_model::{ErrorClass, HostName, Status};

use crate::simulate::{compile, on_hosts};

/// Hosts `h0`, `h1` and so on.
struct Inventory(HostSet);

fn exprs(target: &[String]) -> Vec<TargetExpr> {
    target.iter().map(|text| TargetExpr::parse(text).unwrap()).collect()
}

impl Hosts for Inventory {
    fn resolve(&self, target: &[String], seed: &str) -> Result<Vec<HostName>, Unresolved> {
        Ok(target::resolve(&exprs(target), &self.0, seed).unwrap())
    }

    fn instead_of(
        &self,
        target: &[String],
        host: &HostName,
        is_taken: &dyn Fn(&HostName) -> bool,
    ) -> Option<HostName> {
        target::instead_of(&exprs(target), &self.0, host, is_taken)
    }

    fn slots(&self, _: &HostName, _: Option<u32>) -> u32 {
        1
    }
}

fn plan(target: &str, settings: Settings) -> CompiledPlan {
    let mut task = on_hosts("t", &[], 0, settings);
    Arc::make_mut(&mut task.settings).target = vec![target.to_owned()];
    compile(|_| {}, vec![task])
}

fn run_of(plan: &CompiledPlan, hosts: usize) -> Run {
    let all = (0..hosts).map(|i| (HostName::parse(&format!("h{i:02}")).unwrap(), BTreeMap::new()));
    Run::new(plan, Arc::new(Inventory(HostSet::new(all))), RunOptions::new(Mode::Run))
}

/// Walks a plan over so many hosts; `end` says how an attempt ends.
fn walk(plan: &CompiledPlan, hosts: usize, end: &dyn Fn(&Attempt) -> RowResult) -> (Report, Vec<Event>) {
    let mut run = run_of(plan, hosts);
    let (mut turn, mut events, mut millis) = (Turn::default(), Vec::new(), 0);
    let at = |millis: u64| Now { wall: Timestamp::from_micros(0), mono: Duration::from_millis(millis) };
    run.begin(at(0), &mut turn);
    while !run.is_finished() {
        let Turn { events: new, commands, .. } = std::mem::take(&mut turn);
        events.extend(new);
        millis += 1;
        let mut idle = true;
        for command in commands {
            if let Command::Start(attempt) = command {
                let result = Box::new(end(&attempt));
                let (task, row) = (attempt.task, attempt.row);
                run.handle(Input::AttemptEnded { task, row, result }, at(millis), &mut turn);
                idle = false;
            }
        }
        if idle {
            millis = millis.max(u64::try_from(run.deadline().unwrap().as_millis()).unwrap());
            run.handle(Input::Tick, at(millis), &mut turn);
        }
    }
    events.extend(turn.events);
    (run.report(), events)
}

fn unreachable() -> RowResult {
    RowResult {
        class: Some(ErrorClass::Unreachable),
        error: Some("connection refused".to_owned()),
        not_started: true,
        ..RowResult::new(Status::Failed)
    }
}

fn attempts(events: &[Event]) -> Vec<String> {
    let hosts = events.iter().filter_map(|event| match &event.kind {
        EventKind::AttemptStarted { host, .. } => host.as_ref().map(ToString::to_string),
        _ => None,
    });
    hosts.collect()
}

/// Section 5: passed over with a warning, and no retry used up; the choice is in the journal.
#[test]
fn a_host_that_is_not_reached_is_passed_over_for_the_next() {
    for hosts in [3, 40] {
        let plan = plan("_any", Settings::default());
        let (report, events) = walk(&plan, hosts, &|attempt| {
            if attempt.attempt < 3 { unreachable() } else { RowResult::new(Status::Unchanged) }
        });
        assert!(report.is_success(), "{report:?}");
        let tried = attempts(&events);
        assert_eq!(tried.len(), 3);
        assert!(tried[0] != tried[1] && tried[1] != tried[2] && tried[0] != tried[2], "{tried:?}");
        let row = &report.tasks()[0].hosts[0];
        assert_eq!((row.host.as_str(), row.attempts), (tried[2].as_str(), 1));
        let codes: Vec<&str> = report.warnings.iter().map(|warning| warning.code.as_str()).collect();
        assert_eq!(codes, ["reach/passed-over"; 2]);
        assert!(report.warnings[0].text.contains("connection refused"), "{:?}", report.warnings);

        // A replay of the journal, read back from its text, knows the same host.
        let read_back = |event: &Event| {
            let mut line = Vec::new();
            encode(event.seq, event.t, &event.kind, &mut line);
            decode(line.strip_suffix(b"\n").unwrap_or(&line)).unwrap()
        };
        let events: Vec<Event> = events.iter().map(read_back).collect();
        let mut again = run_of(&plan, hosts);
        again.replay(&events).unwrap();
        assert_eq!(again.report().tasks(), report.tasks());
    }
}

/// Among many rows, which are found by their host.
#[test]
fn the_row_of_a_host_that_was_passed_over_is_found_by_the_other() {
    let plan = plan("h0*,h1*,h2*&_any", Settings::default());
    let (report, events) = walk(&plan, 30, &|attempt| {
        let of_any = attempt.host.as_ref().is_some_and(|host| host.as_str().starts_with("h2"));
        if of_any && attempt.attempt == 1 { unreachable() } else { RowResult::new(Status::Unchanged) }
    });
    assert!(report.is_success());
    assert_eq!((report.tasks()[0].hosts.len(), attempts(&events).len()), (21, 22));
    let mut again = run_of(&plan, 30);
    again.replay(&events).unwrap();
    assert_eq!(again.report().tasks(), report.tasks());
}

/// Section 5: none left: `unreachable`. Retries then stay with the last.
#[test]
fn with_none_left_the_task_is_unreachable() {
    let retry = Retry::times(2).backoff(Duration::ZERO, Duration::ZERO);
    let plan = plan("_any", Settings { retry, ..Settings::default() });
    let (report, events) = walk(&plan, 3, &|_| unreachable());
    let tried = attempts(&events);
    assert_eq!(tried.len(), 5, "three hosts, and two retries of the last: {tried:?}");
    assert_eq!(tried[2..], [tried[2].clone(), tried[2].clone(), tried[2].clone()]);
    let task = &report.tasks()[0];
    assert_eq!((task.status, task.class), (Status::Failed, Some(ErrorClass::Unreachable)));
    assert_eq!(task.hosts[0].attempts, 3);
}

/// What may have begun is not begun elsewhere, and a host that was meant is not replaced.
#[test]
fn nothing_is_passed_over_that_has_begun_or_was_meant() {
    let begun = RowResult { not_started: false, ..unreachable() };
    let (report, events) = walk(&plan("_any", Settings::default()), 3, &|_| begun.clone());
    assert_eq!(attempts(&events).len(), 1);
    assert_eq!(report.tasks()[0].class, Some(ErrorClass::Unreachable));
    let (_, events) = walk(&plan("h00", Settings::default()), 3, &|_| unreachable());
    assert_eq!(attempts(&events), ["h00"]);
    let (_, events) = walk(&plan("_all", Settings::default()), 3, &|_| unreachable());
    assert_eq!(attempts(&events).len(), 3);
}
