//! Every key of a catalogue, with its schema: one table for the reader and for `stead schema`.

use serde_json::{Value, json};

use super::{Order, ProfileFlag, ScalarKind, StepMode, Undeclared, VarKind};
use crate::plan_file::keys::{MAX_PARALLEL, retry};
use crate::schema::{api_version, boolean, duration, full_text, integer, object, text, words};
use crate::yaml::{Key, Keys};

/// The top level.
pub const CATALOGUE_KEYS: Keys = Keys {
    what: "a catalogue",
    keys: &[
        Key::new("api_version", api_version, "the format of the file: `v1`").required(),
        Key::new("name", lower_word, "the catalogue's name; default the file's name without its ending"),
        DOC,
        Key::new(
            "root",
            full_text,
            "where relative paths start; default the file's directory, or its parent if that is called `steps`",
        ),
        Key::new("target", || object(&TARGET_KEYS), "what runs act on; default `<name>@<root>`"),
        Key::new(
            "undeclared",
            || words(&Undeclared::WORDS),
            "what happens to keys of layers that nothing declares; default `warn`",
        ),
        Key::new("layers", layers, "what configures the steps, low to high: a list, may be empty").required(),
        Key::new("controls", || map_of(env_name(), &object(&CONTROL_KEYS)), "switches, by name"),
        Key::new("vars", || map_of(env_name(), &object(&VAR_KEYS)), "variables, by name"),
        Key::new("steps", steps, "the steps, by id").required(),
        Key::new("apply", groups, "the order of apply: groups of steps").required(),
        Key::new("delete", groups, "the order of delete: groups of steps; default there is no delete"),
        Key::new("order", || object(&ORDER_KEYS), "what makes steps wait"),
        Key::new("limits", || object(&LIMITS_KEYS), "how much may run at once"),
        Key::new("inputs", || map_of(lower_word(), &inputs()), "documents of secret values, by name"),
        Key::new("intents", || map_of(intent_name(), &object(&INTENT_KEYS)), "edits of files, by name"),
        Key::new("check", || object(&CHECK_KEYS), "what `steps check` looks at besides the rest"),
    ],
    hints: &[
        ("version", "api_version"),
        ("description", "doc"),
        ("variables", "vars"),
        ("env", "vars"),
        ("tasks", "steps"),
        ("install", "apply"),
        ("destroy", "delete"),
        ("parallel", "limits: {parallel: …}"),
    ],
};

const DOC: Key = Key::new("doc", text, "what it is for, shown by `list`");

/// `target`.
pub const TARGET_KEYS: Keys = Keys {
    what: "`target`",
    keys: &[
        Key::new("from", || json!({"enum": TARGET_WORDS}), "`kubeconfig`, `hostname` or `value`").required(),
        Key::new("default", scalar, "with `kubeconfig`: the target if there is no current context"),
        Key::new("value", scalar, "with `value`: the target, expanded"),
    ],
    hints: &[],
};

/// Words of `target.from`.
pub const TARGET_WORDS: [&str; 3] = ["kubeconfig", "hostname", "value"];

/// One layer.
pub const LAYER_KEYS: Keys = Keys {
    what: "a layer",
    keys: &[
        Key::new("file", full_text, "a file, relative to the root"),
        Key::new("flag", || words(&ProfileFlag::WORDS), "the file a flag names: `profile` or `host-env`"),
        Key::new("unless", gate, "the layer is not read while this holds; over `in_layers: false` controls"),
        Key::new("secret", boolean, "whether every value from it is secret; default `false`"),
        Key::new("optional", boolean, "whether a missing file is skipped; default `true`"),
    ],
    hints: &[("path", "file"), ("when", "unless"), ("required", "optional: false")],
};

/// One control.
pub const CONTROL_KEYS: Keys = Keys {
    what: "a control",
    keys: &[
        Key::new("type", || json!({"const": "bool"}), "`bool`: it is `true` or `false`"),
        Key::new("enum", choices, "the values it takes"),
        Key::new("default", scalar, "its value if nothing sets it"),
        Key::new("in_layers", boolean, "whether layers may set it; default `true`"),
        DOC,
    ],
    hints: &[("values", "enum"), ("description", "doc")],
};

/// One variable.
pub const VAR_KEYS: Keys = Keys {
    what: "a variable",
    keys: &[
        Key::new("type", || words(&VarKind::WORDS), "`string` (default), `bool` or `int`"),
        Key::new("default", scalar, "its value if nothing sets it, expanded"),
        Key::new("env", boolean, "whether the process environment beats the layers; default `false`"),
        Key::new(
            "secret",
            boolean,
            "whether its value is masked and only given where granted; default `false`",
        ),
        Key::new("enum", choices, "the values it takes"),
        LENGTH,
        Key::new("min_length", bytes, "it has at least so many bytes"),
        Key::new("max_length", bytes, "it has at most so many bytes"),
        PATTERN,
        Key::new("min", whole_number, "with `int`: it is not less"),
        Key::new("max", whole_number, "with `int`: it is not more"),
        Key::new("required", boolean, "whether it must not be empty; default `false`"),
        Key::new("when", gate, "with `required`: only while this holds"),
        Key::new("for", step_ids, "with `required`: only if one of these steps is selected"),
        DOC,
    ],
    hints: &[("values", "enum"), ("description", "doc"), ("regex", "pattern"), ("sensitive", "secret")],
};

const LENGTH: Key = Key::new("length", lengths, "the lengths in bytes it may have");
const PATTERN: Key = Key::new("pattern", full_text, "a regular expression that the whole value must fit");

/// One step.
pub const STEP_KEYS: Keys = Keys {
    what: "a step",
    keys: &[
        Key::new("run", full_text, "the script, relative to the root"),
        Key::new("inputs", lower_word, "the inputs it hands over, by name"),
        Key::new("as", full_text, "with `inputs`: the path it goes by; default the id"),
        Key::new(
            "number",
            || integer(0, i64::MAX),
            "the number it goes by; default the digits before the first `_` of its basename",
        ),
        DOC,
        Key::new("modes", own_modes, "modes in which it may be listed; default `[apply, delete]`"),
        Key::new("destructive", modes, "modes in which it destroys; default none"),
        Key::new("args", || object(&ARGS_KEYS), "its arguments, by mode"),
        Key::new("gate", gate, "false leaves it out of the plan"),
        Key::new("needs", || object(&NEEDS_KEYS), "what must be finished before it, by mode"),
        Key::new("env", || map_of(env_name(), &scalar()), "variables it gets besides the values, expanded"),
        Key::new("secrets", secrets, "the secret variables it may see; `[\"*\"]`: all; default none"),
        Key::new("cwd", full_text, "where it runs, expanded; default the root"),
        Key::new("timeout", duration, "limit of one attempt; default none"),
        Key::new("retry", retry, "how often a failed attempt is tried again; default 0"),
        Key::new("idempotent", boolean, "whether a cut-off attempt may simply be made again; default `true`"),
    ],
    hints: &[
        ("script", "run"),
        ("path", "run"),
        ("when", "gate"),
        ("if", "gate"),
        ("depends_on", "needs"),
        ("description", "doc"),
        ("retries", "retry"),
    ],
};

/// `args` of a step.
pub const ARGS_KEYS: Keys = Keys {
    what: "`args`",
    keys: &[
        Key::new("apply", arguments, "default none"),
        Key::new("delete", arguments, "default `[\"--delete\"]`"),
    ],
    hints: &[],
};

/// `needs` of a step.
pub const NEEDS_KEYS: Keys = Keys {
    what: "`needs`",
    keys: &[
        Key::new("apply", step_ids, "steps of the apply list; default none"),
        Key::new("delete", step_ids, "steps of the delete list; default none"),
    ],
    hints: &[],
};

/// One group of a list.
pub const GROUP_KEYS: Keys = Keys {
    what: "a group",
    keys: &[
        Key::new("phase", full_text, "the heading above its steps in the plan"),
        Key::new("steps", step_ids, "the steps in order").required(),
    ],
    hints: &[("name", "phase")],
};

/// `order`.
pub const ORDER_KEYS: Keys = Keys {
    what: "`order`",
    keys: &[
        Key::new(
            "apply",
            || words(&Order::WORDS),
            "`listed` (default): each waits for the one before; `needs`",
        ),
        Key::new(
            "delete",
            || words(&Order::WORDS),
            "`listed` (default): each waits for the one before; `needs`",
        ),
    ],
    hints: &[],
};

/// `limits`.
pub const LIMITS_KEYS: Keys = Keys {
    what: "`limits`",
    keys: &[Key::new(
        "parallel",
        || integer(1, MAX_PARALLEL),
        "steps at once under `order: needs`; default 8",
    )],
    hints: &[],
};

/// One document of inputs.
pub const INPUTS_KEYS: Keys = Keys {
    what: "inputs",
    keys: &[
        Key::new("sink", sink, "where the document goes").required(),
        Key::new("keys", || map_of(text(), &object(&INPUT_KEYS)), "its keys").required(),
        DOC,
    ],
    hints: &[],
};

/// A sink of kind `file`.
pub const FILE_SINK_KEYS: Keys = Keys {
    what: "a file sink",
    keys: &[
        KIND,
        Key::new("path", full_text, "the file, relative to the root, expanded").required(),
        Key::new("format", || json!({"enum": ["manifest", "env"]}), "`manifest` (default) or `env`"),
        Key::new("namespace", full_text, "with `manifest`: the namespace of the Secret"),
        Key::new("name", full_text, "with `manifest`: the name of the Secret, required"),
        LABELS,
        ANNOTATIONS,
    ],
    hints: &[("file", "path"), ("type", "kind")],
};

/// A sink of kind `kubectl`.
pub const KUBECTL_SINK_KEYS: Keys = Keys {
    what: "a kubectl sink",
    keys: &[
        KIND,
        Key::new("command", full_text, "the program; default `kubectl`"),
        Key::new("namespace", full_text, "the namespace of the Secret").required(),
        Key::new("name", full_text, "the name of the Secret").required(),
        LABELS,
        ANNOTATIONS,
    ],
    hints: &[("type", "kind")],
};

const KIND: Key = Key::new("kind", || json!({"enum": super::Sink::KINDS}), "`file` or `kubectl`").required();
const LABELS: Key = Key::new("labels", texts_by_name, "labels of the Secret");
const ANNOTATIONS: Key = Key::new("annotations", texts_by_name, "annotations of the Secret");

/// One key of inputs.
pub const INPUT_KEYS: Keys = Keys {
    what: "a key of inputs",
    keys: &[
        Key::new("from", env_text, "the variable it takes; default the one of its name"),
        Key::new("when", gate, "rules and fallback act only while this holds"),
        Key::new("required", boolean, "whether it must not be empty; default `false`"),
        LENGTH,
        PATTERN,
        Key::new("fallback", full_text, "another key whose value it takes if it has none"),
        Key::new("warn", full_text, "with `fallback`: said when it is used"),
        DOC,
    ],
    hints: &[("description", "doc"), ("var", "from")],
};

/// One intent.
pub const INTENT_KEYS: Keys = Keys {
    what: "an intent",
    keys: &[
        DOC,
        Key::new("params", || map_of(env_name(), &object(&PARAM_KEYS)), "its parameters, by name"),
        Key::new("edits", edits, "what it edits: at least one").required(),
        Key::new("then", || object(&THEN_KEYS), "the apply that follows"),
    ],
    hints: &[("parameters", "params"), ("description", "doc")],
};

/// One parameter of an intent.
pub const PARAM_KEYS: Keys = Keys {
    what: "a parameter",
    keys: &[
        Key::new("enum", choices, "the values it takes").required(),
        Key::new("default", scalar, "its value if it is not given; without it must be given"),
        DOC,
    ],
    hints: &[("values", "enum")],
};

/// One edit of an intent.
pub const EDIT_KEYS: Keys = Keys {
    what: "an edit",
    keys: &[
        Key::new("file", full_text, "the file, relative to the root").required(),
        Key::new("select", select, "picks one document of the file: values by path"),
        Key::new("path", full_text, "where: dotted keys, `[0]`, `[name=web]`, `[\"a.b\"]`").required(),
        Key::new("value", scalar, "what is written: a text over the parameters, such as `app-${APP_ENV}`"),
        Key::new("by", env_text, "the parameter that chooses from `values`"),
        Key::new("values", choices_by_value, "what is written, for each value of the parameter `by`"),
        Key::new("type", || words(&ScalarKind::WORDS), "`string` (default), `int` or `bool`"),
        Key::new(
            "must_exist",
            boolean,
            "whether the value must be an existing path under the root; default `false`",
        ),
    ],
    hints: &[("set", "value"), ("key", "path")],
};

/// `then` of an intent.
pub const THEN_KEYS: Keys = Keys {
    what: "`then`",
    keys: &[Key::new("only", tokens, "the steps that are applied, as `--only` takes them").required()],
    hints: &[("steps", "only")],
};

/// `check`.
pub const CHECK_KEYS: Keys = Keys {
    what: "`check`",
    keys: &[
        Key::new("scan", paths, "directories in which every executable should be a step's"),
        Key::new("golden", || object(&GOLDEN_KEYS), "files that hold the lines of the plan, by mode"),
    ],
    hints: &[],
};

/// `check.golden`.
pub const GOLDEN_KEYS: Keys = Keys {
    what: "`golden`",
    keys: &[
        Key::new("apply", full_text, "lines of the apply plan"),
        Key::new("delete", full_text, "lines of the delete plan"),
    ],
    hints: &[],
};

fn map_of(names: Value, value: &Value) -> Value {
    json!({"type": "object", "propertyNames": names, "additionalProperties": value})
}

fn lower_word() -> Value {
    json!({"type": "string", "pattern": "^[a-z][a-z0-9-]{0,127}$"})
}

fn intent_name() -> Value {
    let mut name = lower_word();
    name["not"] = json!({"const": "list"});
    name
}

fn env_name() -> Value {
    json!({"pattern": ENV_PATTERN})
}

fn env_text() -> Value {
    json!({"type": "string", "pattern": ENV_PATTERN})
}

const ENV_PATTERN: &str = "^[A-Za-z_][A-Za-z0-9_]{0,254}$";

/// Any scalar, as its text.
fn scalar() -> Value {
    json!({"type": ["string", "number", "boolean"]})
}

fn gate() -> Value {
    full_text()
}

fn bytes() -> Value {
    integer(0, MAX_BYTES)
}

/// The longest value that can be asked for.
pub const MAX_BYTES: i64 = 1 << 30;

fn whole_number() -> Value {
    json!({"type": "integer"})
}

fn lengths() -> Value {
    json!({"type": "array", "items": bytes(), "minItems": 1})
}

fn choices() -> Value {
    json!({"type": "array", "items": scalar(), "minItems": 1, "uniqueItems": true})
}

fn choices_by_value() -> Value {
    json!({"type": "object", "additionalProperties": scalar()})
}

fn texts_by_name() -> Value {
    choices_by_value()
}

fn layers() -> Value {
    let mut layer = object(&LAYER_KEYS);
    layer["oneOf"] =
        json!([{"required": ["file"]}, {"required": ["flag"], "not": {"required": ["optional"]}}]);
    json!({"type": "array", "items": layer})
}

fn steps() -> Value {
    let mut step = object(&STEP_KEYS);
    let script_only: Vec<Value> =
        ["run", "args", "env", "secrets", "cwd"].iter().map(|key| json!({"required": [key]})).collect();
    step["oneOf"] = json!([
        {"required": ["run"], "not": {"anyOf": [{"required": ["inputs"]}, {"required": ["as"]}]}},
        {"required": ["inputs"], "not": {"anyOf": script_only}},
    ]);
    map_of(lower_word(), &step)
}

fn groups() -> Value {
    json!({"type": "array", "items": object(&GROUP_KEYS)})
}

fn step_ids() -> Value {
    json!({"type": "array", "items": lower_word()})
}

fn modes() -> Value {
    json!({"type": "array", "items": words(&StepMode::WORDS), "uniqueItems": true})
}

fn own_modes() -> Value {
    let mut modes = modes();
    modes["minItems"] = json!(1);
    modes
}

fn arguments() -> Value {
    json!({"type": "array", "items": scalar()})
}

fn secrets() -> Value {
    json!({"anyOf": [{"const": ["*"]}, {"type": "array", "items": env_text()}]})
}

fn inputs() -> Value {
    object(&INPUTS_KEYS)
}

fn sink() -> Value {
    let (mut file, mut kubectl) = (object(&FILE_SINK_KEYS), object(&KUBECTL_SINK_KEYS));
    file["properties"]["kind"] = json!({"const": "file"});
    let document: Vec<Value> =
        ["namespace", "name", "labels", "annotations"].iter().map(|key| json!({"required": [key]})).collect();
    file["if"] = json!({"properties": {"format": {"const": "env"}}, "required": ["format"]});
    file["then"] = json!({"not": {"anyOf": document}});
    file["else"] = json!({"required": ["name"]});
    kubectl["properties"]["kind"] = json!({"const": "kubectl"});
    json!({"oneOf": [file, kubectl]})
}

fn edits() -> Value {
    let mut edit = object(&EDIT_KEYS);
    edit["oneOf"] = json!([
        {"required": ["value"], "not": {"anyOf": [{"required": ["by"]}, {"required": ["values"]}]}},
        {"required": ["by", "values"], "not": {"required": ["value"]}},
    ]);
    json!({"type": "array", "items": edit, "minItems": 1})
}

fn select() -> Value {
    json!({"type": "object", "additionalProperties": scalar(), "minProperties": 1})
}

fn tokens() -> Value {
    json!({"type": "array", "items": {"type": ["string", "integer"]}, "minItems": 1})
}

fn paths() -> Value {
    json!({"type": "array", "items": full_text()})
}
