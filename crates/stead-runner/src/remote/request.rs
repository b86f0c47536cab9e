//! What is sent along with an operation: everything it needs of the driver, and nothing else.

use std::collections::BTreeMap;
use std::time::Duration;

use stead_model::ErrorClass;
use stead_model::event::Mode;
use stead_model::executor::{Answer, EntryKind, Expressed, OpRequest};

use crate::files::{DriverFiles, LocalFiles, Needs};
use crate::operation::{Entry, OpContext, OpError, Params};

use tokio::time::Instant;

use super::pending::Allowed;

/// How much longer an executor waits than its driver, which keeps the time too and knows more of what it stops: an
/// executor's own time is for a driver that is slow or gone.
const HEAD_START: Duration = Duration::from_secs(2);

/// What the run adds to an operation.
pub(crate) struct Sending<'a> {
    pub(crate) entry: &'a Entry,
    pub(crate) cx: &'a OpContext,
    pub(crate) files: LocalFiles,
    pub(crate) names: &'a (dyn Fn() -> serde_json::Map<String, serde_json::Value> + Sync),
    pub(crate) secrets: Vec<String>,
    pub(crate) mode: Mode,
    pub(crate) wants_inverse: bool,
}

impl Sending<'_> {
    /// Returns the message, and what the target may ask for while it works on it.
    pub(crate) async fn prepare(self, params: Params) -> Result<(OpRequest, Allowed), OpError> {
        let Needs { sources, names, expressions, keeps } = self.entry.needs(&params);
        let mut allowed =
            Allowed { keeps: keeps.map(|place| (self.files.clone(), place)), ..Allowed::default() };
        let mut trees = BTreeMap::new();
        for (source, exclude) in sources {
            let (files, name) = (self.files.clone(), source.clone());
            let listed = tokio::task::spawn_blocking(move || files.tree(&name, &exclude)).await;
            let tree = match listed {
                Ok(Ok(tree)) => tree,
                Ok(Err(error)) => {
                    trees.insert(source, Err(error.message));
                    continue;
                }
                Err(error) => {
                    return Err(OpError::new(ErrorClass::Operation, format!("source `{source}`: {error}")));
                }
            };
            for entry in tree.entries.iter().filter(|entry| entry.kind == EntryKind::File) {
                let path = self.files.content(&source, entry)?;
                allowed.content.insert(entry.sha256.clone(), (path, entry.size));
            }
            trees.insert(source, Ok(std::sync::Arc::unwrap_or_clone(tree)));
        }
        let answer = |expression: &String| match self.cx.scope.evaluate(expression) {
            Ok(value) => Answer::Value(value),
            Err(error) => Answer::Error(Expressed { message: error.message, not_known: error.not_known }),
        };
        let mut marks = self.cx.marks();
        // The bundle is a path of this machine.
        marks.remove("STEAD_BUNDLE");
        let operation = self.entry.descriptor().name;
        let request = OpRequest {
            operation: stead_model::OperationName::parse(operation)
                .map_err(|_| OpError::invalid(format!("`{operation}` is no name of an operation")))?,
            params: params.into_map(),
            check: self.mode == Mode::DryRun,
            diff: true,
            secrets: self.secrets,
            env: marks,
            timeout_ms: self.cx.deadline.map(|deadline| {
                let left = deadline.saturating_duration_since(Instant::now()) + HEAD_START;
                u64::try_from(left.as_millis()).unwrap_or(u64::MAX)
            }),
            grace_ms: u64::try_from(self.cx.grace.as_millis()).unwrap_or(u64::MAX),
            undo: self.wants_inverse,
            hidden_env: self.cx.hidden_env.to_vec(),
            sources: trees,
            names: names.then(|| (self.names)()),
            answers: expressions.iter().map(|expression| (expression.clone(), answer(expression))).collect(),
            restarted: None,
        };
        Ok((request, allowed))
    }
}

/// Whether an operation renders a template whose text mentions facts.
pub(crate) fn reads_facts(entry: &Entry, params: &Params, files: &LocalFiles) -> bool {
    let needs = entry.needs(params);
    let mentions = |text: &[u8]| text.windows(4).any(|word| word == b"fact");
    needs.names
        && (params.as_map().values().filter_map(|value| value.as_str()).any(|text| mentions(text.as_bytes()))
            || needs.sources.iter().any(|(source, _)| {
                // What cannot be read fails where it is sent.
                std::fs::read(files.base_dir.join(source)).is_ok_and(|text| mentions(&text))
            }))
}
