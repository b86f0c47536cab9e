//! Finding catalogues: by path, by name, or the only one there is.
//!
//! A name is looked up in the nearest directory at or above the caller's that holds `steps.yaml` or `steps/*.yaml`.

use std::fs;
use std::path::{Path, PathBuf};

use stead_model::catalogue::Catalogue;
use stead_model::diagnostic::{Place, Source};
use stead_model::yaml::{self, Codes};
use stead_model::{Diagnostic, Diagnostics, diagnostic};

use crate::commands::plan::source::read;
use crate::failure::{Failure, FailureKind};
use crate::settings::Settings;

/// A catalogue file that is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Listed {
    /// The file, absolute.
    pub(crate) file: PathBuf,
    /// The file as messages call it: as it was typed, or relative to the directory it was found from.
    pub(crate) shown: String,
}

/// The catalogues of the nearest directory that has any.
#[derive(Clone, Debug, Default)]
pub(crate) struct Found {
    /// `steps.yaml` first, then `steps/*.yaml` by name.
    pub(crate) catalogues: Vec<Listed>,
    /// The directory; none if there are no catalogues.
    pub(crate) directory: Option<PathBuf>,
}

/// Returns the catalogues of the nearest directory at or above the caller's that has any.
pub(crate) fn all(settings: &Settings) -> Result<Found, Failure> {
    for directory in settings.current_dir.ancestors() {
        let files = catalogue_files(directory)?;
        if !files.is_empty() {
            let catalogues = files.into_iter().map(|file| Listed::new(file, settings)).collect();
            return Ok(Found { catalogues, directory: Some(directory.to_owned()) });
        }
    }
    Ok(Found::default())
}

/// Returns the catalogue file that `typed` names, or the one to take if nothing is typed.
pub(crate) fn one(typed: Option<&str>, settings: &Settings) -> Result<Listed, Failure> {
    match typed {
        Some(path) if is_path(path) => by_path(path, settings),
        Some(name) => by_name(name, &all(settings)?),
        None => the_one(&all(settings)?),
    }
}

/// Returns the catalogue that `typed` names, or all there are.
pub(crate) fn one_or_all(typed: Option<&str>, settings: &Settings) -> Result<Vec<Listed>, Failure> {
    if typed.is_some() {
        return Ok(vec![one(typed, settings)?]);
    }
    let found = all(settings)?;
    if found.catalogues.is_empty() {
        return Err(nothing_found());
    }
    if found.catalogues.len() > 1 {
        found.names()?;
    }
    Ok(found.catalogues)
}

/// Reads a catalogue, every problem at once.
pub(crate) fn load(listed: &Listed) -> Result<Catalogue, Failure> {
    let bytes = read(&listed.file).map_err(|error| {
        let place = Place::Named(listed.shown.clone());
        let problem = Diagnostic::error("steps/catalogue", place, format!("cannot read the file: {error}"));
        Failure::invalid(Diagnostics(vec![problem.help("check its name and permissions")]))
    })?;
    let source = yaml::source(&listed.shown, bytes, Codes::STEPS).map_err(Failure::invalid)?;
    Catalogue::read(&source, &listed.file).map_err(Failure::invalid)
}

fn is_path(typed: &str) -> bool {
    typed.contains('/') || typed.ends_with(".yaml")
}

fn by_path(path: &str, settings: &Settings) -> Result<Listed, Failure> {
    let file = settings.current_dir.join(path);
    // Without links: the root is where the file is, not where it is named.
    match fs::canonicalize(&file) {
        Ok(file) if file.is_file() => Ok(Listed { file, shown: path.to_owned() }),
        Ok(_) => Err(missing(path, "it is not a file")),
        Err(error) => Err(missing(path, &error.to_string())),
    }
}

fn missing(path: &str, why: &str) -> Failure {
    let problem = Diagnostic::error(
        "steps/catalogue",
        Place::Named(path.to_owned()),
        format!("cannot read the catalogue {path}: {why}"),
    );
    Failure::invalid(Diagnostics(vec![problem.help("check the path; a relative one starts where you are")]))
}

fn by_name(name: &str, found: &Found) -> Result<Listed, Failure> {
    let names = found.names()?;
    if let Some(at) = names.iter().position(|known| known == name) {
        return Ok(found.catalogues[at].clone());
    }
    let help = match names.as_slice() {
        [] => NONE_HERE.to_owned(),
        names => {
            let nearest = diagnostic::suggest(name, names.iter().map(String::as_str));
            format!("{nearest}; there are: {}", names.join(", "))
        }
    };
    Err(unknown(format!("no catalogue is called `{name}`"), help, names))
}

fn the_one(found: &Found) -> Result<Listed, Failure> {
    match found.catalogues.as_slice() {
        [] => Err(nothing_found()),
        [only] => Ok(only.clone()),
        several => {
            let is_single = |listed: &&Listed| listed.file.ends_with("steps.yaml") && !in_steps(listed);
            if let Some(listed) = several.iter().find(is_single) {
                return Ok(listed.clone());
            }
            let names = found.names()?;
            let message = format!("there are {} catalogues and none was named", several.len());
            Err(unknown(message, format!("name one of {}", names.join(", ")), names))
        }
    }
}

fn in_steps(listed: &Listed) -> bool {
    listed.file.parent().and_then(Path::file_name).is_some_and(|name| name == "steps")
}

const NONE_HERE: &str = "neither here nor above is a `steps.yaml` or a `steps/*.yaml`; name a path, or begin with `stead init steps`";

fn nothing_found() -> Failure {
    unknown("there is no catalogue of steps".to_owned(), NONE_HERE.to_owned(), Vec::new())
}

fn unknown(message: String, help: String, candidates: Vec<String>) -> Failure {
    let place = Place::Named("CATALOGUE".to_owned());
    let problem =
        Diagnostic::error("steps/unknown-catalogue", place, message).help(help).candidates(candidates);
    Failure::of(FailureKind::Usage, Diagnostics(vec![problem]))
}

impl Found {
    /// Returns the names of all catalogues, in their order.
    ///
    /// # Errors
    /// If two have one name: they cannot be told apart.
    fn names(&self) -> Result<Vec<String>, Failure> {
        let names: Vec<String> = self.catalogues.iter().map(|listed| name_of(&listed.file)).collect();
        let mut problems = Diagnostics::default();
        for (at, name) in names.iter().enumerate() {
            if let Some(first) = names[..at].iter().position(|first| first == name) {
                let (first, second) = (&self.catalogues[first].shown, &self.catalogues[at].shown);
                let message = format!("{first} and {second} are both called `{name}`");
                let problem = Diagnostic::error("steps/catalogue", Place::Named(second.clone()), message);
                problems.push(problem.help("give one of them another `name`"));
            }
        }
        if problems.has_errors() { Err(Failure::invalid(problems)) } else { Ok(names) }
    }
}

/// Returns `steps.yaml` and `steps/*.yaml` of a directory, as far as they are there.
fn catalogue_files(directory: &Path) -> Result<Vec<PathBuf>, Failure> {
    let single = directory.join("steps.yaml");
    let mut files: Vec<PathBuf> = Some(single).filter(|file| file.is_file()).into_iter().collect();
    let Ok(entries) = fs::read_dir(directory.join("steps")) else { return Ok(files) };
    let mut below = Vec::new();
    for entry in entries {
        let path = entry.map_err(|error| Failure::caused_by(FailureKind::Invalid, error))?.path();
        let hidden = path.file_name().is_none_or(|name| name.as_encoded_bytes().starts_with(b"."));
        if !hidden && path.extension().is_some_and(|extension| extension == "yaml") && path.is_file() {
            below.push(path);
        }
    }
    below.sort();
    files.extend(below);
    Ok(files)
}

impl Listed {
    /// Returns the file by its absolute path, called by where it is from here.
    pub(crate) fn new(file: PathBuf, settings: &Settings) -> Self {
        let shown = file.strip_prefix(&settings.current_dir).unwrap_or(&file).display().to_string();
        Self { file, shown }
    }
}

/// Returns what a catalogue calls itself, or its file's stem. What is wrong with the file is told when it is read.
fn name_of(file: &Path) -> String {
    let stem = || file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let own = || {
        let source: Source = yaml::source("catalogue", read(file).ok()?, Codes::STEPS).ok()?;
        let tree = yaml::read(&source, Codes::STEPS, &mut Diagnostics::default())?;
        let mut entries = tree.root().as_map()?;
        let (_, name) = entries.find(|(key, _)| key.as_text() == Some("name"))?;
        name.as_text().map(str::to_owned)
    };
    own().unwrap_or_else(stem)
}
