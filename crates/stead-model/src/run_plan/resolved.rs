//! `manifest_resolved.yaml`: a manifest with everything filled in that is known before the run.

use serde_json::{Value, json};

use super::{Arg, Distribution, RolePlan, RunPlan};
use crate::bundle::Versions;
use crate::id::RunId;
use crate::time::Timestamp;
use crate::yaml::{Ordered, to_yaml};

impl RunPlan {
    /// Returns the text of `manifest_resolved.yaml` for the run `run_id`, made at `at` by the program of `versions`.
    pub fn to_resolved_manifest(&self, run_id: &RunId, at: Timestamp, versions: &Versions) -> String {
        let mut manifest = (*self.manifest).clone();
        manifest.set("run_id", json!(run_id));
        let mut resolved = Ordered::Map(Vec::new());
        resolved.set("manifest", manifest);
        resolved.set("manifest_sha256", json!(self.manifest_sha256));
        resolved.set("resolved_at", json!(at));
        if let Some(profile) = &self.profile {
            resolved.set("profile_path", json!(profile.path));
            if let Some(sha256) = profile.sha256.or(profile.checksum) {
                resolved.set("profile_checksum", json!(format!("sha256:{sha256}")));
            }
            let text = profile.content.as_deref().and_then(|bytes| std::str::from_utf8(bytes).ok());
            if let (Distribution::Inline, Some(text)) = (profile.distribution, text) {
                resolved.set("profile_content", json!(text));
            }
        }
        let roles = self.in_start_order().map(|(name, role)| (name.to_owned(), resolved_role(role).into()));
        resolved.set("roles", Ordered::Map(roles.collect()));
        resolved.set("kits", json!(self.kits));
        resolved.set("tool_version", json!(versions.stead_version));
        resolved.set("driver_os", json!(versions.driver_os));
        resolved.set("driver_arch", json!(versions.driver_arch));
        to_yaml(&resolved)
    }
}

fn resolved_role(role: &RolePlan) -> Value {
    let files =
        role.files.iter().map(|file| json!({"from": file.from, "to": file.to, "sha256": file.sha256}));
    json!({
        "agent_id": role.agent_id,
        "transport": role.transport,
        "argv": role.argv.iter().flat_map(Arg::as_written).collect::<Vec<_>>(),
        "env_names": role.env_names,
        "workdir": role.workdir,
        "ready": role.ready,
        "files": files.collect::<Vec<_>>(),
    })
}

impl Arg {
    /// Returns the item as it is planned, what is not known yet as it is written.
    pub fn as_written(&self) -> Vec<&str> {
        match self {
            Self::Text(text) => vec![text],
            Self::Flag { flag, value } => vec![flag, value],
        }
    }
}
