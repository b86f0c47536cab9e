//! What leaves the executor: masked, and short enough for the journal.

use serde_json::Value;
use stead_engine::run::Attempt;
use stead_model::event::{EventKind, RowResult};
use stead_model::plan::{Op, Param};

use super::{Executor, Message};

/// A text of this length may be the tail of a longer one: results keep the last MiB of a stream.
const CUT_TEXT: usize = (1 << 20) - 8;

/// How long data may be before it goes to a file of its own.
const LONGEST_DATA: usize = 64 * 1024;

/// Parameters of an inverse whose values, read from the target, are secret whatever the plan says.
const SECRET_BY_NATURE: [&str; 3] = ["env", "password", "password_hash"];

impl Executor {
    pub(super) fn mask(&self, result: &mut RowResult) {
        // A masked inverse would restore asterisks: one that holds a secret is kept in memory, and what is recorded is
        // that there was one.
        if result.inverse.iter().any(|op| self.op_holds_secret(op)) {
            let recorded = result.inverse.iter().map(|op| self.without_secrets(op)).collect();
            result.unrecorded_inverse = std::mem::replace(&mut result.inverse, recorded);
        }
        if self.redactor.is_empty() {
            return;
        }
        for text in [&mut result.error, &mut result.reason].into_iter().flatten() {
            *text = self.redactor.redact_text(text).into_owned();
        }
        for member in ["stdout", "stderr"] {
            if let Some(Value::String(text)) = result.data.as_mut().and_then(|data| data.get_mut(member))
                && text.len() >= CUT_TEXT
            {
                self.redactor.redact_start(text);
            }
        }
        for value in [&mut result.data, &mut result.diff].into_iter().flatten() {
            self.redactor.redact_value(value);
        }
    }

    /// Masks what an event says that decides nothing.
    pub(crate) fn mask_note(&self, kind: &mut EventKind) {
        if self.redactor.is_empty() {
            return;
        }
        let masked = |text: &mut String| *text = self.redactor.redact_text(text).into_owned();
        if let EventKind::Warning { text, .. } = kind {
            masked(text);
        } else if let EventKind::AgentLost(lost) = kind {
            lost.error.iter_mut().for_each(masked);
        } else if let EventKind::RoleStarted(started) = kind {
            started.argv.iter_mut().for_each(masked);
        } else if let EventKind::RoleReady(ready) = kind {
            ready.values.values_mut().for_each(|value| self.redactor.redact_value(value));
        }
    }

    /// Returns an inverse as it may be recorded.
    pub(super) fn without_secrets(&self, op: &Op) -> Op {
        if self.op_holds_secret(op) { op.withheld() } else { op.clone() }
    }

    /// Whether an inverse holds a secret of the run, or one that was on the target before and nobody declared.
    pub(super) fn op_holds_secret(&self, op: &Op) -> bool {
        let is_secret_by_nature = op.params.keys().any(|name| SECRET_BY_NATURE.contains(&name.as_str()));
        is_secret_by_nature
            || !self.redactor.is_empty() && op.params.values().any(|param| self.holds_secret(param))
    }

    fn holds_secret(&self, param: &Param) -> bool {
        let Param::Value(value) = param else { return false };
        let mut masked = value.clone();
        self.redactor.redact_value(&mut masked);
        masked != *value
    }

    /// Puts data that is too long for the journal into a file of its own.
    pub(super) async fn keep_long_data(&self, attempt: &Attempt, result: &mut RowResult) {
        let (Some(recording), Some(data)) = (&self.recording, &result.data) else { return };
        if !is_longer_than(data, LONGEST_DATA) {
            return;
        }
        let name = &self.plan.task(attempt.task).name;
        match recording.directory.write_data(name, attempt.host.as_ref(), attempt.attempt, data) {
            Ok(file) => result.data_file = Some(file),
            Err(error) => self.send(Message::RecordingFailed(error.to_string())).await,
        }
    }
}

fn is_longer_than(value: &Value, limit: usize) -> bool {
    struct Counter(usize);
    impl std::io::Write for Counter {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0 = self.0.checked_sub(bytes.len()).ok_or(std::io::ErrorKind::WriteZero)?;
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    serde_json::to_writer(Counter(limit), value).is_err()
}
