//! The files of daemons, with flags that stand for their keys.

use std::path::{Path, PathBuf};

use serde_json::Value;
use stead_model::diagnostic::Source;
use stead_model::{Diagnostics, yaml};

use crate::failure::Failure;

/// Reads the file of a daemon with `read`: `given`, else `default` if it is there, else an empty one. `keys` are flags with
/// values as they would be written there; they win over the file.
pub(super) fn read<T>(
    given: Option<&Path>,
    default: PathBuf,
    keys: &[(&'static str, &str)],
    read: impl Fn(&Source, &mut Diagnostics) -> Option<T>,
) -> Result<T, Failure> {
    let path = given.map_or(default, Path::to_owned);
    let name = path.display().to_string();
    let source = match std::fs::read_to_string(&path) {
        Ok(text) => Source { name: name.into(), text: text.into() },
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && given.is_none() => {
            let none = Source { name: "flags".into(), text: "{}".into() };
            let hint = format!("there is no {name}: name a file with --config, or give its keys as flags");
            return whole(&none, keys, read).map_err(|failure| failure.hint(hint));
        }
        Err(error) => {
            return Err(Failure::unreadable(name, &error));
        }
    };
    whole(&source, keys, read)
}

/// Reads a file with flags that win over it.
fn whole<T>(
    source: &Source,
    keys: &[(&'static str, &str)],
    read: impl Fn(&Source, &mut Diagnostics) -> Option<T>,
) -> Result<T, Failure> {
    if keys.is_empty() {
        return checked(source, &read).map_err(Failure::invalid);
    }
    // As a whole it is one document; where a flag is wrong is said by its name.
    let merged = merged(source, keys)?;
    let mut problems = match checked(&Source { name: "flags and file".into(), text: merged.into() }, &read) {
        Ok(file) => return Ok(file),
        Err(problems) => problems,
    };
    // What is wrong in the file is shown where it is there.
    let alone = checked(source, &read).err().unwrap_or_default();
    for problem in &mut problems.0 {
        let same = alone.iter().find(|other| {
            (other.code, &other.path, &other.message) == (problem.code, &problem.path, &problem.message)
        });
        if let Some(same) = same {
            problem.place = same.place.clone();
        }
    }
    Err(Failure::invalid(problems))
}

fn checked<T>(
    source: &Source,
    read: &impl Fn(&Source, &mut Diagnostics) -> Option<T>,
) -> Result<T, Diagnostics> {
    let mut diagnostics = Diagnostics::default();
    match read(source, &mut diagnostics) {
        Some(file) if diagnostics.0.is_empty() => Ok(file),
        Some(_) | None => Err(diagnostics),
    }
}

/// Returns the file's keys with those of flags in their place, as JSON, a key a line.
fn merged(source: &Source, keys: &[(&'static str, &str)]) -> Result<String, Failure> {
    let mut diagnostics = Diagnostics::default();
    let mut document = match source.text.trim() {
        "" => serde_json::Map::new(),
        _ => match yaml::read(source, yaml::Codes::FLEET, &mut diagnostics).map(|tree| tree.root().to_json())
        {
            Some(Value::Object(keys)) => keys,
            Some(_) | None => return Err(Failure::invalid(diagnostics)),
        },
    };
    for (key, value) in keys {
        let given = Source { name: format!("--{}", key.replace('_', "-")).into(), text: (*value).into() };
        let tree = yaml::read(&given, yaml::Codes::FLEET, &mut diagnostics);
        if let Some(tree) = tree {
            document.insert((*key).to_owned(), tree.root().to_json());
        }
    }
    if !diagnostics.0.is_empty() {
        return Err(Failure::invalid(diagnostics));
    }
    let lines: Vec<String> =
        document.iter().map(|(key, value)| format!("{}: {value}", Value::from(key.as_str()))).collect();
    Ok(lines.join("\n"))
}
