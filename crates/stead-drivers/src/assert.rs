//! `assert`: expressions that must be true.

use serde_json::Value;
use stead_engine::expr::expression_references;
use stead_model::operation::{ParamKind, ParamSpec, RootSupport, judge_texts};
use stead_model::{Descriptor, Effect};
use stead_runner::files::Needs;
use stead_runner::operation::{Action, OpContext, OpError, Outcome, Params};

static DESCRIPTOR: Descriptor = Descriptor {
    name: "assert",
    summary: "Fails unless every expression is true.",
    effect: Effect::Read,
    idempotent: true,
    check: true,
    undo: false,
    platforms: &[],
    root: RootSupport::Full,
    needs_root: false,
    params: &[
        ParamSpec::new("that", ParamKind::TextOrList, "An expression or a list of them, without braces.")
            .required()
            .judged(|value| {
                judge_texts(value, |text| {
                    expression_references(text).err().map(|error| format!("`{text}`: {error}"))
                })
            }),
        ParamSpec::new("message", ParamKind::Text, "Said with the expression that is false."),
    ],
    exclusive: &[],
    one_of: &[],
    result: &[],
};

/// Fails unless every expression is true.
pub(crate) struct Assert;

#[async_trait::async_trait]
impl Action for Assert {
    fn descriptor(&self) -> &'static Descriptor {
        &DESCRIPTOR
    }

    async fn check(&self, cx: &OpContext, params: &Params) -> Result<Outcome, OpError> {
        judge(cx, params)
    }

    async fn run(&self, cx: &OpContext, params: &Params) -> Result<Outcome, OpError> {
        judge(cx, params)
    }

    fn needs(&self, params: &Params) -> Needs {
        let expressions = match params.get("that") {
            Some(Value::Array(items)) => items.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
            Some(one) => one.as_str().map(str::to_owned).into_iter().collect(),
            None => Vec::new(),
        };
        Needs { expressions, ..Needs::default() }
    }
}

fn judge(cx: &OpContext, params: &Params) -> Result<Outcome, OpError> {
    let mut wrong = Vec::new();
    // A rendered `{{ … }}` may already be a boolean.
    let that = match params.get("that") {
        Some(Value::Array(items)) => items.clone(),
        Some(one) => vec![one.clone()],
        None => return Err(OpError::invalid("parameter `that` is missing")),
    };
    for item in that {
        let (shown, value) = match item.as_str() {
            Some(expression) => {
                let value = cx.scope.evaluate(expression);
                let value = value.map_err(|error| error.within(format_args!("`{expression}`")))?;
                (expression.to_owned(), value)
            }
            None => (item.to_string(), item),
        };
        match value.as_bool() {
            Some(true) => {}
            Some(false) => wrong.push(format!("`{shown}` is false")),
            None => return Err(OpError::invalid(format!("`{shown}` gives {value}, not true or false"))),
        }
    }
    if wrong.is_empty() {
        return Ok(Outcome::default());
    }
    let wrong = wrong.join("; ");
    let message =
        params.text("message").map_or_else(|| wrong.clone(), |message| format!("{message}: {wrong}"));
    Err(OpError::permanent(message))
}
