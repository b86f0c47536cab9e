//! Writes hosts as JSON, as one level hands them to the next.

use serde_json::{Value, json};

use super::{Access, Fault, FaultPhase, GivenTimeouts, Host, Names, RunAs};
use crate::site::read::{without_absent, word_of};

impl Host {
    /// Returns the host as JSON that reads as the same host.
    pub fn to_json(&self) -> Value {
        let mut written = without_absent([
            ("driver", self.driver.map(|driver| json!(driver.word()))),
            ("host", self.host.as_ref().map(|host| json!(host.value))),
            ("domain", self.domain.as_ref().map(|domain| json!(domain))),
            ("ip", self.address.as_ref().map(|address| json!(address))),
            ("arch", self.arch.as_ref().map(|arch| json!(arch))),
            ("self_addr", self.self_addr.as_ref().map(|address| json!(address))),
            ("parallel", self.parallel.map(Value::from)),
            ("timeouts", (self.timeouts != GivenTimeouts::default()).then(|| self.timeouts.to_json())),
            ("labels", (!self.labels.is_empty()).then(|| json!(self.labels))),
            ("become", self.become_user.as_ref().map(RunAs::to_json)),
            ("access", (self.access != Access::default()).then(|| self.access.to_json())),
            ("api_token", self.api_token.as_ref().map(|name| json!(name.value))),
            ("api_endpoint", self.api_endpoint.as_ref().map(|endpoint| json!(endpoint))),
            ("node", self.node.as_ref().map(|node| json!(node))),
            ("parent_node", self.parent_node.as_ref().map(|node| json!(node.value))),
            ("datastore", self.datastore.as_ref().map(|datastore| json!(datastore))),
            ("packages", self.packages.as_ref().map(Names::to_json)),
            ("services", self.services.as_ref().map(Names::to_json)),
            ("boot_delay_ms", (self.boot_delay_ms > 0).then(|| json!(self.boot_delay_ms))),
            ("faults", (!self.faults.is_empty()).then(|| self.faults.iter().map(Fault::to_json).collect())),
        ]);
        // `network` and `storage` are either a description or a driver's word, never both.
        let others = self.description.iter().chain(&self.driver_settings);
        written.extend(others.map(|(key, value)| (key.clone(), value.clone())));
        written.into()
    }
}

impl GivenTimeouts {
    fn to_json(self) -> Value {
        let Self { create, address, ssh, config, delegate, destroy } = self;
        without_absent([
            ("create", create.map(Value::from)),
            ("address", address.map(Value::from)),
            ("ssh", ssh.map(Value::from)),
            ("config", config.map(Value::from)),
            ("delegate", delegate.map(Value::from)),
            ("destroy", destroy.map(Value::from)),
        ])
        .into()
    }
}

impl RunAs {
    fn to_json(&self) -> Value {
        match self {
            Self::Login => json!("none"),
            Self::Other(account) => json!(account.to_string()),
        }
    }
}

impl Access {
    fn to_json(&self) -> Value {
        without_absent([
            ("host_user", self.host_user.as_ref().map(|user| json!(user))),
            ("ssh_port", self.ssh_port.map(Value::from)),
            (
                "authorized_keys",
                self.authorized_keys.as_ref().map(|ids| ids.iter().map(|id| json!(id.value)).collect()),
            ),
            ("host_key", self.host_key.as_ref().map(|key| json!(key))),
        ])
        .into()
    }
}

impl Names {
    fn to_json(&self) -> Value {
        match self {
            Self::Any => json!("any"),
            Self::Only(names) => json!(names),
        }
    }
}

impl Fault {
    fn to_json(&self) -> Value {
        without_absent([
            ("node", Some(json!(self.node))),
            ("phase", Some(json!(word_of(self.phase, &FaultPhase::WORDS)))),
            ("times", Some(json!(self.times))),
            ("error", self.error.as_ref().map(|error| json!(error))),
            ("delay_ms", Some(json!(self.delay_ms))),
            ("crash", Some(json!(self.crash))),
        ])
        .into()
    }
}
