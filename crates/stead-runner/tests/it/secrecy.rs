//! What `Debug` shows of things that hold secrets.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use stead_model::operation::{ParamKind, ParamSpec, RootSupport};
use stead_model::plan::SecretRef;
use stead_model::{Descriptor, Effect};
use stead_runner::Runner;
use stead_runner::author::{Op, Plan};
use stead_runner::operation::{Action, Observed, OpContext, OpError, Outcome, Params, Predicted, Registry};

const SECRET: &str = "s3cr3t-tok3n-value";

static DESCRIPTOR: Descriptor = Descriptor {
    name: "keep",
    summary: "Keeps what it is given.",
    effect: Effect::Command,
    idempotent: false,
    check: true,
    undo: false,
    platforms: &[],
    root: RootSupport::Full,
    needs_root: false,
    params: &[ParamSpec::new("key", ParamKind::Text, "A key.").secret()],
    exclusive: &[],
    one_of: &[],
    result: &[],
};

/// Keeps how it was called: the value it got, and everything as `Debug` shows it.
#[derive(Clone, Default)]
struct Keep(Arc<Mutex<Vec<(String, String)>>>);

#[async_trait::async_trait]
impl Action for Keep {
    fn descriptor(&self) -> &'static Descriptor {
        &DESCRIPTOR
    }

    async fn check(&self, _: &OpContext, _: &Params) -> Result<Outcome, OpError> {
        Ok(Outcome::default())
    }

    async fn run(&self, cx: &OpContext, params: &Params) -> Result<Outcome, OpError> {
        cx.predicted.set("file:/key", params.get("key").cloned().unwrap());
        let shown = format!("{cx:?} {cx:#?} {params:?} {params:#?}");
        self.0.lock().unwrap().push((params.required("key")?.to_owned(), shown));
        Ok(Outcome::default())
    }
}

/// Case 29: a secret is in no `Debug` of what the runner hands out, on its way in and on its way through.
#[tokio::test]
async fn no_debug_of_the_runner_shows_a_secret() {
    let kept = Keep::default();
    let mut registry = Registry::new();
    registry.add_action(kept.clone());
    let mut plan = Plan::builder("secret");
    plan.operations(&registry);
    plan.secret("key", SecretRef::Env("API_KEY".to_owned()));
    plan.op("t", Op::new("keep").template("key", "{{ secrets.key }}"));
    let plan = plan.build().unwrap();
    let environment = BTreeMap::from([("API_KEY".to_owned(), SECRET.to_owned())]);
    let runner = Runner::new(registry).environment(environment);
    let mut shown = format!("{runner:?} {plan:?}");
    let report = runner.run(plan).await;
    shown.push_str(&format!("{report:?}"));
    let kept = kept.0.lock().unwrap();
    assert_eq!(kept[0].0, SECRET, "the operation got it");
    shown.push_str(&kept[0].1);
    shown.push_str(&format!("{:?}", Observed(serde_json::json!([{"content": SECRET}]))));
    let predicted = Predicted::default();
    predicted.set("file:/key", SECRET.into());
    shown.push_str(&format!("{predicted:?}"));
    assert!(shown.contains("file:/key") && shown.contains("key"), "{shown}");
    assert!(!shown.contains(SECRET), "{shown}");
}
