//! From a run manifest to a plan of phases: which roles there are, where and with what they run, in which order.
//!
//! ```text
//!  manifest, kits, agents, flags ──▶ prepare ──▶ Prepared ──▶ compile ──▶ CompiledRun ──▶ render_role, when it starts
//!                                                   │  wanted files ▲
//!                                                   └── hashes, modes (the caller reads files) ┘
//! ```
//! Everything here is pure and equal inputs give equal bytes. All problems come out at once. [`render_role`] fills in
//! what is known only when a role starts.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use stead_model::inventory::Inventory;
use stead_model::plan::Digest;
use stead_model::run_manifest::{Kit, with_paths};
use stead_model::run_plan::{DiffPlan, FilePlan, PROFILE_FILE, ProfilePlan, RunPlan, RunWarning};
use stead_model::{Diagnostic, Diagnostics, RunManifest};

use super::{CompiledPlan, Inputs};

mod agents;
mod cipdip;
mod command;
mod fields;
mod instances;
mod paths;
mod phases;
mod ready;
mod render;
mod resolved;
mod roles;
#[cfg(test)]
mod tests;
mod text;
mod texts;

pub use agents::{AGENT_FLAG, AgentFlag, InvalidAgentFlag};
pub use render::{AgentNames, RenderError, RenderedRole, RoleNames, RunNames, render_role, render_workdir};

/// How long the main part may take, if nobody says otherwise.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(300);

/// Diagnostic code: a word that is no agent.
const UNKNOWN_AGENT: &str = "run/unknown-agent";
/// Diagnostic code: a name that no role has.
const UNKNOWN_ROLE: &str = "run/unknown-role";
/// Diagnostic code: roles that wait for each other.
const CYCLE: &str = "run/cycle";
/// Diagnostic code: two roles with one name.
const DUPLICATE_ROLE: &str = "run/duplicate-role";
/// Diagnostic code: a kit there is not, or a role it does not have.
const UNKNOWN_KIT: &str = "run/unknown-kit";
/// Diagnostic code: something that a kit needs is missing.
const MISSING: &str = "run/missing";
/// Diagnostic code: a template that cannot be read or has no value.
const BAD_EXPRESSION: &str = "run/bad-expression";
/// Diagnostic code: a secret where others can see it.
const SECRET_IN_ARGV: &str = "run/secret-in-argv";
/// Diagnostic code: a file of the manifest that cannot be read.
const FILE: &str = "run/file";
/// Diagnostic code: a profile that cannot be read or is another than was asked for.
const PROFILE: &str = "run/profile";
const BAD_VALUE: &str = "run/bad-value";

/// A run of roles that can start.
#[derive(Clone, Debug)]
pub struct CompiledRun {
    /// The plan: one task per phase.
    pub compiled: CompiledPlan,
    /// What it says of roles; also in the plan.
    pub run: Arc<RunPlan>,
}

/// What a run is planned from.
#[derive(Clone, Copy, Debug)]
pub struct RunInputs<'a> {
    /// The manifest.
    pub manifest: &'a RunManifest,
    /// The hash of its bytes.
    pub manifest_sha256: Digest,
    /// The directory it is in, absolute.
    pub manifest_dir: &'a Path,
    /// The kits there are, by name; none: its file is faulty, which has been reported.
    pub kits: &'a BTreeMap<String, Option<Kit>>,
    /// The agents of the registry.
    pub registry: &'a Inventory,
    /// The `--agent` flags.
    pub agents: &'a [AgentFlag],
    /// Variables and environment.
    pub given: &'a Inputs,
    /// Limit of the main part; zero: none. Not given: [`DEFAULT_TIMEOUT`], unless the run ends by a signal.
    pub timeout: Option<Duration>,
    /// Whether captures are analysed at all.
    pub analyze: bool,
    /// Whether the run is compared at all.
    pub diff: bool,
}

/// What is known of a file on the driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SeenFile {
    /// It can be read.
    Read {
        /// The hash of its bytes.
        sha256: Digest,
        /// Its permissions.
        mode: u32,
    },
    /// It is not there.
    Missing,
    /// It cannot be read, and why.
    Unreadable(String),
}

/// A run whose roles are known, and what of the driver's files it needs.
#[derive(Debug)]
pub struct Prepared<'a> {
    inputs: RunInputs<'a>,
    roles: roles::Roles<'a>,
    problems: Diagnostics,
}

/// Returns the run that `inputs` describe, problems included; `problems` are those found before.
pub fn prepare(inputs: RunInputs<'_>, mut problems: Diagnostics) -> Prepared<'_> {
    let roles = roles::read(&inputs, &mut problems);
    Prepared { inputs, roles, problems }
}

impl<'a> Prepared<'a> {
    /// Returns the files of the driver that the run needs to know of, but for the profile, as they are written:
    /// relative to the manifest's directory, or absolute.
    pub fn wanted_files(&self) -> BTreeSet<&str> {
        let files = self.roles.instances.iter().flat_map(|instance| &instance.files);
        files.map(|file| file.from.as_str()).collect()
    }

    /// Adds a problem that the caller found.
    pub fn report(&mut self, problem: Diagnostic) {
        self.problems.push(problem);
    }

    /// Returns the compiled run, or every problem.
    ///
    /// `seen` holds [`wanted_files`](Self::wanted_files); `profile` is the profile's content, or why it cannot be read,
    /// if it is to be read on the driver.
    pub fn compile(
        mut self,
        seen: &BTreeMap<String, SeenFile>,
        profile: Option<Result<Arc<[u8]>, String>>,
    ) -> Result<CompiledRun, Diagnostics> {
        let profile = self.profile(profile);
        self.stage(seen);
        let Self { inputs, roles, problems } = self;
        // What is wrong with roles would be wrong with phases as well.
        if problems.has_errors() {
            return Err(with_paths(problems));
        }
        phases::compile(&inputs, roles, profile, problems).map_err(with_paths)
    }

    fn profile(&mut self, content: Option<Result<Arc<[u8]>, String>>) -> Option<ProfilePlan> {
        let manifest = self.inputs.manifest;
        let profile = manifest.profile.as_ref()?;
        let content = match content {
            Some(Ok(content)) => Some(content),
            Some(Err(error)) => {
                let node = manifest.node(profile.place);
                let message = format!("cannot read the profile `{}`: {error}", profile.path);
                self.problems.push(
                    node.error(PROFILE, message).help("a relative path starts at the manifest's directory"),
                );
                None
            }
            None => None,
        };
        let sha256 = content.as_ref().map(|bytes| Digest::of(bytes));
        if let (Some(wanted), Some(found)) = (profile.checksum, sha256)
            && wanted != found
        {
            let node = manifest.node(profile.checksum_place.unwrap_or(profile.place));
            let message = format!(
                "the profile `{}` is another: expected sha256:{wanted}, found sha256:{found}",
                profile.path
            );
            self.problems
                .push(node.error(PROFILE, message).help("bring the right file, or correct the checksum"));
        }
        let is_inline = profile.distribution == stead_model::run_plan::Distribution::Inline;
        if is_inline && content.as_ref().is_some_and(|bytes| std::str::from_utf8(bytes).is_err()) {
            let message = format!("the profile `{}` is not UTF-8: it cannot be embedded", profile.path);
            let node = manifest.node(profile.place);
            self.problems.push(node.error(PROFILE, message).help("write `distribution: push`"));
        }
        Some(ProfilePlan {
            path: profile.path.clone(),
            distribution: profile.distribution,
            checksum: profile.checksum,
            sha256,
            content,
        })
    }

    /// Fills in what is known of the files that are staged.
    fn stage(&mut self, seen: &BTreeMap<String, SeenFile>) {
        let Self { inputs, roles, problems } = self;
        let is_copied = |profile: &stead_model::run_manifest::Profile| {
            profile.distribution != stead_model::run_plan::Distribution::Preinstalled
        };
        let has_profile = inputs.manifest.profile.as_ref().is_some_and(is_copied);
        for instance in &mut roles.instances {
            let mut places: BTreeSet<String> = BTreeSet::new();
            if has_profile {
                places.insert(PROFILE_FILE.to_owned());
            }
            for file in std::mem::take(&mut instance.files) {
                let problem = match seen.get(&file.from) {
                    Some(SeenFile::Read { sha256, mode }) => {
                        if !places.insert(file.to.clone()) {
                            let message = format!("`{}` is staged twice", file.to);
                            Some((message, "give one of them another name with `to`"))
                        } else {
                            instance.plan.files.push(FilePlan {
                                source: inputs.manifest_dir.join(&file.from),
                                from: file.from.clone(),
                                to: file.to.clone(),
                                mode: file.mode.unwrap_or(*mode),
                                sha256: *sha256,
                            });
                            None
                        }
                    }
                    Some(SeenFile::Missing) | None if file.is_optional => None,
                    Some(SeenFile::Missing) | None => Some((
                        format!("there is no file `{}`", file.from),
                        "a relative path starts at the manifest's directory",
                    )),
                    Some(SeenFile::Unreadable(error)) => Some((
                        format!("cannot read `{}`: {error}", file.from),
                        "make it a file that can be read",
                    )),
                };
                if let Some((message, help)) = problem {
                    problems.push(Diagnostic::error(FILE, file.place, message).path(file.path).help(help));
                }
            }
        }
    }
}

/// Returns the comparison that follows the run, if it is asked for.
fn diff(inputs: &RunInputs<'_>) -> Option<DiffPlan> {
    let baseline = inputs.manifest.diff_baseline.as_ref().filter(|_| inputs.diff)?;
    Some(DiffPlan {
        baseline: baseline.name.clone(),
        from: baseline_path(inputs.manifest, inputs.manifest_dir)?,
        fail_on: inputs.manifest.fail_on.iter().map(|threshold| threshold.name.clone()).collect(),
    })
}

/// Returns where the bundle is that a run of `manifest` is compared with.
pub fn baseline_path(manifest: &RunManifest, manifest_dir: &Path) -> Option<PathBuf> {
    manifest.diff_baseline.as_ref().map(|baseline| manifest_dir.join(&baseline.name))
}

fn warning(code: &str, text: String, role: Option<&str>) -> RunWarning {
    RunWarning { code: code.to_owned(), text, role: role.map(str::to_owned) }
}
