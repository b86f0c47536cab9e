//! Functional tasks through the public API.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use stead_model::plan::Retry;
use stead_model::{Cause, ErrorClass, Event, RunStatus, Status};
use stead_runner::author::{Guard, OnError, Plan};
use stead_runner::operation::Registry;
use stead_runner::{Done, Failure, ReportValues as _, Runner};

fn runner() -> Runner {
    Runner::new(Registry::new())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn values_flow_from_task_to_task_and_into_the_report() {
    let mut plan = Plan::builder("values");
    let one = plan.func("one", |_| async { Ok(Done::changed(20_u32)) }).handle();
    let two = plan
        .func("two", move |cx| async move { Ok(Done::unchanged(cx.result(one)? + 1)) })
        .after(one)
        .handle();
    let report = runner().run(plan.build().unwrap()).await;
    assert_eq!(report.summary().lines().next(), Some("2 tasks: 1 changed, 1 unchanged"));
    assert_eq!(report.value(two).unwrap(), 21);
}

/// Section 13: a server has none of this program's closures.
#[test]
fn only_plans_without_closures_are_submitted() {
    let mut plan = Plan::builder("mixed");
    plan.func("one", |_| async { Ok(Done::unchanged(())) });
    plan.finally_func("last", |_| async { Ok(Done::unchanged(())) });
    let refused = plan.build().unwrap().to_submission().unwrap_err();
    assert_eq!(refused.to_string(), "functional tasks cannot be submitted: one, last");
    let plan = Plan::builder("empty").build().unwrap();
    let submission = plan.to_submission().unwrap();
    assert_eq!(submission.plan_hash, submission.plan.digest());
    let body = serde_json::to_vec(&submission).unwrap();
    assert_eq!(stead_model::plan::PlanSubmission::parse(&body).unwrap(), submission);
}

#[tokio::test]
async fn only_upstream_results_can_be_read() {
    let mut plan = Plan::builder("upstream");
    let other = plan.func("other", |_| async { Ok(Done::unchanged(1)) }).handle();
    plan.func("reader", move |cx| async move { Ok(Done::unchanged(cx.result(other)?)) });
    let report = runner().run(plan.build().unwrap()).await;
    let row = report.task("reader").unwrap();
    assert_eq!(row.status, Status::Failed);
    assert!(row.error.as_ref().unwrap().contains("not upstream"), "{row:?}");
}

/// Case 11: panics in a task, a guard and an observer fail that task, that guard's task, and nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn panics_stay_where_they_happen() {
    let mut plan = Plan::builder("panics");
    plan.on_error(OnError::Continue);
    plan.func("task", |_| async { if true { panic!("boom") } else { Ok(Done::unchanged(())) } });
    plan.func("guarded", |_| async { Ok(Done::unchanged(())) })
        .when(Guard::func("label", |_| panic!("bang")));
    plan.func("fine", |_| async { Ok(Done::unchanged(())) });
    let report = runner().observe(|_: &Event| panic!("observer")).run(plan.build().unwrap()).await;
    let row = report.task("task").unwrap();
    assert_eq!((row.status, row.class), (Status::Failed, Some(ErrorClass::Panic)));
    assert!(row.error.as_ref().unwrap().contains("boom"));
    let row = report.task("guarded").unwrap();
    assert_eq!((row.status, row.class), (Status::Failed, Some(ErrorClass::Guard)));
    assert!(row.error.as_ref().unwrap().contains("bang"), "{row:?}");
    assert_eq!(report.task("fine").unwrap().status, Status::Unchanged);
    assert!(report.warnings.iter().any(|warning| warning.code == "run/observer-panicked"));
}

/// Case 8: fails twice, then works.
#[tokio::test]
async fn a_task_is_tried_again_until_it_works() {
    let tries = Arc::new(AtomicU32::new(0));
    let mut plan = Plan::builder("retry");
    let counter = Arc::clone(&tries);
    plan.func("flaky", move |_| {
        let attempt = counter.fetch_add(1, Ordering::SeqCst);
        async move {
            if attempt < 2 { Err(Failure::new(format!("try {attempt}"))) } else { Ok(Done::changed(())) }
        }
    })
    .retry(Retry::times(2).backoff(Duration::from_millis(100), Duration::from_secs(10)));
    let errors = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&errors);
    let report = runner()
        .observe(move |event: &Event| {
            if let stead_model::EventKind::AttemptFailed { error, retry_in_ms, .. } = &event.kind {
                seen.lock().unwrap().push((error.clone(), *retry_in_ms));
            }
        })
        .run(plan.build().unwrap())
        .await;
    let row = report.task("flaky").unwrap();
    assert_eq!((row.status, row.attempts), (Status::Changed, 3));
    assert_eq!(*errors.lock().unwrap(), [("try 0".to_owned(), 100), ("try 1".to_owned(), 200)]);
}

/// Case 9: a permanent failure is not tried again.
#[tokio::test]
async fn permanent_failures_are_not_tried_again_and_keep_their_data() {
    let mut plan = Plan::builder("permanent");
    plan.func("task", |_| async { Err::<Done<()>, _>(Failure::permanent("no").changed(true).data(7)) })
        .retry(Retry::times(5));
    plan.func("dependent", |_| async { Ok(Done::unchanged(())) });
    let report = runner().run(plan.build().unwrap()).await;
    let row = report.task("task").unwrap();
    assert_eq!((row.status, row.attempts, row.changed), (Status::Failed, 1, true));
    assert_eq!(row.data, Some(7.into()));
    assert_eq!(report.status, RunStatus::Failed);
}

/// Case 7: `continue` skips dependents over two hops and runs the rest.
#[tokio::test]
async fn continue_skips_dependents_and_runs_the_rest() {
    let mut plan = Plan::builder("continue");
    plan.on_error(OnError::Continue);
    let a = plan.func("a", |_| async { Err::<Done<()>, _>(Failure::new("no")) }).handle();
    let b = plan.func("b", |_| async { Ok(Done::unchanged(())) }).after(a).handle();
    plan.func("c", |_| async { Ok(Done::unchanged(())) }).after(b);
    plan.func("d", |_| async { Ok(Done::changed(())) });
    let report = runner().run(plan.build().unwrap()).await;
    for name in ["b", "c"] {
        let row = report.task(name).unwrap();
        assert_eq!((row.status, row.cause), (Status::Skipped, Some(Cause::Dependency)), "{name}");
    }
    assert_eq!(report.task("b").unwrap().reason.as_deref(), Some("dependency failed: a"));
    assert_eq!(report.task("d").unwrap().status, Status::Changed);
    assert_eq!(report.exit_code.code(), 1);
}

/// Dropping a run's future, and stopping it, reach closures.
#[tokio::test]
async fn a_cancelled_run_asks_closures_to_stop_and_runs_finally() {
    let mut plan = Plan::builder("cancel");
    plan.func("long", |cx| async move {
        cx.cancelled().await;
        Err::<Done<()>, _>(Failure::new("stopped"))
    });
    plan.finally_func("notify", |cx| async move { Ok(Done::unchanged(cx.run().status())) });
    let runner = runner();
    let canceller = runner.canceller();
    let runner = runner.observe(move |event: &Event| {
        if matches!(event.kind, stead_model::EventKind::TaskStarted { .. }) {
            canceller.signal(1);
        }
    });
    let report = runner.run(plan.build().unwrap()).await;
    assert_eq!(report.task("long").unwrap().status, Status::Cancelled);
    assert_eq!(report.task("notify").unwrap().data, Some("cancelled".into()));
    assert_eq!((report.status, report.exit_code.code()), (RunStatus::Cancelled, 130));
}
