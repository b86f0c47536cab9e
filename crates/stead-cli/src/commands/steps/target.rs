//! What a run of steps acts on: read from files and the machine, never asked of a program.

use std::path::{Path, PathBuf};

use stead_engine::values::Values;
use stead_model::catalogue::{At, Catalogue, Target};
use stead_model::diagnostic::Place;
use stead_model::layer::Text;
use stead_model::yaml::{self, Codes};
use stead_model::{Diagnostic, Diagnostics};

use super::load::read_regular;
use crate::settings::Settings;

/// The name of a target that nothing says.
const UNKNOWN: &str = "unknown";

/// What a run acts on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FoundTarget {
    /// Its name.
    pub(crate) name: String,
    /// How it was found.
    pub(crate) origin: TargetOrigin,
}

/// How a target was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TargetOrigin {
    /// It is the current context of a kubeconfig.
    Kubeconfig,
    /// The catalogue or the machine says it.
    Said,
    /// Nothing says it: nothing may be destroyed there.
    Unknown,
}

/// Returns what runs of `catalogue` act on, every problem added to `problems`.
pub(crate) fn find(
    catalogue: &Catalogue,
    values: &Values,
    settings: &Settings,
    problems: &mut Diagnostics,
) -> FoundTarget {
    let said = |name: String| FoundTarget { name, origin: TargetOrigin::Said };
    match &catalogue.target {
        None => said(format!("{}@{}", catalogue.name, catalogue.root.display())),
        Some(Target::Hostname) => said(rustix::system::uname().nodename().to_string_lossy().into_owned()),
        Some(Target::Value(text)) => said(expanded(text, values, problems)),
        Some(Target::Kubeconfig { default }) => match current_context(settings, problems) {
            Some(name) => FoundTarget { name, origin: TargetOrigin::Kubeconfig },
            None => match default {
                Some(text) => said(expanded(text, values, problems)),
                None => FoundTarget { name: UNKNOWN.to_owned(), origin: TargetOrigin::Unknown },
            },
        },
    }
}

fn expanded(text: &At<Text>, values: &Values, problems: &mut Diagnostics) -> String {
    let refuse = |message: &str, help: &str| {
        Diagnostic::error("steps/catalogue", text.place.clone(), message).help(help)
    };
    match values.expand(text) {
        Ok(expanded) if expanded.secret => {
            problems.push(refuse("the target holds a secret", "it is shown in plans: name it otherwise"));
        }
        Ok(expanded) if expanded.text.trim().is_empty() => {
            problems.push(refuse("the target has no name", "it would confirm anything: give it a value"));
        }
        Ok(expanded) => return expanded.text,
        Err(problem) => problems.push(*problem),
    }
    UNKNOWN.to_owned()
}

/// Returns the first `current-context` in the files of `$KUBECONFIG`, or of `~/.kube/config`.
fn current_context(settings: &Settings, problems: &mut Diagnostics) -> Option<String> {
    let given = |name: &str| settings.environment.get(name).filter(|value| !value.is_empty());
    let files: Vec<PathBuf> = match given("KUBECONFIG") {
        Some(list) => std::env::split_paths(list).filter(|path| !path.as_os_str().is_empty()).collect(),
        None => given("HOME").map(|home| Path::new(home).join(".kube/config")).into_iter().collect(),
    };
    files.iter().find_map(|file| context_in(&settings.current_dir.join(file), problems))
}

/// A file that is not there says nothing, as kubectl sees it; one that cannot be read is told.
fn context_in(file: &Path, problems: &mut Diagnostics) -> Option<String> {
    let unreadable = |why: String| {
        let place = Place::Named(file.display().to_string());
        Diagnostic::warning(
            "steps/kubeconfig",
            place,
            format!("cannot take the context from this kubeconfig: {why}"),
        )
    };
    let bytes = match read_regular(file) {
        Ok(bytes) => bytes,
        Err(error) => {
            if error.kind() != std::io::ErrorKind::NotFound {
                problems.push(unreadable(error.to_string()));
            }
            return None;
        }
    };
    let mut found = Diagnostics::default();
    let source = match yaml::source(&file.display().to_string(), bytes, Codes::STEPS) {
        Ok(source) => source,
        Err(error) => {
            problems.push(unreadable(error.to_string()));
            return None;
        }
    };
    let Some(tree) = yaml::read(&source, Codes::STEPS, &mut found) else {
        // Only what is wrong, not the text: kubeconfigs hold keys.
        let why = found.iter().map(|problem| problem.message.clone()).next();
        problems.push(unreadable(why.unwrap_or_else(|| "it is not YAML".to_owned())));
        return None;
    };
    let mut entries = tree.root().as_map()?;
    let (_, context) = entries.find(|(key, _)| key.as_text() == Some("current-context"))?;
    context.as_text().filter(|name| !name.is_empty()).map(str::to_owned)
}
