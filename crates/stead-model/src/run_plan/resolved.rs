//! `manifest_resolved.yaml`: a manifest with everything filled in that is known before the run.

use serde_json::{Value, json};

use super::{Arg, Distribution, RolePlan, RunPlan};
use crate::bundle::Versions;
use crate::id::RunId;
use crate::time::Timestamp;
use crate::yaml::to_yaml;

impl RunPlan {
    /// Returns the text of `manifest_resolved.yaml` for the run `run_id`, made at `at` by the program of `versions`.
    pub fn to_resolved_manifest(&self, run_id: &RunId, at: Timestamp, versions: &Versions) -> String {
        let mut manifest = (*self.manifest).clone();
        if let Some(manifest) = manifest.as_object_mut() {
            manifest.insert("run_id".to_owned(), json!(run_id));
        }
        let mut resolved = json!({
            "manifest": manifest,
            "manifest_sha256": self.manifest_sha256,
            "resolved_at": at,
        });
        if let Some(profile) = &self.profile {
            resolved["profile_path"] = profile.path.as_str().into();
            if let Some(sha256) = profile.sha256.or(profile.checksum) {
                resolved["profile_checksum"] = format!("sha256:{sha256}").into();
            }
            let text = profile.content.as_deref().and_then(|bytes| std::str::from_utf8(bytes).ok());
            if let (Distribution::Inline, Some(text)) = (profile.distribution, text) {
                resolved["profile_content"] = text.into();
            }
        }
        let roles = self.in_start_order().map(|(name, role)| (name.to_owned(), resolved_role(role)));
        resolved["roles"] = Value::Object(roles.collect());
        resolved["kits"] = json!(self.kits);
        resolved["tool_version"] = versions.stead_version.as_str().into();
        resolved["driver_os"] = versions.driver_os.as_str().into();
        resolved["driver_arch"] = versions.driver_arch.as_str().into();
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
