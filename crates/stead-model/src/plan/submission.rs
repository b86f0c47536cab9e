//! Plans that are handed to a server: what is sent, and what is known of the runs they become.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Digest, Guard, Plan, Task, Undo};
use crate::id::{PlanName, RunId, TaskName};
use crate::node::wire::{WireCode, WireError};
use crate::time::Timestamp;

/// How much larger than `limits.body_bytes` a submission may be that comes over the server's socket.
pub const SUBMISSION_BYTES: u64 = 64 * 1024 * 1024;

/// The most characters of an idempotency key.
const LONGEST_KEY: usize = 128;

/// Whether `text` may be an idempotency key.
pub fn is_key(text: &str) -> bool {
    (1..=LONGEST_KEY).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic())
}

/// What is submitted: `POST /v1/plans`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlanSubmission {
    /// The compiled plan.
    pub plan: Plan,
    /// Its hash, as who sends it computed it.
    pub plan_hash: Digest,
    /// The file it was compiled from; none for a plan that was made by a program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// Variables that were given.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub vars: BTreeMap<String, Value>,
    /// Sent again with the same key, it is the same run.
    pub idempotency_key: String,
    /// Whether every question is answered with yes.
    #[serde(default)]
    pub yes: bool,
}

impl PlanSubmission {
    /// Returns the submission that `body` is; its plan has the hash it says.
    pub fn parse(body: &[u8]) -> Result<Self, WireError> {
        let submission: Self = serde_json::from_slice(body).map_err(|error| {
            let place = format!("line {} column {}", error.line(), error.column());
            WireError::new(WireCode::E400, format!("the body is not a submission at {place}"))
        })?;
        let refuse = |why: String| Err(WireError::new(WireCode::E400, why));
        let key = &submission.idempotency_key;
        if !is_key(key) {
            return refuse(format!("`idempotency_key` has 1 to {LONGEST_KEY} visible characters"));
        }
        let functions = submission.plan.functional_tasks();
        if !functions.is_empty() {
            let names: Vec<&str> = functions.iter().map(TaskName::as_str).collect();
            return refuse(format!("functional tasks cannot be submitted: {}", names.join(", ")));
        }
        let found = submission.plan.digest();
        if found != submission.plan_hash {
            return refuse(format!("the plan's hash is {found}, not {}", submission.plan_hash));
        }
        Ok(submission)
    }
}

impl Plan {
    /// Returns the tasks that need closures of the program that built the plan: nobody else can run them.
    pub fn functional_tasks(&self) -> Vec<TaskName> {
        self.tasks.iter().filter(|task| is_functional(task)).map(|task| task.name.clone()).collect()
    }

    /// Returns the tasks that ask before they run.
    pub fn asking_tasks(&self) -> Vec<TaskName> {
        let asking = self.tasks.iter().filter(|task| task.settings.confirm.is_some());
        asking.map(|task| task.name.clone()).collect()
    }
}

fn is_functional(task: &Task) -> bool {
    let settings = &task.settings;
    let parts = task.action.parts().iter();
    let mut open: Vec<&Guard> = settings
        .when
        .iter()
        .chain(&settings.when_host)
        .chain(parts.flat_map(|part| &part.when_host))
        .collect();
    let mut has_closure = task.action.function().is_some() || settings.undo == Some(Undo::Function);
    while let Some(guard) = open.pop() {
        match guard {
            Guard::Expr { .. } => {}
            Guard::Function { .. } => has_closure = true,
            Guard::All(guards) | Guard::Any(guards) => open.extend(guards),
            Guard::Not(guard) => open.push(guard),
        }
    }
    has_closure
}

/// The answer to a submission.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubmittedRun {
    /// The run.
    pub run_id: RunId,
    /// Where it is asked for.
    pub url: String,
}

impl SubmittedRun {
    /// Returns the answer for `run_id`.
    pub fn new(run_id: RunId) -> Self {
        let url = format!("/v1/plans/{run_id}");
        Self { run_id, url }
    }
}

/// How far a run of a submitted plan is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PlanRunState {
    /// It waits for its turn.
    Queued,
    /// It runs.
    Running,
    /// It has ended.
    Finished,
}

/// A run of a submitted plan, as operators see it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlanRun {
    /// The run.
    pub run_id: RunId,
    /// The plan's name.
    pub plan: PlanName,
    /// The plan's hash.
    pub plan_hash: Digest,
    /// How far it is.
    pub state: PlanRunState,
    /// Who submitted the plan.
    pub by: String,
    /// When it was submitted, or its trigger fired.
    pub created_at: Timestamp,
    /// What started it, if it was a trigger.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trigger: Option<Value>,
    /// What it ended with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<u8>,
    /// Why it ended without a report, or why it cannot be worked on now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Its report; not in lists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub report: Option<Value>,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::id::PlanName;

    fn body(key: &str, hash: Option<Digest>) -> Vec<u8> {
        let plan = Plan::new(PlanName::parse("p").unwrap());
        let hash = hash.unwrap_or_else(|| plan.digest());
        let submission = PlanSubmission {
            plan,
            plan_hash: hash,
            source: None,
            vars: BTreeMap::new(),
            idempotency_key: key.to_owned(),
            yes: false,
        };
        serde_json::to_vec(&submission).unwrap()
    }

    #[test]
    fn a_submission_is_what_it_says() {
        assert!(PlanSubmission::parse(&body("k", None)).is_ok());
        let refused = |body: &[u8]| PlanSubmission::parse(body).unwrap_err().message;
        assert!(refused(&body("k", Some(Digest::default()))).contains("hash"));
        assert!(refused(&body("", None)).contains("idempotency_key"));
        assert!(refused(&body("a b", None)).contains("idempotency_key"));
        assert!(refused(json!({"plan": 1}).to_string().as_bytes()).contains("line 1"));
    }
}
