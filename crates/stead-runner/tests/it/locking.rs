//! Hosts that a closure reaches through `cx.op` are locked before the operation starts.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use stead_bundle::Holder;
use stead_model::diagnostic::Source;
use stead_model::inventory::Inventory;
use stead_model::operation::RootSupport;
use stead_model::time::Timestamp;
use stead_model::{Descriptor, Effect, ErrorClass, HostName, RunId, Status};
use stead_runner::author::{Op, Plan};
use stead_runner::lock::{HostLockError, HostLocks};
use stead_runner::operation::{Action, OpContext, OpError, Outcome, Params, Registry};
use stead_runner::{Done, Runner};

const DESCRIPTOR: Descriptor = Descriptor {
    name: "touch",
    summary: "Counts how often it ran.",
    effect: Effect::Command,
    idempotent: false,
    check: false,
    undo: false,
    platforms: &[],
    root: RootSupport::Full,
    needs_root: false,
    params: &[],
    exclusive: &[],
    one_of: &[],
    result: &[],
};
static TOUCH: Descriptor = DESCRIPTOR;
static LOOK: Descriptor = Descriptor { name: "look", effect: Effect::Read, ..DESCRIPTOR };

struct Count(&'static Descriptor, Arc<AtomicU32>);

#[async_trait::async_trait]
impl Action for Count {
    fn descriptor(&self) -> &'static Descriptor {
        self.0
    }

    async fn check(&self, _: &OpContext, _: &Params) -> Result<Outcome, OpError> {
        Ok(Outcome::default())
    }

    async fn run(&self, _: &OpContext, _: &Params) -> Result<Outcome, OpError> {
        self.1.fetch_add(1, Ordering::SeqCst);
        Ok(Outcome { changed: true, ..Outcome::default() })
    }
}

/// A state directory, two hosts besides `local`, and how often the operations ran.
struct Lab {
    state: tempfile::TempDir,
    ran: Arc<AtomicU32>,
}

impl Lab {
    fn new() -> Self {
        Self { state: tempfile::tempdir().unwrap(), ran: Arc::default() }
    }

    fn runner(&self) -> Runner {
        let mut registry = Registry::new();
        registry.add_action(Count(&TOUCH, Arc::clone(&self.ran)));
        registry.add_action(Count(&LOOK, Arc::clone(&self.ran)));
        let text = "api_version: v1\nhosts: {web1: local, web2: local}\n";
        let source = Source { name: "inventory.yaml".into(), text: text.into() };
        Runner::new(registry).inventory(Inventory::read(&[source]).unwrap()).record_in(self.state.path())
    }

    fn ran(&self) -> u32 {
        self.ran.load(Ordering::SeqCst)
    }
}

fn host(name: &str) -> HostName {
    HostName::parse(name).unwrap()
}

fn locks_of(state: &Path, run: &str) -> HostLocks {
    let since = Timestamp::parse("2026-01-02T03:04:05.678901Z").unwrap();
    HostLocks::new(state, Holder::this_process(RunId::parse(run).unwrap(), since), Default::default())
}

fn plan_of(operation: &'static str, on: &'static str) -> stead_runner::author::CheckedPlan {
    let mut plan = Plan::builder("closures");
    plan.func("reach", move |cx| async move {
        cx.op(Op::new(operation), on).await?;
        Ok(Done::unchanged(()))
    });
    plan.build().unwrap()
}

/// Case 23: a host another run holds is not touched; the row says who has it.
#[tokio::test]
async fn a_closure_does_not_touch_a_host_another_run_holds() {
    let lab = Lab::new();
    let mut other = locks_of(lab.state.path(), "other");
    other.take([&host("web1")]).unwrap();
    let report = lab.runner().run(plan_of("touch", "web1")).await;
    let row = report.task("reach").unwrap();
    assert_eq!((row.status, row.class), (Status::Failed, Some(ErrorClass::Locked)), "{row:?}");
    let error = row.error.as_ref().unwrap();
    assert!(error.contains("host web1 is locked by run other (pid "), "{error}");
    assert_eq!((lab.ran(), report.exit_code.code()), (0, 5));
    // Another host is free, and so is looking at this one.
    let report = lab.runner().run(plan_of("touch", "web2")).await;
    assert_eq!((report.exit_code.code(), lab.ran()), (0, 1), "{report:?}");
    let report = lab.runner().run(plan_of("look", "web1")).await;
    assert_eq!((report.exit_code.code(), lab.ran()), (0, 2), "{report:?}");
}

/// The lock is there while the operation's task goes on, and gone with the run.
#[tokio::test]
async fn a_host_a_closure_reached_is_locked_until_the_run_ends() {
    let lab = Lab::new();
    let state = lab.state.path().to_owned();
    let mut plan = Plan::builder("closures");
    let inside = state.clone();
    plan.func("reach", move |cx| {
        let state = inside.clone();
        async move {
            locks_of(&state, "before").take([&host("web1")])?;
            cx.op(Op::new("touch"), "web1").await?;
            cx.op(Op::new("touch"), "web1").await?;
            let held = locks_of(&state, "other").take([&host("web1")]);
            Ok(Done::unchanged(matches!(held, Err(HostLockError::Held { holder: Some(_), .. }))))
        }
    });
    let report = lab.runner().run(plan.build().unwrap()).await;
    assert_eq!(report.task("reach").unwrap().data, Some(true.into()), "{report:?}");
    locks_of(&state, "after").take([&host("web1")]).unwrap();
}

/// Case 23: with a time to wait the operation starts once the host is free.
#[tokio::test]
async fn a_closure_waits_for_a_host_as_long_as_the_run_does() {
    let lab = Lab::new();
    let mut other = locks_of(lab.state.path(), "other");
    other.take([&host("web1")]).unwrap();
    let mut run = Box::pin(lab.runner().wait_lock(Duration::from_secs(60)).run(plan_of("touch", "web1")));
    let ended = tokio::time::timeout(Duration::from_millis(150), &mut run).await;
    assert!(ended.is_err() && lab.ran() == 0, "it waits");
    drop(other);
    assert_eq!((run.await.exit_code.code(), lab.ran()), (0, 1));
}

/// A stopped run does not go on waiting.
#[tokio::test]
async fn stopping_ends_the_wait_of_a_closure() {
    let lab = Lab::new();
    let mut other = locks_of(lab.state.path(), "other");
    other.take([&host("web1")]).unwrap();
    let runner = lab.runner().wait_lock(Duration::MAX);
    let canceller = runner.canceller();
    let runner = runner.observe(move |event: &stead_model::Event| {
        if matches!(event.kind, stead_model::EventKind::TaskStarted { .. }) {
            canceller.signal(1);
        }
    });
    let report = runner.run(plan_of("touch", "web1")).await;
    assert_eq!(report.task("reach").unwrap().status, Status::Cancelled);
    assert_eq!((report.exit_code.code(), lab.ran()), (130, 0));
}

/// A name that is no host is not taken for this machine.
#[tokio::test]
async fn a_closure_cannot_reach_a_host_that_is_not_there() {
    let lab = Lab::new();
    let report = lab.runner().run(plan_of("touch", "web9")).await;
    let row = report.task("reach").unwrap();
    assert_eq!((row.status, row.class), (Status::Failed, Some(ErrorClass::Invalid)));
    assert!(row.error.as_ref().unwrap().contains("web9"));
    assert_eq!(lab.ran(), 0);
    // Without recording there are no locks, with `lock: false` neither; the operation runs all the same.
    let mut plan = Plan::builder("closures");
    plan.func("reach", |cx| async move {
        cx.op(Op::new("touch"), "local").await?;
        Ok(Done::unchanged(()))
    });
    assert_eq!(lab.runner().run(plan.build().unwrap()).await.exit_code.code(), 0);
}
