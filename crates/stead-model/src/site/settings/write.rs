//! Writes `site.yaml` as JSON, as one level hands it to the next.

use serde_json::{Value, json};

use super::{Defaults, Limits, ServerSettings, SiteSettings};
use crate::site::read::without_absent;

impl SiteSettings {
    /// Returns the settings as JSON that reads as the same settings.
    pub fn to_json(&self) -> Value {
        json!({"name": self.name, "server": self.server.to_json(), "defaults": self.defaults.to_json()})
    }
}

impl ServerSettings {
    fn to_json(&self) -> Value {
        json!({
            "port": self.port, "bind": self.bind, "public_specs": self.public_specs, "repos": self.repos,
            "limits": self.limits.to_json(), "token_ttl": crate::duration::to_exact(self.token_ttl),
            "accept_v1": self.accept_v1,
        })
    }
}

impl Limits {
    fn to_json(self) -> Value {
        json!({
            "header_seconds": self.header_seconds, "header_bytes": self.header_bytes,
            "body_seconds": self.body_seconds, "body_bytes": self.body_bytes, "connections": self.connections,
            "auth_failures_per_minute": self.auth_failures_per_minute,
            "anonymous_per_second": self.anonymous_per_second, "token_per_second": self.token_per_second,
        })
    }
}

impl Defaults {
    fn to_json(&self) -> Value {
        without_absent([
            ("gateway", self.gateway.map(|gateway| json!(gateway))),
            ("dns_servers", Some(json!(self.dns_servers))),
            ("domain", self.domain.as_ref().map(|domain| json!(domain))),
            ("timezone", Some(json!(self.timezone))),
            ("host_user", self.host_user.as_ref().map(|user| json!(user))),
            ("vm_user", Some(json!(self.vm_user))),
            ("ssh_key_file", self.ssh_key_file.as_ref().map(|file| json!(file))),
            ("packages", Some(json!(self.packages))),
            ("posture", self.posture.as_ref().map(|posture| json!(posture.value))),
            ("image", self.image.as_ref().map(|image| json!(image))),
            ("bridge", Some(json!(self.bridge))),
            ("image_release", Some(json!(self.image_release))),
            ("server_url", self.server_url.as_ref().map(|url| json!(url))),
            ("pve_remove_subscription_nag", Some(json!(self.pve_remove_subscription_nag))),
        ])
        .into()
    }
}
