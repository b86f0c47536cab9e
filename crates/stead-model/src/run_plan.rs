//! A run of roles as it is planned: which programs run where, in which order, until when, and what is kept of them.
//!
//! Made by `stead-engine` from a run manifest; part of `plan.json`, whose keys of a run are the fields of [`RunPlan`].
//! What is known only when roles run stays written as a template (`{{ roles.server.ready.listen }}`). Values that must
//! not be shown (environments, passwords in transports) are held in memory only.

use core::net::IpAddr;
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::id::{HostName, RunId};
use crate::inventory::Host;
use crate::plan::Digest;
use crate::role::StopRule;
use crate::yaml::Ordered;

mod limit;
pub mod phases;
mod resolved;

/// What a run of roles adds to its plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunPlan {
    /// The run's name; none: made when it starts.
    #[serde(with = "limit::auto")]
    pub run_id: Option<RunId>,
    /// For programs that draw lots.
    pub seed: i64,
    /// What ends the run.
    pub until: Until,
    /// Limit of the main part; none: no limit.
    #[serde(rename = "timeout_seconds", with = "limit::seconds")]
    pub timeout: Option<Duration>,
    /// How long a supervisor goes on without hearing of its driver.
    pub lease_seconds: u32,
    /// Whether workdirs stay after collection.
    pub keep_workdir: KeepWorkdir,
    /// What the roles have in common to work by.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<ProfilePlan>,
    /// `network` of the manifest, defaults filled in.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub network: Value,
    /// The agents that roles run on.
    pub agents: BTreeMap<HostName, AgentPlan>,
    /// The role instances by name.
    pub roles: BTreeMap<String, RolePlan>,
    /// The names of the instances in the order in which they start.
    pub start_order: Vec<String>,
    /// How many bytes of artifacts are collected per role.
    pub max_bytes: u64,
    /// What the bundle is in the end.
    pub bundle_format: BundleFormat,
    /// Whether captures are analysed.
    pub analyze: Analyze,
    /// Ports of captures that carry what is analysed, besides the usual ones; `target_port` is among them.
    pub ports: Vec<u16>,
    /// What the run is compared with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub diff: Option<DiffPlan>,
    /// The kits that roles came from, with the hashes of their texts.
    pub kits: BTreeMap<String, Digest>,
    /// What a person should know before it runs.
    pub warnings: Vec<RunWarning>,
    /// SHA-256 of the manifest's bytes.
    pub manifest_sha256: Digest,
    /// Variables of the driver's environment that hold secrets: no role inherits them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hidden_env: Vec<String>,
    /// The manifest with every default, for `manifest_resolved.yaml`; `run_id` as it was written.
    #[serde(skip)]
    pub manifest: Arc<Ordered>,
    /// The directory that relative paths of the manifest start from.
    #[serde(skip)]
    pub manifest_dir: PathBuf,
}

impl RunPlan {
    /// Returns the role instances with their names, in the order in which they start.
    pub fn in_start_order(&self) -> impl DoubleEndedIterator<Item = (&str, &RolePlan)> {
        self.start_order.iter().filter_map(|name| Some((name.as_str(), self.roles.get(name)?)))
    }
}

/// What ends a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Until {
    /// The last task's end.
    Tasks,
    /// The `duration_seconds` of its services.
    Duration,
    /// A signal to the driver.
    Signal,
}

/// Whether workdirs stay after collection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KeepWorkdir {
    /// They are removed.
    #[default]
    Never,
    /// They stay if the run did not succeed.
    OnFailure,
    /// They stay.
    Always,
}

/// What a bundle is in the end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum BundleFormat {
    /// A directory.
    #[default]
    #[serde(rename = "dir")]
    Dir,
    /// A zip archive.
    #[serde(rename = "zip")]
    Zip,
    /// A compressed tar archive.
    #[serde(rename = "tar.zst")]
    TarZst,
}

/// Whether captures are analysed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Analyze {
    /// If one was collected.
    #[default]
    Auto,
    /// Yes.
    Yes,
    /// No.
    No,
}

/// What a run is compared with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiffPlan {
    /// The bundle, as it was written.
    pub baseline: String,
    /// The bundle, absolute.
    #[serde(skip)]
    pub from: PathBuf,
    /// Thresholds that fail the run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fail_on: Vec<String>,
}

/// The profile of a run.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProfilePlan {
    /// As it was written: relative to the manifest's directory, or `preinstalled`: absolute, on the agents.
    pub path: String,
    /// How roles get it.
    pub distribution: Distribution,
    /// The hash that was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checksum: Option<Digest>,
    /// The hash of the file on the driver; none if it is preinstalled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<Digest>,
    /// The file's bytes; none if it is preinstalled.
    #[serde(skip)]
    pub content: Option<Arc<[u8]>>,
}

impl fmt::Debug for ProfilePlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, distribution, checksum, sha256, content } = self;
        f.debug_struct("ProfilePlan")
            .field("path", path)
            .field("distribution", distribution)
            .field("checksum", checksum)
            .field("sha256", sha256)
            .field("bytes", &content.as_ref().map(|bytes| bytes.len()))
            .finish()
    }
}

/// The name a profile has in workdirs and in the bundle.
pub const PROFILE_FILE: &str = "profile.yaml";

/// How roles get the profile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Distribution {
    /// Its text is part of the resolved manifest, and written to each workdir.
    #[default]
    Inline,
    /// It is copied to each workdir.
    Push,
    /// It is on the agents already.
    Preinstalled,
}

/// An agent of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentPlan {
    /// How it is reached, masked.
    pub transport: String,
    /// Where its workdirs are made; none: found by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workdir: Option<String>,
    /// How it is reached.
    #[serde(skip)]
    pub host: Host,
}

/// Something a person should know before a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunWarning {
    /// Its stable code.
    pub code: String,
    /// One sentence.
    pub text: String,
    /// The role it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
}

/// One instance of a role. `Debug` shows no values of its environment.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
pub struct RolePlan {
    /// The role as the manifest names it; its instance has this name too if it is the only one.
    pub role: String,
    /// Whether it ends by itself.
    pub kind: RoleKind,
    /// Where it runs.
    pub agent_id: HostName,
    /// How that is reached, masked.
    pub transport: String,
    /// What is started.
    pub argv: Vec<Arg>,
    /// Its environment, over the agent's; templates.
    #[serde(skip)]
    pub env: BTreeMap<String, String>,
    /// The names in `env`, sorted.
    pub env_names: Vec<String>,
    /// Where it runs on its agent, if the manifest says so; a template. None: a directory of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workdir: Option<String>,
    /// What is staged into its workdir.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<FilePlan>,
    /// When it counts as ready, every default written out; templates. None: a task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready: Option<Value>,
    /// How it is stopped.
    pub stop: StopRule,
    /// After this long it is stopped, and that is success.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_seconds: Option<u32>,
    /// After this long the run times out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_seconds: Option<u32>,
    /// Exit codes that are well.
    pub expect_exit: Vec<i32>,
    /// Whether a service may end by itself.
    pub may_exit: bool,
    /// Whether its failure is only a warning.
    pub allow_failure: bool,
    /// What is collected from its workdir, what every role leaves included.
    pub artifacts: Vec<ArtifactPlan>,
    /// The instances that must be ready or have ended well before it starts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub needs: Vec<String>,
    /// Its number among the role's instances, from 1.
    pub index: u32,
    /// How many instances of a task's role run at once; 0: all.
    pub concurrency: u32,
    /// Its values of the role's matrix.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub matrix: Map<String, Value>,
    /// Which repetition it is, from 1, if there are several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repeat_index: Option<u32>,
    /// The kit it came from and which role of it it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kit: Option<KitUse>,
    /// An address its agent must have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bind_ip: Option<IpAddr>,
    /// The address it talks to, as far as its kit knows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_ip: Option<IpAddr>,
}

impl fmt::Debug for RolePlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RolePlan")
            .field("role", &self.role)
            .field("kind", &self.kind)
            .field("agent_id", &self.agent_id)
            .field("argv", &self.argv)
            .field("env_names", &self.env_names)
            .finish_non_exhaustive()
    }
}

/// Whether a role ends by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RoleKind {
    /// It is stopped when no task is left.
    Service,
    /// It ends by itself.
    #[default]
    Task,
}

impl RoleKind {
    /// Returns the word used in files and output.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Service => "service",
            Self::Task => "task",
        }
    }
}

/// An item of a command line. Text is a template if it holds `{{`; braces that are meant as such are written
/// `{{ '{' }}`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Arg {
    /// One word; none or several if it is exactly one `{{ … }}` that gives a list.
    Text(String),
    /// A flag with a value that is not known yet; it may turn out to be left out.
    Flag {
        /// The flag.
        flag: String,
        /// Its value, a template.
        value: String,
    },
}

/// A file that is staged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FilePlan {
    /// The file on the driver, as it was written: relative to the manifest's directory, or absolute.
    pub from: String,
    /// Its place in the workdir.
    pub to: String,
    /// Its permissions: those of the file, unless the manifest says otherwise.
    pub mode: u32,
    /// The hash of its bytes.
    pub sha256: Digest,
    /// The file on the driver, absolute.
    #[serde(skip)]
    pub source: PathBuf,
}

/// What is collected.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArtifactPlan {
    /// A pattern, relative to the workdir; a template.
    pub path: String,
    /// Whether a run without a match fails.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub required: bool,
}

/// A kit's role.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KitUse {
    /// The kit.
    pub name: String,
    /// The role in it.
    pub role: String,
    /// The values of its fields, and `args`.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub fields: Map<String, Value>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_and_limits_are_written_in_their_own_words() {
        #[derive(Debug, PartialEq, Serialize, Deserialize)]
        struct Row {
            #[serde(with = "limit::auto")]
            id: Option<RunId>,
            #[serde(with = "limit::seconds")]
            limit: Option<Duration>,
        }
        let rows = [
            (None, None, r#"{"id":"auto","limit":null}"#),
            (Some("r1"), Some(300_000), r#"{"id":"r1","limit":300}"#),
            (None, Some(1_500), r#"{"id":"auto","limit":1.5}"#),
        ];
        for (id, millis, text) in rows {
            let row =
                Row { id: id.map(|id| RunId::parse(id).unwrap()), limit: millis.map(Duration::from_millis) };
            assert_eq!(serde_json::to_string(&row).unwrap(), text);
            assert_eq!(serde_json::from_str::<Row>(text).unwrap(), row);
        }
    }
}
