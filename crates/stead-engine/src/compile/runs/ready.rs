//! When a service counts as ready, every default written out.

use serde_json::{Map, Value, json};
use stead_model::Diagnostics;
use stead_model::role::{Readiness, ReadyDefaults};
use stead_model::run_manifest::Network;
use stead_model::yaml::Node;

use super::texts::{Here, Spot};

/// Where the methods that connect go to by default.
pub(super) fn defaults(network: &Network, is_of_kit: bool) -> ReadyDefaults {
    ReadyDefaults {
        host: network.server_listen_ip.map(|ip| ip.to_string()),
        port: Some(network.port()),
        fallback_port: if is_of_kit { Some(network.port()) } else { network.target_port },
    }
}

/// Returns what `node` says of readiness, its problems added to `problems`.
pub(super) fn written(
    here: &Here<'_>,
    node: Node<'_>,
    defaults: &ReadyDefaults,
    problems: &mut Diagnostics,
) -> Value {
    let value = here.value(node, Spot::Run, problems);
    check(node, &value, defaults, problems);
    complete(value, defaults)
}

/// Adds what is wrong with a `ready` to `problems`, each at the key it is about.
pub(super) fn check(node: Node<'_>, value: &Value, defaults: &ReadyDefaults, problems: &mut Diagnostics) {
    for problem in Readiness::check(value, defaults) {
        let (place, message) = match problem.key.as_str() {
            "" => (node, format!("`ready` {}", problem.message)),
            key => (node.get(key).unwrap_or(node), format!("`{key}` {}", problem.message)),
        };
        problems.push(place.bad(message).help(problem.help));
    }
}

/// Returns the readiness of a service that says nothing of it.
pub(super) fn none() -> Value {
    json!({"method": "none"})
}

/// Returns the readiness of a kit's service that says nothing of it: an event, else a connection.
pub(super) fn structured(defaults: &ReadyDefaults) -> Value {
    complete(json!({"method": "structured_stdout"}), defaults)
}

/// Returns `ready` with what its method takes by default.
fn complete(value: Value, defaults: &ReadyDefaults) -> Value {
    let Value::Object(mut ready) = value else { return value };
    let host = defaults.host.clone().unwrap_or_else(|| "127.0.0.1".to_owned());
    let connects = match ready.get("method").and_then(Value::as_str) {
        Some("tcp_connect") => true,
        Some("structured_stdout") => {
            let has_port = ready.contains_key("port") || defaults.fallback_port.is_some();
            fill(&mut ready, "event", "server_ready".into());
            fill(&mut ready, "fallback", if has_port { "tcp_connect" } else { "none" }.into());
            let falls_back = ready.get("fallback").and_then(Value::as_str) != Some("none");
            if falls_back {
                fill(&mut ready, "fallback_after_seconds", 5.into());
            }
            falls_back
        }
        Some("none") | None => return Value::Object(ready),
        Some("regex") => {
            fill(&mut ready, "stream", "stdout".into());
            false
        }
        Some("http") => {
            fill(&mut ready, "expect_status", json!(["200-399"]));
            false
        }
        Some(_) => false,
    };
    if connects {
        fill(&mut ready, "host", host.into());
        let port = defaults.fallback_port.or(defaults.port);
        fill(&mut ready, "port", port.map_or(Value::Null, Value::from));
    }
    fill(&mut ready, "timeout_seconds", 30.into());
    fill(&mut ready, "interval_ms", 100.into());
    fill(&mut ready, "from", "agent".into());
    Value::Object(ready)
}

fn fill(ready: &mut Map<String, Value>, key: &str, value: Value) {
    let entry = ready.entry(key.to_owned()).or_insert(Value::Null);
    if entry.is_null() {
        *entry = value;
    }
}
