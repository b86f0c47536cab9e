//! What a node should look like by its spec, and where it does not.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};
use stead_model::node::observed::{
    ObservedFail2ban, ObservedNetwork, ObservedPve, ObservedSecurity, ObservedService, ObservedSsh,
    ObservedSudo, ObservedUser,
};
use stead_model::node::{Drift, NodeState};
use stead_model::site::ResolvedSpec;

/// The service that bans who fails to log in.
pub const FAIL2BAN: &str = "fail2ban";

/// Returns what a node of `spec` looks like when nothing has drifted.
pub fn expected(spec: &ResolvedSpec) -> NodeState {
    let services = &spec.platform.services;
    let state = |runs: bool| ObservedService { enabled: runs, active: runs };
    let enabled = services.enable.iter().map(|name| (name.clone(), state(true)));
    let disabled = services.disable.iter().map(|name| (name.clone(), state(false)));
    let mut users: Vec<ObservedUser> = spec
        .access
        .users
        .iter()
        .map(|user| ObservedUser { name: user.name.clone(), sudo: user.sudo, keys: user.ssh_keys.clone() })
        .collect();
    users.sort_by(|a, b| a.name.cmp(&b.name));
    let security = &spec.access.security;
    let word = |value: Value| value.as_str().map(str::to_owned);
    NodeState {
        hostname: Some(spec.identity.hostname.to_string()),
        domain: spec.identity.domain.clone(),
        timezone: timezone(spec).map(str::to_owned),
        packages: spec.platform.packages.iter().map(|name| (name.clone(), true)).collect(),
        users,
        services: enabled.chain(disabled).collect(),
        security: ObservedSecurity {
            fail2ban: ObservedFail2ban { enabled: wants_fail2ban(spec) },
            ssh: ObservedSsh {
                password_authentication: word(json_of(&security.ssh.password_authentication)),
                permit_root_login: word(json_of(&security.ssh.permit_root_login)),
                port: Some(security.ssh.port),
            },
            sudo: has_sudo(spec).then_some(ObservedSudo { nopasswd: security.sudo.nopasswd }),
        },
        network: spec.network.as_ref().map(|network| ObservedNetwork {
            dns: network.dns.iter().map(ToString::to_string).collect(),
            gateway: network.gateway.map(|gateway| gateway.to_string()),
            ip: Some(network.ip.to_string()),
        }),
        pve: removes_nag(spec).map(|remove| ObservedPve { remove_subscription_nag: remove }),
    }
}

/// Returns the time zone that a spec wants.
pub fn timezone(spec: &ResolvedSpec) -> Option<&str> {
    spec.config.get("timezone").and_then(Value::as_str)
}

/// Whether a user of the spec may use sudo.
pub fn has_sudo(spec: &ResolvedSpec) -> bool {
    spec.access.users.iter().any(|user| user.sudo)
}

/// Whether fail2ban is among services that are not to run.
pub fn disables_fail2ban(disabled: &[String]) -> bool {
    disabled.iter().any(|name| name.trim_end_matches(".service") == FAIL2BAN)
}

/// Whether fail2ban runs: by the posture, or because the spec enables it as a service.
pub fn wants_fail2ban(spec: &ResolvedSpec) -> bool {
    spec.access.security.fail2ban.enabled || spec.platform.services.enable.iter().any(|name| name == FAIL2BAN)
}

/// Returns what the spec says about Proxmox asking for a subscription.
pub fn removes_nag(spec: &ResolvedSpec) -> Option<bool> {
    spec.config.get("pve")?.get("remove_subscription_nag")?.as_bool()
}

/// Returns where `observed` is not what `spec` wants, by path.
pub fn drift(spec: &ResolvedSpec, observed: &NodeState) -> Vec<Drift> {
    let drift = differences(&expected(spec), observed).into_iter();
    drift.map(|(path, expected, observed)| Drift { path, expected, observed }).collect()
}

/// Returns every difference of two states, by path: where, in the first, in the second; null: nothing.
pub fn differences(first: &NodeState, second: &NodeState) -> Vec<(String, Value, Value)> {
    let mut found = Vec::new();
    // The depth is that of the type, not of what somebody wrote.
    compare("", &tree(first), &tree(second), &mut found);
    found
}

fn compare(path: &str, first: &Value, second: &Value, found: &mut Vec<(String, Value, Value)>) {
    let (Value::Object(left), Value::Object(right)) = (first, second) else {
        if first != second {
            found.push((path.to_owned(), first.clone(), second.clone()));
        }
        return;
    };
    let keys: BTreeSet<&String> = left.keys().chain(right.keys()).collect();
    for key in keys {
        let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
        let value = |map: &Map<String, Value>| map.get(key).cloned().unwrap_or(Value::Null);
        compare(&path, &value(left), &value(right), found);
    }
}

/// Returns a state with its users by name.
fn tree(state: &NodeState) -> Value {
    let mut tree = json_of(state);
    let users: BTreeMap<&str, Value> = state
        .users
        .iter()
        .map(|user| (user.name.as_str(), serde_json::json!({"keys": user.keys, "sudo": user.sudo})))
        .collect();
    tree["users"] = json_of(&users);
    tree
}

fn json_of(value: &impl serde::Serialize) -> Value {
    serde_json::to_value(value).expect("states are always JSON")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn spec() -> ResolvedSpec {
        serde_json::from_value(json!({
            "access": {"posture": "prod", "security": {"fail2ban": {"enabled": true},
                "ssh": {"password_authentication": "no", "permit_root_login": "no", "port": 2222},
                "sudo": {"nopasswd": true}},
                "users": [{"name": "ops", "ssh_keys": ["ssh-ed25519 A b"], "sudo": true},
                          {"name": "ann", "ssh_keys": [], "sudo": false}]},
            "config": {"timezone": "UTC"}, "identity": {"domain": "lab.example", "hostname": "edge"},
            "network": {"dns": ["10.0.0.1"], "gateway": "10.0.0.1", "ip": "10.0.0.5/24"}, "node": "edge",
            "platform": {"packages": ["htop"], "services": {"disable": ["rpcbind"], "enable": ["cron"]}},
            "run": {"trigger": "manual"}, "schema_version": 1, "spec": "base",
        }))
        .unwrap()
    }

    #[test]
    fn a_node_as_its_spec_wants_it_has_no_drift() {
        let state = expected(&spec());
        assert_eq!(drift(&spec(), &state), []);
        assert_eq!(state.users[0].name, "ann", "by name");
        assert_eq!(state.services["rpcbind"], ObservedService { enabled: false, active: false });
    }

    /// Case 36: a key that was changed by hand is seen, with its path.
    #[test]
    fn drift_names_the_path_and_both_values() {
        let mut state = expected(&spec());
        state.users[1].keys = vec!["ssh-ed25519 X y".to_owned()];
        state.users.remove(0);
        state.packages.insert("htop".to_owned(), false);
        state.timezone = None;
        state.security.ssh.port = Some(22);
        let found: Vec<String> = drift(&spec(), &state)
            .iter()
            .map(|drift| format!("{} {} {}", drift.path, drift.expected, drift.observed))
            .collect();
        assert_eq!(
            found,
            [
                "packages.htop true false",
                "security.ssh.port 2222 22",
                "timezone \"UTC\" null",
                r#"users.ann {"keys":[],"sudo":false} null"#,
                r#"users.ops.keys ["ssh-ed25519 A b"] ["ssh-ed25519 X y"]"#,
            ]
        );
    }
}
