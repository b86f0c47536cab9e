//! An operation that a host does not support, from the operation to the report and the plain output.

use stead_cli::render::Options;
use stead_cli::render::plain::Plain;
use stead_model::diagnostic::Source;
use stead_model::inventory::Inventory;
use stead_model::operation::RootSupport;
use stead_model::{Cause, Descriptor, Effect, Op, Status};
use stead_runner::author::{self, Plan};
use stead_runner::operation::{
    Applied, Diff, FieldDiff, Observed, OpContext, OpError, Operation, Params, Registry,
};
use stead_runner::{CheckedPlan, Runner};

use crate::events::Buffer;

const ELSEWHERE: Descriptor = Descriptor {
    name: "elsewhere",
    summary: "Works on another system.",
    effect: Effect::Write,
    idempotent: true,
    check: true,
    undo: false,
    platforms: &["plan9", "hurd"],
    root: RootSupport::Full,
    needs_root: false,
    params: &[],
    exclusive: &[],
    one_of: &[],
    result: &[],
};
static PLATFORM: Descriptor = ELSEWHERE;
static RUNNING: Descriptor =
    Descriptor { name: "running", platforms: &[], root: RootSupport::None, ..ELSEWHERE };
static MISSING: Descriptor = Descriptor { name: "missing", platforms: &[], ..ELSEWHERE };

/// Says itself that it cannot work on host `h1`; changes something every time elsewhere.
struct Picky(&'static Descriptor);

impl Operation for Picky {
    fn descriptor(&self) -> &'static Descriptor {
        self.0
    }

    fn observe(&self, cx: &OpContext, _: &Params) -> Result<Observed, OpError> {
        if self.0.name == "missing" && cx.host.as_str() == "h1" {
            return Err(OpError::unsupported("missing needs a running systemd"));
        }
        Ok(Observed(cx.predicted.get("done").is_some().into()))
    }

    fn diff(&self, _: &Params, seen: &Observed) -> Diff {
        let done = seen.0 == serde_json::Value::Bool(true);
        let field = FieldDiff { name: "done".to_owned(), before: false.into(), after: true.into() };
        Diff { fields: if done { Vec::new() } else { vec![field] }, text: None }
    }

    fn apply(&self, cx: &OpContext, _: &Params, _: &Diff) -> Result<Applied, OpError> {
        cx.predicted.set("done", true.into());
        Ok(Applied::default())
    }

    fn predict(&self, cx: &OpContext, _: &Params, _: &Diff) {
        cx.predicted.set("done", true.into());
    }

    fn inverse(&self, _: &Params, _: &Observed) -> Option<Op> {
        None
    }
}

fn registry() -> Registry {
    let mut registry = Registry::new();
    for descriptor in [&PLATFORM, &RUNNING, &MISSING] {
        registry.add_operation(Picky(descriptor));
    }
    registry
}

fn runner() -> Runner {
    let text = "api_version: v1\nhosts: {h1: local, h2: local, image: {transport: local, root: /nowhere}}\n";
    let source = Source { name: "inventory.yaml".into(), text: text.into() };
    Runner::new(registry()).inventory(Inventory::read(&[source]).unwrap())
}

fn plan() -> CheckedPlan {
    let mut plan = Plan::builder("unsupported");
    plan.operations(&registry());
    let platform = plan.op("platform", author::Op::new("elsewhere")).handle();
    plan.op("behind", author::Op::new("missing")).after([platform]);
    plan.op("image", author::Op::new("running")).on("image");
    plan.op("some", author::Op::new("missing")).on("h1,h2");
    plan.build().unwrap()
}

/// Section 7: the row is skipped, not failed, with cause `unsupported` and what is needed; dependents run.
#[tokio::test]
async fn an_unsupported_operation_is_a_skipped_row_that_names_what_is_needed() {
    let buffer = Buffer::default();
    let report = runner().observe(Plain::new(buffer.handle(), Options::default())).run(plan()).await;
    assert_eq!(report.exit_code.code(), 0, "{report:?}");
    let row = |name: &str| report.task(name).unwrap();
    for (name, needed) in
        [("platform", "elsewhere needs plan9 or hurd"), ("image", "running needs the running system")]
    {
        let row = row(name);
        assert_eq!(
            (row.status, row.cause, row.changed),
            (Status::Skipped, Some(Cause::Unsupported), false),
            "{row:?}"
        );
        assert!(row.reason.as_ref().unwrap().contains(needed), "{row:?}");
        assert_eq!((row.error.as_ref(), row.hosts[0].status), (None, Status::Skipped));
        assert!(row.hosts[0].reason.as_ref().unwrap().contains(needed), "{row:?}");
    }
    // One host that cannot does not keep the other from it, and what is behind a skipped task runs.
    let some = row("some");
    assert_eq!(
        (some.status, some.hosts[0].status, some.hosts[1].status),
        (Status::Changed, Status::Skipped, Status::Changed)
    );
    assert_eq!(some.hosts[0].reason.as_deref(), Some("missing needs a running systemd"));
    assert_eq!(row("behind").status, Status::Changed);
    let shown = buffer.text();
    for line in [
        "[skipped] platform: elsewhere needs plan9 or hurd",
        "[skipped] image: running needs the running system: it does not work below a root directory",
        "[host] some@h1 skipped: missing needs a running systemd",
    ] {
        assert!(shown.lines().any(|shown| shown == line), "no `{line}` in\n{shown}");
    }
}

/// Section 9: a prediction says the same.
#[tokio::test]
async fn a_dry_run_predicts_what_is_unsupported() {
    let report = runner().dry_run(plan()).await;
    for name in ["platform", "image"] {
        let row = report.task(name).unwrap();
        assert_eq!((row.status, row.cause), (Status::Skipped, Some(Cause::Unsupported)), "{row:?}");
    }
    assert_eq!(
        (report.counts.changed, report.counts.skipped, report.exit_code.code()),
        (2, 2, 0),
        "{report:?}"
    );
}
