//! What finished steps handed to later ones, read from the run's events.
//!
//! Events are masked and recorded before they are told, so a later step of this process and one of a resumed run get
//! the same, and no secret passes between steps this way.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use stead_model::steps::StepOutcome;
use stead_model::{Event, EventKind, Status, TaskName};
use stead_runner::Observer;

/// Outputs of finished steps. Cheap to clone; all clones are the same. `Debug` shows no values.
#[derive(Clone, Default)]
pub struct Outputs(Arc<Mutex<BTreeMap<TaskName, BTreeMap<String, String>>>>);

impl fmt::Debug for Outputs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Outputs")
    }
}

impl Outputs {
    /// Returns the variables later steps get: `STEAD_OUTPUT_<STEP>_<KEY>`.
    pub(super) fn variables(&self) -> BTreeMap<String, String> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut variables = BTreeMap::new();
        for (step, outputs) in &*all {
            for (key, value) in outputs {
                let name = format!("STEAD_OUTPUT_{step}_{key}").to_ascii_uppercase().replace('-', "_");
                variables.insert(name, value.clone());
            }
        }
        variables
    }

    fn take(&self, event: &Event) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let EventKind::HostResult { task, result, .. } = &event.kind
            && matches!(result.status, Status::Changed | Status::Unchanged)
            && let Some(data) = &result.data
            && let Ok(outcome) = serde_json::from_value::<StepOutcome>(data.clone())
            && !outcome.outputs.is_empty()
        {
            all.insert(task.clone(), outcome.outputs);
        }
        if let EventKind::RunResumed(resumed) = &event.kind {
            for task in resumed.reset.iter().chain(&resumed.replaced) {
                all.remove(task);
            }
        }
    }
}

impl Observer for Outputs {
    fn on_event(&mut self, event: &Event) {
        self.take(event);
    }

    fn on_recorded(&mut self, event: &Event) {
        self.take(event);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use stead_model::HostName;
    use stead_model::event::{RowResult, RunResumed};
    use stead_model::time::Timestamp;

    fn event(kind: EventKind) -> Event {
        Event { seq: 1, t: Timestamp::from_micros(1), kind }
    }

    fn ended(task: &str, status: Status, outputs: serde_json::Value) -> Event {
        let data = json!({"exit_code": 0, "outputs": outputs});
        let result = Box::new(RowResult { data: Some(data), ..RowResult::new(status) });
        let task = TaskName::parse(task).unwrap();
        event(EventKind::HostResult { task, host: HostName::local(), attempt: 1, result })
    }

    #[test]
    fn finished_steps_hand_on_what_they_said_until_they_start_over() {
        let mut outputs = Outputs::default();
        outputs.on_recorded(&ended("install-flux", Status::Changed, json!({"url": "http://x", "N": "1"})));
        outputs.on_event(&ended("late", Status::Unchanged, json!({"a": "2"})));
        outputs.on_event(&ended("broken", Status::Failed, json!({"a": "3"})));
        let names: Vec<(String, String)> = outputs.variables().into_iter().collect();
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(
            names,
            [
                pair("STEAD_OUTPUT_INSTALL_FLUX_N", "1"),
                pair("STEAD_OUTPUT_INSTALL_FLUX_URL", "http://x"),
                pair("STEAD_OUTPUT_LATE_A", "2")
            ]
        );
        let reset = vec![TaskName::parse("install-flux").unwrap()];
        outputs.on_event(&event(EventKind::RunResumed(Box::new(RunResumed {
            segment: 2,
            reset,
            ..RunResumed::default()
        }))));
        assert_eq!(outputs.variables().len(), 1);
    }
}
