//! Showing bundles: one in full, many in a row. Reads generously: what is broken is said, not fatal.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::Value;
use stead_model::time::Timestamp;

use crate::error::RecordError;
use crate::layout::{HASHES, RUN_META, SIGNATURE, VERSIONS, shown};
use crate::seal::{contents, is_sealed};
use crate::stored::LoadError;
use crate::verify::Signature;

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

/// Returns everything about the bundle at `path`.
pub fn info(path: &Path) -> Result<Bundle, LoadError> {
    let run_meta = read_json(path, RUN_META)?;
    let versions = match read_json(path, VERSIONS) {
        Err(LoadError::NotABundle { .. }) => Value::Null,
        other => other?,
    };
    let contents = contents(path)?;
    // Files that hashes do not cover are files of the bundle too; the lock is not.
    let own = [HASHES, SIGNATURE]
        .iter()
        .filter_map(|name| fs::metadata(path.join(name)).ok())
        .map(|file| file.len());
    let lens = contents.files.iter().map(|(_, len)| *len).chain(own);
    let (files, bytes) = lens.fold((0, 0), |(files, bytes), len| (files + 1, bytes + len));
    let mut roles = BTreeMap::new();
    for entry in fs::read_dir(path.join("roles")).into_iter().flatten().flatten() {
        if let Ok(meta) = read_json(&entry.path(), "role_meta.json") {
            roles.insert(entry.file_name().to_string_lossy().into_owned(), meta);
        }
    }
    Ok(Bundle {
        path: shown(path).into_owned(),
        run_id: text(&run_meta, "run_id"),
        run_meta,
        versions,
        roles,
        sealed: is_sealed(path),
        files,
        bytes,
        signature: Signature::of(path),
    })
}

/// Returns the bundles in `directories`, newest first; only those of `status` and at most `limit`, if given.
///
/// A directory that does not exist holds none.
pub fn list(
    directories: &[PathBuf],
    status: Option<&str>,
    limit: Option<usize>,
) -> Result<Listing, RecordError> {
    let mut listing = Listing::default();
    for bundle in bundles_in(directories)? {
        match listed(&bundle) {
            Ok(listed) if status.is_none_or(|status| listed.status == status) => listing.bundles.push(listed),
            Ok(_) => {}
            Err(error) => listing.problems.push(error),
        }
    }
    let newest_first =
        |a: &Listed, b: &Listed| (b.started_at, &b.run_id, &b.path).cmp(&(a.started_at, &a.run_id, &a.path));
    listing.bundles.sort_by(newest_first);
    listing.bundles.truncate(limit.unwrap_or(usize::MAX));
    Ok(listing)
}

/// Returns every bundle directory in `directories`, each once, in no order.
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
            let hidden = entry.file_name().as_encoded_bytes().starts_with(b".");
            if !hidden && entry.path().join(RUN_META).is_file() {
                bundles.push(entry.path());
            }
        }
    }
    Ok(bundles)
}

/// Returns the row of the bundle at `path`.
pub(crate) fn listed(path: &Path) -> Result<Listed, LoadError> {
    let meta = read_json(path, RUN_META)?;
    let name = || path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    Ok(Listed {
        run_id: text(&meta, "run_id").unwrap_or_else(name),
        path: shown(path).into_owned(),
        kind: text(&meta, "kind"),
        status: text(&meta, "status").unwrap_or_else(|| "unknown".to_owned()),
        started_at: text(&meta, "started_at").as_deref().and_then(Timestamp::parse),
        duration_seconds: meta.get("duration_seconds").and_then(Value::as_f64),
        sealed: is_sealed(path),
    })
}

fn text(value: &Value, key: &str) -> Option<String> {
    value.get(key).and_then(Value::as_str).map(str::to_owned)
}

pub(crate) fn read_json(bundle: &Path, name: &str) -> Result<Value, LoadError> {
    let path = bundle.join(name);
    let bytes = match fs::read(&path) {
        Ok(bytes) => bytes,
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Err(LoadError::NotABundle { path: bundle.to_owned() });
        }
        Err(error) => return Err(RecordError::of("read", &path)(error).into()),
    };
    serde_json::from_slice(&bytes).map_err(|source| LoadError::Meta { path, source })
}
