//! Every key of run manifests and kits, with its schema: one table for the readers and for `stead schema`.

use serde_json::{Value, json};

use super::FieldKind;
use crate::plan_file::keys::{ENV_PATTERN, VAR_PATTERN, secrets};
use crate::role::{Readiness, StopRule, StopSignal};
use crate::run_plan::{Analyze, BundleFormat, Distribution, KeepWorkdir, RoleKind, Until};
use crate::schema::{api_version, boolean, full_text, integer, object, one_or_many, text, words};
use crate::yaml::{Key, Keys};

/// The top level of a run manifest.
pub const MANIFEST_KEYS: Keys = Keys {
    what: "a run manifest",
    keys: &[
        Key::new("api_version", api_version, "the format of the file: `v1`").required(),
        Key::new("run_id", run_id, "the run's name; default `auto`: the time it starts"),
        Key::new("seed", || json!({"type": "integer"}), "for programs that draw lots; default 0"),
        Key::new(
            "kit",
            full_text,
            "what makes the command lines of roles without `command`; default `cipdip`",
        ),
        Key::new("profile", || object(&PROFILE_KEYS), "what the roles have in common to work by"),
        Key::new("network", || object(&NETWORK_KEYS), "addresses that roles use"),
        Key::new(
            "vars",
            || map_of(VAR_PATTERN, &json!({})),
            "variables with their values; `null`: must be given",
        ),
        Key::new("env", env_names, "names of the environment variables the manifest reads"),
        Key::new("secrets", secrets, "where secrets come from: `{env: NAME}` or `{file: PATH}`"),
        Key::new("agents", agents, "agents by id: a transport, or `{transport, workdir}`"),
        Key::new("roles", roles, "what runs, by name: at least one").required(),
        Key::new("readiness", ready, "when services without `ready` count as ready"),
        Key::new("until", || words(UNTIL), "what ends the run; default by its roles"),
        Key::new(
            "lease_seconds",
            || integer(2, 3600),
            "how long agents go on without the driver: 2 to 3600; default 15",
        ),
        Key::new("keep_workdir", || words(KEEP_WORKDIR), "whether workdirs stay; default `never`"),
        Key::new("artifacts", || object(&ARTIFACTS_KEYS), "what every role leaves, and in which form"),
        Key::new("post_run", || object(&POST_RUN_KEYS), "what follows the run"),
    ],
    hints: &[
        ("version", "api_version"),
        ("id", "run_id"),
        ("variables", "vars"),
        ("ready", "readiness"),
        ("hosts", "agents"),
        ("tasks", "roles"),
        ("services", "roles"),
    ],
};

/// `profile`.
pub const PROFILE_KEYS: Keys = Keys {
    what: "`profile`",
    keys: &[
        Key::new(
            "path",
            full_text,
            "the file, relative to the manifest; `preinstalled`: absolute, on the agents",
        )
        .required(),
        Key::new(
            "checksum",
            || json!({"type": "string", "pattern": "^sha256:[0-9a-f]{64}$"}),
            "`sha256:` and 64 hex digits that the file must have",
        ),
        Key::new("distribution", || words(DISTRIBUTION), "how roles get it; default `inline`"),
    ],
    hints: &[("file", "path"), ("sha256", "checksum")],
};

/// `network`.
pub const NETWORK_KEYS: Keys = Keys {
    what: "`network`",
    keys: &[
        Key::new("data_plane", || object(&DATA_PLANE_KEYS), "where roles talk to each other"),
        Key::new("control_plane", text, "a label, recorded"),
    ],
    hints: &[],
};

/// `network.data_plane`.
pub const DATA_PLANE_KEYS: Keys = Keys {
    what: "`network.data_plane`",
    keys: &[
        Key::new("target_ip", text, "the address that clients talk to: IPv4 or IPv6, no host name"),
        Key::new("server_listen_ip", text, "the address that servers listen on: IPv4 or IPv6"),
        Key::new("target_port", || integer(1, 65_535), "the port of both: 1 to 65535; default 44818"),
        Key::new("client_bind_ip", text, "an address that the client's agent must have"),
    ],
    hints: &[("port", "target_port"), ("ip", "target_ip"), ("listen_ip", "server_listen_ip")],
};

/// An agent of a manifest.
pub const AGENT_KEYS: Keys = Keys {
    what: "an agent",
    keys: &[
        Key::new(
            "transport",
            full_text,
            "how it is reached: `local`, `ssh://user@host:port?option=value`, `user@host`",
        )
        .required(),
        Key::new(
            "workdir",
            || json!({"type": "string", "pattern": "^/"}),
            "where workdirs are made; default: found by itself",
        ),
    ],
    hints: &[],
};

/// `artifacts` of a manifest.
pub const ARTIFACTS_KEYS: Keys = Keys {
    what: "`artifacts`",
    keys: &[
        Key::new("bundle_format", || words(BUNDLE_FORMAT), "what the bundle is in the end; default `dir`"),
        Key::new("include", globs, "collected from every role; default `*.pcap` and `*.pcapng`"),
        Key::new("max_bytes", || integer(0, i64::MAX), "bytes collected per role; default 2 GiB"),
    ],
    hints: &[("format", "bundle_format")],
};

/// `post_run`.
pub const POST_RUN_KEYS: Keys = Keys {
    what: "`post_run`",
    keys: &[
        Key::new("analyze", analyze, "whether captures are analysed; default `auto`: if there are any"),
        Key::new(
            "ports",
            || json!({"type": "array", "items": integer(1, 65_535)}),
            "more ports of captures that are analysed",
        ),
        Key::new("diff_baseline", full_text, "the bundle to compare with, relative to the manifest"),
        Key::new("fail_on", || one_or_many(&full_text()), "thresholds of the comparison that fail the run"),
    ],
    hints: &[("analyse", "analyze"), ("baseline", "diff_baseline")],
};

/// One role. A kit adds its fields.
pub const ROLE_KEYS: Keys = Keys {
    what: "a role",
    keys: &[
        Key::new("agent", full_text, "where it runs: `local`, an agent's id or a transport; default `local`"),
        Key::new("command", command, "the program and its arguments; no shell reads them"),
        Key::new("kit", full_text, "what makes the command line instead; default that of the manifest"),
        Key::new("kit_role", full_text, "which role of the kit it is; default the role's name"),
        Key::new("kind", || words(KIND), "`service` is stopped when no task is left; default `task`"),
        Key::new(
            "needs",
            || one_or_many(&full_text()),
            "roles that must be ready, or have ended well, before",
        ),
        Key::new("env", env_map, "its environment, over the agent's"),
        Key::new("workdir", full_text, "where it runs, absolute; default a fresh directory"),
        Key::new("files", files, "what is staged into its workdir"),
        Key::new("ready", ready, "when a service counts as ready"),
        Key::new("stop", || object(&STOP_KEYS), "how it is stopped; default TERM, and 10 seconds"),
        Key::new("duration_seconds", || integer(1, MAX_SECONDS), "after this long it is stopped: success"),
        Key::new("timeout_seconds", || integer(1, MAX_SECONDS), "after this long the run times out"),
        Key::new("expect_exit", || one_or_many(&integer(0, 255)), "exit codes that are well; default `[0]`"),
        Key::new("may_exit", boolean, "whether a service may end by itself; default false"),
        Key::new("allow_failure", boolean, "whether its failure is only a warning; default false"),
        Key::new("artifacts", artifacts, "what is collected from its workdir"),
        Key::new("repeat", || integer(1, MAX_REPEAT), "how often it runs: 1 to 1000; default 1"),
        Key::new("matrix", matrix, "lists of values; it runs with every combination"),
        Key::new(
            "concurrency",
            || integer(0, MAX_INSTANCES),
            "instances of a task at once, 0 for all; default 1",
        ),
        Key::new("args", || json!({"type": "object"}), "more flags for a kit's command line"),
    ],
    hints: &[
        ("exec", "command"),
        ("cmd", "command"),
        ("argv", "command"),
        ("depends_on", "needs"),
        ("after", "needs"),
        ("host", "agent"),
        ("target", "agent"),
        ("environment", "env"),
        ("cwd", "workdir"),
        ("readiness", "ready"),
        ("type", "kind"),
        ("timeout", "timeout_seconds"),
        ("duration", "duration_seconds"),
    ],
};

/// `{flag, value}` of a command.
pub const FLAG_KEYS: Keys = Keys {
    what: "an item of a command",
    keys: &[
        Key::new("flag", full_text, "the flag, such as `--rate`").required(),
        Key::new("value", || json!({}), "its value; nothing, \"\" and false leave both out, true the value")
            .required(),
    ],
    hints: &[],
};

/// A file that is staged.
pub const FILE_KEYS: Keys = Keys {
    what: "a file",
    keys: &[
        Key::new("from", full_text, "the file on the driver, relative to the manifest").required(),
        Key::new("to", full_text, "its place in the workdir; default its name"),
        Key::new(
            "mode",
            || json!({"type": "string", "pattern": "^[0-7]{3,4}$"}),
            "its permissions in octal, in quotes: \"0755\"; default those of the file",
        ),
    ],
    hints: &[("src", "from"), ("source", "from"), ("dest", "to")],
};

/// An artifact.
pub const ARTIFACT_KEYS: Keys = Keys {
    what: "an artifact",
    keys: &[
        Key::new("path", full_text, "a pattern, relative to the workdir: `*`, `?`, `[…]`, `**`").required(),
        Key::new("required", boolean, "whether a run without a match fails; default false"),
    ],
    hints: &[("glob", "path")],
};

/// `stop`.
pub const STOP_KEYS: Keys = Keys {
    what: "`stop`",
    keys: &[
        Key::new("signal", || words(STOP_SIGNAL), "what it is sent; default TERM"),
        Key::new(
            "grace_seconds",
            || integer(0, i64::from(StopRule::LONGEST_GRACE)),
            "how long it may take before it is killed: 0 to 600; default 10",
        ),
    ],
    hints: &[("grace", "grace_seconds"), ("timeout", "grace_seconds")],
};

/// `ready` and `readiness`; which keys go with which method is [`Readiness`]'s business.
pub const READY_KEYS: Keys = Keys {
    what: "`ready`",
    keys: &[
        Key::new("method", || json!({"enum": Readiness::METHODS}), "what makes it ready").required(),
        Key::new("timeout_seconds", number_or_template, "how long it may take; default 30"),
        Key::new("interval_ms", number_or_template, "time between looks; default 100"),
        Key::new("from", text, "who looks: `agent` (default) or `driver`"),
        Key::new("event", text, "structured_stdout: the event; default `server_ready`"),
        Key::new("fallback", text, "structured_stdout: `tcp_connect` or `none`"),
        Key::new("fallback_after_seconds", number_or_template, "structured_stdout: default 5"),
        Key::new("host", text, "tcp_connect: default `server_listen_ip`, else loopback"),
        Key::new("port", number_or_template, "tcp_connect: default `target_port`"),
        Key::new("pattern", text, "regex: named groups become values"),
        Key::new("stream", text, "regex: `stdout` (default), `stderr` or `both`"),
        Key::new("url", text, "http: the address"),
        Key::new(
            "expect_status",
            || json!({"type": ["array", "integer", "string"]}),
            "http: default 200-399",
        ),
        Key::new("body_regex", text, "http: must match the body"),
        Key::new("path", text, "file: absolute, or relative to the workdir"),
        Key::new("command", || json!({"type": "array", "minItems": 1}), "command: exits 0"),
    ],
    hints: &[],
};

/// The top level of a kit.
pub const KIT_KEYS: Keys = Keys {
    what: "a kit",
    keys: &[
        Key::new("api_version", api_version, "the format of the file: `v1`").required(),
        Key::new("kit", || json!({"type": "string", "pattern": ROLE_PATTERN}), "its name: that of the file")
            .required(),
        Key::new(
            "requires",
            || json!({"type": "array", "items": full_text()}),
            "paths that a manifest must have, such as `network.data_plane.target_ip`",
        ),
        Key::new("roles", kit_roles, "its roles, by name: at least one").required(),
    ],
    hints: &[("version", "api_version"), ("name", "kit")],
};

/// One field of a kit's role.
pub const FIELD_KEYS: Keys = Keys {
    what: "a field",
    keys: &[
        Key::new("type", || words(FIELD_KIND), "what it holds").required(),
        Key::new("required", boolean, "whether a role must have it; default false"),
        Key::new("default", || json!({}), "its value if a role does not have it"),
        Key::new("min", || json!({"type": "number"}), "int, float: the least"),
        Key::new("max", || json!({"type": "number"}), "int, float: the most"),
        Key::new(
            "values",
            || json!({"type": "array", "items": {"type": "string"}, "minItems": 1}),
            "enum: what it may be",
        ),
    ],
    hints: &[("kind", "type"), ("enum", "values"), ("minimum", "min"), ("maximum", "max")],
};

/// The longest time of a role: a year.
pub const MAX_SECONDS: i64 = 31_536_000;
/// The most repetitions.
pub const MAX_REPEAT: i64 = 1000;
/// The most instances of all roles of a run.
pub const MAX_INSTANCES: i64 = 4000;

/// The names of roles and kits, as a regular expression.
pub const ROLE_PATTERN: &str = "^[a-z][a-z0-9_-]{0,31}$";
/// The same in words.
pub const ROLE_RULE: &str =
    "a lower-case letter, then lower-case letters, digits, `_` or `-`, at most 32 in all";

/// Words of `until`.
pub const UNTIL: &[(&str, Until)] =
    &[("tasks", Until::Tasks), ("duration", Until::Duration), ("signal", Until::Signal)];
/// Words of `keep_workdir`.
pub const KEEP_WORKDIR: &[(&str, KeepWorkdir)] =
    &[("never", KeepWorkdir::Never), ("on_failure", KeepWorkdir::OnFailure), ("always", KeepWorkdir::Always)];
/// Words of `bundle_format`.
pub const BUNDLE_FORMAT: &[(&str, BundleFormat)] =
    &[("dir", BundleFormat::Dir), ("zip", BundleFormat::Zip), ("tar.zst", BundleFormat::TarZst)];
/// Words of `distribution`.
pub const DISTRIBUTION: &[(&str, Distribution)] = &[
    ("inline", Distribution::Inline),
    ("push", Distribution::Push),
    ("preinstalled", Distribution::Preinstalled),
];
/// Words of `analyze`, besides the booleans.
pub const ANALYZE: &[(&str, Analyze)] = &[("auto", Analyze::Auto)];
/// Words of `kind`.
pub const KIND: &[(&str, RoleKind)] = &[("service", RoleKind::Service), ("task", RoleKind::Task)];
/// Words of `stop.signal`.
pub const STOP_SIGNAL: &[(&str, StopSignal)] = &[
    ("TERM", StopSignal::Term),
    ("INT", StopSignal::Int),
    ("HUP", StopSignal::Hup),
    ("QUIT", StopSignal::Quit),
    ("USR1", StopSignal::Usr1),
    ("USR2", StopSignal::Usr2),
];
/// Words of a field's `type`.
pub const FIELD_KIND: &[(&str, FieldKind)] = &[
    ("string", FieldKind::Text),
    ("int", FieldKind::Int),
    ("float", FieldKind::Float),
    ("bool", FieldKind::Bool),
    ("enum", FieldKind::Enum),
    ("list", FieldKind::List),
    ("ip", FieldKind::Ip),
];

/// Whether `text` can name a role or a kit.
pub fn is_role_name(text: &str) -> bool {
    let bytes = text.as_bytes();
    bytes.len() <= 32
        && bytes.first().is_some_and(u8::is_ascii_lowercase)
        && bytes.iter().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"_-".contains(b))
}

fn run_id() -> Value {
    json!({"type": ["string", "null"], "pattern": "^([A-Za-z0-9][A-Za-z0-9._-]{0,63})?$"})
}

fn map_of(pattern: &str, value: &Value) -> Value {
    json!({"type": "object", "propertyNames": {"pattern": pattern}, "additionalProperties": value})
}

fn env_names() -> Value {
    json!({"type": "array", "items": {"type": "string", "pattern": ENV_PATTERN}})
}

fn env_map() -> Value {
    map_of(ENV_PATTERN, &json!({"type": ["string", "number", "boolean"]}))
}

fn agents() -> Value {
    json!({"type": "object", "additionalProperties": {"anyOf": [full_text(), object(&AGENT_KEYS)]}})
}

fn roles() -> Value {
    let mut roles = map_of(ROLE_PATTERN, &json!({"$ref": "#/$defs/role"}));
    roles["minProperties"] = json!(1);
    roles
}

fn kit_roles() -> Value {
    let mut role = object(&ROLE_KEYS);
    role["properties"]["fields"] = json!({"type": "object", "additionalProperties": object(&FIELD_KEYS),
        "description": "what roles of this kind have besides the usual keys"});
    role["required"] = json!(["command"]);
    let mut roles = map_of(ROLE_PATTERN, &role);
    roles["minProperties"] = json!(1);
    roles
}

fn ready() -> Value {
    object(&READY_KEYS)
}

fn command() -> Value {
    let item = json!({"anyOf": [{"type": ["string", "number", "boolean"]}, object(&FLAG_KEYS)]});
    json!({"type": "array", "items": item, "minItems": 1})
}

fn files() -> Value {
    json!({"type": "array", "items": {"anyOf": [full_text(), object(&FILE_KEYS)]}})
}

fn artifacts() -> Value {
    json!({"type": "array", "items": {"anyOf": [full_text(), object(&ARTIFACT_KEYS)]}})
}

fn globs() -> Value {
    json!({"type": "array", "items": full_text()})
}

fn matrix() -> Value {
    let values = json!({"type": "array", "items": {"type": ["string", "number", "boolean"]}, "minItems": 1});
    map_of(VAR_PATTERN, &values)
}

fn analyze() -> Value {
    json!({"enum": ["auto", true, false]})
}

fn number_or_template() -> Value {
    json!({"type": ["number", "string"]})
}
