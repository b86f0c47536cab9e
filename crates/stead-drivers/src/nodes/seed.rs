//! What a node's machine is told at its first boot where machines read seeds: how its agent comes, and what presets,
//! secrets and fixed addresses say.

use serde_json::{Map, Value, json};
use stead_model::machine::{Nic, PlantedFile, Seed};
use stead_model::site::Preset;
use stead_model::site::address::{Cidr, NodeAddress};
use stead_model::site::manifest::ManifestNode;

use super::{NodeView, NodesSurroundings};

/// Fetches this program and has it become the agent.
const START_AGENT: &str = include_str!("start_agent.py");
/// Where that lies on a node.
const START_AGENT_PATH: &str = "/etc/stead/start-agent";

/// Returns the file that starts the agent of a node that cloud-init has set up.
pub(super) fn agent_starter() -> PlantedFile {
    let content = START_AGENT.as_bytes().to_vec();
    PlantedFile { path: START_AGENT_PATH.to_owned(), mode: 0o700, content }
}

impl NodesSurroundings {
    /// Returns the network card of a node that has to be on a certain bridge, or has a fixed address.
    pub(super) fn card_of(&self, node: &NodeView<'_>) -> Option<Nic> {
        let preset = self.preset_of(node);
        let address = fixed_address(node.written, preset).map(|cidr| cidr.to_string());
        let bridge = preset.and_then(|preset| preset.bridge.clone());
        let gateway = address.as_ref().and_then(|_| self.gateway_of(preset)).map(|way| way.to_string());
        (address.is_some() || bridge.is_some()).then(|| Nic {
            network: bridge.unwrap_or_default(),
            mac: None,
            address,
            ports: Vec::new(),
            gateway,
        })
    }

    /// Returns what cloud-init does for a node, beyond what it does for every machine.
    pub(super) fn seed_of(&self, node: &NodeView<'_>, mac: &str, fetches: bool) -> Seed {
        let (preset, site) = (self.preset_of(node), &self.parts.site);
        let packages = preset.map(|preset| json!(preset.packages));
        let root = site.secrets.value.vm_root.as_ref().map(|hash| hash.expose());
        let network_config = fixed_address(node.written, preset).map(|address| {
            let defaults = &site.settings.value.defaults;
            network_config(mac, address, self.gateway_of(preset), &defaults.dns_servers)
        });
        Seed {
            user_data: user_data(packages.unwrap_or_else(|| json!([])), root, fetches),
            meta_data: String::new(),
            network_config,
        }
    }

    /// Returns the way out of the network of a fixed address.
    fn gateway_of(&self, preset: Option<&Preset>) -> Option<std::net::IpAddr> {
        preset.and_then(|preset| preset.gateway).or(self.parts.site.settings.value.defaults.gateway)
    }

    pub(super) fn preset_of(&self, node: &NodeView<'_>) -> Option<&Preset> {
        let preset = node.written.preset.as_ref()?;
        self.parts.site.presets.get(&preset.value).map(|entry| &entry.value)
    }
}

/// Returns what cloud-init is told: to install `packages`, to give root the password of a hash, and to start the agent of a
/// node that fetches its spec.
fn user_data(packages: Value, root: Option<&str>, fetches: bool) -> String {
    let mut user_data = Map::new();
    if packages.as_array().is_some_and(|packages| !packages.is_empty()) {
        user_data.insert("package_update".to_owned(), json!(true));
        user_data.insert("packages".to_owned(), packages);
    }
    if let Some(hash) = root {
        let root = json!({ "name": "root", "password": hash, "type": "hash" });
        user_data.insert("chpasswd".to_owned(), json!({ "expire": false, "users": [root] }));
    }
    if fetches {
        user_data.insert("runcmd".to_owned(), json!([[START_AGENT_PATH]]));
    }
    format!("#cloud-config\n{}\n", Value::Object(user_data))
}

/// Returns the address that a node is to have for good.
pub(super) fn fixed_address(node: &ManifestNode, preset: Option<&Preset>) -> Option<Cidr> {
    match node.ip.or_else(|| preset.and_then(|preset| preset.ip)) {
        Some(NodeAddress::Static(cidr)) => Some(cidr),
        Some(NodeAddress::Dhcp) | None => None,
    }
}

fn network_config(
    mac: &str,
    address: Cidr,
    gateway: Option<std::net::IpAddr>,
    dns: &[std::net::IpAddr],
) -> String {
    let mut card = json!({ "match": { "macaddress": mac }, "addresses": [address.to_string()] });
    if let Some(gateway) = gateway {
        card["routes"] =
            json!([{ "to": if gateway.is_ipv4() { "0.0.0.0/0" } else { "::/0" }, "via": gateway }]);
    }
    if !dns.is_empty() {
        card["nameservers"] = json!({ "addresses": dns });
    }
    format!("{}\n", json!({ "version": 2, "ethernets": { "nic0": card } }))
}

#[cfg(test)]
mod tests {
    use stead_model::site::Site;
    use stead_model::site::manifest::Origin;

    use super::*;

    /// Without `runcmd` no cloud image would ever pull.
    #[test]
    fn a_cloud_image_is_told_what_it_has_to_do() {
        let read = |text: &str| -> Value {
            serde_json::from_str(text.strip_prefix("#cloud-config\n").unwrap()).unwrap()
        };
        assert_eq!(read(&user_data(json!([]), None, false)), json!({}));
        let told = read(&user_data(json!(["htop"]), Some("$6$x"), true));
        assert_eq!(told["packages"], json!(["htop"]));
        assert_eq!(told["package_update"], true);
        assert_eq!(told["chpasswd"]["users"][0]["password"], "$6$x");
        assert_eq!(told["runcmd"], json!([["/etc/stead/start-agent"]]));
    }

    #[test]
    fn a_fixed_address_comes_with_its_way_out() {
        let address = Cidr::parse("10.1.2.3/24").unwrap();
        let (gateway, dns) = ("10.1.2.1".parse().unwrap(), ["10.1.2.53".parse().unwrap()]);
        let text = network_config("52:54:00:00:00:01", address, Some(gateway), &dns);
        let config: Value = serde_json::from_str(&text).unwrap();
        let card = &config["ethernets"]["nic0"];
        assert_eq!(card["addresses"], json!(["10.1.2.3/24"]));
        assert_eq!(card["routes"], json!([{ "to": "0.0.0.0/0", "via": "10.1.2.1" }]));
        assert_eq!(card["nameservers"]["addresses"], json!(["10.1.2.53"]));
    }

    /// Section 3: what a node says of its address counts more than its preset.
    #[test]
    fn the_address_of_a_node_is_before_that_of_its_preset() {
        let node = |ip: &str| {
            let text = format!("{{schema_version: 2, name: m, nodes: [{{name: a, type: vm{ip}}}]}}");
            let read = Site::read_manifest("m", text.into_bytes(), Origin::Given);
            assert_eq!(read.diagnostics.to_string(), "");
            read.value.nodes.into_iter().next().unwrap()
        };
        let cidr = Cidr::parse("10.1.2.3/24").unwrap();
        let preset = Preset { ip: Some(NodeAddress::Static(cidr)), ..Preset::default() };
        for (written, expected) in
            [("", Some("10.1.2.3/24")), (", ip: 10.9.9.9/16", Some("10.9.9.9/16")), (", ip: dhcp", None)]
        {
            let found = fixed_address(&node(written), Some(&preset)).map(|cidr| cidr.to_string());
            assert_eq!(found.as_deref(), expected, "{written}");
        }
    }
}
