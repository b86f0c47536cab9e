//! From what a person typed to a configured catalogue: every command of steps and every intent begins here.
//!
//! Reads files and the environment; what they mean is `stead-model`'s and `stead-engine`'s business. Problems come in
//! groups, in the order in which they can be known: arguments, catalogue, layers and values.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use stead_engine::values::{self, Inputs, LayerInput, LayerState, Values};
use stead_model::catalogue::reserved::FLAGS;
use stead_model::catalogue::{Catalogue, Layer, LayerOrigin, ProfileFlag};
use stead_model::diagnostic::Place;
use stead_model::layer::LayerFile;
use stead_model::{Diagnostic, Diagnostics, Severity};

use super::find::{self, Listed};
use super::target::{self, FoundTarget};
use crate::args::StepValueArgs;
use crate::commands::plan::source::read;
use crate::failure::{Failure, FailureKind};
use crate::settings::Settings;

/// Codes of problems with what was typed: exit code 2.
const USAGE: [&str; 12] = [
    "steps/unknown-catalogue",
    "steps/unknown-token",
    "steps/wrong-mode",
    "steps/gated-off",
    "steps/ambiguous",
    "steps/empty",
    "steps/needs",
    "steps/reserved-set",
    "steps/unknown-key",
    "steps/unknown-flag",
    "intent/unknown",
    "intent/param",
];

/// A layer that must be there and cannot be read.
const MISSING: &str = "layer/missing";

/// A catalogue with its values.
#[derive(Debug)]
pub(crate) struct Configured {
    /// Where it was found.
    pub(crate) listed: Listed,
    /// What it says.
    pub(crate) catalogue: Catalogue,
    /// The values of its names.
    pub(crate) values: Values,
    /// What its runs act on.
    pub(crate) target: FoundTarget,
    /// What it was given besides its layers.
    pub(crate) given: Given,
    /// What a person should know.
    pub(crate) warnings: Vec<Diagnostic>,
}

/// What a catalogue is given besides its layers.
#[derive(Clone, Default)]
pub(crate) struct Given {
    /// The file of its flag layer.
    pub(crate) profile: Option<Profile>,
    /// The values of `--set`, in order.
    pub(crate) set: Vec<(String, String)>,
}

/// Names only: values may be secret.
impl std::fmt::Debug for Given {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names: Vec<&String> = self.set.iter().map(|(name, _)| name).collect();
        f.debug_struct("Given").field("profile", &self.profile).field("set", &names).finish()
    }
}

/// The file of a flag layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Profile {
    /// As it was typed.
    pub(crate) typed: String,
    /// Absolute.
    pub(crate) path: PathBuf,
    /// By which flag.
    pub(crate) flag: ProfileFlag,
}

impl Given {
    /// Returns what flags give; a relative profile starts where the caller is.
    pub(crate) fn new(args: &StepValueArgs, settings: &Settings) -> Self {
        let profile = |path: &PathBuf, flag| Profile {
            typed: path.display().to_string(),
            path: settings.current_dir.join(path),
            flag,
        };
        let given = args.profile.as_ref().map(|path| profile(path, ProfileFlag::Profile));
        let host_env = args.host_env.as_ref().map(|path| profile(path, ProfileFlag::HostEnv));
        Self { profile: given.or(host_env), set: args.set.clone() }
    }

    /// Returns this without the profile if it does not fit the catalogue: it is for another one.
    pub(crate) fn fitting(mut self, catalogue: &Catalogue) -> Self {
        if fits(catalogue, &self).is_err() {
            self.profile = None;
        }
        self
    }
}

/// Returns the catalogue that was typed, with its values, or every problem of the first group that has one.
pub(crate) fn configure(
    catalogue: Option<&str>,
    args: &StepValueArgs,
    settings: &Settings,
) -> Result<Configured, Failure> {
    let listed = find::one(catalogue, settings)?;
    let catalogue = find::load(&listed)?;
    configure_loaded(listed, catalogue, Given::new(args, settings), settings)
}

/// Returns a catalogue that was read, with its values, or every problem of the first group that has one.
pub(crate) fn configure_loaded(
    listed: Listed,
    catalogue: Catalogue,
    given: Given,
    settings: &Settings,
) -> Result<Configured, Failure> {
    let mut problems = Diagnostics::default();
    let configured = configure_anyway(listed, catalogue, given, settings, &mut problems)?;
    Ok(Configured { warnings: settle(problems)?, ..configured })
}

/// Returns a catalogue that was read, with its values as far as they have any, every problem added to `problems`.
///
/// # Errors
/// If a flag does not fit the catalogue.
pub(crate) fn configure_anyway(
    listed: Listed,
    catalogue: Catalogue,
    given: Given,
    settings: &Settings,
    problems: &mut Diagnostics,
) -> Result<Configured, Failure> {
    let values = values_of(&catalogue, &given, settings, problems)?;
    let target = target::find(&catalogue, &values, settings, problems);
    Ok(Configured { listed, catalogue, values, target, given, warnings: Vec::new() })
}

/// Returns the values of a catalogue, every problem of layers and values added to `problems`.
///
/// # Errors
/// If a flag does not fit the catalogue.
fn values_of(
    catalogue: &Catalogue,
    given: &Given,
    settings: &Settings,
    problems: &mut Diagnostics,
) -> Result<Values, Failure> {
    fits(catalogue, given)?;
    let environment = environment(catalogue, settings, problems);
    let is_read = values::layers_to_read(catalogue, &environment, &given.set);
    let layers = catalogue.layers.iter().zip(is_read);
    let layers: Vec<LayerInput> =
        layers.map(|(layer, is_read)| layer_input(layer, is_read, catalogue, given, problems)).collect();
    let inputs = Inputs { catalogue, layers: &layers, environment: &environment, set: &given.set };
    Ok(values::resolve(&inputs, problems))
}

/// Returns the environment as text. What is not text never counts as absent where the catalogue reads it.
fn environment(
    catalogue: &Catalogue,
    settings: &Settings,
    problems: &mut Diagnostics,
) -> BTreeMap<String, String> {
    for name in settings.environment.not_text() {
        let is_expected = FLAGS.iter().any(|(reserved, _)| *reserved == name);
        let place = Place::Named(format!("environment variable {name}"));
        let is_read =
            catalogue.controls.contains_key(name) || catalogue.vars.get(name).is_some_and(|var| var.env);
        if is_read {
            let message = format!("`{name}` is not UTF-8 (from environment)");
            let problem = Diagnostic::error("value/rule", place, message).path(format!("vars.{name}"));
            problems.push(problem.help("give it a text, or unset it"));
        } else if is_expected || catalogue.declared().any(|declared| declared == name) {
            let message = format!("the environment's `{name}` is not UTF-8 and is not read");
            problems.push(Diagnostic::warning("value/environment", place, message).help("unset it"));
        }
    }
    settings.environment.to_map()
}

/// Returns the warnings of `problems`, or the failure of its errors.
pub(crate) fn settle(problems: Diagnostics) -> Result<Vec<Diagnostic>, Failure> {
    if problems.has_errors() { Err(refused(problems)) } else { Ok(problems.0) }
}

/// Returns the failure of problems: those of arguments first, by themselves.
pub(crate) fn refused(problems: Diagnostics) -> Failure {
    let is_usage =
        |problem: &Diagnostic| problem.severity == Severity::Error && USAGE.contains(&problem.code);
    let usage: Vec<Diagnostic> = problems.iter().filter(|problem| is_usage(problem)).cloned().collect();
    if usage.is_empty() {
        Failure::invalid(problems.sorted())
    } else {
        Failure::of(FailureKind::Usage, Diagnostics(usage).sorted())
    }
}

/// Returns the failure of what flags say, if something is wrong with that: a name that `--set` may not set, a profile
/// that is not there.
pub(crate) fn refused_flags(problems: &Diagnostics, given: &Given) -> Option<Failure> {
    let is_profile = |problem: &Diagnostic| match (&problem.place, &given.profile) {
        (Place::Named(name), Some(profile)) => problem.code == MISSING && *name == profile.typed,
        (Place::Text { .. } | Place::Call { .. } | Place::Named(_), _) => false,
    };
    let is_of_flag = |problem: &&Diagnostic| USAGE.contains(&problem.code) || is_profile(problem);
    let found: Vec<Diagnostic> = problems.iter().filter(is_of_flag).cloned().collect();
    (!found.is_empty()).then(|| refused(Diagnostics(found)))
}

/// Returns the flag of the catalogue's flag layer, if it has one.
pub(crate) fn flag_of(catalogue: &Catalogue) -> Option<ProfileFlag> {
    catalogue.layers.iter().find_map(|layer| match &layer.origin {
        LayerOrigin::Flag(flag) => Some(*flag),
        LayerOrigin::File(_) => None,
    })
}

/// Refuses a profile for which the catalogue has no layer, or by a flag that is not its layer's.
pub(crate) fn fits(catalogue: &Catalogue, given: &Given) -> Result<(), Failure> {
    misfit(catalogue, given)
        .map_or(Ok(()), |problem| Err(Failure::of(FailureKind::Usage, Diagnostics(vec![problem]))))
}

/// Returns what is wrong with a profile for which the catalogue has no layer, or by a flag that is not its layer's.
pub(crate) fn misfit(catalogue: &Catalogue, given: &Given) -> Option<Diagnostic> {
    let profile = given.profile.as_ref()?;
    let flag = flag_of(catalogue);
    let wrong = |message: String, help: &str| {
        let place = Place::Named(flag_name(profile.flag).to_owned());
        Some(Diagnostic::error("steps/unknown-flag", place, message).help(help))
    };
    match (profile.flag, flag) {
        (ProfileFlag::Profile, Some(_)) | (ProfileFlag::HostEnv, Some(ProfileFlag::HostEnv)) => None,
        (ProfileFlag::HostEnv, Some(ProfileFlag::Profile)) => wrong(
            format!("the catalogue `{}` takes no --host-env", catalogue.name),
            "name its file with --profile",
        ),
        (ProfileFlag::Profile | ProfileFlag::HostEnv, None) => wrong(
            format!("the catalogue `{}` has no layer for a file of a flag", catalogue.name),
            "leave the flag out, or add `{ flag: profile }` as its last layer",
        ),
    }
}

fn layer_input(
    layer: &Layer,
    is_read: bool,
    catalogue: &Catalogue,
    given: &Given,
    problems: &mut Diagnostics,
) -> LayerInput {
    let (name, path) = match &layer.origin {
        LayerOrigin::File(file) => (file.value.clone(), Some(catalogue.root.join(&file.value))),
        LayerOrigin::Flag(flag) => match &given.profile {
            Some(profile) => (profile.typed.clone(), Some(profile.path.clone())),
            None => (flag_name(*flag).to_owned(), None),
        },
    };
    let state = match path {
        _ if !is_read => LayerState::Skipped,
        None => LayerState::NotGiven,
        Some(path) => match read_regular(&path) {
            Ok(bytes) => LayerState::Read(LayerFile::from_bytes(&name, &bytes, problems)),
            Err(error) if is_missing_file(layer, &error) => LayerState::Missing,
            Err(error) => {
                problems.push(unreadable(layer, &name, &path, &error, catalogue));
                LayerState::NotGiven
            }
        },
    };
    LayerInput { name, state, secret: layer.secret }
}

fn flag_name(flag: ProfileFlag) -> &'static str {
    match flag {
        ProfileFlag::Profile => "--profile",
        ProfileFlag::HostEnv => "--host-env",
    }
}

/// Returns the bytes of a regular file. A pipe or a device would wait for somebody, or never end.
pub(crate) fn read_regular(path: &Path) -> io::Result<Vec<u8>> {
    match fs::metadata(path)?.is_file() {
        true => read(path),
        false => Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a file")),
    }
}

/// Whether a layer is just not there, which the catalogue may allow.
fn is_missing_file(layer: &Layer, error: &io::Error) -> bool {
    matches!(layer.origin, LayerOrigin::File(_)) && layer.optional && error.kind() == io::ErrorKind::NotFound
}

/// Returns what is wrong with a layer that cannot be read.
fn unreadable(
    layer: &Layer,
    name: &str,
    path: &Path,
    error: &io::Error,
    catalogue: &Catalogue,
) -> Diagnostic {
    match &layer.origin {
        LayerOrigin::File(file) => {
            let message = format!("cannot read the layer {name}: {error}");
            Diagnostic::error(MISSING, file.place.clone(), message)
                .path(format!("layers.{name}"))
                .help("make it a file that this account can read")
        }
        LayerOrigin::Flag(_) => {
            let message = format!("cannot read the profile {}: {error}", path.display());
            let beside = catalogue.root.join(name);
            let help = match beside.is_file() && beside != path {
                true => format!("did you mean {}? A relative path starts where you are", beside.display()),
                false => "check its name; a relative path starts where you are".to_owned(),
            };
            Diagnostic::error(MISSING, Place::Named(name.to_owned()), message).help(help)
        }
    }
}

impl Configured {
    /// Returns the effective configuration as it is recorded; none stands for a secret.
    pub(crate) fn recorded_config(&self) -> BTreeMap<String, Option<String>> {
        let value = |effective: &values::Effective| (!effective.secret).then(|| effective.value.clone());
        self.values.iter().map(|(name, effective)| (name.to_owned(), value(effective))).collect()
    }

    /// Returns the secrets with their values.
    pub(crate) fn secrets(&self) -> impl Iterator<Item = (&str, &str)> {
        let secrets = self.values.iter().filter(|(_, effective)| effective.secret);
        secrets.map(|(name, effective)| (name, effective.value.as_str()))
    }

    /// Whether the control `DRY_RUN` is listed and true.
    pub(crate) fn wants_dry_run(&self) -> bool {
        self.control("DRY_RUN") == Some("true")
    }

    /// Returns the value of the control `ONLY`, if it is listed and given.
    pub(crate) fn wants_only(&self) -> Option<&str> {
        self.control("ONLY")
    }

    fn control(&self, name: &str) -> Option<&str> {
        self.catalogue.controls.get(name)?;
        self.values.get(name).map(|effective| effective.value.as_str()).filter(|value| !value.is_empty())
    }
}
