//! The manifest with every default, as it is recorded.

use serde_json::{Map, Value, json};
use stead_model::run_manifest::{DEFAULT_INCLUDE, NeedsForm, RoleForm};
use stead_model::yaml::{Node, Ordered};

use super::RunInputs;
use super::roles::{Roles, Written};

/// Returns the manifest with every default and every override, in the order it is written in: that of roles and of
/// `args` means something. `run_id` is as it was written. Transports are masked.
pub(super) fn manifest(inputs: &RunInputs<'_>, roles: &Roles<'_>) -> Ordered {
    let manifest = inputs.manifest;
    let root = manifest.tree().root();
    let Value::Object(mut value) = root.to_json() else { return Ordered::default() };
    let mut set = |key: &str, given: Value| value.insert(key.to_owned(), given);
    set("run_id", manifest.run_id.as_ref().map_or_else(|| json!("auto"), |id| json!(id)));
    set("seed", manifest.seed.into());
    set("kit", manifest.kit.clone().into());
    set("network", roles.network.clone());
    set("until", json!(roles.until));
    set("lease_seconds", manifest.lease_seconds.into());
    set("keep_workdir", json!(manifest.keep_workdir));
    if !roles.resolved.vars.is_empty() {
        set("vars", json!(roles.resolved.vars));
    }
    let agents: Map<String, Value> = manifest
        .agents
        .iter()
        .map(|(id, host)| {
            let mut agent = json!({"transport": host.transport.to_string()});
            if let Some(workdir) = &host.workdir {
                agent["workdir"] = workdir.clone().into();
            }
            (id.to_string(), agent)
        })
        .collect();
    if !agents.is_empty() {
        set("agents", Value::Object(agents));
    }
    if let Some(profile) = &manifest.profile {
        let mut given = json!({"path": profile.path, "distribution": profile.distribution});
        if let Some(checksum) = profile.checksum {
            given["checksum"] = format!("sha256:{checksum}").into();
        }
        set("profile", given);
    }
    let include = match &manifest.include {
        Some(nodes) => nodes.iter().map(|id| manifest.node(*id).to_json()).collect(),
        None => json!(DEFAULT_INCLUDE),
    };
    set(
        "artifacts",
        json!({"bundle_format": manifest.bundle_format, "include": include, "max_bytes": manifest.max_bytes}),
    );
    let post_run = set_post_run(inputs);
    set("post_run", post_run);
    set("roles", roles.written.iter().map(|role| (role.entry.name.clone(), self::role(role))).collect());
    Ordered::like(Value::Object(value), Some(root))
}

fn set_post_run(inputs: &RunInputs<'_>) -> Value {
    let manifest = inputs.manifest;
    let analyze = match manifest.analyze {
        stead_model::run_plan::Analyze::Auto => json!("auto"),
        stead_model::run_plan::Analyze::Yes => json!(true),
        stead_model::run_plan::Analyze::No => json!(false),
    };
    let mut post_run = json!({"analyze": analyze, "ports": manifest.ports});
    if let Some(baseline) = &manifest.diff_baseline {
        post_run["diff_baseline"] = baseline.name.clone().into();
        post_run["fail_on"] = manifest.fail_on.iter().map(|threshold| threshold.name.clone()).collect();
    }
    post_run
}

fn role(written: &Written<'_>) -> Value {
    let Some(form) = &written.form else { return Value::Null };
    let mut value = match form.node.to_json() {
        Value::Object(value) => value,
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => Map::new(),
    };
    let mut set = |key: &str, given: Value| value.insert(key.to_owned(), given);
    // The id, not what is written: that may be a transport with a password in it.
    set("agent", written.agent.as_ref().map_or(Value::Null, |(id, _)| json!(id)));
    if let Some((kit, role)) = written.kit {
        set("kit", kit.name.clone().into());
        set("kit_role", role.name.clone().into());
    }
    set("kind", json!(form.kind));
    set("needs", needs(form));
    set("stop", json!(form.stop));
    set("expect_exit", json!(form.expect_exit));
    set("may_exit", form.may_exit.into());
    set("allow_failure", form.allow_failure.into());
    set("repeat", form.repeat.into());
    set("concurrency", form.concurrency.into());
    Value::Object(value)
}

fn needs(form: &RoleForm<'_>) -> Value {
    let (NeedsForm::Roles(names) | NeedsForm::OfKit(names)) = &form.needs;
    names.iter().copied().map(Node::to_json).collect()
}
