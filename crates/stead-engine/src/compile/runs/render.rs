//! Fills into a planned role what is known only when it starts.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use serde_json::{Map, Value, json};
use stead_model::role::{Readiness, ReadyDefaults};
use stead_model::run_plan::{Arg, ArtifactPlan, RolePlan};
use stead_model::{Plan, RunId};

use super::paths;
use crate::expr::{self, ExprError, Scope};

/// What is known when a role starts. `Debug` shows no values of secrets.
#[derive(Clone)]
pub struct RunNames {
    /// The run's id.
    pub run_id: RunId,
    /// The role's own agent.
    pub agent: AgentNames,
    /// The role's own workdir; empty where it is not known yet ([`render_workdir`]).
    pub workdir: String,
    /// Where the profile is on the role's agent.
    pub profile_path: Option<String>,
    /// The instances of all roles that are staged.
    pub roles: BTreeMap<String, RoleNames>,
    /// The values of secrets.
    pub secrets: BTreeMap<String, String>,
}

impl fmt::Debug for RunNames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunNames")
            .field("run_id", &self.run_id)
            .field("agent", &self.agent)
            .field("workdir", &self.workdir)
            .field("profile_path", &self.profile_path)
            .field("roles", &self.roles)
            .finish_non_exhaustive()
    }
}

/// What `agent` holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentNames {
    /// The machine, as others reach it.
    pub host: String,
    /// Its system: `linux`, `darwin`.
    pub os: String,
}

/// What `roles.R` holds.
#[derive(Clone, Debug, PartialEq)]
pub struct RoleNames {
    /// The machine it runs on, as others reach it.
    pub host: String,
    /// Where it runs there.
    pub workdir: String,
    /// What it said of itself, once it is ready.
    pub ready: Option<Map<String, Value>>,
}

/// A role that can be started. `Debug` shows no values of its environment.
#[derive(Clone, PartialEq)]
pub struct RenderedRole {
    /// What is started.
    pub argv: Vec<String>,
    /// Added to the agent's environment, complete.
    pub env: BTreeMap<String, String>,
    /// When it counts as ready; none: a task.
    pub ready: Option<Readiness>,
    /// What is collected.
    pub artifacts: Vec<ArtifactPlan>,
}

impl fmt::Debug for RenderedRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RenderedRole")
            .field("argv", &self.argv)
            .field("env", &self.env.keys().collect::<Vec<_>>())
            .field("ready", &self.ready)
            .field("artifacts", &self.artifacts)
            .finish()
    }
}

/// Why a role cannot be started as it is written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`roles.{role}.{key}`: {message}")]
pub struct RenderError {
    /// The instance.
    pub role: String,
    /// The key, such as `command[2]`.
    pub key: String,
    /// What is wrong.
    pub message: String,
}

/// Returns where the role instance `name` runs, if its plan says so: an absolute path.
///
/// # Errors
/// If it reads what is not there, or gives no such path.
pub fn render_workdir(plan: &Plan, name: &str, names: &RunNames) -> Result<Option<String>, RenderError> {
    let renderer = Renderer::new(plan, name, names)?;
    let Some(workdir) = &renderer.role.workdir else { return Ok(None) };
    let workdir = renderer.text("workdir", workdir)?;
    match paths::refuse_workdir(&workdir) {
        None => Ok(Some(workdir)),
        Some(message) => Err(renderer.error("workdir", message)),
    }
}

/// Returns the role instance `name` with everything filled in.
///
/// # Errors
/// If a template reads what is not there, or gives what does not fit its place.
pub fn render_role(plan: &Plan, name: &str, names: &RunNames) -> Result<RenderedRole, RenderError> {
    let renderer = Renderer::new(plan, name, names)?;
    Ok(RenderedRole {
        argv: renderer.argv()?,
        env: renderer.env(plan, names)?,
        ready: renderer.ready()?,
        artifacts: renderer.artifacts()?,
    })
}

/// Returns the program of the role instance `name`, and the `PATH` it is looked for in if the role has its own.
///
/// # Errors
/// As [`render_role`], for these two alone: a needed role may not have said yet what the others read.
pub fn render_program(
    plan: &Plan,
    name: &str,
    names: &RunNames,
) -> Result<(String, Option<String>), RenderError> {
    let renderer = Renderer::new(plan, name, names)?;
    let path = renderer.role.env.get("PATH");
    let path = path.map(|template| renderer.text("env.PATH", template)).transpose()?;
    for (at, arg) in renderer.role.argv.iter().enumerate() {
        if let Some(program) = renderer.words(at, arg)?.into_iter().next() {
            return Ok((program, path));
        }
    }
    Err(renderer.error("command", "it names no program"))
}

struct Renderer<'p> {
    name: &'p str,
    role: &'p RolePlan,
    scope: Scope,
}

impl<'p> Renderer<'p> {
    fn new(plan: &'p Plan, name: &'p str, names: &RunNames) -> Result<Self, RenderError> {
        let role = plan.run.as_ref().and_then(|run| run.roles.get(name));
        let role = role.ok_or_else(|| RenderError {
            role: name.to_owned(),
            key: String::new(),
            message: "the plan has no such role".to_owned(),
        })?;
        let mut known = before_run(plan, name, role);
        if let Some(own) = known.get_mut("role") {
            own["workdir"] = names.workdir.clone().into();
        }
        let mut set = |name: &str, value: Value| known.insert(name.to_owned(), value);
        set("run_id", json!(names.run_id));
        set("agent", json!({"host": names.agent.host, "os": names.agent.os}));
        if let Some(path) = &names.profile_path {
            set("profile", json!({"path": path}));
        }
        let roles: Map<String, Value> = names
            .roles
            .iter()
            .map(|(name, role)| {
                let mut row = json!({"host": role.host, "workdir": role.workdir});
                if let Some(ready) = &role.ready {
                    row["ready"] = Value::Object(ready.clone());
                }
                (name.clone(), row)
            })
            .collect();
        set("roles", Value::Object(roles));
        set("secrets", json!(names.secrets));
        Ok(Self { name, role, scope: Scope::of_names(known) })
    }

    fn error(&self, key: &str, message: impl Into<String>) -> RenderError {
        RenderError { role: self.name.to_owned(), key: key.to_owned(), message: message.into() }
    }

    fn value(&self, key: &str, template: &str) -> Result<Value, RenderError> {
        if !expr::is_template(template) {
            return Ok(Value::String(template.to_owned()));
        }
        expr::render(template, &self.scope).map_err(|error: ExprError| self.error(key, error.to_string()))
    }

    fn text(&self, key: &str, template: &str) -> Result<String, RenderError> {
        let value = self.value(key, template)?;
        word(&value).ok_or_else(|| self.error(key, not_a_word(&value)))
    }

    /// Returns what the item `at` of the command becomes.
    fn words(&self, at: usize, arg: &Arg) -> Result<Vec<String>, RenderError> {
        let key = format!("command[{at}]");
        let words = match arg {
            Arg::Text(template) => words(&self.value(&key, template)?),
            Arg::Flag { flag, value } => flag_words(flag, &self.value(&key, value)?),
        };
        words.map_err(|message| self.error(&key, message))
    }

    fn argv(&self) -> Result<Vec<String>, RenderError> {
        let mut argv = Vec::new();
        for (at, arg) in self.role.argv.iter().enumerate() {
            argv.extend(self.words(at, arg)?);
        }
        match argv.first().is_none_or(String::is_empty) {
            true => Err(self.error("command", "it names no program")),
            false => Ok(argv),
        }
    }

    fn env(&self, plan: &Plan, names: &RunNames) -> Result<BTreeMap<String, String>, RenderError> {
        let mut env = BTreeMap::new();
        for (name, template) in &self.role.env {
            env.insert(name.clone(), self.text(&format!("env.{name}"), template)?);
        }
        let seed = plan.run.as_ref().map_or(0, |run| run.seed);
        let own = [
            ("STEAD_RUN_ID", names.run_id.to_string()),
            ("STEAD_ROLE", self.name.to_owned()),
            ("STEAD_SEED", seed.to_string()),
            ("STEAD_WORKDIR", names.workdir.clone()),
        ];
        env.extend(own.map(|(name, value)| (name.to_owned(), value)));
        Ok(env)
    }

    fn ready(&self) -> Result<Option<Readiness>, RenderError> {
        let Some(ready) = &self.role.ready else { return Ok(None) };
        let rendered = super::super::vars::render_value(ready, &self.scope)
            .map_err(|error| self.error("ready", error.to_string()))?;
        // Every default was written out when the run was planned.
        let readiness = Readiness::parse(&rendered, &ReadyDefaults::default()).map_err(|problems| {
            let messages: Vec<String> = problems.iter().map(ToString::to_string).collect();
            self.error("ready", messages.join("; "))
        })?;
        Ok(Some(readiness))
    }

    fn artifacts(&self) -> Result<Vec<ArtifactPlan>, RenderError> {
        let mut artifacts = Vec::new();
        for (at, artifact) in self.role.artifacts.iter().enumerate() {
            let key = format!("artifacts[{at}]");
            let path = self.text(&key, &artifact.path)?;
            if let Some(message) = paths::refuse_artifact(&path) {
                return Err(self.error(&key, message));
            }
            artifacts.push(ArtifactPlan { path, required: artifact.required });
        }
        Ok(artifacts)
    }
}

/// What all roles know before the run starts.
#[derive(Clone, Copy)]
pub(super) struct Before<'a> {
    pub(super) vars: &'a BTreeMap<String, Value>,
    pub(super) env: &'a BTreeMap<String, String>,
    pub(super) run_id: Option<&'a RunId>,
    pub(super) seed: i64,
    pub(super) network: &'a Value,
    pub(super) manifest_dir: &'a Path,
    /// Where a profile is that need not be brought.
    pub(super) profile_path: Option<&'a str>,
}

impl Before<'_> {
    /// Returns the names that an instance of a role has before the run starts.
    pub(super) fn names(&self, name: &str, index: u32, matrix: &Map<String, Value>) -> Map<String, Value> {
        let mut names = Map::new();
        let mut set = |name: &str, value: Value| names.insert(name.to_owned(), value);
        set("vars", json!(self.vars));
        set("env", json!(self.env));
        set("seed", self.seed.into());
        set("network", self.network.clone());
        set("manifest_dir", self.manifest_dir.display().to_string().into());
        set("matrix", Value::Object(matrix.clone()));
        set("role", json!({"name": name, "index": index}));
        if let Some(id) = self.run_id {
            set("run_id", json!(id));
        }
        if let Some(path) = self.profile_path {
            set("profile", json!({"path": path}));
        }
        names
    }
}

fn before_run(plan: &Plan, name: &str, role: &RolePlan) -> Map<String, Value> {
    let Some(run) = &plan.run else { return Map::new() };
    let before = Before {
        vars: &plan.vars,
        env: &plan.env,
        run_id: run.run_id.as_ref(),
        seed: run.seed,
        network: &run.network,
        manifest_dir: &run.manifest_dir,
        profile_path: None,
    };
    let mut names = before.names(name, role.index, &role.matrix);
    names.extend(role.kit.iter().flat_map(|kit| kit.fields.clone()));
    names
}

/// Returns a value as one word of a command line; nothing, lists and maps are none.
pub(super) fn word(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Bool(value) => Some(value.to_string()),
        Value::Number(number) => Some(match number.as_f64() {
            // The shortest form that is exact: 2.9, not 2.8999999999999999, and 3, not 3.0.
            Some(float) if number.is_f64() => {
                let (plain, short) = (float.to_string(), format!("{float:e}"));
                if short.len() < plain.len() { short } else { plain }
            }
            Some(_) | None => number.to_string(),
        }),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}

/// Returns the words that a value stands for in a command line: a list is spliced.
pub(super) fn words(value: &Value) -> Result<Vec<String>, String> {
    let items = match value {
        Value::Array(items) => items.as_slice(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Object(_) => {
            std::slice::from_ref(value)
        }
    };
    let words = items.iter().map(|item| match word(item) {
        Some(word) if word.contains('\0') => Err("an argument cannot hold the character NUL".to_owned()),
        Some(word) => Ok(word),
        None => Err(not_a_word(item)),
    });
    words.collect()
}

/// Returns what a flag with a value gives: nothing for null, false and the empty text, the bare flag for true.
pub(super) fn flag_words(flag: &str, value: &Value) -> Result<Vec<String>, String> {
    match value {
        Value::Null | Value::Bool(false) => Ok(Vec::new()),
        Value::String(text) if text.is_empty() => Ok(Vec::new()),
        Value::Bool(true) => Ok(vec![flag.to_owned()]),
        Value::Array(items) => {
            let pairs: Result<Vec<Vec<String>>, String> =
                items.iter().map(|item| flag_words(flag, item)).collect();
            Ok(pairs?.concat())
        }
        Value::Number(_) | Value::String(_) | Value::Object(_) => {
            words(value).map(|words| [vec![flag.to_owned()], words].concat())
        }
    }
}

fn not_a_word(value: &Value) -> String {
    format!("expected a text, the template gives {}", stead_model::operation::describe(value))
}
