//! Loading the sides of a comparison from bundles and capture files.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;

use globset::GlobSet;
use serde_json::Value;

use super::numbers::Numbers;
use super::sides::{RoleSide, Roles, Side, choose_capture};
use crate::analysis::{AnalysisOptions, Capture, CaptureError, analyze, analyze_file};
use crate::hashes::HashLine;
use crate::layout::{HASHES, RUN_META, VERSIONS, shown};
use crate::list::parsed;
use crate::roles::{ROLES, RoleFiles, in_role, is_role_meta, role_files, roles_of};
use crate::source::{Files, Source, read_held};
use crate::stored::LoadError;

/// What metadata may have together.
const MOST_METADATA: u64 = 64 << 20;
/// Longer files are not compared by content: a bundle may hold gigabytes of output.
const LONGEST_FILE: u64 = 32 << 20;
/// What is compared line by line may have together, on each side: it is held until it is compared.
const MOST_TEXT: u64 = 48 << 20;
/// As many numbers are compared, at most.
pub(super) const MOST_NUMBERS: usize = 200_000;

/// A side, and what could not be compared on it.
#[derive(Debug)]
pub struct LoadedSide {
    /// The side, without captures.
    pub side: Side,
    /// What a person should know.
    pub warnings: Vec<String>,
}

/// Returns the side that the bundle at `bundle` is, a directory or an archive, called `name`; files that match `text`, by
/// their path below the role's directory or with the role before it, are to be compared line by line.
///
/// Captures are not read: [`choose_roles`](super::choose_roles) says of which roles they are wanted, and
/// [`load_captures`] reads those.
pub fn load_bundle(bundle: &Path, name: &str, text: &GlobSet) -> Result<LoadedSide, LoadError> {
    let source = Source::open(bundle)?;
    let own = [RUN_META, VERSIONS, HASHES];
    let mut files = Files::new();
    let mut contents = BTreeMap::new();
    let mut left = MOST_METADATA;
    let mut room = Room { text: MOST_TEXT, numbers: MOST_NUMBERS };
    let listing = source.visit(&mut |path, bytes, content| {
        if is_role_meta(path) || own.iter().any(|name| path == Path::new(name)) {
            files.insert(path.to_owned(), read_held(content, &mut left));
        } else if let Some((role, name)) = in_role(path).map(|(role, name)| (shown(role), shown(name)))
            && (is_text(&role, &name, text) || name.ends_with(".json"))
        {
            let read = Content::read(content, bytes, is_text(&role, &name, text), &name, &mut room);
            contents.insert((role.into_owned(), name.into_owned()), read);
        }
    })?;
    let run_meta = parsed(&source, &files, RUN_META)?;
    let run_meta = Some(run_meta.ok_or_else(|| LoadError::NotABundle { path: bundle.to_owned() })?);
    let versions = parsed(&source, &files, VERSIONS)?;
    let recorded = recorded_hashes(files.get(Path::new(HASHES)).and_then(|read| read.as_ref().ok()));
    let mut warnings = Vec::new();
    let mut roles = BTreeMap::new();
    for (role, files) in roles_of(&files, &listing) {
        let mut side = RoleSide::default();
        note_artifacts(&role, &files, &recorded, &mut side, &mut warnings);
        for name in files.files.keys() {
            if let Some(content) = contents.remove(&(role.clone(), name.clone())) {
                content.note(&role, name, &mut side, &mut warnings);
            }
        }
        side.role_meta = files.meta;
        roles.insert(role, side);
    }
    let side = Side { name: name.to_owned(), run_meta, versions, roles, capture_alone: None };
    Ok(LoadedSide { side, warnings })
}

/// Returns the side that the capture at `path` alone is, called `name`.
pub fn load_capture(path: &Path, name: &str, options: &AnalysisOptions) -> Result<Side, CaptureError> {
    let capture = analyze_file(path, name, options)?;
    Ok(Side { name: name.to_owned(), capture_alone: Some(capture), ..Side::default() })
}

/// Analyses the capture of each of `roles` of the bundle at `bundle` into `side`.
pub fn load_captures(
    bundle: &Path,
    side: &mut Side,
    roles: &[String],
    options: &AnalysisOptions,
) -> Result<(), CaptureError> {
    let source = Source::open(bundle)?;
    let mut wanted = BTreeMap::new();
    for (role, files) in role_files(&source)?.iter().filter(|(role, _)| roles.contains(role)) {
        if let Some(name) = choose_capture(role, files.captures()) {
            wanted.insert(format!("{ROLES}/{role}/{name}"), role.clone());
        }
    }
    let mut failed = None;
    source.visit(&mut |path, bytes, content| {
        let name = shown(path);
        let Some(loaded) = wanted.get(&*name).and_then(|role| side.roles.get_mut(role)) else { return };
        match analyze(content, &name, options) {
            Ok(capture) => loaded.capture = Some(Capture { bytes, ..capture }),
            Err(error) => failed = failed.take().or(Some(error)),
        }
    })?;
    failed.map_or(Ok(()), Err)
}

impl Side {
    /// Returns the roles it has.
    pub fn roles(&self) -> Roles {
        match self.capture_alone {
            Some(_) => Roles::Any,
            None => Roles::Named(self.roles.keys().cloned().collect()),
        }
    }
}

fn is_text(role: &str, name: &str, text: &GlobSet) -> bool {
    text.is_match(name) || text.is_match(format!("{role}/{name}"))
}

/// What may still be held of the contents of one side.
struct Room {
    text: u64,
    numbers: usize,
}

/// What is compared of a file's content.
#[derive(Default)]
struct Content {
    text: Option<String>,
    numbers: Option<Numbers>,
    /// What is not compared, and why.
    missing: Vec<String>,
}

impl Content {
    /// Reads a file and keeps of it only what is compared, as long as there is room.
    fn read(content: &mut dyn Read, bytes: u64, is_text: bool, name: &str, room: &mut Room) -> Self {
        let mut found = Self::default();
        if bytes > LONGEST_FILE {
            found
                .missing
                .push(format!("its content is not compared: it has {bytes} bytes, more than {LONGEST_FILE}"));
            return found;
        }
        let read = match read_held(content, &mut LONGEST_FILE.clone()) {
            Ok(read) => read,
            Err(error) => {
                found.missing.push(format!("its content is not compared: {error}"));
                return found;
            }
        };
        if name.ends_with(".json") {
            match Numbers::read(&read, &mut room.numbers) {
                Ok(numbers) => found.numbers = Some(numbers),
                Err(error) => found.missing.push(format!("its numbers are not compared: {error}")),
            }
        }
        if is_text {
            match room.text.checked_sub(read.len() as u64) {
                Some(rest) => {
                    room.text = rest;
                    found.text = Some(String::from_utf8_lossy(&read).into_owned());
                }
                None => found.missing.push(format!(
                    "its lines are not compared: with it there are more than {MOST_TEXT} bytes"
                )),
            }
        }
        found
    }

    /// Notes it as what the file `name` of `role` holds.
    fn note(self, role: &str, name: &str, side: &mut RoleSide, warnings: &mut Vec<String>) {
        side.text.extend(self.text.map(|text| (name.to_owned(), text)));
        side.numbers.extend(self.numbers.map(|numbers| (name.to_owned(), numbers)));
        warnings.extend(self.missing.into_iter().map(|missing| format!("{role}/{name}: {missing}")));
    }
}

/// Notes the recorded hash of every artifact.
fn note_artifacts(
    role: &str,
    files: &RoleFiles,
    recorded: &BTreeMap<String, String>,
    side: &mut RoleSide,
    warnings: &mut Vec<String>,
) {
    let in_meta = artifacts_of(files.meta.as_ref());
    for name in files.artifacts() {
        let hash = in_meta.get(name).or_else(|| recorded.get(&format!("{ROLES}/{role}/{name}")));
        match hash {
            Some(hash) => drop(side.artifacts.insert(name.to_owned(), hash.clone())),
            None => warnings.push(format!("{role}/{name} has no recorded hash and is not compared")),
        }
    }
}

/// Returns the hashes that metadata of a role records.
fn artifacts_of(meta: Option<&Value>) -> BTreeMap<String, String> {
    let listed = meta.and_then(|meta| meta.get("artifacts")?.as_array()).into_iter().flatten();
    let hash = |artifact: &Value| {
        let text = |key: &str| Some(artifact.get(key)?.as_str()?.to_owned());
        Some((text("path")?, text("sha256")?))
    };
    listed.filter_map(hash).collect()
}

/// Returns the hashes of `hashes.txt`, as far as there are any.
fn recorded_hashes(bytes: Option<&Vec<u8>>) -> BTreeMap<String, String> {
    let bytes = bytes.map(Vec::as_slice).unwrap_or_default();
    let lines = bytes.split(|byte| *byte == b'\n').filter_map(|line| HashLine::parse(line).ok());
    lines.map(|line| (line.path.to_string_lossy().into_owned(), line.digest.to_string())).collect()
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::path::PathBuf;

    use globset::{Glob, GlobSetBuilder};

    use super::*;
    use crate::analysis::testing::{golden_a, golden_b};
    use crate::diff::{DiffOptions, RoleChoice, choose_roles, compare};

    fn globs(pattern: &str) -> GlobSet {
        GlobSetBuilder::new().add(Glob::new(pattern).unwrap()).build().unwrap()
    }

    /// Writes a bundle of one role.
    fn bundle(directory: &Path, name: &str, capture: &[u8], rps: u32) -> PathBuf {
        let bundle = directory.join(name);
        let write = |path: &str, bytes: &[u8]| {
            let path = bundle.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, bytes).unwrap();
        };
        write("run_meta.json", br#"{"run_id": "x", "status": "success", "duration_seconds": 2.5}"#);
        let meta = format!(
            r#"{{"exit_code": 0, "artifacts": [{{"path": "out.json", "bytes": 1, "sha256": "{rps}"}}]}}"#
        );
        write("roles/client/role_meta.json", meta.as_bytes());
        write("roles/client/client.pcap", capture);
        write("roles/client/out.json", format!(r#"{{"rps": {rps}}}"#).as_bytes());
        write("roles/client/broken.json", b"{");
        write("roles/client/stdout.log", format!("rate {rps}\n").as_bytes());
        let hashes = format!("{}  roles/client/client.pcap\n", stead_model::plan::Digest::of(capture));
        write("hashes.txt", hashes.as_bytes());
        bundle
    }

    /// Cases 29, 31: bundles are compared as they lie on disk, and with captures alone.
    #[test]
    fn bundles_are_loaded_and_compared() {
        let directory = tempfile::tempdir().unwrap();
        let paths = [
            bundle(directory.path(), "a", &golden_a(), 1000),
            bundle(directory.path(), "b", &golden_b(), 800),
        ];
        let options = AnalysisOptions::default();
        let sides = paths.map(|path| {
            let LoadedSide { mut side, warnings } = load_bundle(&path, "name", &globs("stdout.log")).unwrap();
            assert_eq!(warnings.len(), 2, "{warnings:?}");
            load_captures(&path, &mut side, &["client".to_owned()], &options).unwrap();
            side
        });
        let [old, new] = sides;
        let roles = choose_roles(&old.roles(), &new.roles(), &RoleChoice::Default).unwrap();
        assert_eq!(roles, [Some("client".to_owned())]);
        let diff = compare(&old, &new, Some("client"), &DiffOptions::default()).unwrap();
        assert_eq!((diff.summary.diff_score, diff.summary.text_lines_changed), (50, 2));
        assert_eq!(diff.generic.metrics["client/out.json#/rps"].delta_pct, Some(-20.0));
        assert_eq!(diff.generic.files_changed, ["client/client.pcap", "client/out.json"]);
        assert_eq!(diff.baseline_pcap.as_deref(), Some("roles/client/client.pcap"));

        let file = directory.path().join("b.pcap");
        fs::write(&file, golden_b()).unwrap();
        let alone = load_capture(&file, "b.pcap", &options).unwrap();
        let diff = compare(&old, &alone, Some("client"), &DiffOptions::default()).unwrap();
        assert_eq!(diff.summary.diff_score, 50);
    }

    /// However much roles left, what is held of it has a limit, and what is beyond it is said.
    #[test]
    fn contents_are_held_up_to_a_limit() {
        let directory = tempfile::tempdir().unwrap();
        let bundle = bundle(directory.path(), "a", &golden_a(), 1);
        let client = bundle.join("roles/client");
        let half = format!("[{}0]", "1,".repeat(MOST_NUMBERS / 2));
        let long = vec![b'x'; usize::try_from(MOST_TEXT / 2 + 1).unwrap()];
        for name in ["n1", "n2"] {
            fs::write(client.join(format!("{name}.json")), &half).unwrap();
            fs::write(client.join(format!("{name}.txt")), &long).unwrap();
        }
        fs::write(client.join("huge.json"), "").unwrap();
        let huge = File::options().write(true).open(client.join("huge.json")).unwrap();
        huge.set_len(LONGEST_FILE + 1).unwrap();
        let LoadedSide { side, warnings } = load_bundle(&bundle, "name", &globs("*.txt")).unwrap();
        let client = &side.roles["client"];
        assert_eq!(client.numbers.keys().collect::<Vec<_>>(), ["n1.json", "out.json"]);
        assert_eq!(client.text.keys().collect::<Vec<_>>(), ["n1.txt"]);
        for told in
            ["n2.json: its numbers", "n2.txt: its lines", "huge.json: its content", "broken.json: its"]
        {
            assert!(warnings.iter().any(|warning| warning.contains(told)), "{told}: {warnings:?}");
        }
    }

    #[test]
    fn what_is_no_bundle_is_said() {
        let directory = tempfile::tempdir().unwrap();
        let error = load_bundle(directory.path(), "x", &GlobSet::empty()).unwrap_err();
        assert!(matches!(error, LoadError::NotABundle { .. }), "{error}");
    }
}
