//! `bundle`: what is known of roles is written down, and files are hashed. The seal itself follows the last phase.

use std::collections::BTreeMap;

use stead_bundle::RecordError;
use stead_model::HostName;
use stead_model::bundle::{RoleVersions, Versions};
use stead_model::report::Warning;
use stead_model::run_plan::RolePlan;
use stead_runner::operation::OpError;

use super::record::{AgentFacts, role_versions};
use super::{Here, RunSurroundings};

impl RunSurroundings {
    /// Writes the metadata of roles and hashes every file. What cannot be recorded is a warning.
    pub(super) async fn bundle(&self, here: &Here) -> Result<(), OpError> {
        if let Err(error) = self.write_records(here) {
            self.say_incomplete(&error).await;
        }
        let (known, bundle) = (self.known.clone(), here.bundle.clone());
        let hashed = tokio::task::spawn_blocking(move || known.hash_all(&bundle)).await;
        if let Ok(Err(error)) = hashed {
            self.say_incomplete(&error).await;
        }
        Ok(())
    }

    /// Writes what is known of roles: every one has its metadata, whatever became of it.
    pub(super) fn write_records(&self, here: &Here) -> Result<(), RecordError> {
        for (name, mut meta) in self.role_metas() {
            for (bytes, stream) in [(&mut meta.stdout_bytes, "stdout"), (&mut meta.stderr_bytes, "stderr")] {
                // The log is the truth; one that was never opened is there all the same, and empty.
                *bytes = ensure_log(here, &name, stream)?;
            }
            stead_bundle::replace_json(&here.bundle, &format!("roles/{name}/role_meta.json"), &meta)?;
        }
        self.write_versions(here)
    }

    /// Writes what is known of agents and programs: early too, for a driver that may come later.
    pub(super) fn write_versions(&self, here: &Here) -> Result<(), RecordError> {
        let roles: BTreeMap<String, RoleVersions> = self.state.look(|state| {
            let facts = self.facts.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            let of = |(name, role): (&str, &RolePlan)| {
                (name.to_owned(), role_versions(role, state, name, facts.get(&role.agent_id)))
            };
            self.run.in_start_order().map(of).collect()
        });
        let mut recorded = if self.afterwards { recorded_roles(here) } else { BTreeMap::new() };
        let with_recorded = |(name, versions): (String, RoleVersions)| {
            let before = recorded.remove(&name);
            (name, before.into_iter().fold(versions, RoleVersions::or))
        };
        let roles = roles.into_iter().map(with_recorded).collect();
        let versions = Versions { roles, ..stead_runner::versions() };
        stead_bundle::replace_json(&here.bundle, stead_bundle::VERSIONS, &versions)
    }

    /// Keeps what is known of an agent after its connection has ended.
    pub(super) fn remember_agent(&self, id: HostName, facts: AgentFacts) {
        self.facts.lock().unwrap_or_else(std::sync::PoisonError::into_inner).insert(id, facts);
    }

    /// Keeps which `stead` an agent has.
    pub(super) fn remember_program(&self, id: &HostName, sha256: Option<String>) {
        let mut facts = self.facts.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(facts) = facts.get_mut(id) {
            facts.stead_sha256 = sha256;
        }
    }

    pub(super) async fn say_incomplete(&self, error: &RecordError) {
        let text = format!("the record of the run is incomplete: {error}: {}", error.source);
        self.announcer.warn(Warning::new("run/record-incomplete", text)).await;
    }
}

/// Returns what a lost driver wrote of agents and programs.
fn recorded_roles(here: &Here) -> BTreeMap<String, RoleVersions> {
    let bytes = std::fs::read(here.bundle.join(stead_bundle::VERSIONS)).ok();
    let versions = bytes.and_then(|bytes| serde_json::from_slice::<Versions>(&bytes).ok());
    versions.map(|versions| versions.roles).unwrap_or_default()
}

/// Makes sure that a role has a log; returns its length.
fn ensure_log(here: &Here, role: &str, stream: &str) -> Result<u64, RecordError> {
    use std::os::unix::fs::OpenOptionsExt as _;
    let directory = here.role(role);
    let path = directory.join(format!("{stream}.log"));
    let failed = |source| RecordError { action: "create log", path: path.clone(), source };
    stead_bundle::make_directory(&directory)?;
    let file =
        std::fs::OpenOptions::new().append(true).create(true).mode(0o600).open(&path).map_err(failed)?;
    Ok(file.metadata().map_err(failed)?.len())
}
