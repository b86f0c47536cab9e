//! `intent.edit`: values of YAML files, all or none.

use serde_json::{Value, json};
use stead_model::intent::FileEdit;
use stead_model::operation::{Effect, ParamKind, ParamSpec, RootSupport};
use stead_model::{Descriptor, Op};
use stead_runner::files::{Content, Place};
use stead_runner::operation::{Applied, Diff, FieldDiff, Observed, OpContext, OpError, Operation, Params};

use super::IntentSurroundings;
use super::prepared::{Prepared, PreparedFile, prepare};
use super::switch::{Foreign, Switch};

/// What the diff is called among the run's artifacts.
pub(super) const ARTIFACT: &str = "intent.diff";

/// What a dry run predicts under: whether there is something to commit.
pub(super) const PREDICTED: &str = "intent:edit";

static DESCRIPTOR: Descriptor = Descriptor {
    name: "intent.edit",
    summary: "Gives values in YAML files their new text, in all files or in none.",
    effect: Effect::Write,
    idempotent: true,
    check: true,
    undo: false,
    platforms: &["linux"],
    root: RootSupport::None,
    needs_root: false,
    params: &[
        ParamSpec::new("intent", ParamKind::NonEmptyText, "The name of the intent.").required(),
        ParamSpec::new(
            "edits",
            ParamKind::Any,
            "A list of `{file, select, path, value, must_exist}`, files relative to the catalogue's root.",
        )
        .required(),
        ParamSpec::new(
            "commit",
            ParamKind::Bool,
            "Whether a commit follows, without which the edit is put back.",
        )
        .required(),
    ],
    exclusive: &[],
    one_of: &[],
    result: &[
        ("files", "The files that were written."),
        ("diff", "Where the diff is kept, if the run is recorded."),
    ],
};

/// Edits files.
pub(super) struct Edit(pub(super) IntentSurroundings);

impl Edit {
    fn prepare(&self, params: &Params) -> Result<Prepared, OpError> {
        let edits = params.get("edits").cloned().unwrap_or_default();
        let edits: Vec<FileEdit> = serde_json::from_value(edits)
            .map_err(|error| OpError::invalid(format!("parameter `edits`: {error}")))?;
        prepare(&self.0.root, &edits).map_err(|problems| OpError::invalid(problems.to_string()))
    }
}

impl Operation for Edit {
    fn descriptor(&self) -> &'static Descriptor {
        &DESCRIPTOR
    }

    fn observe(&self, _cx: &OpContext, params: &Params) -> Result<Observed, OpError> {
        let prepared = self.prepare(params)?;
        let values = prepared.files.iter().flat_map(|file| {
            file.values.iter().map(|value| {
                json!({"name": format!("{}: {}", file.name, value.path), "before": value.old, "after": value.new})
            })
        });
        Ok(Observed(json!({"values": values.collect::<Vec<_>>(), "diff": prepared.diff()})))
    }

    fn diff(&self, _params: &Params, seen: &Observed) -> Diff {
        let values = seen.0["values"].as_array().into_iter().flatten();
        let differing = values.filter(|value| value["before"] != value["after"]).map(|value| FieldDiff {
            name: value["name"].as_str().unwrap_or_default().to_owned(),
            before: value["before"].clone(),
            after: value["after"].clone(),
        });
        let text = seen.0["diff"].as_str().filter(|text| !text.is_empty()).map(str::to_owned);
        Diff { fields: differing.collect(), text }
    }

    fn unchanged(&self, _cx: &OpContext, _params: &Params, _seen: &Observed) -> Option<Value> {
        Some(json!({"files": [], "diff": null}))
    }

    fn apply(&self, cx: &OpContext, params: &Params, _diff: &Diff) -> Result<Applied, OpError> {
        let (surroundings, prepared) = (&self.0, self.prepare(params)?);
        for file in &prepared.files {
            if surroundings.shown.get(&file.name).is_some_and(|shown| *shown != file.sha256()) {
                return Err(OpError::operation(format!(
                    "`{}` changed since it was read; nothing was written",
                    file.name
                )));
            }
        }
        let changed: Vec<&PreparedFile> = prepared.changed().collect();
        let committing = params.flag("commit", false);
        let intent = params.required("intent")?;
        let switch = Switch::begin(
            &surroundings.state_dir,
            &surroundings.root,
            intent,
            cx.run_id.clone(),
            committing,
            &changed,
        )?;
        if let Err(error) = switch.carry_out(&changed) {
            return Err(match switch.put_back(Foreign::Leave) {
                Ok(_) => {
                    OpError { message: format!("{}; all files are as they were", error.message), ..error }
                }
                Err(stuck) => OpError {
                    message: format!("{}; putting back failed: {}", error.message, stuck.message),
                    changed: true,
                    ..error
                },
            });
        }
        if committing {
            surroundings.hold(switch);
        } else {
            switch.keep().map_err(|error| OpError { changed: true, ..error })?;
        }
        let files: Vec<&str> = changed.iter().map(|file| file.name.as_str()).collect();
        let mut notes = Vec::new();
        let kept = keep_diff(cx, &prepared.diff()).unwrap_or_else(|error| {
            notes.push(format!("the diff is not kept: {}", error.message));
            None
        });
        Ok(Applied { data: Some(json!({"files": files, "diff": kept})), notes })
    }

    fn predict(&self, cx: &OpContext, _params: &Params, _diff: &Diff) {
        cx.predicted.set(PREDICTED, Value::Bool(true));
    }

    fn inverse(&self, _params: &Params, _before: &Observed) -> Option<Op> {
        None
    }
}

/// Keeps the diff among the run's artifacts, if it is recorded.
fn keep_diff(cx: &OpContext, diff: &str) -> Result<Option<String>, OpError> {
    if cx.bundle.is_none() {
        return Ok(None);
    }
    let failed = |error: std::io::Error| OpError::io("cannot keep the diff", &error);
    let mut file = tempfile::tempfile().map_err(failed)?;
    std::io::Write::write_all(&mut file, diff.as_bytes()).map_err(failed)?;
    let content = Content::read(&mut diff.as_bytes()).map_err(failed)?;
    let place = Place { to: None, path: ARTIFACT.to_owned() };
    cx.files.keep(&place, &mut file, &content).map(Some)
}
