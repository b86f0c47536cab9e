//! From a manifest file to a compiled run: everything of planning that reads files.
//!
//! All problems of manifest, kits, registry and files are told at once; those of flags first, by themselves.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use stead_bundle::diff::Threshold;
use stead_bundle::hash_file;
use stead_engine::compile::runs::{self, AGENT_FLAG, AgentFlag, CompiledRun, Prepared, RunInputs, SeenFile};
use stead_engine::compile::{Inputs, is_usage};
use stead_model::diagnostic::{Place, Source};
use stead_model::plan::Digest;
use stead_model::run_manifest::{CIPDIP, Kit, with_paths};
use stead_model::run_plan::Distribution;
use stead_model::yaml::{self, Codes};
use stead_model::{Diagnostic, Diagnostics, Inventory, RunManifest, Severity};

use crate::args::RunManifestArgs;
use crate::commands::plan::source::cannot_read;
use crate::commands::steps::load::read_regular;
use crate::failure::{Failure, FailureKind};
use crate::settings::Settings;

/// Diagnostic code: a kit's file that cannot be used.
const KIT: &str = "run/kit";
/// Diagnostic code: a bundle that cannot be compared with.
const BASELINE: &str = "run/baseline";

/// How much of a file is read at once to hash it.
const CHUNK: usize = 64 * 1024;

/// A run that can start.
#[derive(Debug)]
pub(crate) struct Loaded {
    /// The run.
    pub(crate) run: CompiledRun,
    /// The manifest's bytes.
    pub(crate) bytes: Vec<u8>,
    /// The manifest, absolute.
    pub(crate) path: PathBuf,
    /// Variables that were given, with their final values.
    pub(crate) given: BTreeMap<String, stead_model::Value>,
}

/// Returns the run that the manifest and the flags describe, or every problem.
pub(crate) fn load(args: &RunManifestArgs, settings: &Settings) -> Result<Loaded, Failure> {
    let name = args.file.display().to_string();
    let path = settings.current_dir.join(&args.file);
    let manifest_dir = path.parent().map_or_else(|| settings.current_dir.clone(), Path::to_owned);
    let unreadable = |error: &io::Error| Failure::invalid(Diagnostics(vec![cannot_read(&name, error)]));
    let bytes = read_regular(&path).map_err(|error| unreadable(&error))?;
    let source = yaml::source(&name, bytes.clone(), Codes::RUN).map_err(Failure::invalid)?;
    let flags = agent_flags(args)?;
    let mut problems = Diagnostics::default();
    let Some(manifest) = RunManifest::read(&source, &mut problems) else {
        return Err(Failure::invalid(with_paths(problems).sorted()));
    };
    let kits = kits(&manifest, &kit_directories(args, &manifest_dir, settings), &mut problems);
    let registry = registry(args, &manifest_dir, settings, &mut problems);
    let given = Inputs { vars_files: Vec::new(), vars: args.var.clone(), env: settings.environment.to_map() };
    let inputs = RunInputs {
        manifest: &manifest,
        manifest_sha256: Digest::of(&bytes),
        manifest_dir: &manifest_dir,
        kits: &kits,
        registry: &registry,
        agents: &flags,
        given: &given,
        timeout: args.timeout,
        analyze: !args.no_analyze,
        diff: !args.no_diff,
    };
    let mut prepared = runs::prepare(inputs, problems);
    if !args.no_diff {
        check_baseline(&manifest, &manifest_dir, &mut prepared);
    }
    let seen: BTreeMap<String, SeenFile> = prepared
        .wanted_files()
        .into_iter()
        .map(|file| (file.to_owned(), look_at(&manifest_dir.join(file))))
        .collect();
    let run = prepared.compile(&seen, profile(&manifest, &manifest_dir)).map_err(refused)?;
    let names = args.var.iter().map(|flag| flag.name.clone());
    let given = names.filter_map(|name| Some((name.clone(), run.compiled.plan.vars.get(&name)?.clone())));
    let given = given.collect();
    Ok(Loaded { run, bytes, path, given })
}

/// Problems of flags come first, by themselves: exit 2.
fn refused(problems: Diagnostics) -> Failure {
    let is_of_flag = |problem: &Diagnostic| match &problem.place {
        Place::Named(name) => is_usage(problem) || name.starts_with(AGENT_FLAG),
        Place::Text { .. } | Place::Call { .. } => false,
    };
    let is_usage = |problem: &&Diagnostic| problem.severity == Severity::Error && is_of_flag(problem);
    let usage: Vec<Diagnostic> = problems.iter().filter(is_usage).cloned().collect();
    match usage.is_empty() {
        true => Failure::invalid(problems.sorted()),
        false => Failure::of(FailureKind::Usage, Diagnostics(usage)),
    }
}

/// Returns the `--agent` flags; what is wrong with one is not repeated, it may hold a password.
fn agent_flags(args: &RunManifestArgs) -> Result<Vec<AgentFlag>, Failure> {
    let parsed: Result<Vec<AgentFlag>, _> = args.agent.iter().map(|text| AgentFlag::parse(text)).collect();
    parsed.map_err(|error| {
        Failure::new(FailureKind::Usage, "an --agent cannot be read").hint(error.to_string())
    })
}

fn kit_directories(args: &RunManifestArgs, manifest_dir: &Path, settings: &Settings) -> Vec<PathBuf> {
    let given = args.kits.as_ref().map(|dir| settings.current_dir.join(dir));
    let beside = manifest_dir.join("kits");
    let mut directories = vec![beside];
    directories.extend(given.filter(|given| !directories.contains(given)));
    directories
}

/// Returns the kits that the manifest uses, as far as there are any.
fn kits(
    manifest: &RunManifest,
    directories: &[PathBuf],
    problems: &mut Diagnostics,
) -> BTreeMap<String, Option<Kit>> {
    let mut kits = BTreeMap::from([(CIPDIP.to_owned(), Some(Kit::cipdip()))]);
    let names: BTreeSet<&str> = manifest.kit_names().into_iter().chain([CIPDIP]).collect();
    // A name with a slash would be a path.
    for name in names.into_iter().filter(|name| stead_model::run_manifest::keys::is_role_name(name)) {
        let files =
            directories.iter().map(|dir| dir.join(format!("{name}.yaml"))).filter(|file| file.exists());
        let files: Vec<PathBuf> = files.collect();
        let at = |file: &PathBuf| Place::Named(file.display().to_string());
        match &files[..] {
            [] => {}
            [file, ..] if name == CIPDIP => {
                let message = "`cipdip` is the built-in kit: no file can be it";
                problems
                    .push(Diagnostic::error(KIT, at(file), message).help("rename the file and its `kit`"));
            }
            [file] => {
                kits.insert(name.to_owned(), kit(name, file, problems));
            }
            [file, other, ..] => {
                let message = format!("there are two files of kit `{name}`");
                let problem = Diagnostic::error(KIT, at(file), message).related(at(other), "the other one");
                problems.push(problem.help(format!("remove one of them: {}", other.display())));
                kits.insert(name.to_owned(), None);
            }
        }
    }
    kits
}

fn kit(name: &str, file: &Path, problems: &mut Diagnostics) -> Option<Kit> {
    let source = readable(file, problems)?;
    let before = problems.0.len();
    let kit = Kit::read(&source, name, problems);
    kit.filter(|_| problems.0.len() == before)
}

/// Returns the agents of the registry: the file that is named, else `$STEAD_AGENTS`, else `agents.yaml` beside the
/// manifest, here, or in the user's configuration.
fn registry(
    args: &RunManifestArgs,
    manifest_dir: &Path,
    settings: &Settings,
    problems: &mut Diagnostics,
) -> Inventory {
    let near = [Some(manifest_dir), Some(&*settings.current_dir), settings.config_dir.as_deref()];
    let found = || near.into_iter().flatten().map(|dir| dir.join("agents.yaml")).find(|file| file.is_file());
    let given = args.agents.as_ref().map(|file| settings.current_dir.join(file));
    let Some(file) = given.or_else(|| settings.agents.clone()).or_else(found) else {
        return Inventory::default();
    };
    let Some(source) = readable(&file, problems) else { return Inventory::default() };
    Inventory::read(&[source]).unwrap_or_else(|found| {
        problems.0.extend(found.0);
        Inventory::default()
    })
}

/// Returns the text of a file, or adds why it has none to `problems`.
fn readable(file: &Path, problems: &mut Diagnostics) -> Option<Source> {
    let name = file.display().to_string();
    match read_regular(file) {
        Ok(bytes) => match yaml::source(&name, bytes, Codes::RUN) {
            Ok(source) => Some(source),
            Err(found) => {
                problems.0.extend(found.0);
                None
            }
        },
        Err(error) => {
            problems.push(cannot_read(&name, &error));
            None
        }
    }
}

/// Returns the content of the profile, if it is on this machine.
fn profile(manifest: &RunManifest, manifest_dir: &Path) -> Option<Result<Arc<[u8]>, String>> {
    let profile = manifest.profile.as_ref()?;
    match profile.distribution {
        Distribution::Preinstalled => None,
        Distribution::Inline | Distribution::Push => {
            let read = read_regular(&manifest_dir.join(&profile.path));
            let read = read.and_then(|bytes| match bytes.len() > yaml::MAX_BYTES {
                true => Err(io::Error::new(io::ErrorKind::FileTooLarge, "it is larger than 64 MiB")),
                false => Ok(Arc::from(bytes)),
            });
            Some(read.map_err(|error| error.to_string()))
        }
    }
}

/// Adds what is wrong with the bundle to compare with, and with the thresholds, to the run's problems.
fn check_baseline(manifest: &RunManifest, manifest_dir: &Path, prepared: &mut Prepared<'_>) {
    for threshold in &manifest.fail_on {
        if let Err(error) = Threshold::parse(&threshold.name) {
            prepared.report(manifest.node(threshold.value).bad(error.to_string()));
        }
    }
    let (Some(baseline), Some(path)) = (&manifest.diff_baseline, runs::baseline_path(manifest, manifest_dir))
    else {
        return;
    };
    // Read as `diff` will read it: what is found out after hours of a run could have been told now.
    if let Err(error) = stead_bundle::info(&path) {
        let problem =
            manifest.node(baseline.value).error(BASELINE, format!("cannot compare with this: {error}"));
        prepared.report(problem.help("name a bundle, relative to the manifest, or give --no-diff"));
    }
}

/// Returns what is known of a file that is to be staged.
fn look_at(path: &Path) -> SeenFile {
    match fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => SeenFile::Missing,
        Err(error) => SeenFile::Unreadable(error.to_string()),
        Ok(metadata) if !metadata.is_file() => SeenFile::Unreadable("it is not a file".to_owned()),
        Ok(metadata) => match hash_file(path, &mut vec![0; CHUNK]) {
            Ok(sha256) => SeenFile::Read { sha256, mode: metadata.permissions().mode() & 0o7777 },
            Err(error) => SeenFile::Unreadable(error.to_string()),
        },
    }
}
