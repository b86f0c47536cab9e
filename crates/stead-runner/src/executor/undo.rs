//! Undoing what a task changed.

use std::sync::Arc;

use stead_engine::run::Attempt;
use stead_model::plan::{Op, Part, TaskIndex, Undo};
use stead_model::{HostName, Status};

use crate::operation::Cancel;

use super::output::AttemptOutput;
use super::{Called, CatchPanic, Executor};

impl Executor {
    /// Undoes a task on the hosts it changed; returns what went wrong.
    pub(crate) async fn undo(
        self: Arc<Self>,
        task: TaskIndex,
        rows: Vec<(Option<HostName>, Vec<Op>)>,
        cancel: Cancel,
    ) -> Option<String> {
        let mut errors = Vec::new();
        let undo = self.plan.task(task).settings.undo.clone();
        for (index, (host, inverse)) in (0..).zip(rows) {
            let ops: Vec<Op> = match &undo {
                Some(Undo::Op(op)) => vec![op.clone()],
                Some(Undo::Auto) => inverse.into_iter().rev().collect(),
                Some(Undo::Function) => {
                    errors.extend(self.undo_by_function(task, cancel.clone()).await);
                    continue;
                }
                None => continue,
            };
            let host = host.unwrap_or_else(HostName::local);
            for op in ops {
                if op.is_withheld() {
                    let operation = &op.operation;
                    errors.push(format!(
                        "{host}: what was there before holds a secret, and the journal keeps none: `{operation}` cannot \
                         bring it back"
                    ));
                    continue;
                }
                if op.is_irreversible() {
                    let operation = &op.operation;
                    errors
                        .push(format!("{host}: `{operation}` changed something that nothing can bring back"));
                    continue;
                }
                if let Err(error) = self.undo_by_op(task, index, &host, op, cancel.clone()).await {
                    errors.push(format!("{host}: {error}"));
                }
            }
        }
        let text = errors.join("; ");
        (!errors.is_empty()).then(|| self.redactor.redact_text(&text).into_owned())
    }

    async fn undo_by_function(self: &Arc<Self>, task: TaskIndex, cancel: Cancel) -> Option<String> {
        let function = self.functions.of(task).and_then(|closures| closures.undo.clone())?;
        match self.call(function, task, 1, cancel, None).await {
            Called::Ended(Ok(_)) => None,
            Called::Ended(Err(failure)) => Some(failure.to_string()),
            Called::Panicked(message) => Some(format!("panicked: {message}")),
            Called::TimedOut(_) => Some("timed out".to_owned()),
            Called::Cancelled => Some("cancelled".to_owned()),
        }
    }

    async fn undo_by_op(
        self: &Arc<Self>,
        task: TaskIndex,
        row: u32,
        host: &HostName,
        op: Op,
        cancel: Cancel,
    ) -> Result<(), String> {
        let attempt = Attempt { task, row, host: Some(host.clone()), attempt: 0, from_part: 0 };
        let scope = self.host_scope(self.guard_scope(task, None), host, row);
        let output = AttemptOutput::new(self, &attempt);
        let mut cx = self.op_context(&attempt, host, cancel, output.sink(), scope.clone());
        // What an undo takes away is not wanted back.
        cx.undo = cx.undo.wanted(false);
        let part = Part { name: None, op, when_host: Vec::new(), changed_when: None, failed_when: None };
        let ended = CatchPanic(Box::pin(self.run_part(&part, &cx, &scope, false))).await;
        output.finish().await;
        match ended {
            Ok(result) if matches!(result.status, Status::Changed | Status::Unchanged) => Ok(()),
            Ok(result) => Err(result.error.unwrap_or_else(|| result.status.to_string())),
            Err(message) => Err(format!("panicked: {message}")),
        }
    }
}
