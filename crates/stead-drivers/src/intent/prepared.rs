//! What an intent comes to, before anything is written: every file read, every value found, every new text verified.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::{Component, Path, PathBuf};

use serde_json::Value;
use similar::TextDiff;
use stead_model::diagnostic::Place;
use stead_model::intent::FileEdit;
use stead_model::yaml::edit::{self, Found, Spot, Wanted};
use stead_model::yaml::{self, Codes};
use stead_model::{Diagnostic, Diagnostics};

use crate::disk::body::hash;

/// The codes of files that intents edit.
const CODES: Codes = Codes::INTENT;

/// The files of an intent, with what they should hold.
#[derive(Clone, Debug, Default)]
pub struct Prepared {
    /// In the order in which the edits name them.
    pub files: Vec<PreparedFile>,
}

/// One file of an intent.
#[derive(Clone, Debug)]
pub struct PreparedFile {
    /// The file as the catalogue names it.
    pub name: String,
    /// Where it is, links followed.
    pub real: PathBuf,
    /// What it holds.
    pub before: String,
    /// What it should hold; the same if nothing changes.
    pub after: String,
    /// Its values, in the order of the edits.
    pub values: Vec<PreparedValue>,
}

/// One value of a file.
#[derive(Clone, Debug, PartialEq)]
pub struct PreparedValue {
    /// The number of its edit.
    pub edit: usize,
    /// Where it is in the document.
    pub path: String,
    /// Which node of the file it is.
    pub node: usize,
    /// The line it is in.
    pub line: u32,
    /// What it is.
    pub old: Value,
    /// What it should be.
    pub new: Value,
}

impl PreparedValue {
    /// Whether the value is another afterwards.
    pub fn changes(&self) -> bool {
        self.old != self.new
    }
}

impl PreparedFile {
    /// Whether the file is another afterwards.
    pub fn changes(&self) -> bool {
        self.before != self.after
    }

    /// Returns the SHA-256 of what it holds.
    pub fn sha256(&self) -> String {
        sha256(self.before.as_bytes())
    }
}

/// Returns the SHA-256 of `bytes` in hex digits.
pub(super) fn sha256(mut bytes: &[u8]) -> String {
    hash(&mut bytes).map_or_else(|_| String::new(), |(_, sha256)| sha256)
}

impl Prepared {
    /// Returns the files that will be written.
    pub fn changed(&self) -> impl Iterator<Item = &PreparedFile> {
        self.files.iter().filter(|file| file.changes())
    }

    /// Returns the unified diff of all files.
    pub fn diff(&self) -> String {
        let of_file = |file: &PreparedFile| {
            let (old, new) = (format!("a/{}", file.name), format!("b/{}", file.name));
            let diff = TextDiff::from_lines(&file.before, &file.after);
            diff.unified_diff().context_radius(3).header(&old, &new).to_string()
        };
        self.changed().map(of_file).collect()
    }
}

/// Returns what `edits` come to below `root`, or every problem: `intent/file` of files, `intent/path` of values.
pub fn prepare(root: &Path, edits: &[FileEdit]) -> Result<Prepared, Diagnostics> {
    let mut prepared = Prepared::default();
    let mut problems = Diagnostics::default();
    // Files are the same if they are at the same place, whatever they are called; those that cannot be read are
    // told once.
    let mut places: BTreeMap<PathBuf, usize> = BTreeMap::new();
    let mut unreadable: Vec<&str> = Vec::new();
    for (number, edit) in edits.iter().enumerate() {
        problems.0.extend(missing_path(root, edit));
        if unreadable.contains(&edit.file.as_str()) {
            continue;
        }
        let read = locate(root, &edit.file).and_then(|real| {
            if let Some(index) = places.get(&real) {
                return Ok(*index);
            }
            let before = read(&real, &edit.file)?;
            places.insert(real.clone(), prepared.files.len());
            let (name, after) = (edit.file.clone(), before.clone());
            prepared.files.push(PreparedFile { name, real, before, after, values: Vec::new() });
            Ok(prepared.files.len() - 1)
        });
        match read {
            Ok(index) => add(&mut prepared.files[index], number, edit, &mut problems),
            Err(mut found) => {
                unreadable.push(&edit.file);
                problems.0.append(&mut found.0);
            }
        }
    }
    if problems.has_errors() {
        // A file with several edits tells its own problems with each of them.
        let mut told: Vec<Diagnostic> = Vec::new();
        problems.0.retain(|problem| {
            let is_new = !told.contains(problem);
            told.push(problem.clone());
            is_new
        });
        return Err(problems.sorted());
    }
    Ok(prepared)
}

/// Applies one more edit to a file.
fn add(file: &mut PreparedFile, number: usize, edit: &FileEdit, problems: &mut Diagnostics) {
    let source = yaml_source(&file.name, &file.after);
    let spot = edit.spot();
    match edit::set(&source, &spot, &edit.value) {
        Ok(edited) => {
            let path = edit.path.to_string();
            let node = edited.before.node;
            let is_set = file.values.iter().any(|value| value.node == node);
            if is_set && edited.text.is_some() {
                let place = Place::Text { source, span: edited.before.span };
                let message = format!("two edits set `{path}`, to different values");
                problems.push(
                    Diagnostic::error(CODES.bad_value, place, message)
                        .path(path)
                        .help("take one of them out of the intent"),
                );
                return;
            }
            file.values.push(PreparedValue {
                edit: number,
                path,
                node,
                line: edited.before.span.line,
                old: edited.before.value,
                new: edit.value.to_json(),
            });
            if let Some(text) = edited.text {
                file.after = text;
            }
        }
        Err(mut found) => problems.0.append(&mut found.0),
    }
}

/// Returns the value at `spot` of a file below `root`.
pub fn current(root: &Path, file: &str, spot: &Spot) -> Result<Found, Diagnostics> {
    let real = locate(root, file)?;
    edit::find(&yaml_source(file, &read(&real, file)?), spot)
}

fn yaml_source(name: &str, text: &str) -> stead_model::diagnostic::Source {
    stead_model::diagnostic::Source { name: name.into(), text: text.into() }
}

fn problem(file: &str, message: impl Into<String>) -> Diagnostics {
    Diagnostics(vec![Diagnostic::error(CODES.syntax, Place::Named(file.to_owned()), message)])
}

/// Returns where a file below `root` is, links followed.
pub(super) fn locate(root: &Path, file: &str) -> Result<PathBuf, Diagnostics> {
    let cannot = |error: std::io::Error| problem(file, format!("cannot read the file: {error}"));
    let inside = Path::new(file).components().all(|part| !matches!(part, Component::ParentDir));
    if !inside || Path::new(file).is_absolute() {
        return Err(problem(file, "the file is outside the root"));
    }
    let root = root.canonicalize().map_err(cannot)?;
    let real = root.join(file).canonicalize().map_err(cannot)?;
    if real.starts_with(&root) { Ok(real) } else { Err(problem(file, "a link leads outside the root")) }
}

fn read(real: &Path, file: &str) -> Result<String, Diagnostics> {
    let cannot = |error: std::io::Error| problem(file, format!("cannot read the file: {error}"));
    let metadata = real.metadata().map_err(cannot)?;
    if !metadata.is_file() {
        return Err(problem(file, "this is not a regular file"));
    }
    let mut bytes = Vec::new();
    let most = yaml::MAX_BYTES as u64 + 1;
    std::fs::File::open(real).and_then(|open| open.take(most).read_to_end(&mut bytes)).map_err(cannot)?;
    yaml::source(file, bytes, CODES).map(|source| source.text.to_string())
}

/// Returns why a value that should be a path leads nowhere, or out of the root.
pub fn missing_path(root: &Path, edit: &FileEdit) -> Option<Diagnostic> {
    let Wanted::Text(value) = &edit.value else { return None };
    if !edit.must_exist {
        return None;
    }
    let wrong = |message: String| {
        let place = Place::Named(edit.file.clone());
        let wrong = Diagnostic::error(CODES.bad_value, place, message).path(edit.path.to_string());
        wrong.help("`must_exist` asks for an existing path under the root")
    };
    let climbs = Path::new(value).components().any(|part| matches!(part, Component::ParentDir));
    if climbs || Path::new(value).is_absolute() {
        return Some(wrong(format!("`{value}` is not a path under the root")));
    }
    let there = root.canonicalize().and_then(|root| Ok(root.join(value).canonicalize()?.starts_with(&root)));
    match there {
        Ok(true) => None,
        Ok(false) => Some(wrong(format!("`{value}` leads outside the root"))),
        Err(_) => Some(wrong(format!("`{value}` does not exist"))),
    }
}
