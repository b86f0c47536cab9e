//! What operations of closures say: every byte is in a log, and announced once, without a gap.

use std::collections::BTreeMap;

use stead_model::event::{EventKind, Stream};
use stead_model::operation::RootSupport;
use stead_model::{Descriptor, Effect, Event};
use stead_runner::author::{Op, Plan};
use stead_runner::operation::{Action, OpContext, OpError, Outcome, Params, Registry};
use stead_runner::{Done, Runner};

static SAY: Descriptor = Descriptor {
    name: "say",
    summary: "Says three lines, and lets others speak in between.",
    effect: Effect::Read,
    idempotent: true,
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

struct Say;

#[async_trait::async_trait]
impl Action for Say {
    fn descriptor(&self) -> &'static Descriptor {
        &SAY
    }

    async fn check(&self, _: &OpContext, _: &Params) -> Result<Outcome, OpError> {
        Ok(Outcome::default())
    }

    async fn run(&self, cx: &OpContext, _: &Params) -> Result<Outcome, OpError> {
        for line in ["one\n", "two\n", "three\n"] {
            cx.output.write(Stream::Stdout, line.as_bytes());
            tokio::task::yield_now().await;
        }
        Ok(Outcome::default())
    }
}

/// Section 11: `log` events of a file are contiguous from 0, whoever writes to it.
#[tokio::test]
async fn operations_of_a_closure_share_a_log_without_gaps() {
    let state = tempfile::tempdir().unwrap();
    let mut registry = Registry::new();
    registry.add_action(Say);
    let mut plan = Plan::builder("talk");
    plan.func("talk", |cx| async move {
        let say = || cx.op(Op::new("say"), "local");
        let (left, right) = tokio::join!(say(), say());
        left?;
        right?;
        say().await?;
        Ok(Done::unchanged(()))
    });
    let seen = std::sync::Arc::new(std::sync::Mutex::new(BTreeMap::<String, u64>::new()));
    let ends = std::sync::Arc::clone(&seen);
    let runner = Runner::new(registry).record_in(state.path()).observe(move |event: &Event| {
        if let EventKind::Log { file, offset, len, .. } = &event.kind {
            let mut ends = ends.lock().unwrap();
            let end = ends.entry(file.clone()).or_default();
            assert_eq!(*offset, *end, "{file}");
            *end += len;
        }
    });
    let report = runner.run(plan.build().unwrap()).await;
    assert_eq!(report.warnings, [], "no observer panicked");
    let bundle = report.bundle.unwrap();
    let log = std::fs::read_to_string(format!("{bundle}/logs/talk/local.1.stdout")).unwrap();
    assert_eq!(log.lines().count(), 9, "{log}");
    assert_eq!(seen.lock().unwrap()["logs/talk/local.1.stdout"], log.len() as u64);
}
