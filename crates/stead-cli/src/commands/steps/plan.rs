//! From a configured catalogue to a plan of steps with everything a run of it needs.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

use stead_drivers::steps::{InputsDocument, Outputs, OwnSurroundings, SinkPlace, StepSurroundings};
use stead_engine::compile::steps::{self, Request, StepFile, StepsPlan, Surroundings};
use stead_engine::values::{self, InputValue, Values};
use stead_model::catalogue::{At, Order, Sink, Step};
use stead_model::layer::Text;
use stead_model::steps::{ConfigRow, LeftOutRow, SelectionRow, StepRow, StepsReport};
use stead_model::{Diagnostic, Diagnostics, StepMode, TaskName};
use stead_runner::redact::Secret;

use super::files::StepFiles;
use super::load::{self, Configured};
use super::target::TargetOrigin;
use crate::failure::Failure;

/// A plan of steps that can be read. Whether it can be run, its problems say.
pub(crate) struct Planned {
    /// The plan.
    pub(crate) plan: StepsPlan,
    /// What was selected.
    pub(crate) selection: SelectionRow,
    /// What makes steps wait.
    pub(crate) order: Order,
    /// What the steps get.
    pub(crate) surroundings: StepSurroundings,
    /// Every value that must not be shown.
    pub(crate) secrets: Vec<String>,
    /// What keeps it from running, and what a person should know.
    pub(crate) problems: Diagnostics,
}

/// What is to be planned.
#[derive(Clone, Debug)]
pub(crate) struct Wish {
    /// Which order.
    pub(crate) mode: StepMode,
    /// What was selected.
    pub(crate) selection: SelectionRow,
    /// What gave the tokens of `only`: `--only` or `ONLY`.
    pub(crate) only_from: &'static str,
}

/// Returns the plan that is wished for.
///
/// # Errors
/// If the selection is wrong, or the catalogue makes no plan.
pub(crate) fn plan(configured: &Configured, wish: &Wish) -> Result<Planned, Failure> {
    let Configured { catalogue, values, target, .. } = configured;
    let request = Request { mode: wish.mode, selection: &wish.selection, only_from: wish.only_from };
    let selected = steps::select(catalogue, &request, &|gate| values.judge(gate)).map_err(load::refused)?;
    let mut step_files = StepFiles::below(&catalogue.root);
    let files: BTreeMap<&str, StepFile> =
        selected.scripts().map(|path| (path, step_files.inspect(path))).collect();
    let registry = stead_drivers::Drivers::standard();
    let operations = stead_engine::compile::Catalogue::new(registry.descriptors());
    let around = Surroundings { values, files: &files, target: &target.name, operations: &operations };
    let mut plan = steps::compile(&selected, &around).map_err(Failure::invalid)?;

    let mut problems = Diagnostics::default();
    let ids = plan.ids();
    values::require(catalogue, values, &ids, &mut problems);
    let documents = values::inputs(catalogue, values, &ids, &mut problems);
    let inputs = documents.into_iter().filter_map(|(name, keys)| {
        let sink = sink_place(configured, &name, &catalogue.inputs.get(&name)?.sink, &mut problems)?;
        let document = InputsDocument { name: name.clone(), sink, keys: secret_keys(keys) };
        Some((name, document))
    });
    let inputs: BTreeMap<String, InputsDocument> = inputs.collect();
    let steps = selected.steps.iter().zip(&plan.steps).map(|((_, step), made)| {
        let own = OwnSurroundings {
            cwd: made.cwd.as_ref().map(PathBuf::from),
            env: own_env(configured, step, &mut problems),
        };
        (TaskName::from(&step.id), own)
    });
    let own: BTreeMap<TaskName, OwnSurroundings> = steps.collect();
    problems.0.append(&mut plan.problems.0);

    let secrets = secrets(configured, &own, &inputs);
    let surroundings = surroundings(configured, wish.mode, own, inputs);
    Ok(Planned {
        plan,
        selection: wish.selection.clone(),
        order: *catalogue.order.get(wish.mode),
        surroundings,
        secrets,
        problems,
    })
}

fn secret_keys(keys: BTreeMap<String, InputValue>) -> BTreeMap<String, Secret> {
    keys.into_iter().map(|(key, input)| (key, Secret::new(input.value))).collect()
}

/// Returns where a document goes, or reports why that cannot be said.
fn sink_place(
    configured: &Configured,
    name: &str,
    sink: &Sink,
    problems: &mut Diagnostics,
) -> Option<SinkPlace> {
    match sink {
        Sink::File { path, format } => match sink_path(&configured.values, path) {
            Ok(path) => {
                Some(SinkPlace::File { path: configured.catalogue.root.join(path), format: format.clone() })
            }
            Err(problem) => {
                problems.push(problem.path(format!("inputs.{name}.sink.path")));
                None
            }
        },
        Sink::Kubectl { command, namespace, document } => Some(SinkPlace::Kubectl {
            command: command.clone(),
            context: (configured.target.origin == TargetOrigin::Kubeconfig)
                .then(|| configured.target.name.clone()),
            namespace: namespace.clone(),
            document: document.clone(),
        }),
    }
}

/// A relative path stays inside the root; an absolute one is what the configuration says.
fn sink_path(values: &Values, text: &At<Text>) -> Result<String, Box<Diagnostic>> {
    let refuse = |message: String, help: &str| {
        Err(Box::new(Diagnostic::error("steps/catalogue", text.place.clone(), message).help(help)))
    };
    match values.expand_path(text)? {
        expanded if expanded.secret => refuse(
            "the path of a file sink holds a secret".to_owned(),
            "paths are shown: name the file otherwise",
        ),
        expanded if !names_a_file(Path::new(&expanded.text)) => refuse(
            format!("the path of a file sink, `{}`, names no file inside the root", expanded.text),
            "write a path relative to the root of the catalogue, or an absolute one",
        ),
        expanded => Ok(expanded.text),
    }
}

fn names_a_file(path: &Path) -> bool {
    let mut depth = 0_usize;
    let inside = path.components().all(|part| match part {
        Component::Normal(_) => {
            depth += 1;
            true
        }
        Component::ParentDir => path.is_absolute() || depth.checked_sub(1).map(|up| depth = up).is_some(),
        Component::CurDir | Component::RootDir | Component::Prefix(_) => true,
    });
    inside && path.file_name().is_some()
}

/// Returns the variables a step has of its own.
fn own_env(configured: &Configured, step: &Step, problems: &mut Diagnostics) -> BTreeMap<String, Secret> {
    let mut env = BTreeMap::new();
    for (name, text) in &step.env {
        match configured.values.expand(text) {
            Ok(expanded) => {
                env.insert(name.clone(), Secret::new(expanded.text));
            }
            Err(problem) => problems.push(problem.path(format!("steps.{}.env.{name}", step.id))),
        }
    }
    env
}

/// Returns every value that must not be shown: secrets in use, and those that `--set` gave in vain.
fn secrets(
    configured: &Configured,
    own: &BTreeMap<TaskName, OwnSurroundings>,
    inputs: &BTreeMap<String, InputsDocument>,
) -> Vec<String> {
    let effective = configured.values.iter().filter(|(_, effective)| effective.secret);
    let mut secrets: Vec<String> = effective.map(|(_, effective)| effective.value.clone()).collect();
    let text = |secret: &Secret| secret.expose_text().map(str::to_owned);
    secrets.extend(inputs.values().flat_map(|document| document.keys.values()).filter_map(text));
    let is_secret = |name: &str| {
        configured.catalogue.is_secret(name)
            || configured.values.get(name).is_some_and(|effective| effective.secret)
    };
    let set = configured.given.set.iter().filter(|(name, _)| is_secret(name));
    secrets.extend(set.map(|(_, value)| value.clone()));
    // A step's own variable that holds a secret is one as a whole.
    let held: Vec<String> = secrets.iter().filter(|secret| secret.len() >= SHORTEST).cloned().collect();
    let own = own.values().flat_map(|own| own.env.values()).filter_map(text);
    secrets.extend(own.filter(|value| held.iter().any(|secret| value.contains(secret.as_str()))));
    secrets.retain(|secret| secret.len() >= SHORTEST);
    secrets.sort();
    secrets.dedup();
    secrets
}

/// Shorter values cannot be told from ordinary text; no secret has one.
const SHORTEST: usize = 4;

fn surroundings(
    configured: &Configured,
    mode: StepMode,
    own: BTreeMap<TaskName, OwnSurroundings>,
    inputs: BTreeMap<String, InputsDocument>,
) -> StepSurroundings {
    let Configured { catalogue, values, target, given, .. } = configured;
    let (mut open, mut secrets) = (BTreeMap::new(), BTreeMap::new());
    for (name, effective) in values.iter() {
        match effective.secret {
            true => drop(secrets.insert(name.to_owned(), Secret::new(effective.value.as_bytes()))),
            false => drop(open.insert(name.to_owned(), effective.value.clone())),
        }
    }
    if let Some(profile) = &given.profile {
        open.insert("PROFILE_FILE".to_owned(), profile.path.display().to_string());
    }
    let unset = catalogue.declared().filter(|name| values.get(name).is_none()).map(str::to_owned);
    let hidden = unset.chain(["PROFILE_FILE".to_owned(), "PROFILE_EXCLUSIVE".to_owned()]).collect();
    StepSurroundings {
        catalogue: catalogue.name.to_string(),
        root: catalogue.root.clone(),
        mode,
        target: target.name.clone(),
        values: open,
        secrets,
        hidden,
        own,
        inputs,
        outputs: Outputs::default(),
    }
}

impl Planned {
    /// Returns what the report says of the run as a whole, before anything has run.
    pub(crate) fn report(&self, configured: &Configured) -> StepsReport {
        StepsReport {
            catalogue: configured.catalogue.name.to_string(),
            mode: self.plan.mode,
            target: self.plan.target.clone(),
            root: configured.catalogue.root.display().to_string(),
            selection: self.selection.clone(),
            config: config(configured),
            left_out: self
                .plan
                .left_out
                .iter()
                .map(|left| LeftOutRow {
                    id: left.id.to_string(),
                    cause: left.cause,
                    detail: left.detail.clone(),
                })
                .collect(),
            checks: Default::default(),
            suggestions: Vec::new(),
            inputs: BTreeMap::new(),
            bundle: None,
        }
    }

    /// Returns what the report says of each step before it has run, in plan order.
    pub(crate) fn rows(&self) -> Vec<(TaskName, StepRow)> {
        let row = |step: &steps::SelectedStep| StepRow {
            number: step.number,
            basename: step.basename.clone(),
            path: step.path.clone(),
            args: step.args.clone(),
            phase: step.phase.clone(),
            destructive: step.destructive,
            assumed: false,
            exit_code: None,
            checks: Vec::new(),
            outputs: BTreeMap::new(),
        };
        self.plan.steps.iter().map(|step| (TaskName::from(&step.id), row(step))).collect()
    }
}

/// Returns the effective configuration as it is shown.
pub(crate) fn config(configured: &Configured) -> Vec<ConfigRow> {
    let row = |row: values::ConfigRow| ConfigRow {
        key: row.key,
        value: row.value,
        secret: row.secret,
        source: row.source.to_string(),
    };
    configured.values.config().into_iter().map(row).collect()
}
