//! What catalogues are read as, and what is said about those that cannot be.

use std::path::Path;

use super::*;

/// The shipped catalogues.
pub(crate) const CLUSTER: &str = include_str!("../../../../examples/homelab/steps/cluster.yaml");
const HOST: &str = include_str!("../../../../examples/homelab/steps/host.yaml");

fn read(text: &str) -> Result<Catalogue, Diagnostics> {
    let source = Source { name: "steps/cluster.yaml".into(), text: text.into() };
    Catalogue::read(&source, Path::new("/lab/steps/cluster.yaml"))
}

/// Returns the problems of a catalogue as `LINE:COLUMN message (help)`.
fn problems(text: &str) -> Vec<String> {
    let found = read(text).err().unwrap_or_default();
    for problem in found.iter() {
        assert_eq!(problem.code, "steps/catalogue", "{problem}");
    }
    found
        .iter()
        .map(|problem| {
            let (_, at) = problem.place.location();
            let (line, column) = at.unwrap_or_default();
            format!("{line}:{column} {} ({})", problem.message, problem.help)
        })
        .collect()
}

/// Returns a catalogue of steps `a`, `b`, `c`, all listed both ways, with `lines` added.
fn with(lines: &str) -> String {
    format!("{HEAD}{lines}\n")
}

const HEAD: &str = "\
api_version: v1
layers: []
steps: { a: { run: a.sh }, b: { run: b.sh }, c: { run: c.sh } }
apply: [ { steps: [a, b, c] } ]
delete: [ { steps: [c, b, a] } ]
";

/// Returns a catalogue whose step `s` is `{ body }`.
fn with_step(body: &str) -> String {
    format!(
        "api_version: v1\nlayers: []\nsteps:\n  s: {{ {body} }}\napply: []\ncontrols: {{ F: {{ type: bool }} }}\n\
         vars: {{ V: {{}}, S: {{ secret: true }} }}\n\
         inputs: {{ i: {{ sink: {{ kind: file, path: p, name: n }}, keys: {{ S: {{}} }} }} }}\n"
    )
}

fn ids(groups: &[Group]) -> Vec<&str> {
    groups.iter().flat_map(|group| group.steps.iter().map(|id| id.value.as_str())).collect()
}

#[test]
fn the_shipped_catalogues_are_read() {
    let cluster = read(CLUSTER).unwrap();
    assert_eq!(cluster.name.as_str(), "cluster");
    assert_eq!(cluster.root, Path::new("/lab"));
    assert_eq!(
        ids(&cluster.apply),
        ["access", "config-inputs", "install-flux", "runtime-inputs", "reconcile-stack", "platform-state"]
    );
    assert_eq!(ids(cluster.delete.as_ref().unwrap()).len(), 7);
    assert_eq!(cluster.apply[0].phase.as_deref(), Some("1) reach the cluster"));
    assert_eq!(cluster.undeclared, Undeclared::Error);
    assert_eq!((cluster.order.apply, cluster.parallel), (Order::Listed, 8));
    let step = |id: &str| &cluster.steps[id];
    assert_eq!((step("access").number, step("install-flux").number), (Some(15), None));
    assert_eq!(step("access").args.delete, []);
    assert_eq!(step("teardown").args.delete[0].value, Text::literal("--delete"));
    assert_eq!(step("runtime-inputs").path(), "scripts/bootstrap/sync-runtime-inputs.sh");
    assert_eq!(step("reconcile-stack").retry.times, 1);
    assert!(step("reconcile-stack").destructive.contains(&StepMode::Delete));
    assert_eq!(step("config-inputs").gate.as_ref().unwrap().text(), "FEAT_VERIFY");
    assert!(cluster.is_secret("OIDC_CLIENT_ID") && !cluster.is_secret("BASE_DOMAIN"));
    assert_eq!(cluster.intents["platform-certs"].edits.len(), 2);
    let host = read(HOST).unwrap();
    assert_eq!(host.target, Some(Target::Hostname));
    assert_eq!(ids(host.delete.as_ref().unwrap()), ["install-k3s", "dynamic-dns"]);
}

/// Case 13: unknown key, step twice in a list, need after its dependent, wrong mode, unknown gate name, all at once.
#[test]
fn five_problems_are_told_at_once_with_their_lines() {
    let text = "\
api_version: v1
layers: []
controls: { FEAT_VERIFY: { type: bool, default: true } }
steps:
  a: { run: a.sh, colour: red }
  b: { run: b.sh, needs: { apply: [c] } }
  c: { run: c.sh, gate: FEAT_VERIFI }
  d: { run: d.sh, modes: [delete] }
apply:
  - { steps: [a, b, a, c] }
  - { steps: [d] }
";
    assert_eq!(
        problems(text),
        [
            "5:19 a step has no key `colour` (keys of a step: run, inputs, as, number, doc, modes, destructive, args, \
             gate, needs, env, secrets, cwd, timeout, retry, idempotent)",
            "6:36 `b` needs `c`, which comes after it in the `apply` list (list `c` first, or set `order: { apply: \
             needs }`)",
            "7:25 there is no control or variable `FEAT_VERIFI` (did you mean `FEAT_VERIFY`?)",
            "10:21 `a` is listed twice in `apply` (a step runs once: remove one of them)",
            "11:15 `d` has no mode `apply` (remove it from `apply`, or add `apply` to its `modes`)",
        ]
    );
    assert_eq!(read(text).unwrap_err().0[2].candidates, ["FEAT_VERIFY"]);
}

#[test]
fn a_catalogue_needs_four_keys_and_nothing_else() {
    let minimal = read("api_version: v1\nlayers: []\nsteps: {}\napply: []\n").unwrap();
    assert_eq!(minimal.name.as_str(), "cluster");
    assert_eq!((minimal.target, minimal.delete, minimal.undeclared), (None, None, Undeclared::Warn));
    let missing = problems("name: x\n");
    for key in ["api_version", "layers", "steps", "apply"] {
        assert!(
            missing.iter().any(|problem| problem.contains(&format!("needs the key `{key}`"))),
            "{missing:?}"
        );
    }
    assert_eq!(missing.len(), 4);
}

#[test]
fn the_root_is_the_directory_of_the_file_or_above_steps() {
    let root = |file: &str, line: &str| {
        let text = with(line);
        let source = Source { name: file.into(), text: text.as_str().into() };
        Catalogue::read(&source, Path::new(file)).unwrap().root
    };
    assert_eq!(root("/lab/steps/x.yaml", ""), Path::new("/lab"));
    assert_eq!(root("/lab/steps.yaml", ""), Path::new("/lab"));
    assert_eq!(root("/lab/host/../steps/x.yaml", ""), Path::new("/lab"));
    assert_eq!(root("/lab/steps/x.yaml", "root: ."), Path::new("/lab/steps"));
    assert_eq!(root("/lab/steps/x.yaml", "root: ../.."), Path::new("/"));
    assert_eq!(root("/lab/steps/x.yaml", "root: /srv"), Path::new("/srv"));
}

#[test]
fn a_name_that_is_none_is_refused_wherever_it_comes_from() {
    assert_eq!(problems(&with("name: Cluster")).len(), 1);
    let source = Source { name: "A.yaml".into(), text: HEAD.into() };
    let found = Catalogue::read(&source, Path::new("/lab/A.yaml")).unwrap_err();
    assert!(found.0[0].help.starts_with("give the catalogue a `name`"), "{found}");
}

/// Every entry: what is added to a good catalogue, and what is said about it.
const WRONG: &[(&str, &str)] = &[
    ("target: { from: kubectl }", "`kubectl` is not one of its values"),
    ("target: { from: value }", "`from: value` needs the key `value`"),
    ("target: { from: hostname, default: x }", "`default` has no use with `from: hostname`"),
    ("target: { from: kubeconfig, value: x }", "`value` has no use with `from: kubeconfig`"),
    ("undeclared: maybe", "`maybe` is not one of its values"),
    ("order: { apply: random }", "`random` is not one of its values"),
    ("limits: { parallel: 0 }", "expected a whole number from 1 to 10000"),
    ("check: { scan: [../x] }", "`../x` does not stay inside the root"),
    ("check: { golden: { apply: /x } }", "`/x` is an absolute path"),
    ("controls: { ONLY: { type: bool } }", "`ONLY` is built in and takes no settings"),
    ("controls: { F: {} }", "the control `F` has either `type: bool` or `enum`"),
    ("controls: { F: { type: int } }", "`int` is not one of its values"),
    ("controls: { F: { enum: [] } }", "must not be empty"),
    ("controls: { F: { enum: [a, a] } }", "`a` is listed twice"),
    ("controls: { 1F: { type: bool } }", "`1F` cannot be a name in controls"),
    ("controls: { STEAD_X: { type: bool } }", "`STEAD_X` is reserved"),
    ("controls: { F: { type: bool } }\nvars: { F: {} }", "`F` is a control as well"),
    ("vars: { ONLY: {} }", "`ONLY` is reserved"),
    ("vars: { LD_PRELOAD: {} }", "`LD_PRELOAD` is reserved"),
    ("vars: { A: }", "expected a variable (a map), found nothing"),
    ("vars: { A: { type: float } }", "`float` is not one of its values"),
    ("vars: { A: { default: [x] } }", "expected a text, found a list"),
    ("vars: { A: { default: $(date) } }", "$("),
    ("vars: { A: { min: 1 } }", "`min` has no use with `type: string`"),
    ("vars: { A: { type: int, min: 2, max: 1 } }", "`min` is more than `max`"),
    ("vars: { A: { min_length: 2, max_length: 1 } }", "`min_length` is more than `max_length`"),
    ("vars: { A: { length: [] } }", "must not be empty"),
    ("vars: { A: { length: 16 } }", "expected a list of lengths"),
    ("vars: { A: { pattern: '(' } }", "this is no regular expression: unclosed group"),
    ("vars: { A: { type: bool, enum: [true] } }", "`enum` has no use with `type: bool`"),
    ("vars: { A: { when: A == x } }", "`when` has no use without `required: true`"),
    ("vars: { A: { required: true, for: [d] } }", "there is no step `d`"),
    ("vars: { A: { required: true, when: A } }", "`A` is not bool"),
    ("vars: { A: { enum: [x] }, B: { required: true, when: A == y } }", "`A` is never `y`"),
    ("vars: { A: { required: yes } }", "expected true or false"),
    ("inputs: { i: { keys: {} } }", "inputs needs the key `sink`"),
    ("inputs: { i: { sink: { kind: vault }, keys: {} } }", "`vault` is not one of its values"),
    ("inputs: { i: { sink: { path: x }, keys: {} } }", "a sink needs the key `kind`"),
    ("inputs: { i: { sink: { kind: file, name: n }, keys: {} } }", "a file sink needs the key `path`"),
    ("inputs: { i: { sink: { kind: file, path: p }, keys: {} } }", "a manifest needs the key `name`"),
    (
        "inputs: { i: { sink: { kind: file, path: p, format: env, name: n }, keys: {} } }",
        "`name` has no use with `format: env`",
    ),
    (
        "inputs: { i: { sink: { kind: kubectl, name: n }, keys: {} } }",
        "a kubectl sink needs the key `namespace`",
    ),
    (
        "inputs: { i: { sink: { kind: kubectl, namespace: s, name: n, path: p }, keys: {} } }",
        "a kubectl sink has no key `path`",
    ),
    (
        "inputs: { i: { sink: { kind: file, path: p, name: n, labels: { app.kubernetes.io/managed-by: me } }, keys: {} } }",
        "is set by Stead",
    ),
    (
        "inputs: { i: { sink: { kind: file, path: p, name: n }, keys: { 'a b': {} } } }",
        "cannot be a key of inputs",
    ),
    (
        "inputs: { i: { sink: { kind: file, path: p, name: n }, keys: { tls.crt: {} } } }",
        "`tls.crt` cannot name a variable",
    ),
    (
        "undeclared: error\ninputs: { i: { sink: { kind: file, path: p, name: n }, keys: { A: {} } } }",
        "there is no variable `A`",
    ),
    (
        "inputs: { i: { sink: { kind: file, path: p, name: n }, keys: { A: { fallback: B } } } }",
        "there is no key `B`",
    ),
    (
        "inputs: { i: { sink: { kind: file, path: p, name: n }, keys: { A: { fallback: B }, B: { fallback: A } } } }",
        "fallbacks lead in a circle: A → B → A",
    ),
    (
        "inputs: { i: { sink: { kind: file, path: p, name: n }, keys: { A: { warn: x } } } }",
        "`warn` has no use without `fallback`",
    ),
    ("intents: { list: { edits: [ { file: f, path: a, value: x } ] } }", "cannot be called `list`"),
    ("intents: { i: {} }", "an intent needs the key `edits`"),
    ("intents: { i: { edits: [] } }", "an intent has at least one edit"),
    ("intents: { i: { edits: [ { file: ../f, path: a, value: x } ] } }", "does not stay inside the root"),
    ("intents: { i: { edits: [ { file: f, path: a..b, value: x } ] } }", ""),
    (
        "intents: { i: { edits: [ { file: f, path: a } ] } }",
        "an edit has either `value`, or `by` and `values`",
    ),
    ("intents: { i: { edits: [ { file: f, path: a, value: '${P}' } ] } }", "there is no parameter `P`"),
    ("intents: { i: { edits: [ { file: f, path: a, by: P, values: {} } ] } }", "there is no parameter `P`"),
    ("intents: { i: { edits: [ { file: f, path: a, value: x, type: int } ] } }", "expected a whole number"),
    (
        "intents: { i: { edits: [ { file: f, path: a, value: x }, { file: f, path: a, value: y } ] } }",
        "two edits of one value",
    ),
    (
        "intents: { i: { params: { P: {} }, edits: [ { file: f, path: a, value: x } ] } }",
        "a parameter needs the key `enum`",
    ),
    (
        "intents: { i: { params: { P: { enum: [a], default: b } }, edits: [ { file: f, path: a, value: x } ] } }",
        "`b` is not one of the values",
    ),
    (
        "intents: { i: { params: { P: { enum: [a, b] } }, edits: [ { file: f, path: a, by: P, values: { a: x } } ] } }",
        "there is no value for `P=b`",
    ),
    (
        "intents: { i: { params: { P: { enum: [a] } }, edits: [ { file: f, path: a, by: P, values: { a: x, c: y } } ] } }",
        "`P` is never `c`",
    ),
    (
        "intents: { i: { edits: [ { file: f, path: a, value: x } ], then: { only: [d] } } }",
        "no step of `apply` goes by `d`",
    ),
    (
        "intents: { i: { edits: [ { file: f, path: a, value: x } ], then: { only: [] } } }",
        "must not be empty",
    ),
];

/// Returns what is said about a catalogue with one thing wrong, unless it is `expected`, once and with its place.
fn untold(catalogue: &str, wrong: &str, expected: &str) -> Option<String> {
    let found = problems(catalogue);
    let told = matches!(&found[..], [one] if one.contains(expected) && !one.starts_with("0:"));
    (!told).then(|| format!("{wrong}: {found:?}"))
}

#[test]
fn every_rule_of_the_tables_is_told() {
    assert_eq!(problems(HEAD), [""; 0]);
    let untold: Vec<String> =
        WRONG.iter().filter_map(|(lines, expected)| untold(&with(lines), lines, expected)).collect();
    assert!(untold.is_empty(), "{}", untold.join("\n"));
}

/// What a step says, and what is said about it.
const WRONG_STEPS: &[(&str, &str)] = &[
    ("", "a step has either `run` or `inputs`"),
    ("run: a.sh, inputs: i", "a step has either `run` or `inputs`"),
    ("run: a.sh, as: b.sh", "`as` has no use without `inputs`"),
    ("inputs: i, args: { apply: [x] }", "`args` has no use without `run`"),
    ("inputs: i, secrets: [S]", "`secrets` has no use without `run`"),
    ("inputs: j", "there is no inputs `j`"),
    ("run: /bin/true", "`/bin/true` is an absolute path"),
    ("run: ../a.sh", "does not stay inside the root"),
    ("run: \"a\\nb\"", "control character"),
    ("run: a.sh, modes: []", "a step has at least one mode"),
    ("run: a.sh, modes: [apply, apply]", "`apply` is listed twice"),
    ("run: a.sh, modes: [install]", "`install` is not one of its values"),
    (
        "run: a.sh, modes: [apply], destructive: [delete]",
        "`s` has no mode `delete` in which it could destroy",
    ),
    ("run: a.sh, number: -1", "expected a whole number"),
    ("run: a.sh, args: [x]", "expected `args` (a map)"),
    ("run: a.sh, args: { apply: x }", "expected a list of arguments"),
    ("run: a.sh, args: { apply: ['${V-x}'] }", "${"),
    ("run: a.sh, gate: F &&", "the gate ends where a name should follow"),
    ("run: a.sh, gate: V", "`V` is not bool, so it cannot stand alone in a gate"),
    ("run: a.sh, gate: F == banana", "`F` is never `banana`"),
    ("run: a.sh, gate: true", "expected a text, found the boolean true"),
    ("run: a.sh, needs: { apply: [s] }", "`s` needs itself"),
    ("run: a.sh, needs: { apply: [t] }", "there is no step `t`"),
    ("run: a.sh, env: { 1A: x }", "`1A` cannot be a name in `env`"),
    ("run: a.sh, env: { STEAD_MODE: x }", "`STEAD_MODE` is reserved"),
    ("run: a.sh, secrets: [NOPE]", "there is no variable `NOPE`"),
    ("run: a.sh, secrets: ['*', S]", "`*` stands alone"),
    ("run: a.sh, cwd: ''", "must not be empty"),
    ("run: a.sh, timeout: 10", "has no unit"),
    ("run: a.sh, retry: -1", "expected a whole number"),
    ("run: a.sh, retry: { times: 1, on: check }", "`check` is not one of its values"),
    ("run: a.sh, idempotent: yes", "expected true or false"),
    ("script: a.sh, run: b.sh", "a step has no key `script`"),
];

#[test]
fn every_rule_of_a_step_is_told() {
    let untold: Vec<String> =
        WRONG_STEPS.iter().filter_map(|(body, expected)| untold(&with_step(body), body, expected)).collect();
    assert!(untold.is_empty(), "{}", untold.join("\n"));
    for right in [
        "run: ./x/../a.sh",
        "run: a.sh, secrets: ['*']",
        "run: a.sh, secrets: [S]",
        "run: a.sh, gate: \"!F || (V == x && V != y)\"",
        "run: a.sh, env: { A: 1, B: '${V:-x}' }, cwd: sub, timeout: 10m, retry: { times: 2, on: exit }, number: 7",
        "inputs: i, as: x/y.sh, gate: F",
    ] {
        assert_eq!(problems(&with_step(right)), [""; 0], "{right}");
    }
}

#[test]
fn layers_come_from_files_and_one_last_flag() {
    let layers = |layers: &str| {
        problems(&format!(
            "api_version: v1\nlayers: {layers}\nsteps: {{}}\napply: []\n\
             controls: {{ F: {{ type: bool }}, X: {{ type: bool, in_layers: false }}, DRY_RUN: {{}} }}\n"
        ))
    };
    assert_eq!(
        layers(
            "[ { file: a, unless: X || DRY_RUN }, { file: /etc/b, secret: true, optional: false }, { flag: profile } ]"
        ),
        [""; 0]
    );
    for (wrong, expected) in [
        ("[ { flag: profile }, { file: a } ]", "the layer with `flag` is the last one"),
        ("[ { flag: profile }, { flag: host-env } ]", "one layer with `flag` at most"),
        ("[ { file: a, flag: profile } ]", "a layer has either `file` or `flag`"),
        ("[ { secret: true } ]", "a layer has either `file` or `flag`"),
        ("[ { flag: other } ]", "`other` is not one of its values"),
        ("[ { flag: profile, optional: false } ]", "`optional` has no use with `flag`"),
        ("[ { file: a, unless: F } ]", "`F` may be set by layers"),
        ("[ { file: a }, { file: ./a } ]", "the file `a` is two layers"),
        ("[ { file: ../a } ]", "does not stay inside the root"),
        ("[ a.env ]", "expected a layer (a map)"),
    ] {
        let found = layers(wrong);
        assert!(found.iter().any(|problem| problem.contains(expected)), "{wrong}: {found:?}");
    }
}

#[test]
fn needs_are_of_the_same_list_and_without_circles() {
    let catalogue = |needs: [&str; 3], order: &str| {
        let [a, b, c] = needs;
        format!(
            "api_version: v1\nlayers: []\norder: {{ apply: {order} }}\nsteps:\n  a: {{ run: a.sh, needs: {{ apply: [{a}] }} }}\n  \
             b: {{ run: b.sh, needs: {{ apply: [{b}] }} }}\n  c: {{ run: c.sh, needs: {{ apply: [{c}] }} }}\n  \
             d: {{ run: d.sh }}\napply: [ {{ steps: [a, b, c] }} ]\n"
        )
    };
    assert_eq!(problems(&catalogue(["", "a", "a, b"], "listed")), [""; 0]);
    assert_eq!(problems(&catalogue(["c", "a", ""], "needs")), [""; 0]);
    let unlisted = problems(&catalogue(["", "d", ""], "listed"));
    assert!(unlisted[0].starts_with("6:36 `b` needs `d`, which is not in the `apply` list"), "{unlisted:?}");
    let circle = problems(&catalogue(["c", "a", "b"], "needs"));
    assert_eq!(
        circle,
        ["5:36 the steps of `apply` wait for each other: a → c → b → a (remove one of these needs)"]
    );
    assert_eq!(problems(&catalogue(["c", "a", "b"], "listed")).len(), 1);
}

#[test]
fn lists_are_groups_of_known_steps() {
    let found = problems(
        "api_version: v1\nlayers: []\nsteps: { abc: { run: a.sh } }\napply: [abc, { steps: [abd] }]\n",
    );
    assert_eq!(
        found,
        [
            "4:9 expected a group (a map), found the text `abc` (write `{ steps: [abc] }`)",
            "4:24 there is no step `abd` (did you mean `abc`?)",
        ]
    );
    let phase = problems("api_version: v1\nlayers: []\nsteps: {}\napply: [ { phase: '- x', steps: [] } ]\n");
    assert_eq!(phase.len(), 1, "{phase:?}");
}

#[test]
fn an_intent_is_not_followed_by_what_destroys() {
    let text = "api_version: v1\nlayers: []\nsteps: { a: { run: 10_a.sh, destructive: [apply] } }\napply: [ { steps: [a] } ]\n\
                intents: { i: { edits: [ { file: f, path: a, value: x } ], then: { only: [10] } } }\n";
    let found = problems(text);
    assert!(
        found.len() == 1 && found[0].contains("`a` destroys, so it cannot follow an intent"),
        "{found:?}"
    );
}

#[test]
fn steps_answer_to_id_number_tail_and_stem() {
    let catalogue = read(CLUSTER).unwrap();
    let step = &catalogue.steps["install-flux"];
    for token in
        ["install-flux", "install-flux.sh", "bootstrap/install-flux.sh", "scripts/bootstrap/install-flux.sh"]
    {
        assert!(step.answers_to(token), "{token}");
    }
    for token in
        ["", "flux.sh", "install", "/install-flux.sh", "bootstrap", "x/scripts/bootstrap/install-flux.sh"]
    {
        assert!(!step.answers_to(token), "{token}");
    }
    let numbered = &catalogue.steps["access"];
    for token in ["15", "015", "access", "15_verify_cluster_access", "15_verify_cluster_access.sh"] {
        assert!(numbered.answers_to(token), "{token}");
    }
    for token in ["1", "5", "15_", "+15", "15.0", "99999999999999999999"] {
        assert!(!numbered.answers_to(token), "{token}");
    }
}

#[test]
fn problems_stay_bounded_and_nothing_panics_on_nonsense() {
    for text in [
        "",
        "[]",
        "x",
        "api_version: 2",
        "steps: [a]",
        "layers: {}\nsteps: 1\napply: x\ninputs: []\nintents: 3\ncheck: []",
    ] {
        assert!(read(text).is_err(), "{text}");
    }
    // Every prefix of a good catalogue is read or refused.
    for end in (0..CLUSTER.len()).filter(|end| CLUSTER.is_char_boundary(*end)).step_by(7) {
        let _outcome = read(&CLUSTER[..end]);
    }
}

/// However a default of a secret is written, what is kept of the file does not have it.
#[test]
fn shown_text_has_no_default_of_a_secret() {
    for default in [
        "hunter2-default",
        "'hunter2-default'",
        "\"hunter2\\x2ddefault\"",
        "\"hunter2\n      default\"",
        "|\n      hunter2-default\n      hunter2-again",
        ">-\n      hunter2-default\n\n      hunter2-again",
        "&anchor hunter2-default",
        "!!str hunter2-default",
        "hunter2\n      default",
    ] {
        let text = with(&format!(
            "vars:\n  PW:\n    secret: true\n    default: {default}\n  OPEN: {{ default: hunt }}\n  KEYED: {{ default: hunter2-key }}\n\
             inputs: {{ i: {{ sink: {{ kind: file, path: p, name: n }}, keys: {{ KEYED: {{}} }} }} }}"
        ));
        let shown = match read(&text) {
            Ok(catalogue) => catalogue.shown_text(),
            Err(problems) => {
                assert!(default.starts_with(['&', '!']), "{default}: {problems}");
                continue;
            }
        };
        assert!(!shown.contains("hunter2") && !shown.contains("again"), "{default}: {shown}");
        assert!(shown.contains("OPEN: { default: hunt }") && shown.contains("'***'"), "{default}: {shown}");
    }
}
