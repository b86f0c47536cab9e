//! Plans whose triggers start runs: kept by name, the last that was submitted counts.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use stead_engine::compile::{Catalogue, CompiledPlan, Inputs, VarFlag, VarValue, plan_file};
use stead_engine::cron::{Cron, Zone};
use stead_engine::expr::{Names, Scope, render};
use stead_engine::target::TargetExpr;
use stead_engine::triggers::due;
use stead_model::plan::{Digest, Plan, PlanSubmission, Trigger, TriggerKind};
use stead_model::time::Timestamp;
use stead_model::yaml::{self, Codes};
use stead_model::{Diagnostics, HostName, NodeName, PlanName};
use tokio::sync::Semaphore;

use super::kept;

const SUBMISSION: &str = "submission.json";
const MARKS: &str = "marks.json";
/// How many look at the secrets of one plan at once.
const LOOKING: usize = 4;

/// A plan whose triggers start runs.
pub(super) struct Armed {
    pub(super) submission: Arc<PlanSubmission>,
    /// What its triggers are called, in their order.
    names: Vec<String>,
    marks: Marks,
    /// How many look at its secrets at once: one that lies where nothing answers holds up few.
    pub(super) looking: Arc<Semaphore>,
}

/// What is remembered of a plan's triggers, by their names.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Marks {
    /// Who submitted the plan.
    by: String,
    /// Up to when schedules were looked at.
    seen: BTreeMap<String, Timestamp>,
    /// When each started a run last.
    started: BTreeMap<String, Timestamp>,
}

/// Returns what triggers are called: by what they are, wherever they stand; of equal ones, the later have a number.
fn names_of(triggers: &[Trigger]) -> Vec<String> {
    const DIGITS: usize = 12;
    let mut names: Vec<String> = Vec::new();
    for trigger in triggers {
        let bytes = serde_json::to_vec(&trigger.on).unwrap_or_default();
        let hash = Digest(Sha256::digest(bytes).into()).to_string();
        let name = hash.get(..DIGITS).unwrap_or_default().to_owned();
        let alike = names.iter().filter(|known| known.starts_with(&name)).count();
        names.push(if alike == 0 { name } else { format!("{name}.{}", alike + 1) });
    }
    names
}

impl Armed {
    /// Returns a plan that is armed from `now` on; triggers that it had `before` go on as they were.
    pub(super) fn new(submission: PlanSubmission, by: &str, now: Timestamp, before: Option<&Self>) -> Self {
        let none = Marks::default();
        let known = before.map_or(&none, |before| &before.marks);
        let names = names_of(&submission.plan.triggers);
        let seen = names.iter().map(|name| (name.clone(), known.seen.get(name).copied().unwrap_or(now)));
        let started = names.iter().filter_map(|name| Some((name.clone(), *known.started.get(name)?)));
        let marks = Marks { by: by.to_owned(), seen: seen.collect(), started: started.collect() };
        Self::of(submission, marks)
    }

    fn of(submission: PlanSubmission, marks: Marks) -> Self {
        let names = names_of(&submission.plan.triggers);
        Self { submission: Arc::new(submission), names, marks, looking: Arc::new(Semaphore::new(LOOKING)) }
    }

    pub(super) fn name(&self) -> &PlanName {
        &self.submission.plan.name
    }

    pub(super) fn by(&self) -> &str {
        &self.marks.by
    }

    /// Returns the triggers by their names.
    fn triggers(&self) -> impl Iterator<Item = (&String, &Trigger)> {
        self.names.iter().zip(&self.submission.plan.triggers)
    }

    pub(super) fn trigger(&self, name: &str) -> Option<&Trigger> {
        self.triggers().find(|(known, _)| *known == name).map(|(_, trigger)| trigger)
    }

    /// Returns how long ago a trigger started a run.
    pub(super) fn since(&self, name: &str, now: Timestamp) -> Option<Duration> {
        let micros = now.as_micros().saturating_sub(self.marks.started.get(name)?.as_micros());
        Some(Duration::from_micros(u64::try_from(micros).unwrap_or_default()))
    }

    /// Notes that a trigger started a run; of several the last counts.
    pub(super) fn mark_started(&mut self, name: &str, at: Timestamp) {
        if self.trigger(name).is_none() {
            return;
        }
        let known = self.marks.started.entry(name.to_owned()).or_insert(at);
        *known = at.max(*known);
    }

    /// Returns the schedules that fire now, with the time they fire for. They fire until [`Self::mark_seen`].
    pub(super) fn schedules(&mut self, now: Timestamp) -> Vec<(String, Timestamp)> {
        let mut fired = Vec::new();
        for (name, trigger) in self.names.iter().zip(&self.submission.plan.triggers) {
            let TriggerKind::Schedule { cron, tz, catch_up } = &trigger.on else { continue };
            let (Ok(cron), Ok(zone)) = (Cron::parse(cron), Zone::parse(tz)) else { continue };
            let seen = self.marks.seen.entry(name.clone()).or_insert(now);
            let found = due(&cron, &zone, *seen, now, *catch_up);
            match found.fire {
                Some(time) => fired.push((name.clone(), time)),
                None => *seen = found.seen,
            }
        }
        fired
    }

    /// Notes that a schedule was looked at up to `now`.
    pub(super) fn mark_seen(&mut self, name: &str, now: Timestamp) {
        self.marks.seen.insert(name.to_owned(), now);
    }

    /// Returns the triggers that an agent fires by coming online, whose node has these labels.
    pub(super) fn welcomes(&self, node: &NodeName, labels: &BTreeMap<String, String>) -> Vec<String> {
        let fits = |text: &str| {
            let (expr, host) = (TargetExpr::parse(text), HostName::parse(node.as_str()));
            expr.is_ok_and(|expr| host.is_ok_and(|host| expr.means(&host, labels)))
        };
        let welcoming = self.triggers().filter(|(_, trigger)| match &trigger.on {
            TriggerKind::AgentOnline { r#match } => fits(r#match),
            TriggerKind::Schedule { .. } | TriggerKind::Webhook { .. } => false,
        });
        welcoming.map(|(name, _)| name.clone()).collect()
    }

    /// Whether agents that come online may start a run.
    pub(super) fn watches_agents(&self) -> bool {
        self.triggers().any(|(_, trigger)| matches!(trigger.on, TriggerKind::AgentOnline { .. }))
    }

    /// Returns the trigger of a webhook at `path`, and the name of its secret.
    pub(super) fn hook(&self, path: &str) -> Option<(&str, &str)> {
        self.triggers().find_map(|(name, trigger)| match &trigger.on {
            TriggerKind::Webhook { path: own, secret } if own == path => {
                Some((name.as_str(), secret.as_str()))
            }
            TriggerKind::Webhook { .. } | TriggerKind::AgentOnline { .. } | TriggerKind::Schedule { .. } => {
                None
            }
        })
    }

    /// Puts the plan on the disk. Its marks come first: they fit any plan, and no plan is without them.
    pub(super) fn save(&self, armed: &Path) -> io::Result<()> {
        fs::create_dir_all(armed.join(self.name().as_str()))?;
        self.save_marks(armed)?;
        kept::replace(&armed.join(self.name().as_str()), SUBMISSION, &serde_json::to_vec(&*self.submission)?)
    }

    /// Puts on the disk what is remembered of its triggers.
    pub(super) fn save_marks(&self, armed: &Path) -> io::Result<()> {
        kept::replace(&armed.join(self.name().as_str()), MARKS, &serde_json::to_vec(&self.marks)?)
    }

    /// Returns the plans on the disk, and what is wrong with those that cannot be read.
    pub(super) fn all(armed: &Path) -> io::Result<(BTreeMap<PlanName, Self>, Vec<String>)> {
        let (mut found, mut problems) = (BTreeMap::new(), Vec::new());
        for directory in kept::whole_directories(armed)? {
            match Self::read(&directory) {
                Ok(armed) => {
                    found.insert(armed.name().clone(), armed);
                }
                // It was being submitted for the first time, and nobody was told that it is armed.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => {
                    problems.push(format!("the plan in {} is not armed: {error}", directory.display()));
                }
            }
        }
        Ok((found, problems))
    }

    fn read(directory: &Path) -> io::Result<Self> {
        let submission = serde_json::from_slice(&fs::read(directory.join(SUBMISSION))?)?;
        let marks = serde_json::from_slice(&fs::read(directory.join(MARKS))?)?;
        Ok(Self::of(submission, marks))
    }
}

/// Returns the hooks of a plan.
pub(super) fn hooks(plan: &Plan) -> impl Iterator<Item = &str> {
    plan.triggers.iter().filter_map(|trigger| match &trigger.on {
        TriggerKind::Webhook { path, .. } => Some(path.as_str()),
        TriggerKind::AgentOnline { .. } | TriggerKind::Schedule { .. } => None,
    })
}

/// Returns the plan of a run that `trigger` starts, and the variables it was given; `given` are those of the trigger.
pub(super) fn plan_for(
    submission: &PlanSubmission,
    given: &BTreeMap<String, Value>,
    trigger: &Value,
    catalogue: &Catalogue,
) -> Result<(CompiledPlan, BTreeMap<String, Value>), String> {
    let mut vars = submission.vars.clone();
    let names = Names::before_run(&BTreeMap::new(), &BTreeMap::new()).with_trigger(trigger);
    let scope = Scope::new(names.into(), None);
    for (name, value) in given {
        vars.insert(name.clone(), rendered(value, &scope)?);
    }
    let told = |problems: Diagnostics| problems.to_string();
    let Some(source) = &submission.source else {
        return super::check(submission.plan.clone(), catalogue).map(|plan| (plan, vars)).map_err(told);
    };
    let source = yaml::source("plan.yaml", source.clone().into_bytes(), Codes::PLAN).map_err(told)?;
    let flags =
        vars.iter().map(|(name, value)| VarFlag { name: name.clone(), value: VarValue::Json(value.clone()) });
    let inputs = Inputs { vars_files: Vec::new(), vars: flags.collect(), env: submission.plan.env.clone() };
    let compiled = plan_file(&source, &inputs, catalogue).map_err(told)?;
    Ok((compiled, vars))
}

/// Returns a value with its templates rendered.
fn rendered(value: &Value, scope: &Scope) -> Result<Value, String> {
    Ok(match value {
        Value::String(text) if stead_engine::expr::is_template(text) => {
            render(text, scope).map_err(|error| format!("`{text}`: {error}"))?
        }
        Value::Array(items) => {
            items.iter().map(|item| rendered(item, scope)).collect::<Result<Vec<_>, _>>()?.into()
        }
        Value::Object(members) => {
            let members = members.iter().map(|(name, value)| Ok((name.clone(), rendered(value, scope)?)));
            Value::Object(members.collect::<Result<_, String>>()?)
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => value.clone(),
    })
}

/// What fires a trigger.
pub(super) fn trigger(kind: &str, id: String, time: Timestamp, more: (&str, Value)) -> Value {
    let mut trigger = json!({"kind": kind, "id": id, "time": time, "agent": null, "payload": null});
    trigger[more.0] = more.1;
    trigger
}

#[cfg(test)]
mod tests {
    use super::*;

    fn armed(triggers: Value, now: i64, before: Option<&Armed>) -> Armed {
        let mut plan = Plan::new(PlanName::parse("p").unwrap());
        plan.triggers = serde_json::from_value(triggers).unwrap();
        let submission = PlanSubmission {
            plan_hash: plan.digest(),
            plan,
            source: None,
            vars: BTreeMap::new(),
            idempotency_key: "k".to_owned(),
            yes: false,
        };
        Armed::new(submission, "ann", Timestamp::from_micros(now), before)
    }

    fn hook(path: &str, overlap: &str) -> Value {
        json!({"webhook": {"path": path, "secret": "s"}, "overlap": overlap})
    }

    fn hourly() -> Value {
        let schedule = json!({"cron": "0 * * * *", "tz": "UTC", "catch_up": "none"});
        json!({"schedule": schedule, "overlap": "queue"})
    }

    /// A trigger is what it is wherever it stands and however its runs share time; of equal ones each is its own.
    #[test]
    fn triggers_are_called_by_what_they_are() {
        let first = armed(json!([hook("/a", "queue"), hook("/b", "queue")]), 0, None);
        let second = armed(json!([hook("/b", "skip"), hook("/a", "queue"), hook("/b", "queue")]), 0, None);
        assert_eq!((&first.names[0], &first.names[1]), (&second.names[1], &second.names[0]));
        assert_eq!(second.names[2], format!("{}.2", second.names[0]));
    }

    /// Submitted again, a plan goes on: what has come and was not looked at is not skipped, and time since the last run counts.
    #[test]
    fn what_is_known_of_equal_triggers_goes_on() {
        const HOUR: i64 = 3_600_000_000;
        let mut first = armed(json!([hook("/a", "queue"), hourly()]), HOUR / 2, None);
        let (hook_name, schedule) = (first.names[0].clone(), first.names[1].clone());
        first.mark_started(&hook_name, Timestamp::from_micros(HOUR / 2 + 1));
        let now = Timestamp::from_micros(HOUR + 2);
        let mut second =
            armed(json!([hourly(), hook("/a", "skip"), hook("/c", "queue")]), HOUR + 1, Some(&first));
        assert_eq!(second.schedules(now), [(schedule.clone(), Timestamp::from_micros(HOUR))]);
        assert_eq!(second.since(&hook_name, now), Some(Duration::from_micros(HOUR as u64 / 2 + 1)));
        assert_eq!(second.since(&second.names[2], now), None);
        // It fires until it is said that it has.
        assert_eq!(second.schedules(now).len(), 1);
        second.mark_seen(&schedule, now);
        assert!(second.schedules(now).is_empty());
    }

    #[test]
    fn a_plan_that_cannot_be_read_is_told_of_and_one_that_was_never_armed_is_not() {
        let dir = tempfile::tempdir().unwrap();
        armed(json!([hourly()]), 0, None).save(dir.path()).unwrap();
        assert_eq!(Armed::all(dir.path()).unwrap().0.len(), 1);
        fs::create_dir(dir.path().join("never")).unwrap();
        fs::write(dir.path().join("never").join(MARKS), "{}").unwrap();
        assert!(Armed::all(dir.path()).unwrap().1.is_empty());
        let later = fs::read_to_string(dir.path().join("p").join(SUBMISSION)).unwrap();
        fs::write(dir.path().join("p").join(SUBMISSION), later.replacen('{', "{\"new\":1,", 1)).unwrap();
        let (found, problems) = Armed::all(dir.path()).unwrap();
        assert!(found.is_empty() && problems.len() == 1 && problems[0].contains("`new`"), "{problems:?}");
    }

    #[test]
    fn variables_of_a_trigger_are_rendered_with_it() {
        let trigger = trigger(
            "webhook",
            "w:1".to_owned(),
            Timestamp::from_micros(0),
            ("payload", json!({"tag": "v2"})),
        );
        let names = Names::before_run(&BTreeMap::new(), &BTreeMap::new()).with_trigger(&trigger);
        let scope = Scope::new(names.into(), None);
        let value = json!({"version": "{{ trigger.payload.tag }}", "list": [1, "{{ trigger.kind }}"]});
        assert_eq!(rendered(&value, &scope).unwrap(), json!({"version": "v2", "list": [1, "webhook"]}));
        assert!(rendered(&json!("{{ trigger.payload.nope }}"), &scope).is_err());
    }
}
