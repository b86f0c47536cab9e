//! The keys of inventories and agent registries, and the JSON Schema made from them.

use serde_json::{Value, json};

use super::ExecutorMode;
use crate::schema::{api_version, full_text, integer, object, text, words};
use crate::yaml::{Key, Keys};

/// The top level of an inventory.
pub const INVENTORY_KEYS: Keys = Keys {
    what: "an inventory",
    keys: &[
        Key::new("api_version", api_version, "the format of the file: `v1`").required(),
        Key::new(
            "defaults",
            || object(&DEFAULTS_KEYS),
            "keys of every host that does not set them; labels are merged",
        ),
        Key::new("hosts", hosts, "hosts by name").required(),
    ],
    hints: &[("all", "hosts"), ("agents", "hosts")],
};

/// `defaults` of an inventory: any host key but `transport`.
pub const DEFAULTS_KEYS: Keys = Keys {
    what: "`defaults`",
    keys: &[LABELS, BECOME, BECOME_PASSWORD, WORKDIR, EXECUTOR, ROOT, PARALLEL, DESCRIPTION],
    hints: &[("transport", "transport in each host"), ("tags", "labels"), ("sudo", "become")],
};

/// One host.
pub const HOST_KEYS: Keys = Keys {
    what: "a host",
    keys: &[TRANSPORT, LABELS, BECOME, BECOME_PASSWORD, WORKDIR, EXECUTOR, ROOT, PARALLEL, DESCRIPTION],
    hints: &[("tags", "labels"), ("address", "transport"), ("connection", "transport"), ("sudo", "become")],
};

/// Where a password comes from.
pub const PASSWORD_KEYS: Keys = Keys {
    what: "`become_password`",
    keys: &[
        Key::new("env", env_name, "the environment variable of the driver that holds it"),
        Key::new("file", full_text, "the file on the driver that holds it; its final newline is cut"),
    ],
    hints: &[],
};

/// The top level of an agent registry.
pub(super) const REGISTRY_KEYS: Keys = Keys {
    what: "an agent registry",
    keys: &[
        Key::new("api_version", api_version, "the format of the file: `v1`"),
        Key::new("agents", hosts, "agents by name").required(),
    ],
    hints: &[("hosts", "agents")],
};

/// One agent. What follows `workdir` is written by CIPDIP and of no use here.
pub(super) const AGENT_KEYS: Keys = Keys {
    what: "an agent",
    keys: &[
        TRANSPORT,
        DESCRIPTION,
        WORKDIR,
        Key::new("name", text, "ignored"),
        Key::new("last_check", text, "ignored"),
        Key::new("status", text, "ignored"),
        Key::new("status_msg", text, "ignored"),
        Key::new("os_arch", text, "ignored"),
        Key::new("cipdip_version", text, "ignored"),
        Key::new("pcap_capable", text, "ignored"),
    ],
    hints: &[],
};

const TRANSPORT: Key = Key::new(
    "transport",
    transport,
    "how it is reached: `local`, `ssh://user@host:port?option=value` or `user@host`",
)
.required();
const LABELS: Key = Key::new("labels", labels, "labels that targets select by, such as `role: web.front`");
const BECOME: Key = Key::new(
    "become",
    || json!({"type": "string", "pattern": "^(none|(sudo|doas)(:[^:\\s-][^:\\s]*)?)$"}),
    "who operations and commands run as: `sudo`, `doas`, `sudo:USER` or `none`; default none",
);
const BECOME_PASSWORD: Key = Key::new(
    "become_password",
    password,
    "where the password that `become` asks for is: `{env: NAME}` or `{file: PATH}`",
);
const WORKDIR: Key =
    Key::new("workdir", absolute_path, "where the executor keeps its files; default: found by itself");
const EXECUTOR: Key = Key::new(
    "executor",
    || words(&ExecutorMode::WORDS),
    "`auto` (default) brings the executor if something other than commands is done; `always`, `never`",
);
const ROOT: Key = Key::new("root", absolute_path, "operations act below this absolute path; default `/`");
const PARALLEL: Key =
    Key::new("parallel", || integer(1, 1000), "attempts at once; default the plan's `per_target`");
const DESCRIPTION: Key = Key::new("description", text, "what the host is for");

/// Labels that are set by Stead.
pub(super) const AUTOMATIC_LABELS: [&str; 9] =
    ["source", "manifest", "host", "type", "spec", "parent", "level", "mode", "driver"];

/// An absolute path without `..`; the reader refuses those that only look absolute to a schema.
fn absolute_path() -> Value {
    json!({"type": "string", "pattern": "^/"})
}

fn env_name() -> Value {
    json!({"type": "string", "pattern": "^[A-Za-z_][A-Za-z0-9_]*$"})
}

fn transport() -> Value {
    json!({"type": "string", "pattern": "^(local(://)?|ssh://[^\\s@?][^\\s]*|[^\\s@:?][^\\s:?]*@[^\\s]+)$"})
}

fn password() -> Value {
    let mut schema = object(&PASSWORD_KEYS);
    schema["oneOf"] = json!([{"required": ["env"]}, {"required": ["file"]}]);
    schema
}

fn hosts() -> Value {
    let host = json!({"anyOf": [transport(), {"$ref": "#/$defs/host"}]});
    json!({"type": "object", "additionalProperties": host,
        "propertyNames": {"pattern": "^[A-Za-z0-9][A-Za-z0-9._-]{0,252}$", "not": {"const": "all"}}})
}

fn labels() -> Value {
    json!({"type": "object", "additionalProperties": {"type": ["string", "number", "boolean"]},
        "propertyNames": {"pattern": "^[A-Za-z0-9_-]{1,63}$", "not": {"enum": AUTOMATIC_LABELS}}})
}
