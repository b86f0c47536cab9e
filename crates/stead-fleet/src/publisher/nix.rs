//! The evaluator that uses Nix: evaluates, builds, signs and copies, always at one commit of the clone, pure and with its lock
//! file as it is.
//!
//! Each step is one `nix` program with time, memory and a process group of its own. What one printed before its end counts
//! only if it ended well.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use stead_engine::fleet::watch::FailureClass;
use stead_model::diagnostic::Source as Text;
use stead_model::fleet::artifact::StorePath;
use stead_model::fleet::nix_signature::PathFacts;
use stead_model::fleet::services::publisher::NixSettings;
use stead_model::fleet::vm::{DiskSource, Driver, Reading, read_vms};
use stead_model::fleet::{Artifact, FleetFile, VmSpec};
use stead_model::plan::Digest;
use stead_model::{Diagnostics, GroupName};

use super::PublishError;
use super::failure::{Failure, Stage};
use super::git::{absolute, quoted};
use super::kept::replace;
use crate::job::{Ended, Job, JobError};
use crate::nix_json;

/// The most evaluations that are kept.
const MOST_EVALUATIONS: usize = 256;

/// Where builds work, below what Nix keeps: one that is killed leaves its directory.
pub(super) const SCRATCH: &str = "tmp";

/// How long a question to the store may take.
const QUESTION: Duration = Duration::from_secs(600);

/// Returns whether images are one derivation, or a set of them.
const SHAPE: &str = "x: if (x.type or \"\") == \"derivation\" then null else builtins.attrNames x";

/// Returns settings whose paths mean the same wherever a program starts.
pub(super) fn placed(settings: &NixSettings) -> Result<NixSettings, PublishError> {
    let is_path = settings.store.contains('/');
    Ok(NixSettings {
        store: if is_path { absolute(&settings.store)? } else { settings.store.clone() },
        secret_key_file: settings.secret_key_file.as_deref().map(absolute).transpose()?,
        ..settings.clone()
    })
}

/// Nix, as it is used for one commit.
#[derive(Clone, Debug)]
pub(super) struct Nix {
    /// What `publisher.yaml` says.
    pub(super) settings: NixSettings,
    /// Where evaluations are kept.
    pub(super) evaluations: PathBuf,
    /// Where Nix keeps what it fetched.
    pub(super) cache_home: PathBuf,
    /// The commit as Nix names it.
    pub(super) flake: String,
    /// What `nix --version` says, once it was asked.
    pub(super) version: Arc<OnceLock<String>>,
}

/// What one step needs to say what went wrong.
#[derive(Clone, Copy, Debug)]
struct Step<'a> {
    stage: Stage,
    log: &'a Path,
    timeout: Duration,
}

impl Nix {
    fn nix(&self, step: Step<'_>) -> Job {
        let scratch = self.cache_home.join(SCRATCH);
        // If it cannot be made, Nix says so better.
        std::fs::create_dir_all(&scratch).ok();
        let mut job = Job::new(&self.settings.binary, step.timeout)
            .env("XDG_CACHE_HOME", &self.cache_home)
            .env("TMPDIR", scratch)
            .env("LC_ALL", "C")
            .memory(self.settings.memory_bytes)
            .log(step.log)
            .args(["--extra-experimental-features", "nix-command flakes"]);
        let import = self.settings.import_from_derivation.to_string();
        let fixed = [
            ("pure-eval", "true"),
            ("accept-flake-config", "false"),
            ("allow-import-from-derivation", import.as_str()),
        ];
        let given = self.settings.settings.iter().map(|(key, value)| (key.as_str(), value.as_str()));
        for (key, value) in given.chain(fixed) {
            job = job.args(["--option", key, value]);
        }
        job
    }

    /// Returns arguments that say which store is worked in.
    fn store(&self) -> Vec<&str> {
        match self.settings.store.as_str() {
            "auto" => Vec::new(),
            store => vec!["--store", store],
        }
    }

    /// Returns what `nix --version` says.
    async fn version(&self, step: Step<'_>) -> Result<String, Failure> {
        if let Some(version) = self.version.get() {
            return Ok(version.clone());
        }
        let job = Job::new(&self.settings.binary, QUESTION).arg("--version").log(step.log);
        let version = good(step.stage, run(step.stage, job).await?)?.text().trim().to_owned();
        Ok(self.version.get_or_init(|| version).clone())
    }

    /// Evaluates an attribute; none: the flake does not have it. What was evaluated at this commit before is not again.
    async fn eval(
        &self,
        step: Step<'_>,
        attribute: &str,
        apply: Option<&str>,
    ) -> Result<Option<String>, Failure> {
        let version = self.version(step).await?;
        let key = format!("{}\n{attribute}\n{}\n{version}", self.flake, apply.unwrap_or_default());
        let kept = self.evaluations.join(format!("{}.json", Digest::of(key.as_bytes())));
        if let Ok(text) = std::fs::read_to_string(&kept) {
            // Nothing at all is no JSON: there is no such attribute.
            return Ok(Some(text).filter(|text| !text.is_empty()));
        }
        let mut job = self.nix(step).arg("eval").args(self.store());
        job = job.args(["--no-update-lock-file", "--no-write-lock-file", "--json"]);
        if let Some(apply) = apply {
            job = job.args(["--apply", apply]);
        }
        let ended = run(step.stage, job.arg(format!("{}#{attribute}", self.flake))).await?;
        if !ended.status.success() && is_missing(&ended.stderr, attribute) {
            self.keep_evaluation(&kept, "");
            return Ok(None);
        }
        let text = good(step.stage, ended)?.text();
        self.keep_evaluation(&kept, &text);
        Ok(Some(text))
    }

    fn keep_evaluation(&self, path: &Path, text: &str) {
        // Without it the next try evaluates again, which costs time and nothing else.
        replace(path, text.as_bytes()).unwrap_or(());
        let Ok(entries) = std::fs::read_dir(&self.evaluations) else { return };
        let mut kept: Vec<_> = entries
            .flatten()
            .filter_map(|entry| Some((entry.metadata().ok()?.modified().ok()?, entry.path())))
            .collect();
        kept.sort();
        for (_, path) in kept.iter().take(kept.len().saturating_sub(MOST_EVALUATIONS)) {
            std::fs::remove_file(path).unwrap_or(());
        }
    }

    fn evaluating<'a>(&self, log: &'a Path) -> Step<'a> {
        Step { stage: Stage::Evaluated, log, timeout: self.settings.eval_timeout }
    }

    /// Returns the groups of the flake: those it names, and `default` where it has VMs of its own or there is no other.
    pub(super) async fn groups(
        &self,
        log: &Path,
        known: &BTreeSet<GroupName>,
    ) -> Result<BTreeSet<GroupName>, Failure> {
        let step = self.evaluating(log);
        let names = self.eval(step, "orchestrator.groups", Some("builtins.attrNames")).await?;
        let names: Vec<String> = match &names {
            Some(text) => serde_json::from_str(text).map_err(|error| unreadable("groups", &error))?,
            None => Vec::new(),
        };
        let mut groups = BTreeSet::new();
        for name in names {
            let bad =
                |why: String| Failure::permanent(Stage::Evaluated, format!("orchestrator.groups: {why}"));
            let group = GroupName::parse(&name).map_err(|error| bad(error.to_string()))?;
            if group == GroupName::fleet() {
                return Err(bad("`fleet` is the group of fleet.yaml".to_owned()));
            }
            groups.insert(group);
        }
        let default = GroupName::default_group();
        let is_there = groups.is_empty() || known.contains(&default) || {
            // What is wrong with it is told by its own pipeline.
            let vms = self.eval(step, "orchestrator.vms", None).await;
            !matches!(vms, Ok(None))
        };
        if is_there {
            groups.insert(default);
        }
        Ok(groups)
    }

    /// Returns the VMs of a group as they are written.
    pub(super) async fn vms(
        &self,
        log: &Path,
        group: &GroupName,
        fleet: &FleetFile,
        is_known: bool,
    ) -> Result<Vec<VmSpec>, Failure> {
        let attribute = attribute(group, "vms");
        let Some(text) = self.eval(self.evaluating(log), &attribute, None).await? else {
            if is_known {
                return Ok(Vec::new());
            }
            let error = format!("the flake has no attribute `{attribute}`");
            return Err(Failure::permanent(Stage::Evaluated, error));
        };
        let source = Text { name: attribute.as_str().into(), text: text.into() };
        let reading =
            Reading { group: Some(group), defaults: &fleet.defaults, driver: Some(Driver::CloudHypervisor) };
        let mut problems = Diagnostics::default();
        let vms = read_vms(&source, &reading, &mut problems);
        if problems.has_errors() {
            return Err(Failure::invalid(Stage::Evaluated, &problems.sorted()));
        }
        Ok(vms)
    }

    /// Builds the images of a group.
    pub(super) async fn build(&self, log: &Path, group: &GroupName) -> Result<(), Failure> {
        let images = attribute(group, "vmImages");
        let Some(shape) = self.eval(self.evaluating(log), &images, Some(SHAPE)).await? else { return Ok(()) };
        let names: Option<Vec<String>> =
            serde_json::from_str(&shape).map_err(|error| unreadable("vmImages", &error))?;
        let installables = match names {
            None => vec![format!("{}#{images}", self.flake)],
            Some(names) => {
                if let Some(bad) = names.iter().find(|name| !is_plain(name)) {
                    let error =
                        format!("{images}: `{bad}` is no name for an image: letters, digits, `-` and `_`");
                    return Err(Failure::permanent(Stage::Built, error));
                }
                names.iter().map(|name| format!("{}#{images}.{name}", self.flake)).collect()
            }
        };
        if installables.is_empty() {
            return Ok(());
        }
        let step = Step { stage: Stage::Built, log, timeout: self.settings.build_timeout };
        let job = self.nix(step).arg("build").args(self.store());
        let job = job.args(["--no-update-lock-file", "--no-write-lock-file", "--no-link", "--json"]);
        let ended = good(Stage::Built, run(Stage::Built, job.args(installables)).await?)?;
        nix_json::built(&ended.text()).map_err(|error| Failure::permanent(Stage::Built, error))?;
        Ok(())
    }

    /// Returns what is known of paths, and of everything they need if that is asked for.
    async fn path_infos(
        &self,
        step: Step<'_>,
        paths: &BTreeSet<StorePath>,
        is_recursive: bool,
    ) -> Result<Vec<nix_json::PathInfo>, Failure> {
        let mut job = self.nix(step).arg("path-info").args(self.store()).arg("--json");
        if knows_json_formats(&self.version(step).await?) {
            job = job.args(["--json-format", "1"]);
        }
        if is_recursive {
            job = job.arg("--recursive");
        }
        let job = job.args(paths.iter().map(StorePath::as_str));
        let ended = good(step.stage, run(step.stage, job).await?)?;
        nix_json::path_infos(&ended.text()).map_err(|error| Failure::permanent(step.stage, error))
    }

    /// Fills in the bits of every store path, and returns all that is needed to run the VMs.
    pub(super) async fn resolve(
        &self,
        log: &Path,
        vms: &mut [VmSpec],
    ) -> Result<BTreeMap<StorePath, PathFacts>, Failure> {
        let step = Step { stage: Stage::Built, log, timeout: QUESTION };
        let wanted: BTreeSet<StorePath> = store_paths(vms);
        if wanted.is_empty() {
            return Ok(BTreeMap::new());
        }
        let found = match self.path_infos(step, &wanted, false).await {
            Ok(found) => found,
            // Newer ones refuse all if one is not there: which one is found by asking for each.
            Err(failure) if failure.class == FailureClass::Permanent => {
                let mut found = Vec::new();
                for path in &wanted {
                    let one = BTreeSet::from([path.clone()]);
                    found.extend(self.path_infos(step, &one, false).await.unwrap_or_default());
                }
                found
            }
            Err(failure) => return Err(failure),
        };
        let valid: BTreeMap<StorePath, PathFacts> =
            found.into_iter().filter_map(|(path, facts)| Some((path, facts?))).collect();
        if let Some(failure) = not_built(vms, &valid) {
            return Err(failure);
        }
        let bits = valid.iter().map(|(path, facts)| (path.clone(), facts.sri())).collect();
        vms.iter_mut().for_each(|vm| fill_in(vm, &bits));
        let closure = self.path_infos(step, &wanted, true).await?;
        Ok(closure.into_iter().filter_map(|(path, facts)| Some((path, facts?))).collect())
    }

    /// Signs and copies paths with everything they need.
    pub(super) async fn copy(&self, log: &Path, paths: &BTreeSet<StorePath>) -> Result<(), Failure> {
        let step = Step { stage: Stage::Cached, log, timeout: self.settings.build_timeout };
        let cache = self.cache()?;
        let names: Vec<&str> = paths.iter().map(StorePath::as_str).collect();
        let mut to = cache.to_owned();
        match &self.settings.secret_key_file {
            Some(key) if cache.starts_with("file://") => {
                to.push(if cache.contains('?') { '&' } else { '?' });
                to.push_str(&format!("secret-key={}", quoted(key)));
            }
            Some(key) => {
                let job = self.nix(step).args(["store", "sign"]).args(self.store());
                let job = job.args(["--recursive", "--key-file", key]).args(&names);
                away(run(Stage::Cached, job).await?)?;
            }
            None => {}
        }
        let job = self.nix(step).arg("copy").args(self.store()).args(["--to", &to]).args(&names);
        away(run(Stage::Cached, job).await?)
    }

    /// Signs what is in the cache already, and not by our key.
    pub(super) async fn sign_in_cache(&self, log: &Path, paths: &BTreeSet<StorePath>) -> Result<(), Failure> {
        let Some(key) = &self.settings.secret_key_file else { return Ok(()) };
        let step = Step { stage: Stage::Cached, log, timeout: QUESTION };
        let job = self.nix(step).args(["store", "sign", "--store", self.cache()?]);
        let job = job.args(["--recursive", "--key-file", key]).args(paths.iter().map(StorePath::as_str));
        away(run(Stage::Cached, job).await?)
    }

    fn cache(&self) -> Result<&str, Failure> {
        let why = "VMs of this commit need store paths, and nothing says where workers fetch these: set `nix.cache` of publisher.yaml";
        self.settings.cache.as_deref().ok_or_else(|| Failure::permanent(Stage::Cached, why))
    }
}

/// Returns the attribute of a group.
fn attribute(group: &GroupName, what: &str) -> String {
    if *group == GroupName::default_group() {
        format!("orchestrator.{what}")
    } else {
        format!("orchestrator.groups.{group}.{what}")
    }
}

/// Whether a name needs no quotes in the name of an attribute.
fn is_plain(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_'".contains(&byte))
}

fn unreadable(what: &str, error: &serde_json::Error) -> Failure {
    Failure::permanent(Stage::Evaluated, format!("what Nix printed of `{what}` cannot be read: {error}"))
}

/// Whether a flake does not have `attribute` at all, which is not one that lacks something inside.
fn is_missing(stderr: &str, attribute: &str) -> bool {
    stderr.contains("does not provide attribute") && stderr.contains(&format!("'{attribute}'"))
}

/// Whether `path-info` has versions of what it prints: Nix from 2.33 on.
fn knows_json_formats(version: &str) -> bool {
    let Some(number) = version.strip_prefix("nix (Nix) ") else { return false };
    let mut parts =
        number.split(|letter: char| !letter.is_ascii_digit()).map(|part| part.parse().unwrap_or(0_u32));
    (parts.next().unwrap_or(0), parts.next().unwrap_or(0)) >= (2, 33)
}

/// Returns the store paths of VMs.
pub(super) fn store_paths(vms: &[VmSpec]) -> BTreeSet<StorePath> {
    let artifacts = vms.iter().flat_map(VmSpec::artifacts);
    artifacts.filter_map(|(_, artifact)| artifact.store_path().cloned()).collect()
}

/// Returns what is wrong if a path of a VM was not built, or its bits are not those that are written.
fn not_built(vms: &[VmSpec], valid: &BTreeMap<StorePath, PathFacts>) -> Option<Failure> {
    let mut lines = Vec::new();
    let mut first = None;
    for vm in vms {
        for (field, artifact) in vm.artifacts() {
            let Some(path) = artifact.store_path() else { continue };
            let why = match (valid.get(path), artifact) {
                (None, _) => "was not built: `vmImages` does not cover it (fleet/not-built)".to_owned(),
                (Some(facts), Artifact::Store { nar_hash, .. }) if facts.sri() != *nar_hash => {
                    format!("has narHash {}, not {nar_hash} (fleet/nar-mismatch)", facts.sri())
                }
                (Some(_), Artifact::Store { .. } | Artifact::Written { .. } | Artifact::Blob { .. }) => {
                    continue;
                }
            };
            first.get_or_insert_with(|| vm.id.to_string());
            lines.push(format!("VM `{}`, {field}: {} {why}", vm.id, path.as_str()));
        }
    }
    let vm = Some(first?);
    Some(Failure { vm, ..Failure::permanent(Stage::Built, lines.join("\n")) })
}

/// Fills in the bits of every path whose bits are known.
pub(super) fn fill_in(vm: &mut VmSpec, bits: &BTreeMap<StorePath, String>) {
    let fill = |artifact: &mut Artifact| {
        if let Artifact::Written { path, sub } = artifact
            && let Some(nar_hash) = bits.get(path)
        {
            *artifact = Artifact::Store { path: path.clone(), sub: sub.clone(), nar_hash: nar_hash.clone() };
        }
    };
    let runtime = &mut vm.runtime;
    let single = [
        &mut runtime.kernel,
        &mut runtime.initrd,
        &mut runtime.firmware,
        &mut runtime.rootfs,
        &mut runtime.config,
    ];
    single.into_iter().flatten().for_each(fill);
    for disk in &mut runtime.disks {
        if let DiskSource::Image(artifact) = &mut disk.source {
            fill(artifact);
        }
    }
    runtime.artifacts.iter_mut().for_each(fill);
}

/// Runs a program; one that takes too long is a want of time.
async fn run(stage: Stage, job: Job) -> Result<Ended, Failure> {
    job.run().await.map_err(|error| match error {
        JobError::Timeout { .. } => Failure::resource(stage, error.to_string()),
        JobError::Start { .. } | JobError::TooMuch { .. } => Failure::permanent(stage, error.to_string()),
        JobError::Pipe { .. } => Failure::transient(stage, error.to_string()),
    })
}

/// Returns how a program ended, if it ended well.
fn good(stage: Stage, ended: Ended) -> Result<Ended, Failure> {
    if ended.status.success() {
        return Ok(ended);
    }
    let text = complaint(&ended);
    Err(match class_of(&ended) {
        FailureClass::Permanent => Failure::permanent(stage, text),
        FailureClass::Transient => Failure::transient(stage, text),
        FailureClass::Resource => Failure::resource(stage, text),
    })
}

/// Whether a program of the cache ended well; if not, the cache is away.
fn away(ended: Ended) -> Result<(), Failure> {
    match good(Stage::Cached, ended) {
        Ok(_) => Ok(()),
        Err(failure) if failure.class == FailureClass::Resource => Err(failure),
        Err(failure) => Err(Failure { class: FailureClass::Transient, ..failure }),
    }
}

/// Returns whether trying again helps.
fn class_of(ended: &Ended) -> FailureClass {
    use std::os::unix::process::ExitStatusExt as _;
    const MEMORY: [&str; 4] = ["out of memory", "Out of Memory", "bad_alloc", "Cannot allocate memory"];
    const NETWORK: [&str; 7] = [
        "unable to download",
        "Couldn't resolve host",
        "Could not resolve",
        "Connection refused",
        "Connection timed out",
        "Connection reset",
        "cannot connect to",
    ];
    let says = |words: &[&str]| words.iter().any(|word| ended.stderr.contains(word));
    if ended.status.signal() == Some(9) || says(&MEMORY) {
        FailureClass::Resource
    } else if says(&NETWORK) {
        FailureClass::Transient
    } else {
        FailureClass::Permanent
    }
}

/// Returns what Nix complains of: its errors, with its own files and lines.
fn complaint(ended: &Ended) -> String {
    const LONGEST: usize = 4000;
    let from = ended.stderr.find("error:").unwrap_or_default();
    let text: String = ended.stderr.get(from..).unwrap_or_default().trim().chars().take(LONGEST).collect();
    if text.is_empty() { format!("nix: {}", ended.describe()) } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_formats_are_asked_of_who_knows_them() {
        for known in ["nix (Nix) 2.33.0", "nix (Nix) 2.40pre1_x", "nix (Nix) 3.0"] {
            assert!(knows_json_formats(known), "{known}");
        }
        for unknown in ["nix (Nix) 2.8.0", "nix (Nix) 2.32.4", "nix (Lix, like Nix) 2.93.0", ""] {
            assert!(!knows_json_formats(unknown), "{unknown}");
        }
    }

    #[test]
    fn a_missing_attribute_is_told_from_an_error_inside() {
        let missing = "error: flake 'x' does not provide attribute 'packages.x86_64-linux.orchestrator.groups', 'legacyPackages.x86_64-linux.orchestrator.groups' or 'orchestrator.groups'";
        assert!(is_missing(missing, "orchestrator.groups"));
        assert!(!is_missing(missing, "orchestrator.vms"));
        assert!(!is_missing("error: attribute 'x' missing\n at flake.nix:1:2", "orchestrator.vms"));
    }
}
