//! The schemas say what the readers do.

use super::*;
use crate::diagnostic::{Diagnostics, Source};
use crate::plan_file::{PlanFile, keys, tests::EXAMPLE};
use crate::yaml::{self, Codes};

fn source(text: &str) -> Source {
    Source { name: "plan.yaml".into(), text: text.into() }
}

fn reader_accepts(text: &str) -> bool {
    let mut diagnostics = Diagnostics::default();
    let file = PlanFile::read(&source(text), &mut diagnostics);
    if let Some(file) = &file {
        for index in 0..file.task_count() {
            file.task(index, &mut diagnostics);
        }
    }
    !diagnostics.has_errors()
}

fn to_json(text: &str) -> Value {
    yaml::read(&source(text), Codes::PLAN, &mut Diagnostics::default()).unwrap().root().to_json()
}

#[test]
fn the_schemas_are_schemas() {
    for schema in [plan_schema(), inventory_schema(), steps_schema(), run_schema(), kit_schema()] {
        assert!(jsonschema::meta::is_valid(&schema));
        assert_eq!(schema["$schema"], DIALECT);
    }
}

#[test]
fn the_example_plan_and_inventory_fit_their_schemas() {
    let plan = jsonschema::validator_for(&plan_schema()).unwrap();
    assert!(plan.is_valid(&to_json(EXAMPLE)));
    let inventory = jsonschema::validator_for(&inventory_schema()).unwrap();
    let good = "api_version: v1\ndefaults: {labels: {site: vienna}}\nhosts:\n  a: local\n  b: {transport: local, root: /x, labels: {n: 1}}\n";
    assert!(inventory.is_valid(&to_json(good)));
}

/// Values for every key of a host: those that are right, then those that are wrong.
const HOST_VALUES: &[(&str, &[&str], &[&str])] = &[
    (
        "transport",
        &["local", "'local://'", "ssh://h", "'ssh://u:p@h:22?key=/k'", "u@h", "'u@[::1]:22'", "a@b@h"],
        &["7", "host", "''", "'u @h'", "ftp://h", "'ssh://'", "'@h'"],
    ),
    ("labels", &["{}", "{a: b.c, d: 1, e: true}"], &["[a]", "{'a b': c}", "{a: [1]}", "{source: x}"]),
    ("become", &["sudo", "doas", "'sudo:web'", "none"], &["su", "true", "'sudo:'"]),
    ("become_password", &["{env: A}", "{file: /p}"], &["text", "{}", "{env: A, file: b}", "{env: 'a b'}"]),
    ("workdir", &["/w"], &["w", "1"]),
    ("executor", &["auto", "always", "never"], &["yes", "true"]),
    ("root", &["/", "/srv/image"], &["srv", "1"]),
    ("parallel", &["1", "1000"], &["0", "1001", "'3'"]),
    ("description", &["text"], &["1"]),
];

/// Case 30: the schema of inventories takes what the reader takes and refuses what it refuses.
#[test]
fn the_inventory_schema_and_the_reader_agree_on_every_key_of_a_host() {
    let schema = jsonschema::validator_for(&inventory_schema()).unwrap();
    let agree = |text: &str, right: bool| {
        assert_eq!(crate::Inventory::read(&[source(text)]).is_ok(), right, "reader: {text}");
        assert_eq!(schema.is_valid(&to_json(text)), right, "schema: {text}");
    };
    let names: Vec<&str> = HOST_VALUES.iter().map(|(name, ..)| *name).collect();
    assert_eq!(names, crate::inventory::HOST_KEYS.names().collect::<Vec<_>>());
    for (name, right, wrong) in HOST_VALUES {
        for (value, is_right) in right.iter().map(|v| (v, true)).chain(wrong.iter().map(|v| (v, false))) {
            let rest = match *name {
                "transport" => "",
                "become_password" => "transport: local, become: sudo, ",
                _ => "transport: local, ",
            };
            agree(&format!("api_version: v1\nhosts: {{a: {{{rest}{name}: {value}}}}}\n"), is_right);
            if *name == "transport" {
                agree(&format!("api_version: v1\nhosts: {{a: {value}}}\n"), is_right);
            } else {
                agree(&format!("api_version: v1\ndefaults: {{{name}: {value}}}\nhosts: {{}}\n"), is_right);
            }
        }
    }
    for name in ["all", "_x", "'a b'"] {
        agree(&format!("api_version: v1\nhosts: {{{name}: local}}\n"), false);
    }
    agree("api_version: v1\nhosts: {a: {transport: local, colour: red}}\n", false);
    agree("api_version: v1\ndefaults: {transport: local}\nhosts: {}\n", false);
    agree("hosts: {}\n", false);
}

/// Values for every key of a task: those that are right, then those that are wrong.
const TASK_VALUES: &[(&str, &[&str], &[&str])] = &[
    ("description", &["x"], &["1", "[a]"]),
    ("target", &["a", "[a, b]"], &["1", "{a: b}", "''"]),
    ("on_empty", &["fail", "skip"], &["no", "1"]),
    ("depends_on", &["a", "[a, b]", "[]"], &["1", "{a: b}"]),
    ("trigger_rule", &["all_ok", "all_ran", "any_ok", "all_done", "any_failed", "all_failed"], &["all"]),
    ("only_if_changed", &["true", "false", "any", "all"], &["yes", "1"]),
    (
        "when",
        &["a", "true", "[a, b]", "{all: [a, {any: [b, {not: c}]}]}", "{expr: a, reason: b}"],
        &["1", "{}", "{and: [a]}"],
    ),
    ("when_host", &["a", "[true]"], &["1"]),
    ("confirm", &["sure?"], &["1", "''"]),
    ("changed_when", &["a", "false"], &["1", "[a]"]),
    ("failed_when", &["a", "false"], &["1", "[a]"]),
    ("idempotent", &["true"], &["yes", "1"]),
    ("on_error", &["stop_all", "continue", "{retry: 3}"], &["stop", "{retry: -1}", "{times: 1}"]),
    (
        "retry",
        &[
            "0",
            "1000",
            "{times: 2}",
            "{times: 2, backoff: exponential, on: [exit, panic]}",
            "{times: 2, backoff: {initial: 1s, max: 5s, factor: 1.5, jitter: full}}",
        ],
        &[
            "-1",
            "1001",
            "1.5",
            "{}",
            "{times: 2, on: permanent}",
            "{times: 1, backoff: fast}",
            "{times: 1, backoff: {initial: 1s}}",
        ],
    ),
    ("timeout", &["250ms", "30s", "5m", "2h", "1h30m"], &["30", "1x", "''", "1.5s"]),
    ("undo", &["auto", "{exec: [a]}", "{op: a.b, params: {c: d}}"], &["none", "{}", "{sequence: []}"]),
    ("interrupted", &["fail", "retry"], &["ask"]),
    ("host_failure", &["any", "all", "{percent: 0}", "{percent: 99}"], &["some", "{percent: 100}"]),
    ("batch", &["1", "'25%'", "[1, '100%']"], &["0", "'0%'", "'101%'", "x"]),
    ("batch_pause", &["5s"], &["5"]),
    ("canary", &["1", "'10%'"], &["0", "[1]"]),
    ("canary_pause", &["5s"], &["5"]),
    (
        "mutex",
        &["m", "[m, {name: n, scope: host}]", "{name: n}"],
        &["1", "{scope: run}", "{name: n, scope: x}"],
    ),
    ("for_each", &["[a]", "{a: b}", "'{{ vars.x }}'"], &["1", "true"]),
    ("params", &["{}", "{cwd: /}"], &["[a]", "x"]),
];

#[test]
fn reader_and_schema_agree_on_every_key_of_a_task() {
    let validator = jsonschema::validator_for(&plan_schema()).unwrap();
    let actions = ["op", "exec", "shell", "sequence", "name"];
    for key in keys::TASK_KEYS.names().filter(|name| !actions.contains(name)) {
        assert!(TASK_VALUES.iter().any(|(name, ..)| *name == key), "`{key}` is not covered");
    }
    for (key, right, wrong) in TASK_VALUES {
        for (value, expected) in
            right.iter().map(|value| (value, true)).chain(wrong.iter().map(|value| (value, false)))
        {
            let text = format!("api_version: v1\nname: p\ntasks:\n- name: t\n  shell: x\n  {key}: {value}\n");
            assert_eq!(reader_accepts(&text), expected, "reader: {key}: {value}");
            assert_eq!(validator.is_valid(&to_json(&text)), expected, "schema: {key}: {value}");
        }
    }
}

/// Lines of the top level and actions: right or wrong.
const LINES: &[(&str, bool)] = &[
    ("tasks: []", true),
    ("tasks: {}", false),
    ("tasks: []\ndescription: x", true),
    ("tasks: []\nvars: {a: 1, b: null}", true),
    ("tasks: []\nvars: [a]", false),
    ("tasks: []\nenv: [A]", true),
    ("tasks: []\nenv: {A: b}", false),
    ("tasks: []\nsecrets: {a: {env: A}, b: {file: x}}", true),
    ("tasks: []\nsecrets: {a: {env: A, file: x}}", false),
    ("tasks: []\nsecrets: {a: b}", false),
    ("tasks: []\ndefaults: {target: x, timeout: 1s, retry: 1, host_failure: any, batch: 1, mutex: m}", true),
    ("tasks: []\ndefaults: {on_error: continue}", false),
    ("tasks: []\non_error: continue", true),
    ("tasks: []\non_error: {retry: 1}", false),
    ("tasks: []\non_failure: rollback", true),
    ("tasks: []\non_failure: undo", false),
    ("tasks: []\nlimits: {parallel: 10000, per_target: 1}", true),
    ("tasks: []\nlimits: {parallel: 10001}", false),
    ("tasks: []\ntimeout: 1h\nfinally_timeout: 1m\ngrace: 1s\nlock: false", true),
    ("tasks: []\nlock: no", false),
    ("tasks: []\ntriggers: [{agent_online: {match: x}}, {schedule: {cron: '* * * * *', tz: UTC}}]", true),
    ("tasks: []\ntriggers: [{overlap: skip}]", false),
    ("tasks: []\nfinally: [{name: f, shell: x}]", true),
    ("tasks: [{name: t, exec: [a, 1, true]}]", true),
    ("tasks: [{name: t, exec: []}]", false),
    ("tasks: [{name: t, exec: a}]", false),
    ("tasks: [{name: t, op: a.b, params: {c: d}}]", true),
    ("tasks: [{name: t, op: a.b, shell: x}]", false),
    ("tasks: [{name: t}]", false),
    ("tasks: [{shell: x}]", false),
    ("tasks: [{name: a b, shell: x}]", false),
    ("tasks: [{name: t, sequence: [{name: p, op: a.b, when_host: x}]}]", true),
    ("tasks: [{name: t, sequence: [{name: p, op: a.b, when: x}]}]", false),
    ("tasks: [{name: t, sequence: [{op: a.b}]}]", false),
    ("tasks: [{name: t, sequence: []}]", false),
    ("tasks: []\nsteps: []", false),
];

#[test]
fn reader_and_schema_agree_on_the_top_level() {
    let validator = jsonschema::validator_for(&plan_schema()).unwrap();
    for (lines, expected) in LINES {
        let text = format!("api_version: v1\nname: p\n{lines}\n");
        assert_eq!(reader_accepts(&text), *expected, "reader: {lines}");
        assert_eq!(validator.is_valid(&to_json(&text)), *expected, "schema: {lines}");
    }
    for key in keys::PLAN_KEYS.names().filter(|key| !matches!(*key, "api_version" | "name")) {
        assert!(
            LINES.iter().any(|(lines, right)| *right && lines.contains(&format!("{key}:"))),
            "`{key}` is not covered"
        );
    }
}

fn catalogue_accepts(text: &str) -> bool {
    crate::Catalogue::read(&source(text), std::path::Path::new("/lab/steps/plan.yaml")).is_ok()
}

/// Keys of a catalogue by what holds them: right and wrong values. Names they use are declared by the head.
const CATALOGUE_VALUES: &[(&str, &str, &[&str], &[&str])] = &[
    ("", "api_version", &["v1"], &["v2", "1"]),
    ("", "name", &["a-1"], &["A", "''", "1"]),
    ("", "doc", &["x"], &["1"]),
    ("", "root", &[".", "/srv"], &["1", "''"]),
    (
        "",
        "target",
        &["{from: kubeconfig, default: x}", "{from: hostname}", "{from: value, value: '${V}'}"],
        &["{from: x}", "{}", "kubeconfig"],
    ),
    ("", "undeclared", &["allow", "warn", "error"], &["no"]),
    (
        "",
        "layers",
        &["[]", "[{file: a, secret: true, optional: false}, {flag: profile}]", "[{flag: host-env}]"],
        &[
            "{}",
            "[a]",
            "[{}]",
            "[{file: a, flag: profile}]",
            "[{flag: x}]",
            "[{flag: profile, optional: true}]",
        ],
    ),
    (
        "",
        "controls",
        &[
            "{F: {type: bool, default: true, in_layers: false, doc: x}}",
            "{F: {type: bool}, ONLY: {}, DRY_RUN: {doc: x}}",
        ],
        &["[]", "{F: {type: int}}", "{F: {colour: red}}", "{'a b': {type: bool}, F: {type: bool}}"],
    ),
    (
        "",
        "vars",
        &["{V: {type: int, min: 1, max: 2, default: 1}}", "{V: {enum: [a, 1]}}"],
        &["[]", "{V: x}", "{V: {enum: []}}", "{V: {length: []}}", "{V: {default: [a]}}", "{V: {secret: 1}}"],
    ),
    (
        "",
        "apply",
        &["[]", "[{phase: x, steps: [s]}]"],
        &["{}", "[s]", "[{phase: x}]", "[{phase: 1, steps: []}]"],
    ),
    ("", "delete", &["[]", "[{steps: [s]}]"], &["{}", "[{steps: s}]"]),
    ("", "order", &["{apply: needs, delete: listed}", "{}"], &["needs", "{apply: x}"]),
    ("", "limits", &["{parallel: 1}", "{}"], &["{parallel: 0}", "{parallel: x}", "{per_target: 1}"]),
    (
        "",
        "inputs",
        &[
            "{i: {sink: {kind: file, path: p, name: n}, keys: {V: {}}}}",
            "{i: {sink: {kind: file, path: p, format: env}, keys: {}, doc: x}}",
            "{i: {sink: {kind: kubectl, namespace: s, name: n, command: k, labels: {a: 1}}, keys: {}}}",
            "{i: {sink: {kind: file, path: p, name: n}, keys: {K: {from: V, when: F, required: true, length: [1], \
             pattern: x, fallback: V, warn: x, doc: x}, V: {}}}}",
        ],
        &[
            "[]",
            "{i: {keys: {}}}",
            "{i: {sink: {kind: x}, keys: {}}}",
            "{i: {sink: {kind: file, name: n}, keys: {}}}",
            "{i: {sink: {kind: file, path: p, format: env, name: n}, keys: {}}}",
            "{i: {sink: {kind: file, path: p}, keys: {}}}",
            "{i: {sink: {kind: kubectl, namespace: s}, keys: {}}}",
            "{i: {sink: {kind: kubectl, namespace: s, name: n, path: p}, keys: {}}}",
            "{i: {sink: {kind: file, path: p, name: n}, keys: {V: {colour: red}}}}",
        ],
    ),
    (
        "",
        "intents",
        &[
            "{i: {edits: [{file: f, path: a.b, value: 1}]}}",
            "{i: {doc: x, params: {P: {enum: [a], default: a, doc: x}}, edits: [{file: f, path: a, by: P, values: {a: x}, \
             type: string, must_exist: true, select: {kind: K}}], then: {only: [s]}}}",
        ],
        &[
            "{list: {edits: [{file: f, path: a, value: x}]}}",
            "{i: {}}",
            "{i: {edits: []}}",
            "{i: {edits: [{file: f, path: a}]}}",
            "{i: {edits: [{file: f, path: a, by: P}]}}",
            "{i: {edits: [{file: f, path: a, value: x, type: float}]}}",
            "{i: {params: {P: {}}, edits: [{file: f, path: a, value: x}]}}",
            "{i: {edits: [{file: f, path: a, value: x, select: {}}]}}",
            "{i: {edits: [{file: f, path: a, value: x}], then: {only: []}}}",
            "{i: {edits: [{file: f, path: a, value: x}], then: {}}}",
        ],
    ),
    ("", "check", &["{scan: [scripts], golden: {apply: x}}", "{}"], &["[]", "{scan: x}", "{golden: x}"]),
    ("s", "run", &["a.sh"], &["1", "''"]),
    ("s", "number", &["0", "15"], &["-1", "x"]),
    ("s", "doc", &["x"], &["1"]),
    ("s", "modes", &["[apply]", "[apply, delete]"], &["[]", "apply", "[x]", "[apply, apply]"]),
    ("s", "destructive", &["[]", "[apply]"], &["[x]", "true"]),
    ("s", "args", &["{apply: [a, 1, true], delete: []}", "{}"], &["[a]", "{apply: a}", "{apply: [[a]]}"]),
    ("s", "gate", &["F", "'!F'"], &["1", "''", "true"]),
    ("s", "needs", &["{}", "{apply: []}"], &["[]", "{apply: s}"]),
    ("s", "env", &["{A: 1}", "{}"], &["[A]", "{'a b': c}", "{A: [1]}"]),
    ("s", "secrets", &["[]", "[V]", "['*']"], &["V", "['*', V]", "['a b']"]),
    ("s", "cwd", &["x", "'${V}'"], &["''", "1"]),
    ("s", "timeout", &["10m"], &["10"]),
    ("s", "retry", &["1", "{times: 1}"], &["-1", "{}"]),
    ("s", "idempotent", &["false"], &["no"]),
    ("i", "inputs", &["i"], &["I", "1"]),
    ("i", "as", &["x.sh"], &["''", "1"]),
    ("i", "args", &[], &["{}"]),
    ("i", "run", &[], &["x.sh"]),
];

#[test]
fn reader_and_schema_agree_on_every_key_of_a_catalogue() {
    let validator = jsonschema::validator_for(&steps_schema()).unwrap();
    let head = [
        ("api_version", "v1"),
        ("layers", "[]"),
        ("apply", "[]"),
        ("controls", "{F: {type: bool}}"),
        ("vars", "{V: {}}"),
    ];
    let inputs = "inputs: {i: {sink: {kind: file, path: p, name: n}, keys: {V: {}}}}\n";
    for (holder, key, right, wrong) in CATALOGUE_VALUES {
        for (value, expected) in
            right.iter().map(|value| (value, true)).chain(wrong.iter().map(|value| (value, false)))
        {
            let given = |name: &str| holder.is_empty() && *key == name;
            let mut text: String = head
                .iter()
                .filter(|(name, _)| !given(name))
                .map(|(name, value)| format!("{name}: {value}\n"))
                .collect();
            let body = match (*holder, *key) {
                ("s", "run") | ("i", "inputs") => format!("{key}: {value}"),
                ("s", _) => format!("run: x.sh, {key}: {value}"),
                ("i", _) => format!("inputs: i, {key}: {value}"),
                (_, "intents") => "run: x.sh".to_owned(),
                (..) => {
                    text.push_str(&format!("{key}: {value}\n"));
                    "run: x.sh".to_owned()
                }
            };
            if *key == "intents" {
                text = text.replace("apply: []", "apply: [{steps: [s]}]");
                text.push_str(&format!("{key}: {value}\n"));
            }
            if !given("inputs") {
                text.push_str(inputs);
            }
            text.push_str(&format!("steps: {{s: {{{body}}}}}\n"));
            assert_eq!(catalogue_accepts(&text), expected, "reader: {text}");
            assert_eq!(validator.is_valid(&to_json(&text)), expected, "schema: {text}");
        }
    }
    let covered =
        |holder: &str, name: &str| CATALOGUE_VALUES.iter().any(|(at, key, ..)| *at == holder && *key == name);
    let names = |keys: &crate::yaml::Keys| keys.names().collect::<Vec<_>>();
    for name in names(&crate::catalogue::keys::CATALOGUE_KEYS).iter().filter(|name| **name != "steps") {
        assert!(covered("", name), "`{name}` is not covered");
    }
    for name in names(&crate::catalogue::keys::STEP_KEYS) {
        assert!(covered("s", name) || covered("i", name), "`{name}` of a step is not covered");
    }
}

#[test]
fn the_shipped_catalogue_fits_its_schema() {
    let validator = jsonschema::validator_for(&steps_schema()).unwrap();
    assert!(validator.is_valid(&to_json(crate::catalogue::tests::CLUSTER)));
}
