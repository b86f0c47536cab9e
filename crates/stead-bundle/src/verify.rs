//! Strict verification: whether a bundle is whole, unchanged, and what it claims to be.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::Value;
use stead_model::ExitCode;
use stead_model::plan::Digest;

use crate::error::RecordError;
use crate::hashes::{HashLine, hash_files};
use crate::layout::{EVENTS, HASHES, LOCK, PLAN, REPORT, RUN_META, SIGNATURE, VERSIONS, inside, shown};
use crate::lock::{Holder, holder_of};
use crate::seal::contents;

/// Metadata longer than this is refused rather than read.
const LONGEST_METADATA: u64 = 64 << 20;

/// What to forgive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VerifyOptions {
    /// Files that `hashes.txt` does not list are warnings.
    pub allow_extra: bool,
}

/// What verification found. Each path is in one list at most once; lists are sorted by path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Verification {
    /// Whether there are no errors.
    pub valid: bool,
    /// Whether there is a `hashes.txt`.
    pub sealed: bool,
    /// The run, if its metadata says so.
    pub run_id: Option<String>,
    /// How the run ended, if its metadata says so.
    pub status: Option<String>,
    /// How many files were looked at.
    pub files_checked: u64,
    /// How many of them have the hash they should have.
    pub hashes_verified: u64,
    /// Files with another hash.
    pub hash_mismatches: Vec<String>,
    /// Files that are listed or required and not there.
    pub missing_files: Vec<String>,
    /// Files that are not listed.
    pub extra_files: Vec<String>,
    /// Everything that makes it invalid.
    pub errors: Vec<Finding>,
    /// What a person should know.
    pub warnings: Vec<Finding>,
    /// Its signature.
    pub signature: Signature,
}

/// One thing found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// A stable word.
    pub code: &'static str,
    /// The file, relative to the bundle.
    pub path: String,
    /// One sentence.
    pub message: String,
}

/// What is known of a bundle's signature; null is not known.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Signature {
    /// Whether there is one.
    pub present: bool,
    /// Whether it fits `hashes.txt`.
    pub valid: Option<bool>,
    /// Whether its signer is one of those allowed.
    pub trusted: Option<bool>,
    /// The signer's key.
    pub fingerprint: Option<String>,
}

impl Signature {
    pub(crate) fn of(bundle: &Path) -> Self {
        Self { present: bundle.join(SIGNATURE).is_file(), ..Self::default() }
    }
}

/// Why there is nothing to verify.
#[derive(Debug, thiserror::Error)]
pub enum VerifyError {
    /// No such directory, or no bundle.
    #[error("{path} is not a bundle", path = path.display())]
    NotABundle {
        /// What was given.
        path: PathBuf,
    },
    /// The run still lives.
    #[error("{path} is in progress{}", by(holder.as_ref()), path = path.display())]
    InProgress {
        /// The bundle.
        path: PathBuf,
        /// Who runs it, if known.
        holder: Option<Holder>,
    },
    /// It could not be read.
    #[error(transparent)]
    Read(#[from] RecordError),
}

fn by(holder: Option<&Holder>) -> String {
    holder.map_or_else(String::new, |holder| format!(": pid {} since {}", holder.pid, holder.since))
}

impl VerifyError {
    /// Returns what the process exits with.
    pub fn exit_code(&self) -> ExitCode {
        match self {
            Self::NotABundle { .. } => ExitCode::Invalid,
            Self::InProgress { .. } => ExitCode::Locked,
            Self::Read(_) => ExitCode::Verification,
        }
    }
}

impl Verification {
    /// Returns what the process exits with.
    pub fn exit_code(&self) -> ExitCode {
        if self.valid { ExitCode::Success } else { ExitCode::Verification }
    }
}

/// Returns what is wrong with the bundle directory at `bundle`, if anything is.
pub fn verify(bundle: &Path, options: VerifyOptions) -> Result<Verification, VerifyError> {
    let is_bundle = [RUN_META, HASHES].iter().any(|name| bundle.join(name).symlink_metadata().is_ok());
    if !bundle.is_dir() || !is_bundle {
        return Err(VerifyError::NotABundle { path: bundle.to_owned() });
    }
    if let Some(holder) = holder_of(&bundle.join(LOCK))? {
        return Err(VerifyError::InProgress { path: bundle.to_owned(), holder });
    }
    let mut check = Check {
        bundle,
        options,
        errors: BTreeMap::new(),
        warnings: BTreeMap::new(),
        hashed: BTreeMap::new(),
    };
    let meta = check.metadata(RUN_META);
    let text =
        |key: &str| meta.as_ref().and_then(|meta| meta.get(key)).and_then(Value::as_str).map(str::to_owned);
    let (run_id, status) = (text("run_id"), text("status"));
    check.identity(meta.as_ref(), run_id.as_deref(), status.as_deref());
    let listed = check.read_hashes()?;
    let counts = check.compare(listed.as_ref())?;
    check.required(meta.as_ref());
    check.roles();

    let paths = |code: &str, found: &BTreeMap<(String, &'static str), String>| -> Vec<String> {
        found.keys().filter(|(_, found)| *found == code).map(|(path, _)| path.clone()).collect()
    };
    let mut extra_files = paths("extra-file", &check.errors);
    extra_files.extend(paths("extra-file", &check.warnings));
    Ok(Verification {
        valid: check.errors.is_empty(),
        sealed: listed.is_some(),
        run_id,
        status,
        files_checked: counts.0,
        hashes_verified: counts.1,
        hash_mismatches: paths("hash-mismatch", &check.errors),
        missing_files: paths("missing-file", &check.errors),
        extra_files,
        errors: findings(check.errors),
        warnings: findings(check.warnings),
        signature: Signature::of(bundle),
    })
}

fn findings(found: BTreeMap<(String, &'static str), String>) -> Vec<Finding> {
    found.into_iter().map(|((path, code), message)| Finding { code, path, message }).collect()
}

struct Check<'a> {
    bundle: &'a Path,
    options: VerifyOptions,
    // By path and code: each path once per code.
    errors: BTreeMap<(String, &'static str), String>,
    warnings: BTreeMap<(String, &'static str), String>,
    // What was found, for metadata that states hashes of its own.
    hashed: BTreeMap<PathBuf, Digest>,
}

impl Check<'_> {
    fn error(&mut self, path: &Path, code: &'static str, message: impl Into<String>) {
        self.errors.entry((shown(path).into_owned(), code)).or_insert_with(|| message.into());
    }

    /// Returns the object in a metadata file, or notes why there is none. A missing one is noted elsewhere.
    fn metadata(&mut self, name: &str) -> Option<Value> {
        let path = self.bundle.join(name);
        let name = Path::new(name);
        if !path.symlink_metadata().is_ok_and(|found| found.is_file()) {
            return None;
        }
        let mut bytes = Vec::new();
        let read = File::open(&path).and_then(|file| file.take(LONGEST_METADATA).read_to_end(&mut bytes));
        if let Err(error) = read {
            self.error(name, "unreadable", format!("it cannot be read: {error}"));
            return None;
        }
        match serde_json::from_slice::<Value>(&bytes) {
            Ok(value @ Value::Object(_)) => return Some(value),
            Ok(_) => self.error(name, "bad-metadata", "it is not a JSON object"),
            Err(error) => self.error(name, "bad-metadata", format!("it is not JSON: {error}")),
        }
        None
    }

    fn identity(&mut self, meta: Option<&Value>, run_id: Option<&str>, status: Option<&str>) {
        let path = Path::new(RUN_META);
        if meta.is_some() {
            let lacking: Vec<_> = [("run_id", run_id), ("status", status)]
                .into_iter()
                .filter(|(_, value)| value.is_none_or(str::is_empty))
                .map(|(key, _)| format!("`{key}`"))
                .collect();
            if !lacking.is_empty() {
                self.error(path, "bad-metadata", format!("it lacks {}", lacking.join(" and ")));
            }
        }
        self.metadata(VERSIONS);
        let name = fs::canonicalize(self.bundle).ok();
        let name = name.as_deref().and_then(Path::file_name).map(|name| name.to_string_lossy().into_owned());
        if let (Some(run_id), Some(name)) = (run_id, name)
            && run_id != name
        {
            let message = format!("the directory is called `{name}`, the run `{run_id}`");
            self.warnings.insert((RUN_META.to_owned(), "other-name"), message);
        }
    }

    /// Returns what `hashes.txt` says, none if there is no seal.
    fn read_hashes(&mut self) -> Result<Option<BTreeMap<PathBuf, Digest>>, VerifyError> {
        let name = Path::new(HASHES);
        if self.bundle.join(HASHES).symlink_metadata().is_ok_and(|found| !found.is_file()) {
            self.error(name, "unsealed", "it is not a file, so the bundle has no seal");
            return Ok(None);
        }
        let bytes = match fs::read(self.bundle.join(HASHES)) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                self.error(
                    name,
                    "unsealed",
                    "the bundle has no seal: its run did not end, or lost its driver",
                );
                return Ok(None);
            }
            Err(error) => return Err(RecordError::of("read", &self.bundle.join(HASHES))(error).into()),
        };
        let mut listed = BTreeMap::new();
        let lines = bytes.strip_suffix(b"\n").unwrap_or(&bytes);
        if lines.is_empty() {
            self.error(name, "empty-hashes", "it lists no file");
            return Ok(Some(listed));
        }
        let mut problems = Vec::new();
        for (number, line) in lines.split(|byte| *byte == b'\n').enumerate() {
            match HashLine::parse(line) {
                Err(error) => problems.push(format!("line {}: {error}", number + 1)),
                Ok(line) => {
                    let own = [HASHES, SIGNATURE, LOCK].iter().any(|own| line.path == Path::new(own));
                    if own {
                        problems.push(format!("line {}: {} is never listed", number + 1, shown(&line.path)));
                    } else if listed.insert(line.path.clone(), line.digest).is_some() {
                        problems.push(format!("line {}: {} is listed twice", number + 1, shown(&line.path)));
                    }
                }
            }
        }
        if !problems.is_empty() {
            self.error(name, "bad-hashes", problems.join("; "));
        }
        Ok(Some(listed))
    }

    /// Compares what is there with what is listed; returns how many files were looked at and how many fit.
    fn compare(&mut self, listed: Option<&BTreeMap<PathBuf, Digest>>) -> Result<(u64, u64), VerifyError> {
        let contents = contents(self.bundle)?;
        for path in &contents.others {
            self.error(path, "not-a-file", "it is neither a file nor a directory");
        }
        let Some(listed) = listed else { return Ok((contents.files.len() as u64, 0)) };
        let mut present = BTreeSet::new();
        let mut to_hash = Vec::new();
        for (path, len) in contents.files {
            if listed.contains_key(&path) {
                present.insert(path.clone());
                to_hash.push((path, len));
            } else if self.options.allow_extra {
                self.warnings
                    .insert((shown(&path).into_owned(), "extra-file"), "it is not listed".to_owned());
            } else {
                self.error(&path, "extra-file", "it is not listed in hashes.txt");
            }
        }
        for path in listed.keys().filter(|path| !present.contains(*path) && !contents.others.contains(path)) {
            self.error(path, "missing-file", "it is listed in hashes.txt and not there");
        }
        let mut verified = 0;
        for ((path, _), found) in to_hash.iter().zip(hash_files(self.bundle, &to_hash)) {
            match found {
                Ok(found) if listed.get(path) == Some(&found) => {
                    verified += 1;
                    self.hashed.insert(path.clone(), found);
                }
                Ok(found) => {
                    self.error(path, "hash-mismatch", format!("it was changed: its hash is {found}"));
                    self.hashed.insert(path.clone(), found);
                }
                Err(error) => self.error(path, "unreadable", format!("it cannot be read: {error}")),
            }
        }
        Ok((to_hash.len() as u64, verified))
    }

    fn required(&mut self, meta: Option<&Value>) {
        // A bundle of CIPDIP has no schema; without metadata nothing but the metadata can be asked for.
        let schema = meta.and_then(|meta| meta.get("schema")).is_some();
        let kind = meta.and_then(|meta| meta.get("kind")).and_then(Value::as_str);
        let files: &[&str] = match (meta, schema, kind) {
            (None, _, _) => &[RUN_META],
            (Some(_), false, _) => &["manifest.yaml", RUN_META, VERSIONS],
            (Some(_), true, Some("run")) => {
                &[RUN_META, VERSIONS, PLAN, EVENTS, REPORT, "manifest.yaml", "manifest_resolved.yaml"]
            }
            (Some(_), true, _) => &[RUN_META, VERSIONS, PLAN, EVENTS, REPORT],
        };
        for name in files {
            if self.bundle.join(name).symlink_metadata().is_err() {
                self.error(Path::new(name), "missing-file", "every bundle of this kind has it");
            }
        }
        let known = ["run", "plan", "steps", "nodes", "fleet", "test"];
        if schema && !kind.is_some_and(|kind| known.contains(&kind)) {
            let message = format!("its `kind` is not one of {}", known.join(", "));
            self.error(Path::new(RUN_META), "bad-kind", message);
        }
    }

    /// Compares what each role's metadata says of its files with what is there.
    fn roles(&mut self) {
        let roles = fs::read_dir(self.bundle.join("roles")).into_iter().flatten().flatten();
        let mut names: Vec<_> = roles.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort_unstable();
        for name in names {
            let directory = format!("roles/{name}");
            let Some(meta) = self.metadata(&format!("{directory}/role_meta.json")) else { continue };
            let list = |key: &str| meta.get(key).and_then(Value::as_array).cloned().unwrap_or_default();
            let captures =
                list("pcap_files").into_iter().map(|file| (file.as_str().map(str::to_owned), None));
            let artifacts = list("artifacts").into_iter().map(|file| {
                let text = |key: &str| file.get(key).and_then(Value::as_str).map(str::to_owned);
                (text("path"), text("sha256"))
            });
            for (file, hash) in captures.chain(artifacts) {
                let own = PathBuf::from(format!("{directory}/role_meta.json"));
                let Some(file) = file.filter(|file| inside(file).is_some()) else {
                    self.error(&own, "bad-metadata", "it names a file without a path below its role");
                    continue;
                };
                let path = Path::new(&directory).join(&file);
                if !self.bundle.join(&path).is_file() {
                    self.error(&path, "missing-file", format!("role_meta.json of {name} names it"));
                } else if let (Some(hash), Some(found)) = (hash, self.hashed.get(&path))
                    && hash != found.to_string()
                {
                    self.error(&path, "hash-mismatch", format!("role_meta.json of {name} has another hash"));
                }
            }
        }
    }
}
