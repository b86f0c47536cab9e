//! What an operation is given, for tests: a context with nothing recorded, and one that keeps the output.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::{Map, Value};
use stead_model::event::Stream;
use stead_model::{HostName, RunId, TaskName};
use stead_runner::files::LocalFiles;
use stead_runner::operation::{Cancel, OpContext, OpError, Output, Params, Predicted, Render, UndoStore};

/// Returns a context whose relative paths start at `base_dir`.
///
/// # Panics
/// Never: the names in it are valid.
pub fn context(base_dir: &Path) -> OpContext {
    OpContext {
        run_id: RunId::parse("test-run").ok(),
        parents: Arc::default(),
        bundle: None,
        task: TaskName::parse("the-task").expect("a valid name"),
        host: HostName::parse("local").expect("a valid name"),
        attempt: 1,
        base_dir: base_dir.to_owned(),
        undo: UndoStore::default(),
        files: Arc::new(LocalFiles { base_dir: base_dir.to_owned(), artifacts: None }),
        root: None,
        hidden_env: Arc::from([]),
        grace: Duration::from_secs(10),
        deadline: None,
        restarted: None,
        predicted: Predicted::default(),
        output: Output::none(),
        cancel: Cancel::never(),
        scope: Arc::new(Scope::default()),
    }
}

/// Returns the parameters of a JSON object.
///
/// # Panics
/// If it is not an object.
pub fn params(value: Value) -> Params {
    let Value::Object(values) = value else { panic!("parameters are a map, not {value}") };
    Params::new(values)
}

/// Keeps what was written to an output.
#[derive(Clone, Debug, Default)]
pub struct Kept(Arc<Mutex<(Vec<u8>, Vec<u8>)>>);

impl Kept {
    /// Returns the output that fills this.
    pub fn output(&self) -> Output {
        let kept = Arc::clone(&self.0);
        Output::new(move |stream, bytes| {
            let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
            match stream {
                Stream::Stdout => kept.0.extend_from_slice(bytes),
                Stream::Stderr => kept.1.extend_from_slice(bytes),
            }
        })
    }

    /// Returns the standard output so far.
    pub fn stdout(&self) -> Vec<u8> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).0.clone()
    }

    /// Returns the standard error so far.
    pub fn stderr(&self) -> Vec<u8> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).1.clone()
    }
}

/// Renders with these names alone, strictly.
#[derive(Clone, Debug, Default)]
pub struct Scope(pub Map<String, Value>);

impl Scope {
    fn environment() -> minijinja::Environment<'static> {
        let mut environment = minijinja::Environment::new();
        environment.set_undefined_behavior(minijinja::UndefinedBehavior::Strict);
        environment
    }
}

impl Render for Scope {
    fn render(&self, template: &str, vars: &Map<String, Value>) -> Result<String, OpError> {
        let mut names = self.0.clone();
        let mut all = names.get("vars").and_then(Value::as_object).cloned().unwrap_or_default();
        all.extend(vars.clone());
        names.insert("vars".to_owned(), Value::Object(all));
        Self::environment()
            .render_str(template, minijinja::Value::from(minijinja::value::Serde(&names)))
            .map_err(|error| OpError::invalid(error.to_string()))
    }

    fn evaluate(&self, expression: &str) -> Result<Value, OpError> {
        let environment = Self::environment();
        let compiled = environment
            .compile_expression(expression)
            .map_err(|error| OpError::invalid(error.to_string()))?;
        let value = compiled
            .eval(minijinja::Value::from(minijinja::value::Serde(&self.0)))
            .map_err(|error| OpError::invalid(error.to_string()))?;
        serde_json::to_value(value).map_err(|error| OpError::invalid(error.to_string()))
    }
}
