//! Paths of the Nix store: copied from caches that this worker trusts, compared with what was published.

use std::ffi::OsString;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;
use stead_model::fleet::Code;
use stead_model::fleet::artifact::StorePath;
use stead_model::fleet::nix_signature::PathFacts;
use stead_model::fleet::services::worker::WorkerNix;
use tokio::process::Command;

use super::{FetchError, Fetched};
use crate::job::Job;
use crate::nix_json::{parse_hash, path_infos};

/// How long one call of Nix may take.
const PATIENCE: Duration = Duration::from_secs(2 * 3600);
/// How long it may take to say its version.
const VERSION_PATIENCE: Duration = Duration::from_secs(10);

/// How Nix is called.
#[derive(Clone, Debug)]
pub(super) struct Nix {
    settings: WorkerNix,
    search_path: Option<OsString>,
}

/// How a call of Nix ended.
struct Said {
    is_well: bool,
    stdout: String,
    stderr: String,
}

impl Nix {
    pub(super) fn new(settings: &WorkerNix, search_path: Option<OsString>) -> Self {
        Self { settings: settings.clone(), search_path }
    }

    /// Makes a path and everything it refers to valid in the store, and compares it.
    pub(super) async fn fetch(&self, path: &StorePath, nar_hash: &str) -> Result<Fetched, FetchError> {
        let is_it = |facts: PathFacts| Some(facts.nar_sha256) == parse_hash(nar_hash);
        if self.facts(path).await?.is_some_and(is_it) {
            return Ok(Fetched::default());
        }
        let mut problem = None;
        for cache in &self.settings.caches {
            match self.copy(path, cache).await {
                Ok(()) => return self.compare(path, nar_hash, cache).await,
                Err(error) => {
                    let is_first =
                        problem.as_ref().is_none_or(|known: &FetchError| known.code == Code::FetchFailed);
                    if is_first {
                        problem = Some(error);
                    }
                }
            }
        }
        let problem = problem.unwrap_or_else(|| {
            FetchError::failed(format!("no cache to copy {} from: set `nix.caches`", path.as_str()))
        });
        let is_away = matches!(problem.code, Code::FetchFailed | Code::MissingDependency);
        if !(self.settings.local_build && is_away) {
            return Err(problem);
        }
        self.build(path, problem).await?;
        let built = self.compare(path, nar_hash, "this worker").await?;
        Ok(Fetched { is_built_locally: true, ..built })
    }

    /// Keeps a path from being collected, by a link.
    pub(super) async fn root(&self, path: &StorePath, link: &Path) -> Result<(), FetchError> {
        let job = self.job("build").arg("--offline").arg("--out-link").arg(link).arg(path.as_str());
        let said = run(job).await?;
        if said.is_well { Ok(()) } else { Err(FetchError::failed(said.last_words())) }
    }

    async fn copy(&self, path: &StorePath, cache: &str) -> Result<(), FetchError> {
        let said = run(self.job("copy").arg("--from").arg(cache).arg(path.as_str())).await?;
        if said.is_well {
            return Ok(());
        }
        let mut error = classify(path, &said.stderr);
        if error.code == Code::SignatureRejected {
            let keys = self.signers(path, cache).await?;
            let signed = if keys.is_empty() {
                "nobody signed it".to_owned()
            } else {
                format!("signed by {}", keys.join(", "))
            };
            error.message = format!("{}; {signed}", error.message);
        }
        Err(error)
    }

    /// Returns the names of the keys that a cache has signatures by.
    async fn signers(&self, path: &StorePath, cache: &str) -> Result<Vec<String>, FetchError> {
        let info = self.info_of(path, cache).await?;
        let signatures =
            entry_of(&info, path).and_then(|entry| entry.get("signatures")).and_then(Value::as_array);
        let names = signatures.into_iter().flatten().filter_map(|signature| match signature {
            Value::String(text) => text.split_once(':').map(|(name, _)| name.to_owned()),
            Value::Object(parts) => parts.get("keyName").and_then(Value::as_str).map(str::to_owned),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) => None,
        });
        Ok(names.collect())
    }

    /// Builds a path from the derivation that it comes of. Without one there is what kept it from being fetched.
    async fn build(&self, path: &StorePath, problem: FetchError) -> Result<(), FetchError> {
        let Some(deriver) = self.deriver(path).await? else {
            let message = format!("{}; it cannot be built: no cache names its derivation", problem.message);
            return Err(FetchError { message, ..problem });
        };
        for cache in &self.settings.caches {
            // With everything it is made from; one that is here needs no cache.
            let job = self.job("copy").arg("--derivation").arg("--from").arg(cache).arg(&deriver);
            if run(job).await?.is_well {
                break;
            }
        }
        let mut error = problem;
        // To older ones a derivation is what it makes, to newer ones it is that only if they are told so.
        for target in [format!("{deriver}^*"), deriver] {
            let said = run(self.job("build").arg("--no-link").arg(target)).await?;
            if !said.is_well {
                error = classify(path, &said.stderr);
            } else if self.facts(path).await?.is_some() {
                return Ok(());
            }
        }
        Err(error)
    }

    /// Returns the derivation that a path comes of, as this store or a cache knows it.
    async fn deriver(&self, path: &StorePath) -> Result<Option<String>, FetchError> {
        let job = self.job("path-info").arg("--offline").arg("--derivation").arg(path.as_str());
        let here = run(job).await?;
        let here = here.stdout.lines().find(|line| line.ends_with(".drv")).filter(|_| here.is_well);
        if let Some(deriver) = here {
            return Ok(Some(deriver.to_owned()));
        }
        for cache in &self.settings.caches {
            let info = self.info_of(path, cache).await?;
            let deriver =
                entry_of(&info, path).and_then(|entry| entry.get("deriver")).and_then(Value::as_str);
            if let Some(deriver) = deriver.filter(|deriver| deriver.ends_with(".drv")) {
                let name = deriver.rsplit('/').next().unwrap_or(deriver);
                return Ok(Some(format!("/nix/store/{name}")));
            }
        }
        Ok(None)
    }

    /// Returns what a cache says of a path.
    async fn info_of(&self, path: &StorePath, cache: &str) -> Result<Value, FetchError> {
        let job = self.plain_job("path-info").arg("--json").arg("--store").arg(cache).arg(path.as_str());
        Ok(serde_json::from_str(&run(job).await?.stdout).unwrap_or_default())
    }

    async fn compare(&self, path: &StorePath, nar_hash: &str, from: &str) -> Result<Fetched, FetchError> {
        match self.facts(path).await? {
            Some(facts) if Some(facts.nar_sha256) == parse_hash(nar_hash) => {
                Ok(Fetched { bytes: facts.nar_size, ..Fetched::default() })
            }
            facts => {
                let found = facts.map_or("nothing".to_owned(), |facts| facts.sri());
                let message = format!("{} of {from} is {found}, published was {nar_hash}", path.as_str());
                Err(FetchError { code: Code::NarMismatch, message })
            }
        }
    }

    /// Returns what the store knows of a valid path; none: it is not here.
    async fn facts(&self, path: &StorePath) -> Result<Option<PathFacts>, FetchError> {
        let said = run(self.job("path-info").arg("--offline").arg("--json").arg(path.as_str())).await?;
        if !said.is_well {
            return Ok(None);
        }
        let infos = path_infos(&said.stdout).map_err(FetchError::failed)?;
        let found = infos.into_iter().find(|(found, _)| found == path);
        Ok(found.and_then(|(_, facts)| facts))
    }

    /// Returns a call on this worker's store.
    fn job(&self, verb: &str) -> Job {
        let job = self.plain_job(verb);
        if self.settings.store == "auto" { job } else { job.arg("--store").arg(&self.settings.store) }
    }

    fn plain_job(&self, verb: &str) -> Job {
        let settings = &self.settings;
        let caches = if verb == "build" { settings.caches.join(" ") } else { String::new() };
        let job = Job::new(&settings.binary, PATIENCE)
            .arg(verb)
            .args(["--extra-experimental-features", "nix-command flakes"])
            // Whom this worker trusts is its own business, whatever the machine's Nix thinks.
            .args(["--option", "require-sigs", "true"])
            .args(["--option", "trusted-public-keys", &settings.public_keys.join(" ")])
            .args(["--option", "substituters", &caches])
            .env("LC_ALL", "C");
        match &self.search_path {
            Some(path) => job.env("PATH", path),
            None => job,
        }
    }
}

async fn run(job: Job) -> Result<Said, FetchError> {
    let ended = job.run().await.map_err(|error| FetchError::failed(error.to_string()))?;
    Ok(Said { is_well: ended.status.success(), stdout: ended.text(), stderr: ended.stderr })
}

impl Said {
    fn last_words(&self) -> String {
        stead_model::tail::last_words(&self.stderr).join(" ")
    }
}

/// Returns the version that a Nix says it has; none: there is no Nix.
pub(in crate::worker) async fn version(binary: &str, search_path: Option<&OsString>) -> Option<String> {
    let mut command = Command::new(binary);
    command.arg("--version").stdin(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
    if let Some(path) = search_path {
        command.env("PATH", path);
    }
    let output = tokio::time::timeout(VERSION_PATIENCE, command.output()).await.ok()?.ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    // `nix (Nix) 2.8.0`
    text.split_ascii_whitespace().last().map(str::to_owned)
}

/// Returns a path's part of what `nix path-info --json` says, in any of the forms it has had.
fn entry_of<'a>(info: &'a Value, path: &StorePath) -> Option<&'a Value> {
    match info {
        Value::Array(list) => {
            list.iter().find(|entry| entry.get("path").and_then(Value::as_str) == Some(path.as_str()))
        }
        Value::Object(map) => {
            let paths = map.get("info").unwrap_or(info);
            paths.get(path.as_str()).or_else(|| paths.get(path.base_name()))
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => None,
    }
}

/// What Nix says of an archive that is not what it should be.
const CORRUPT: [&str; 9] = [
    "hash mismatch",
    "corrupt",
    "failed to open archive",
    "failed to read compressed data",
    "bad archive",
    "not a nix archive",
    "lzma",
    "zstd",
    "decompress",
];

/// Returns what Nix's words mean.
fn classify(path: &StorePath, said: &str) -> FetchError {
    let lower = said.to_ascii_lowercase();
    let errors: Vec<&str> = said.lines().filter(|line| line.contains("error:")).collect();
    let told = if errors.is_empty() { said.trim().to_owned() } else { errors.join("; ") };
    let message = if told.is_empty() { format!("{} cannot be copied", path.as_str()) } else { told };
    let is_invalid = |line: &&str| line.contains("is not valid") && !line.contains(path.as_str());
    let code = if lower.contains("lacks a valid signature")
        || lower.contains("lacks a signature by a trusted key")
    {
        Code::SignatureRejected
    } else if lower.contains("does not exist in binary cache") || said.lines().any(|line| is_invalid(&line)) {
        Code::MissingDependency
    } else if CORRUPT.iter().any(|word| lower.contains(word)) {
        Code::NarMismatch
    } else {
        Code::FetchFailed
    };
    FetchError { code, message }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATH: &str = "/nix/store/nzwi9zybr70kfpbp3s3l07k0xxps0j12-vm-web";

    fn path() -> StorePath {
        StorePath::parse(PATH).unwrap()
    }

    /// Case 13: what Nix 2.8 and newer ones say.
    #[test]
    fn words_of_nix_have_their_code() {
        let dep = "/nix/store/z4asv3j07d89ywjf8fxkn7sg6mf5s9q5-dep";
        for (said, code) in [
            (
                format!(
                    "copying 2 paths...\nerror: cannot add path '{dep}' because it lacks a valid signature"
                ),
                Code::SignatureRejected,
            ),
            (
                format!("error: cannot add path '{dep}' because it lacks a signature by a trusted key"),
                Code::SignatureRejected,
            ),
            (
                "error: Failed to open archive (Lzma library error: Corrupted input data)".to_owned(),
                Code::NarMismatch,
            ),
            (format!("error: hash mismatch importing path '{PATH}';"), Code::NarMismatch),
            (format!("error: path '{dep}' is not valid"), Code::MissingDependency),
            (
                "error: file 'nar/1x.nar.xz' does not exist in binary cache".to_owned(),
                Code::MissingDependency,
            ),
            (
                format!("error: path '{PATH}' is required, but there is no substituter that can build it"),
                Code::FetchFailed,
            ),
            (format!("error: path '{PATH}' is not valid"), Code::FetchFailed),
            (String::new(), Code::FetchFailed),
        ] {
            assert_eq!(classify(&path(), &said).code, code, "{said}");
        }
    }
}
