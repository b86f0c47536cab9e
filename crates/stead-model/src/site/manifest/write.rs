//! Writes manifests as JSON, as one level hands them to the next.

use serde_json::{Value, json};

use super::{Context, Manifest, ManifestNode, ManifestSettings, NodeExecution, PeerOutside};
use crate::site::Located;
use crate::site::read::{without_absent, word_of};

impl Manifest {
    /// Returns the manifest as JSON that reads as the same manifest.
    pub fn to_json(&self) -> Value {
        without_absent([
            ("schema_version", Some(json!(2))),
            ("name", self.name.as_ref().map(|name| json!(name))),
            ("description", self.description.as_ref().map(|text| json!(text))),
            ("pattern", self.pattern.as_ref().map(|pattern| json!(pattern.value.word()))),
            ("execution", Some(json!({"default_mode": self.default_mode.word()}))),
            ("nodes", Some(self.nodes.iter().map(ManifestNode::to_json).collect())),
            ("settings", Some(self.settings.to_json())),
            ("context", self.context.as_ref().map(Context::to_json)),
        ])
        .into()
    }
}

impl ManifestNode {
    fn to_json(&self) -> Value {
        let names = |names: &[Located<String>]| {
            (!names.is_empty()).then(|| names.iter().map(|name| json!(name.value)).collect())
        };
        without_absent([
            ("name", Some(json!(self.name.value))),
            ("type", self.kind.as_ref().map(|kind| json!(kind.value.word()))),
            ("spec", self.spec.as_ref().map(|spec| json!(spec.value))),
            ("preset", self.preset.as_ref().map(|preset| json!(preset.value))),
            ("image", self.image.as_ref().map(|image| json!(image))),
            ("template", self.template.as_ref().map(|template| json!(template))),
            ("parent", self.parent.as_ref().map(|parent| json!(parent.value))),
            ("peers", names(&self.peers)),
            ("depends_on", names(&self.depends_on)),
            ("count", self.count.map(Value::from)),
            ("host", self.host.as_ref().map(|host| json!(host.value))),
            ("hosting", self.hosting.as_ref().map(|hosting| hosting.value.to_json())),
            ("vmid", self.vmid.as_ref().map(|vmid| json!(vmid.value))),
            ("disk", self.disk.map(Value::from)),
            ("ip", self.ip.map(|ip| json!(ip))),
            ("execution", self.execution.to_json()),
        ])
        .into()
    }
}

impl NodeExecution {
    fn to_json(self) -> Option<Value> {
        if self == Self::default() {
            return None;
        }
        let phases = without_absent([
            ("config", self.config.map(|mode| json!(mode.word()))),
            ("run", self.run.map(|mode| json!(mode.word()))),
            ("destroy", self.destroy.map(|mode| json!(mode.word()))),
        ]);
        let mode = self.mode.map(|mode| json!(mode.word()));
        Some(without_absent([("mode", mode), ("phases", Some(phases.into()))]).into())
    }
}

impl ManifestSettings {
    fn to_json(self) -> Value {
        json!({
            "verify_ssh": self.verify_ssh, "cleanup_on_failure": self.cleanup_on_failure,
            "timeout_buffer": self.timeout_buffer,
            "on_error": word_of(self.on_error, &super::OnNodeError::WORDS), "parallel": self.parallel,
            "delegation": word_of(self.delegation, &super::Delegation::WORDS),
        })
    }
}

impl Context {
    fn to_json(&self) -> Value {
        let mut context = json!({"run": self.run, "path": self.path, "host": self.host});
        if !self.peers.is_empty() {
            context["peers"] = self.peers.iter().map(PeerOutside::to_json).collect();
        }
        context
    }
}

impl PeerOutside {
    fn to_json(&self) -> Value {
        without_absent([
            ("of", Some(json!(self.of))),
            ("name", Some(json!(self.name))),
            ("ip", self.place.map(|(ip, _)| json!(ip))),
            ("ssh_port", self.place.map(|(_, port)| json!(port))),
        ])
        .into()
    }
}
