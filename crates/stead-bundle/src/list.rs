//! Showing bundles: one in full, many in a row. Reads generously: what is broken is said, not fatal.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde::Serialize;
use serde_json::Value;
use stead_model::time::Timestamp;

use crate::archive::ArchiveFormat;
use crate::error::RecordError;
use crate::layout::{HASHES, RUN_META, SIGNATURE, VERSIONS, shown};
use crate::roles::{is_role_meta, roles_of};
use crate::seal::is_sealed;
use crate::signature::{Checked, Signature};
use crate::source::{Files, Form, Source};
use crate::stored::LoadError;

/// One bundle, as `bundle info` shows it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Bundle {
    /// Where it is.
    pub path: String,
    /// The run, as its metadata says.
    pub run_id: Option<String>,
    /// `run_meta.json`.
    pub run_meta: Value,
    /// `versions.json`; null if there is none.
    pub versions: Value,
    /// `role_meta.json` of each role.
    pub roles: BTreeMap<String, Value>,
    /// Whether it has a seal.
    pub sealed: bool,
    /// How many files it has.
    pub files: u64,
    /// How long they are together.
    pub bytes: u64,
    /// Its signature.
    pub signature: Signature,
}

/// One bundle in a list.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Listed {
    /// The run.
    pub run_id: String,
    /// Where it is.
    pub path: String,
    /// Which front door; null in bundles of CIPDIP.
    pub kind: Option<String>,
    /// What ran, if it has a name.
    pub plan: Option<String>,
    /// How the run ended.
    pub status: String,
    /// When it began.
    pub started_at: Option<Timestamp>,
    /// How long it took.
    pub duration_seconds: Option<f64>,
    /// Whether it has a seal.
    pub sealed: bool,
}

/// The bundles of some directories.
#[derive(Debug, Default)]
pub struct Listing {
    /// Newest first.
    pub bundles: Vec<Listed>,
    /// Directories that look like bundles and cannot be read.
    pub problems: Vec<LoadError>,
}

/// Returns everything about the bundle at `path`, a directory or an archive.
pub fn info(path: &Path) -> Result<Bundle, LoadError> {
    let source = Source::open(path)?;
    let own = [RUN_META, VERSIONS, HASHES, SIGNATURE];
    let wanted = |path: &Path| is_role_meta(path) || own.iter().any(|name| path == Path::new(name));
    let (files, listing) = source.read_files(&wanted)?;
    let run_meta = parsed(&source, &files, RUN_META)?;
    let run_meta = run_meta.ok_or_else(|| LoadError::NotABundle { path: path.to_owned() })?;
    let versions = parsed(&source, &files, VERSIONS)?.unwrap_or(Value::Null);
    let held = |name: &str| files.get(Path::new(name)).and_then(|read| read.as_ref().ok());
    let signature = match (held(SIGNATURE), held(HASHES)) {
        (Some(signature), Some(hashes)) => Checked::of(signature, hashes).to_signature(),
        (signature, _) => Signature { present: signature.is_some(), ..Signature::default() },
    };
    // Files that hashes do not cover are files of the bundle too; the lock is not.
    let all = listing.contents.all();
    let roles = roles_of(&files, &listing).into_iter();
    Ok(Bundle {
        path: shown(path).into_owned(),
        run_id: text(&run_meta, "run_id"),
        run_meta,
        versions,
        roles: roles.filter_map(|(role, files)| Some((role, files.meta?))).collect(),
        sealed: held(HASHES).is_some(),
        files: all.len() as u64,
        bytes: all.iter().map(|(_, len)| len).sum(),
        signature,
    })
}

/// Returns the document in the file `name`, none if there is no such file.
pub(crate) fn parsed(source: &Source, files: &Files, name: &str) -> Result<Option<Value>, LoadError> {
    let path = source.path().join(name);
    match files.get(Path::new(name)) {
        None => Ok(None),
        Some(Ok(bytes)) => {
            serde_json::from_slice(bytes).map(Some).map_err(|source| LoadError::Meta { path, source })
        }
        Some(Err(error)) => {
            Err(RecordError::of("read", &path)(io::Error::new(error.kind(), error.to_string())).into())
        }
    }
}

/// Returns the bundles in `directories`, newest first; only those of `status` and at most `limit`, if given.
///
/// A directory that does not exist holds none.
pub fn list(
    directories: &[PathBuf],
    status: Option<&str>,
    limit: Option<usize>,
) -> Result<Listing, RecordError> {
    let mut listing = Lister::default().list(directories)?;
    listing.bundles.retain(|listed| status.is_none_or(|status| listed.status == status));
    listing.bundles.truncate(limit.unwrap_or(usize::MAX));
    Ok(listing)
}

/// Lists bundles again and again: what is sealed and has not changed since is not read again.
#[derive(Debug, Default)]
pub struct Lister {
    known: BTreeMap<PathBuf, (Stamp, Listed)>,
}

/// When a bundle and its metadata were written.
type Stamp = (SystemTime, Option<SystemTime>);

impl Lister {
    /// Returns the bundles in `directories`, newest first. A directory that does not exist holds none.
    pub fn list(&mut self, directories: &[PathBuf]) -> Result<Listing, RecordError> {
        let mut before = std::mem::take(&mut self.known);
        let mut listing = Listing::default();
        for path in bundles_in(directories)? {
            // Before it is read: what is written meanwhile is read next time.
            let stamp = stamp(&path);
            let known = before.remove(&path).filter(|(of, _)| stamp.as_ref() == Some(of));
            let listed = match known {
                Some((_, listed)) => Ok(listed),
                None => listed(&path),
            };
            match listed {
                Ok(listed) => {
                    if let Some(stamp) = stamp.filter(|_| listed.sealed) {
                        self.known.insert(path, (stamp, listed.clone()));
                    }
                    listing.bundles.push(listed);
                }
                Err(error) => listing.problems.push(error),
            }
        }
        let newest_first = |a: &Listed, b: &Listed| {
            (b.started_at, &b.run_id, &b.path).cmp(&(a.started_at, &a.run_id, &a.path))
        };
        listing.bundles.sort_by(newest_first);
        Ok(listing)
    }
}

fn stamp(bundle: &Path) -> Option<Stamp> {
    let written = |path: &Path| fs::metadata(path).and_then(|found| found.modified()).ok();
    // A run that is taken up again takes its seal away, which changes the directory.
    Some((written(bundle)?, written(&bundle.join(RUN_META))))
}

/// Returns every bundle in `directories`, directory or archive, each once, in no order.
pub(crate) fn bundles_in(directories: &[PathBuf]) -> Result<Vec<PathBuf>, RecordError> {
    let mut seen = std::collections::BTreeSet::new();
    let mut bundles = Vec::new();
    for directory in directories {
        let failed = RecordError::of("read directory", directory);
        let entries = match fs::read_dir(directory) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(failed(error)),
        };
        if let Ok(real) = fs::canonicalize(directory)
            && !seen.insert(real)
        {
            continue;
        }
        for entry in entries {
            let entry = entry.map_err(&failed)?;
            let path = entry.path();
            let hidden = entry.file_name().as_encoded_bytes().starts_with(b".");
            let is_bundle = || path.join(RUN_META).is_file() || (is_archive(&path) && path.is_file());
            if !hidden && is_bundle() {
                bundles.push(path);
            }
        }
    }
    Ok(bundles)
}

/// Returns whether a file of this name is taken for an archive.
fn is_archive(path: &Path) -> bool {
    ArchiveFormat::of_name(path).is_some()
}

/// Returns what the bundle at `path` is called: its directory's name, an archive's without its ending.
pub(crate) fn name_of(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let end =
        ArchiveFormat::of_name(path).filter(|_| !path.is_dir()).map(|format| format!(".{}", format.as_str()));
    end.and_then(|end| name.strip_suffix(&end).map(str::to_owned)).unwrap_or(name)
}

/// Returns the row of the bundle at `path`.
pub(crate) fn listed(path: &Path) -> Result<Listed, LoadError> {
    let source = Source::open(path)?;
    let (meta, sealed) = match source.form() {
        Form::Directory => (source.read(RUN_META)?, is_sealed(path)),
        Form::Archive(_) => {
            let (mut files, listing) = source.read_files(&|path| path == Path::new(RUN_META))?;
            let meta = files.remove(Path::new(RUN_META)).and_then(Result::ok);
            (meta, listing.contents.own.iter().any(|(path, _)| path == Path::new(HASHES)))
        }
    };
    let meta = meta.ok_or_else(|| LoadError::NotABundle { path: path.to_owned() })?;
    let meta: Value = serde_json::from_slice(&meta)
        .map_err(|source| LoadError::Meta { path: path.join(RUN_META), source })?;
    Ok(Listed {
        run_id: text(&meta, "run_id").unwrap_or_else(|| name_of(path)),
        path: shown(path).into_owned(),
        kind: text(&meta, "kind"),
        plan: text(&meta, "plan"),
        status: text(&meta, "status").unwrap_or_else(|| "unknown".to_owned()),
        started_at: text(&meta, "started_at").as_deref().and_then(Timestamp::parse),
        duration_seconds: meta.get("duration_seconds").and_then(Value::as_f64),
        sealed,
    })
}

fn text(value: &Value, key: &str) -> Option<String> {
    value.get(key).and_then(Value::as_str).map(str::to_owned)
}
