//! Bits: got before anything is stopped, compared before anything uses them, kept while anything may need them.
//!
//! ```text
//!   fetch ── blobs: BASE/sha256/HEX ──▶ blobs/sha256/HEX        root ──▶ roots/HASH/closure.json, out-links
//!        └── paths: nix copy --from CACHE ──▶ nix store         collect ◀── what no VM had lately
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};
use stead_engine::fleet::reconcile::collectable;
use stead_model::VmId;
use stead_model::fleet::services::WorkerFile;
use stead_model::fleet::{Artifact, Code, VmSpec};
use stead_model::plan::Digest;

use super::files::{Files, make_directory, read, remove, replace, sweep};

mod blob;
mod nix;

pub(super) use nix::version as nix_version;

/// `roots/HASH/closure.json`: there once everything else of the directory is.
const CLOSURE: &str = "closure.json";

/// What keeps the bits of a spec.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Closure {
    blobs: BTreeSet<Digest>,
    paths: BTreeSet<String>,
    /// Whether no cache had some of it.
    is_built_locally: bool,
}

/// Why bits cannot be had.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub(super) struct FetchError {
    pub(super) code: Code,
    /// What is wrong, with the path or key that it is about.
    pub(super) message: String,
}

impl FetchError {
    fn failed(message: impl Into<String>) -> Self {
        Self { code: Code::FetchFailed, message: message.into() }
    }
}

/// What was fetched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Fetched {
    /// Bytes that came from elsewhere, as far as that is known.
    pub(super) bytes: u64,
    /// Whether no cache had some of it.
    pub(super) is_built_locally: bool,
}

/// How much of what a spec names has come.
#[derive(Debug)]
pub(super) struct Progress {
    came: AtomicU64,
    /// How much there is; none: nobody knows before it is here.
    total: Option<u64>,
}

impl Progress {
    /// Returns that of a spec of which nothing has come.
    pub(super) fn of(spec: &VmSpec) -> Self {
        let sizes = spec.artifacts().into_iter().map(|(_, artifact)| match artifact {
            Artifact::Blob { size, .. } => Some(*size),
            Artifact::Store { .. } | Artifact::Written { .. } => None,
        });
        Self { came: AtomicU64::new(0), total: sizes.sum() }
    }

    /// Takes what came.
    fn add(&self, bytes: u64) {
        self.came.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Returns it in words.
    pub(super) fn describe(&self) -> String {
        let came = self.came.load(Ordering::Relaxed);
        match self.total {
            Some(total) => format!("{came} of {total} bytes"),
            None => format!("{came} bytes"),
        }
    }
}

/// Gets bits and keeps them.
#[derive(Clone, Debug)]
pub(super) struct Fetcher {
    files: Files,
    artifacts: Option<String>,
    nix: nix::Nix,
}

impl Fetcher {
    /// Returns the fetcher of a worker.
    pub(super) fn new(files: Files, file: &WorkerFile, search_path: Option<std::ffi::OsString>) -> Self {
        Self { files, artifacts: file.artifacts.clone(), nix: nix::Nix::new(&file.nix, search_path) }
    }

    /// Gets everything that a spec names and is not here, and compares it.
    pub(super) async fn fetch(&self, spec: &VmSpec, progress: &Arc<Progress>) -> Result<Fetched, FetchError> {
        let mut fetched = Fetched::default();
        for (field, artifact) in spec.artifacts() {
            let about = |error: FetchError| FetchError {
                message: format!("{field}: {}", error.message),
                code: error.code,
            };
            match artifact {
                Artifact::Blob { sha256, size, .. } => {
                    let base = self.artifacts.as_deref();
                    let place = self.files.blob(sha256);
                    let fetching = blob::fetch(base, sha256, *size, &place, progress);
                    fetched.bytes += fetching.await.map_err(about)?;
                }
                Artifact::Store { path, nar_hash, .. } => {
                    let got = self.nix.fetch(path, nar_hash).await.map_err(about)?;
                    fetched.is_built_locally |= got.is_built_locally;
                    fetched.bytes += got.bytes;
                    progress.add(got.bytes);
                }
                Artifact::Written { path, .. } => {
                    return Err(about(FetchError::failed(format!("nobody built {}", path.as_str()))));
                }
            }
        }
        Ok(fetched)
    }

    /// Keeps the bits of a spec, which are here, from being collected.
    pub(super) async fn root(
        &self,
        hash: &Digest,
        spec: &Arc<VmSpec>,
        is_built_locally: bool,
    ) -> Result<(), FetchError> {
        let failed = |error: io::Error| FetchError::failed(format!("cannot keep {hash}: {error}"));
        let directory = self.files.root(hash);
        make_directory(&directory).map_err(failed)?;
        let mut closure = Closure { is_built_locally, ..Closure::default() };
        for (_, artifact) in spec.artifacts() {
            match artifact {
                Artifact::Blob { sha256, .. } => drop(closure.blobs.insert(*sha256)),
                Artifact::Store { path, .. } | Artifact::Written { path, .. } => {
                    if closure.paths.insert(path.as_str().to_owned()) {
                        self.nix.root(path, &directory.join(path.base_name())).await?;
                    }
                }
            }
        }
        let text = serde_json::to_vec(&closure).map_err(|error| failed(error.into()))?;
        replace(&directory.join(CLOSURE), &text).map_err(failed)
    }

    /// Writes down that a VM has this closure now.
    pub(super) fn remember(&self, vm: &VmId, hash: Digest) -> io::Result<()> {
        let mut history = self.files.history();
        let hashes = history.entry(vm.clone()).or_default();
        if hashes.last() == Some(&hash) {
            return Ok(());
        }
        hashes.retain(|known| *known != hash);
        hashes.push(hash);
        self.files.set_history(&history)
    }

    /// Whether the bits of a spec are kept, and whether some were built here.
    pub(super) fn is_rooted(&self, hash: &Digest) -> Option<bool> {
        let closure: Closure = read(&self.files.root(hash).join(CLOSURE))?;
        let is_whole = closure.blobs.iter().all(|blob| self.files.blob(blob).is_file());
        is_whole.then_some(closure.is_built_locally)
    }

    /// Drops what nothing runs, nothing may run and no VM of `here` had among its last `keep_previous`; returns how many
    /// closures.
    ///
    /// Only while nothing is being fetched: what was just got is not kept yet.
    /// Blobs of `wanted` stay: some of what a fetch needs may be here before the rest is.
    pub(super) fn collect(
        &self,
        here: &BTreeSet<VmId>,
        in_use: &BTreeSet<Digest>,
        wanted: &[Arc<VmSpec>],
        keep_previous: u32,
    ) -> io::Result<usize> {
        let mut history = self.files.history();
        let known: BTreeSet<Digest> = history.values().flatten().copied().collect();
        let mut gone: BTreeSet<Digest> =
            collectable(&history, here, in_use, keep_previous as usize).into_iter().collect();
        let roots = self.roots()?;
        // What was being kept when the agent died, and nobody had since.
        gone.extend(roots.keys().filter(|hash| !known.contains(hash) && !in_use.contains(hash)));
        for hash in &gone {
            // Without its list it is none; whoever comes next goes on.
            remove(&self.files.root(hash).join(CLOSURE))?;
            remove(&self.files.root(hash))?;
        }
        if history.values().flatten().any(|hash| gone.contains(hash)) {
            for hashes in history.values_mut() {
                hashes.retain(|hash| !gone.contains(hash));
            }
            history.retain(|_, hashes| !hashes.is_empty());
            self.files.set_history(&history)?;
        }
        let artifacts = wanted.iter().flat_map(|spec| spec.artifacts());
        let wanted = artifacts.filter_map(|(_, artifact)| match artifact {
            Artifact::Blob { sha256, .. } => Some(*sha256),
            Artifact::Store { .. } | Artifact::Written { .. } => None,
        });
        let rooted = self.roots()?.into_values().flatten().flat_map(|closure| closure.blobs);
        let kept: BTreeSet<Digest> = rooted.chain(wanted).collect();
        let blobs = self.files.place("blobs/sha256");
        // What was on its way when an agent died.
        sweep(&blobs)?;
        for (blob, path) in hashes_in(blobs)? {
            if !kept.contains(&blob) {
                remove(&path)?;
            }
        }
        Ok(gone.len())
    }

    fn roots(&self) -> io::Result<BTreeMap<Digest, Option<Closure>>> {
        let found = hashes_in(self.files.place("roots"))?;
        Ok(found.into_iter().map(|(hash, path)| (hash, read(&path.join(CLOSURE)))).collect())
    }
}

/// Returns what is called as a hash in a directory.
fn hashes_in(directory: PathBuf) -> io::Result<Vec<(Digest, PathBuf)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        let hash = path.file_name().and_then(|name| Digest::parse(name.to_str()?));
        found.extend(hash.map(|hash| (hash, path)));
    }
    Ok(found)
}
