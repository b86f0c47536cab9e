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

/// What the variables of outputs begin with.
pub(super) const OUTPUT_PREFIX: &str = "STEAD_OUTPUT_";

/// Outputs of finished steps. Cheap to clone; all clones are the same. `Debug` shows no values.
#[derive(Clone, Default)]
pub struct Outputs(Arc<Mutex<BTreeMap<TaskName, Handed>>>);

/// What one step handed on.
struct Handed {
    /// The event that said so: who is later.
    seq: u64,
    values: BTreeMap<String, String>,
}

/// Returns the variable in which later steps get an output.
fn variable(step: &TaskName, key: &str) -> String {
    format!("{OUTPUT_PREFIX}{step}_{key}").to_ascii_uppercase().replace('-', "_")
}

impl fmt::Debug for Outputs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Outputs")
    }
}

impl Outputs {
    /// Returns the variables later steps get: `STEAD_OUTPUT_<STEP>_<KEY>`. Of two with one name the later one counts.
    pub(super) fn variables(&self) -> BTreeMap<String, String> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut in_order: Vec<(&TaskName, &Handed)> = all.iter().collect();
        in_order.sort_by_key(|(_, handed)| handed.seq);
        let mut variables = BTreeMap::new();
        for (step, handed) in in_order {
            for (key, value) in &handed.values {
                variables.insert(variable(step, key), value.clone());
            }
        }
        variables
    }

    /// Returns a sentence for each variable in which what `step` hands on now takes the place of something else.
    pub(super) fn collisions(&self, step: &TaskName, values: &BTreeMap<String, String>) -> Vec<String> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let others = all.iter().filter(|(other, _)| *other != step);
        let of_others = others.flat_map(|(other, handed)| handed.values.keys().map(move |key| (other, key)));
        let own = values.keys().map(|key| (step, key));
        let mut taken: BTreeMap<String, (&TaskName, &String)> = BTreeMap::new();
        let mut sentences = Vec::new();
        for (of, key) in of_others.chain(own) {
            let name = variable(of, key);
            if let Some((other, other_key)) = taken.insert(name.clone(), (of, key))
                && of == step
            {
                sentences.push(format!(
                    "{name} is output `{other_key}` of {other} and output `{key}` of {of}: later steps see the latter"
                ));
            }
        }
        sentences
    }

    fn take(&self, event: &Event) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let EventKind::HostResult { task, result, .. } = &event.kind
            && matches!(result.status, Status::Changed | Status::Unchanged)
            && let Some(data) = &result.data
            && let Ok(outcome) = serde_json::from_value::<StepOutcome>(data.clone())
            && !outcome.outputs.is_empty()
        {
            all.insert(task.clone(), Handed { seq: event.seq, values: outcome.outputs });
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

    #[test]
    fn of_two_outputs_with_one_variable_the_later_counts_and_both_are_named() {
        let mut outputs = Outputs::default();
        let mut first = ended("a-b", Status::Changed, json!({"c": "first"}));
        first.seq = 1;
        outputs.on_event(&first);
        let later = BTreeMap::from([("b_c".to_owned(), "later".to_owned()), ("x".to_owned(), String::new())]);
        let step = TaskName::parse("a").unwrap();
        let told = outputs.collisions(&step, &later);
        assert_eq!(told.len(), 1, "{told:?}");
        assert!(
            told[0].starts_with("STEAD_OUTPUT_A_B_C is output `c` of a-b and output `b_c` of a"),
            "{told:?}"
        );
        let mut second = ended("a", Status::Changed, json!({"b_c": "later"}));
        second.seq = 2;
        outputs.on_event(&second);
        assert_eq!(outputs.variables()["STEAD_OUTPUT_A_B_C"], "later");
        assert!(outputs.collisions(&step, &BTreeMap::from([("z".to_owned(), String::new())])).is_empty());
    }
}
