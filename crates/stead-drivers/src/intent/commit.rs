//! `intent.commit`: one commit of exactly the files that an intent edits.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;

use serde_json::json;
use stead_model::operation::{Effect, ParamKind, ParamSpec, RootSupport};
use stead_model::{Descriptor, ErrorClass};
use stead_runner::operation::{Action, OpContext, OpError, Outcome, Params};

use super::edit::PREDICTED;
use super::switch::{Foreign, Switch};
use super::{IntentSurroundings, git};
use crate::command::blocking::{self, Program};

static DESCRIPTOR: Descriptor = Descriptor {
    name: "intent.commit",
    summary: "Commits exactly the files that the intent before it edited.",
    effect: Effect::Command,
    idempotent: true,
    check: true,
    undo: false,
    platforms: &["linux"],
    root: RootSupport::None,
    needs_root: false,
    params: &[ParamSpec::new("message", ParamKind::NonEmptyText, "The message of the commit.").required()],
    exclusive: &[],
    one_of: &[],
    result: &[("commit", "The new commit.")],
};

/// Commits what was edited.
pub(super) struct Commit(pub(super) IntentSurroundings);

#[async_trait::async_trait]
impl Action for Commit {
    fn descriptor(&self) -> &'static Descriptor {
        &DESCRIPTOR
    }

    async fn check(&self, cx: &OpContext, _params: &Params) -> Result<Outcome, OpError> {
        let changed = cx.predicted.get(PREDICTED).is_some();
        let reason = (!changed).then(|| NOTHING.to_owned());
        Ok(Outcome { changed, reason, ..Outcome::default() })
    }

    async fn run(&self, cx: &OpContext, params: &Params) -> Result<Outcome, OpError> {
        let Some(switch) = self.0.take() else {
            return Ok(Outcome { reason: Some(NOTHING.to_owned()), ..Outcome::default() });
        };
        let (cx, message) = (cx.clone(), params.required("message")?.to_owned());
        tokio::task::spawn_blocking(move || commit(&cx, switch, &message))
            .await
            .unwrap_or_else(|error| Err(OpError::new(ErrorClass::Panic, error.to_string())))
    }
}

const NOTHING: &str = "nothing was edited";

/// Commits the files of `switch`, or puts them back.
fn commit(cx: &OpContext, switch: Switch, message: &str) -> Result<Outcome, OpError> {
    let Some(top) = git::top_of_any(&switch.places()) else {
        return Err(put_back(switch, OpError::operation("the files are in no Git work tree any more")));
    };
    let committed = switch.shared_with(|| run_git(cx, &switch, &top, message));
    let changed = |error: OpError| OpError { changed: true, ..error };
    match committed {
        Ok(()) => {}
        // A signal may come when the commit is made already.
        Err(error) if switch.is_committed() => {
            switch.keep().map_err(changed)?;
            return Err(changed(error));
        }
        Err(error) => return Err(put_back(switch, error)),
    }
    switch.keep().map_err(changed)?;
    let data = json!({"commit": git::head(&top)});
    Ok(Outcome { changed: true, data: Some(data), ..Outcome::default() })
}

fn run_git(cx: &OpContext, switch: &Switch, top: &Path, message: &str) -> Result<(), OpError> {
    let mut args: Vec<OsString> = ["--literal-pathspecs", "commit", "--quiet", "--only", "-m", message, "--"]
        .map(OsString::from)
        .into();
    args.extend(switch.places().into_iter().map(OsString::from));
    let env = [("GIT_TERMINAL_PROMPT", "0"), ("GIT_EDITOR", "true")];
    let env: BTreeMap<String, String> =
        env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    let mut cx = cx.clone();
    cx.hidden_env = cx.hidden_env.iter().cloned().chain(git::FOREIGN.map(str::to_owned)).collect();
    let said = blocking::run(&cx, Program { name: "git".to_owned(), args, cwd: top.to_owned(), env })?;
    if said.is_ok() {
        return Ok(());
    }
    Err(OpError::operation(format!("`git commit` failed: {}", said.describe())))
}

/// Returns `error` with what became of the edit.
fn put_back(switch: Switch, error: OpError) -> OpError {
    match switch.put_back(Foreign::PutBack) {
        Ok(_) => OpError { message: format!("{}; the edit is put back", error.message), ..error },
        Err(stuck) => OpError {
            message: format!("{}; putting the edit back failed: {}", error.message, stuck.message),
            changed: true,
            ..error
        },
    }
}
