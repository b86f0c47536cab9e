//! Every key of a plan file, with its schema: one table for the reader and for `stead schema`.

use serde_json::{Value, json};

use crate::plan::{
    CatchUp, HostFailure, Interrupted, Jitter, MutexScope, OnEmpty, OnError, OnFailure, OnlyIfChanged,
    Overlap, TriggerRule,
};
use crate::schema::{
    api_version, boolean, duration, full_text, integer, name, object, one_or_many, text, words,
};
use crate::status::ErrorClass;
use crate::yaml::{Key, Keys};

/// What people write instead of `depends_on`, `target`, ….
const TASK_HINTS: &[(&str, &str)] = &[
    ("on", "target"),
    ("host", "target"),
    ("hosts", "target"),
    ("targets", "target"),
    ("needs", "depends_on"),
    ("after", "depends_on"),
    ("requires", "depends_on"),
    ("dependencies", "depends_on"),
    ("if", "when"),
    ("only_if", "when"),
    ("loop", "for_each"),
    ("with_items", "for_each"),
    ("foreach", "for_each"),
    ("retries", "retry"),
    ("command", "exec"),
    ("cmd", "exec"),
    ("script", "shell"),
    ("run", "shell"),
    ("operation", "op"),
    ("module", "op"),
    ("args", "params"),
    ("with", "params"),
    ("steps", "sequence"),
    ("env", "params: {env: …}"),
    ("cwd", "params: {cwd: …}"),
    ("stdin", "params: {stdin: …}"),
    ("creates", "params: {creates: …}"),
    ("unless", "params: {unless: …}"),
    ("ok_exit", "params: {ok_exit: …}"),
    ("ignore_errors", "on_error: continue"),
    ("serial", "batch"),
    ("notify", "depends_on, with only_if_changed: true, on the other task"),
];

/// The top level.
pub const PLAN_KEYS: Keys = Keys {
    what: "a plan",
    keys: &[
        Key::new("api_version", api_version, "the format of the file: `v1`").required(),
        Key::new("name", name, "the plan's name: a letter or digit, then letters, digits, `.`, `_` or `-`")
            .required(),
        Key::new("description", text, "what the plan is for"),
        Key::new("vars", vars, "variables with their values; `null`: must be given with --var"),
        Key::new("env", env, "names of the environment variables the plan reads"),
        Key::new("secrets", secrets, "where secrets come from: `{env: NAME}` or `{file: PATH}`"),
        Key::new("defaults", || object(&DEFAULTS_KEYS), "settings of tasks that do not set them themselves"),
        Key::new("on_error", || words(ON_ERROR), "what a failed task does to the run; default `stop_all`"),
        Key::new(
            "on_failure",
            || words(ON_FAILURE),
            "what happens to changes of a failed run; default `keep`",
        ),
        Key::new("limits", || object(&LIMITS_KEYS), "how much may run at once"),
        Key::new("timeout", duration, "limit of the main part; default none"),
        Key::new("finally_timeout", duration, "limit of the `finally` part; default `5m`"),
        Key::new("grace", duration, "how long a cancelled attempt may take; default `10s`"),
        Key::new("lock", boolean, "whether the run locks its targets; default `true`"),
        Key::new("triggers", triggers, "what starts runs of this plan on a server"),
        Key::new("tasks", tasks, "the tasks: a list, may be empty").required(),
        Key::new("finally", tasks, "tasks that run when everything else is finished, whatever happened"),
    ],
    hints: &[
        ("version", "api_version"),
        ("variables", "vars"),
        ("steps", "tasks"),
        ("jobs", "tasks"),
        ("parallel", "limits: {parallel: …}"),
    ],
};

/// `defaults`.
pub const DEFAULTS_KEYS: Keys = Keys {
    what: "`defaults`",
    keys: &[
        Key::new("target", target, "default `local`"),
        Key::new("timeout", duration, "limit of one attempt on one host; default none"),
        Key::new("retry", retry, "how often a failed attempt is tried again; default 0"),
        Key::new("host_failure", host_failure, "how many hosts may fail; default `any`"),
        Key::new("batch", batch, "how many hosts at once; default all"),
        Key::new("mutex", mutex, "names held while a task runs"),
    ],
    hints: &[("on", "target"), ("retries", "retry"), ("on_error", "on_error at the top of the plan")],
};

/// `limits`.
pub const LIMITS_KEYS: Keys = Keys {
    what: "`limits`",
    keys: &[
        Key::new("parallel", || integer(1, MAX_PARALLEL), "attempts at once over all hosts; default 64"),
        Key::new(
            "per_target",
            || integer(1, MAX_PARALLEL),
            "attempts at once per host; default 8, for `local` CPUs + 2",
        ),
    ],
    hints: &[],
};

/// The largest of both limits.
pub const MAX_PARALLEL: i64 = 10_000;

/// One secret.
pub const SECRET_KEYS: Keys = Keys {
    what: "a secret",
    keys: &[
        Key::new("env", env_name, "the environment variable that holds it"),
        Key::new(
            "file",
            full_text,
            "the file that holds it, relative to the plan file; its final newline is cut",
        ),
    ],
    hints: &[],
};

/// One task.
pub const TASK_KEYS: Keys = Keys {
    what: "a task",
    keys: &[
        Key::new(
            "name",
            name,
            "a letter or digit, then letters, digits, `.`, `_` or `-`; unique in the plan",
        )
        .required(),
        Key::new("description", text, "what the task is for"),
        Key::new("op", full_text, "an operation, such as `file.present`"),
        Key::new("params", params, "parameters of the operation"),
        Key::new("exec", exec, "short for `command.exec`: the program and its arguments"),
        Key::new("shell", full_text, "short for `command.shell`: a script for /bin/sh"),
        Key::new("sequence", sequence, "several operations per host, in order"),
        Key::new("target", target, "where it runs; default `local`"),
        Key::new("on_empty", || words(ON_EMPTY), "what happens if no host matches; default `fail`"),
        Key::new("depends_on", || one_or_many(&text()), "tasks that must be finished before"),
        Key::new(
            "trigger_rule",
            || words(TRIGGER_RULE),
            "when it runs, by the ends of its dependencies; default `all_ok`",
        ),
        Key::new("only_if_changed", only_if_changed, "run only if a dependency changed; default `false`"),
        Key::new("when", guards, "an expression, or several that must all be true"),
        Key::new("when_host", guards, "as `when`, judged for each host"),
        Key::new("confirm", full_text, "a question asked before it runs"),
        Key::new(
            "changed_when",
            expression,
            "an expression over `result` that says whether it changed something",
        ),
        Key::new("failed_when", expression, "an expression over `result` that says whether it failed"),
        Key::new("idempotent", boolean, "whether it may simply be run again; default by operation"),
        Key::new("on_error", on_error, "what its failure does to the run; default that of the plan"),
        Key::new("retry", retry, "how often a failed attempt is tried again"),
        Key::new("timeout", duration, "limit of one attempt on one host"),
        Key::new("undo", undo, "`auto`, or the action that undoes it"),
        Key::new(
            "interrupted",
            || words(INTERRUPTED),
            "what resume does with an attempt that was cut off; default `fail`",
        ),
        Key::new("host_failure", host_failure, "how many hosts may fail; default `any`"),
        Key::new("batch", batch, "how many hosts at once; default all"),
        Key::new("batch_pause", duration, "time between batches"),
        Key::new("canary", size, "how many hosts go first, alone"),
        Key::new("canary_pause", duration, "time after the canary"),
        Key::new("mutex", mutex, "names held while it runs"),
        Key::new("for_each", for_each, "makes one task for each element of a list or map"),
    ],
    hints: TASK_HINTS,
};

/// One part of a sequence.
pub const PART_KEYS: Keys = Keys {
    what: "a part of a sequence",
    keys: &[
        Key::new("name", name, "the part's name, unique in the sequence").required(),
        Key::new("op", full_text, "an operation, such as `file.present`"),
        Key::new("params", params, "parameters of the operation"),
        Key::new("exec", exec, "short for `command.exec`: the program and its arguments"),
        Key::new("shell", full_text, "short for `command.shell`: a script for /bin/sh"),
        Key::new("when_host", guards, "judged for each host; false leaves the part out there"),
        Key::new(
            "changed_when",
            expression,
            "an expression over `result` that says whether it changed something",
        ),
        Key::new("failed_when", expression, "an expression over `result` that says whether it failed"),
    ],
    hints: &[("when", "when_host"), ("args", "params"), ("command", "exec"), ("script", "shell")],
};

/// The action of `undo`.
pub const UNDO_KEYS: Keys = Keys {
    what: "an undo",
    keys: &[
        Key::new("op", full_text, "an operation, such as `file.absent`"),
        Key::new("params", params, "parameters of the operation"),
        Key::new("exec", exec, "short for `command.exec`: the program and its arguments"),
        Key::new("shell", full_text, "short for `command.shell`: a script for /bin/sh"),
    ],
    hints: &[("args", "params"), ("command", "exec"), ("script", "shell")],
};

/// `retry` written out.
pub const RETRY_KEYS: Keys = Keys {
    what: "`retry`",
    keys: &[
        Key::new("times", || integer(0, MAX_RETRIES), "how often it is tried again: 0 to 1000").required(),
        Key::new("backoff", backoff, "how long to wait; default `none`"),
        Key::new(
            "on",
            retry_on,
            "error classes that are tried again; default exit, operation, unreachable, timeout",
        ),
    ],
    hints: &[("count", "times"), ("attempts", "times"), ("max", "times"), ("delay", "backoff")],
};

/// The most retries.
pub const MAX_RETRIES: i64 = 1000;

/// `backoff` written out.
pub const BACKOFF_KEYS: Keys = Keys {
    what: "`backoff`",
    keys: &[
        Key::new("initial", duration, "the first delay").required(),
        Key::new("max", duration, "the longest delay").required(),
        Key::new(
            "factor",
            || json!({"type": "number", "minimum": 1, "maximum": 100}),
            "from one delay to the next; default 2",
        ),
        Key::new("jitter", || words(JITTER), "whether delays are spread; default `none`"),
    ],
    hints: &[],
};

/// `on_error: {retry: n}`.
pub const ON_ERROR_KEYS: Keys = Keys {
    what: "`on_error`",
    keys: &[Key::new("retry", || integer(0, MAX_RETRIES), "short for `retry: n`").required()],
    hints: &[],
};

/// `host_failure: {percent: n}`.
pub const HOST_FAILURE_KEYS: Keys = Keys {
    what: "`host_failure`",
    keys: &[Key::new("percent", || integer(0, 99), "fails if more than so many of a hundred hosts fail")
        .required()],
    hints: &[],
};

/// `mutex` written out.
pub const MUTEX_KEYS: Keys = Keys {
    what: "a mutex",
    keys: &[
        Key::new("name", full_text, "its name").required(),
        Key::new(
            "scope",
            || words(MUTEX_SCOPE),
            "`run`: held for the whole task; `host`: per attempt on a host; default `run`",
        ),
    ],
    hints: &[],
};

/// One trigger.
pub const TRIGGER_KEYS: Keys = Keys {
    what: "a trigger",
    keys: &[
        Key::new("agent_online", || object(&AGENT_ONLINE_KEYS), "an agent that matches came online"),
        Key::new("schedule", || object(&SCHEDULE_KEYS), "at times"),
        Key::new("webhook", || object(&WEBHOOK_KEYS), "on a request"),
        Key::new("overlap", || words(OVERLAP), "what happens while the last run goes on; default `queue`"),
        Key::new("min_interval", duration, "shortest time between two starts"),
        Key::new("vars", vars, "variables of the run; templates over `trigger`"),
    ],
    hints: &[("cron", "schedule: {cron: …}")],
};

/// `agent_online`.
pub const AGENT_ONLINE_KEYS: Keys = Keys {
    what: "`agent_online`",
    keys: &[Key::new("match", full_text, "a target expression").required()],
    hints: &[],
};

/// `schedule`.
pub const SCHEDULE_KEYS: Keys = Keys {
    what: "`schedule`",
    keys: &[
        Key::new("cron", full_text, "five fields: minute, hour, day of month, month, day of week").required(),
        Key::new("tz", full_text, "a time zone such as `Europe/Vienna`; default `UTC`"),
        Key::new(
            "catch_up",
            || words(CATCH_UP),
            "what is made up for after the server was down; default `none`",
        ),
    ],
    hints: &[("timezone", "tz")],
};

/// `webhook`.
pub const WEBHOOK_KEYS: Keys = Keys {
    what: "`webhook`",
    keys: &[
        Key::new("path", || json!({"type": "string", "pattern": "^/"}), "the path, from `/`").required(),
        Key::new("secret", full_text, "the name of the plan's secret that signs it").required(),
    ],
    hints: &[],
};

/// A guard with a reason, or a combination.
pub const GUARD_KEYS: Keys = Keys {
    what: "a guard",
    keys: &[
        Key::new("expr", expression, "an expression"),
        Key::new("reason", text, "said when it is false"),
        Key::new("all", guards, "true if all are"),
        Key::new("any", guards, "true if one is"),
        Key::new("not", guards, "true if it is not"),
    ],
    hints: &[("and", "all"), ("or", "any")],
};

/// Words of `on_error`.
pub const ON_ERROR: &[(&str, OnError)] = &[("stop_all", OnError::StopAll), ("continue", OnError::Continue)];
/// Words of `on_failure`.
pub const ON_FAILURE: &[(&str, OnFailure)] = &[("keep", OnFailure::Keep), ("rollback", OnFailure::Rollback)];
/// Words of `on_empty`.
pub const ON_EMPTY: &[(&str, OnEmpty)] = &[("fail", OnEmpty::Fail), ("skip", OnEmpty::Skip)];
/// Words of `trigger_rule`.
pub const TRIGGER_RULE: &[(&str, TriggerRule)] = &[
    ("all_ok", TriggerRule::AllOk),
    ("all_ran", TriggerRule::AllRan),
    ("any_ok", TriggerRule::AnyOk),
    ("all_done", TriggerRule::AllDone),
    ("any_failed", TriggerRule::AnyFailed),
    ("all_failed", TriggerRule::AllFailed),
];
/// Words of `only_if_changed`, besides the booleans.
pub const ONLY_IF_CHANGED: &[(&str, OnlyIfChanged)] =
    &[("any", OnlyIfChanged::Any), ("all", OnlyIfChanged::All)];
/// Words of `interrupted`.
pub const INTERRUPTED: &[(&str, Interrupted)] = &[("fail", Interrupted::Fail), ("retry", Interrupted::Retry)];
/// Words of `host_failure`.
pub const HOST_FAILURE: &[(&str, HostFailure)] = &[("any", HostFailure::Any), ("all", HostFailure::All)];
/// Words of `scope`.
pub const MUTEX_SCOPE: &[(&str, MutexScope)] = &[("run", MutexScope::Run), ("host", MutexScope::Host)];
/// Words of `jitter`.
pub const JITTER: &[(&str, Jitter)] = &[("none", Jitter::None), ("full", Jitter::Full)];
/// Words of `catch_up`.
pub const CATCH_UP: &[(&str, CatchUp)] = &[("none", CatchUp::None), ("one", CatchUp::One)];
/// Words of `overlap`.
pub const OVERLAP: &[(&str, Overlap)] =
    &[("queue", Overlap::Queue), ("skip", Overlap::Skip), ("parallel", Overlap::Parallel)];

/// Returns the error classes `retry.on` may name, by their words. Only steps have checks.
pub fn retry_classes() -> Vec<(&'static str, ErrorClass)> {
    ErrorClass::ALL
        .iter()
        .filter(|class| class.may_be_retried() && **class != ErrorClass::Check)
        .map(|class| (class.as_str(), *class))
        .collect()
}

/// The names of variables and secrets, as a regular expression.
pub(crate) const VAR_PATTERN: &str = "^[A-Za-z_][A-Za-z0-9_.-]{0,127}$";
/// The names of environment variables, as a regular expression.
pub(crate) const ENV_PATTERN: &str = "^[A-Za-z_][A-Za-z0-9_]{0,254}$";

fn vars() -> Value {
    json!({"type": "object", "propertyNames": {"pattern": VAR_PATTERN}})
}

fn env_name() -> Value {
    json!({"type": "string", "pattern": ENV_PATTERN})
}

fn env() -> Value {
    json!({"type": "array", "items": env_name()})
}

pub(crate) fn secrets() -> Value {
    let mut secret = object(&SECRET_KEYS);
    secret["oneOf"] = json!([{"required": ["env"]}, {"required": ["file"]}]);
    json!({"type": "object", "propertyNames": {"pattern": VAR_PATTERN}, "additionalProperties": secret})
}

fn tasks() -> Value {
    json!({"type": "array", "items": {"$ref": "#/$defs/task"}})
}

fn params() -> Value {
    json!({"type": "object"})
}

fn exec() -> Value {
    json!({"type": "array", "items": {"type": ["string", "number", "boolean"]}, "minItems": 1})
}

fn sequence() -> Value {
    json!({"type": "array", "items": {"$ref": "#/$defs/part"}, "minItems": 1})
}

fn target() -> Value {
    one_or_many(&full_text())
}

fn expression() -> Value {
    json!({"type": ["string", "boolean"]})
}

fn guards() -> Value {
    one_or_many(&json!({"$ref": "#/$defs/guard"}))
}

fn only_if_changed() -> Value {
    json!({"anyOf": [boolean(), words(ONLY_IF_CHANGED)]})
}

fn on_error() -> Value {
    json!({"anyOf": [words(ON_ERROR), object(&ON_ERROR_KEYS)]})
}

pub(crate) fn retry() -> Value {
    json!({"anyOf": [integer(0, MAX_RETRIES), object(&RETRY_KEYS)]})
}

fn backoff() -> Value {
    json!({"anyOf": [{"enum": ["none", "exponential"]}, object(&BACKOFF_KEYS)]})
}

fn retry_on() -> Value {
    one_or_many(&words(&retry_classes()))
}

fn undo() -> Value {
    json!({"anyOf": [{"const": "auto"}, {"$ref": "#/$defs/undo"}]})
}

fn host_failure() -> Value {
    json!({"anyOf": [words(HOST_FAILURE), object(&HOST_FAILURE_KEYS)]})
}

fn size() -> Value {
    json!({"anyOf": [integer(1, MAX_HOSTS), {"type": "string", "pattern": "^([1-9][0-9]?|100)%$"}]})
}

/// The most hosts a size may count.
pub const MAX_HOSTS: i64 = 1_000_000;

fn batch() -> Value {
    one_or_many(&size())
}

fn mutex() -> Value {
    one_or_many(&json!({"anyOf": [full_text(), object(&MUTEX_KEYS)]}))
}

fn for_each() -> Value {
    json!({"type": ["array", "object", "string"]})
}

fn triggers() -> Value {
    let mut trigger = object(&TRIGGER_KEYS);
    trigger["oneOf"] =
        json!([{"required": ["agent_online"]}, {"required": ["schedule"]}, {"required": ["webhook"]}]);
    json!({"type": "array", "items": trigger})
}

/// Whether `text` can name a variable or a secret.
pub fn is_var_name(text: &str) -> bool {
    let bytes = text.as_bytes();
    bytes.len() <= 128
        && bytes.first().is_some_and(|b| b.is_ascii_alphabetic() || *b == b'_')
        && bytes.iter().all(|b| b.is_ascii_alphanumeric() || b"_.-".contains(b))
}

/// Whether `text` can name an environment variable.
pub fn is_env_name(text: &str) -> bool {
    let bytes = text.as_bytes();
    bytes.len() <= 255
        && bytes.first().is_some_and(|b| b.is_ascii_alphabetic() || *b == b'_')
        && bytes.iter().all(|b| b.is_ascii_alphanumeric() || *b == b'_')
}
