//! `inputs.sync`: hands a document of secret values over to its sink, or takes it back.
//!
//! Compares first and writes only what differs. Keys are named in what is reported, values never.

use std::collections::BTreeMap;
use std::sync::Arc;

use stead_model::operation::{ParamKind, ParamSpec, RootSupport};
use stead_model::steps::{InputsChange, StepOutcome};
use stead_model::{Descriptor, Effect, StepMode};
use stead_runner::operation::{Action, OpContext, OpError, Outcome, Params, Stop};

use super::script::{MODE, RESULT};
use super::sink::{self, Held, Sink};
use super::{InputsDocument, StepSurroundings, within};

static DESCRIPTOR: Descriptor = Descriptor {
    name: "inputs.sync",
    summary: "Hands a document of secret values of a catalogue over; only `stead steps` does.",
    effect: Effect::Command,
    idempotent: true,
    check: true,
    undo: false,
    platforms: &[],
    root: RootSupport::None,
    needs_root: false,
    params: &[
        ParamSpec::new("inputs", ParamKind::NonEmptyText, "The name of the inputs in the catalogue.")
            .required(),
        MODE,
    ],
    exclusive: &[],
    one_of: &[],
    result: RESULT,
};

/// Hands a document of secret values over.
pub(super) struct InputsSync(pub(super) Option<Arc<StepSurroundings>>);

#[async_trait::async_trait]
impl Action for InputsSync {
    fn descriptor(&self) -> &'static Descriptor {
        &DESCRIPTOR
    }

    async fn check(&self, cx: &OpContext, params: &Params) -> Result<Outcome, OpError> {
        let surroundings = within(&self.0)?;
        let document = document_of(surroundings, params)?;
        let sink = sink::of(document, surroundings);
        if let Some(why) = sink.cannot_look() {
            return Err(OpError { not_known: true, ..OpError::operation(why) });
        }
        let held = sink.look(cx).await?;
        let change = difference(surroundings.mode, document, held.as_ref())?;
        outcome(&document.name, change)
    }

    async fn run(&self, cx: &OpContext, params: &Params) -> Result<Outcome, OpError> {
        let surroundings = within(&self.0)?;
        if cx.cancel.now() >= Stop::Ask {
            return Err(OpError::operation("cancelled before the document was looked at"));
        }
        let document = document_of(surroundings, params)?;
        let sink = sink::of(document, surroundings);
        let held = sink.look(cx).await?;
        let change = difference(surroundings.mode, document, held.as_ref())?;
        if change.changed {
            act(&*sink, cx, surroundings.mode).await?;
        }
        outcome(&document.name, change)
    }
}

async fn act(sink: &dyn Sink, cx: &OpContext, mode: StepMode) -> Result<(), OpError> {
    match mode {
        StepMode::Apply => sink.write(cx).await,
        StepMode::Delete => sink.remove(cx).await,
    }
}

fn document_of<'a>(
    surroundings: &'a StepSurroundings,
    params: &Params,
) -> Result<&'a InputsDocument, OpError> {
    let name = params.required("inputs")?;
    let document = surroundings.inputs.get(name);
    document.ok_or_else(|| OpError::invalid(format!("the catalogue has no inputs `{name}`")))
}

/// Returns what would be different: by bytes and attributes, so that drift is mended.
fn difference(
    mode: StepMode,
    document: &InputsDocument,
    held: Option<&Held>,
) -> Result<InputsChange, OpError> {
    let nothing = BTreeMap::new();
    let before = held.map_or(&nothing, |held| &held.keys);
    match (mode, held) {
        (StepMode::Delete, None) => Ok(InputsChange::default()),
        (StepMode::Delete, Some(held)) if !held.managed => Err(OpError::permanent(format!(
            "{} does not carry the mark of Stead and is left alone; remove it by hand if it is not needed",
            held.what
        ))),
        (StepMode::Delete, Some(_)) => Ok(InputsChange {
            changed: true,
            removed: before.keys().cloned().collect(),
            ..InputsChange::default()
        }),
        (StepMode::Apply, Some(held)) if held.as_wanted => Ok(InputsChange::default()),
        (StepMode::Apply, _) => {
            let keys = |fits: &dyn Fn(&String, &[u8]) -> bool| -> Vec<String> {
                let all = document.keys.iter().filter(|(key, value)| fits(key, value.expose()));
                all.map(|(key, _)| key.clone()).collect()
            };
            Ok(InputsChange {
                changed: true,
                added: keys(&|key, _| !before.contains_key(key)),
                updated: keys(&|key, value| before.get(key).is_some_and(|old| old.expose() != value)),
                removed: before.keys().filter(|key| !document.keys.contains_key(*key)).cloned().collect(),
            })
        }
    }
}

fn outcome(name: &str, change: InputsChange) -> Result<Outcome, OpError> {
    let changed = change.changed;
    let outcome =
        StepOutcome { inputs: BTreeMap::from([(name.to_owned(), change)]), ..StepOutcome::default() };
    let data = serde_json::to_value(outcome)
        .map_err(|error| OpError::operation(format!("cannot keep what was done: {error}")))?;
    Ok(Outcome { changed, data: Some(data), ..Outcome::default() })
}
