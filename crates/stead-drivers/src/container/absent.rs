//! `container.absent`.

use serde_json::{Value, json};
use stead_model::{Descriptor, Op};
use stead_runner::operation::{Applied, Diff, Observed, OpContext, OpError, Operation, Params};

use super::engine::Engine;
use super::inspected::Inspected;
use super::present::{find, inverse, resource};
use super::{ADOPT, ASIDE, ENGINE, LABEL, MADE, NAME, TRIAL, WRITE};
use crate::system::field;

static DESCRIPTOR: Descriptor = Descriptor {
    name: "container.absent",
    summary: "Makes sure a container is not there; volumes and images stay.",
    params: &[NAME, ENGINE, ADOPT],
    result: &[("name", "The container's name."), ("engine", "The engine.")],
    ..WRITE
};

pub(super) struct Absent;

impl Operation for Absent {
    fn descriptor(&self) -> &'static Descriptor {
        &DESCRIPTOR
    }

    fn observe(&self, cx: &OpContext, params: &Params) -> Result<Observed, OpError> {
        let found = find(cx, &Engine::new(cx, params)?, params)?;
        Ok(Observed(serde_json::to_value(found.container).unwrap_or_default()))
    }

    fn diff(&self, _params: &Params, seen: &Observed) -> Diff {
        let image = seen.0.get("image");
        Diff {
            fields: image.map(|image| field("container", image.clone(), Value::Null)).into_iter().collect(),
            text: None,
        }
    }

    fn unchanged(&self, cx: &OpContext, params: &Params, _seen: &Observed) -> Option<Value> {
        let engine = Engine::new(cx, params).ok()?;
        Some(json!({"name": params.text("name"), "engine": engine.program}))
    }

    fn apply(&self, cx: &OpContext, params: &Params, _diff: &Diff) -> Result<Applied, OpError> {
        let engine = Engine::new(cx, params)?;
        let name = params.required("name")?;
        // In this order what is left by a kill in between is still seen.
        engine.remove_with_volumes(&format!("{name}{TRIAL}"))?;
        engine.remove(name)?;
        engine.remove(&format!("{name}{ASIDE}"))?;
        Ok(Applied { data: Some(json!({"name": name, "engine": engine.program})), notes: Vec::new() })
    }

    fn predict(&self, cx: &OpContext, params: &Params, _diff: &Diff) {
        cx.predicted.set(resource(params.text("name").unwrap_or_default()), Value::Null);
    }

    fn inverse(&self, params: &Params, before: &Observed) -> Option<Op> {
        let container: Inspected = serde_json::from_value(before.0.clone()).ok()?;
        // What it was made with beyond the parameters is not known any more.
        let is_known = container.labels.get(LABEL).is_some_and(|mark| mark == MADE);
        if is_known { inverse(params, Some(&container)) } else { None }
    }
}
