//! Plans of the shipped catalogue, and properties of selection.

use std::path::Path;

use stead_model::diagnostic::Source;
use stead_model::layer::LayerFile;
use stead_model::operation::{Descriptor, Effect, ParamDefault, ParamKind, ParamSpec, RootSupport};
use stead_model::plan::TriggerRule;
use stead_model::steps::{LeftOutCause, NeedsChoice, SelectionRow};

use super::*;
use crate::values::{self, Inputs, LayerInput, LayerState};

mod properties;

const CLUSTER: &str = include_str!("../../../../../examples/homelab/steps/cluster.yaml");
const GOLDEN_APPLY: &str = include_str!("../../../../../examples/homelab/steps/golden/cluster.apply.txt");
const GOLDEN_DELETE: &str = include_str!("../../../../../examples/homelab/steps/golden/cluster.delete.txt");

const SCRIPT_DESCRIPTOR: Descriptor = Descriptor {
    name: SCRIPT_RUN,
    summary: "",
    effect: Effect::Command,
    idempotent: true,
    check: true,
    undo: false,
    platforms: &[],
    root: RootSupport::None,
    needs_root: false,
    params: &[
        ParamSpec::new("path", ParamKind::NonEmptyText, "").required(),
        ParamSpec::new("args", ParamKind::TextList, "").default(ParamDefault::Texts(&[])),
        ParamSpec::new("cwd", ParamKind::NonEmptyText, ""),
        ParamSpec::new("env", ParamKind::TextList, "").default(ParamDefault::Texts(&[])),
        ParamSpec::new("secrets", ParamKind::TextList, "").default(ParamDefault::Texts(&[])),
        ParamSpec::new("mode", ParamKind::NonEmptyText, "").required(),
    ],
    exclusive: &[],
    one_of: &[],
    result: &[],
};

static SYNC: Descriptor = Descriptor {
    name: INPUTS_SYNC,
    params: &[
        ParamSpec::new("inputs", ParamKind::NonEmptyText, "").required(),
        ParamSpec::new("mode", ParamKind::NonEmptyText, "").required(),
    ],
    ..SCRIPT_DESCRIPTOR
};

static SCRIPT: Descriptor = SCRIPT_DESCRIPTOR;

fn catalogue(text: &str) -> Catalogue {
    let source = Source { name: "steps/cluster.yaml".into(), text: text.into() };
    Catalogue::read(&source, Path::new("/lab/steps/cluster.yaml")).unwrap()
}

/// Returns the values of a catalogue whose first layer, `config.env`, says `config`.
fn values(catalogue: &Catalogue, config: &str) -> Values {
    let mut diagnostics = Diagnostics::default();
    let layers: Vec<LayerInput> = catalogue
        .layers
        .iter()
        .enumerate()
        .map(|(at, layer)| LayerInput {
            name: "config.env".to_owned(),
            state: if at == 0 {
                let source = Source { name: "config.env".into(), text: config.into() };
                LayerState::Read(LayerFile::read(&source, &mut diagnostics))
            } else {
                LayerState::Missing
            },
            secret: layer.secret,
        })
        .collect();
    let inputs = Inputs { catalogue, layers: &layers, environment: &BTreeMap::new(), set: &[] };
    let values = values::resolve(&inputs, &mut diagnostics);
    assert!(!diagnostics.has_errors(), "{diagnostics}");
    values
}

fn row(only: &[&str]) -> SelectionRow {
    SelectionRow { only: only.iter().map(|token| (*token).to_owned()).collect(), ..SelectionRow::default() }
}

fn selected<'c>(
    catalogue: &'c Catalogue,
    mode: StepMode,
    selection: &SelectionRow,
    values: &Values,
) -> Result<Selected<'c>, Diagnostics> {
    let request = Request { mode, selection, only_from: "--only" };
    select(catalogue, &request, &|gate| values.judge(gate))
}

/// Returns the ids that are selected, or the codes and messages of all problems.
fn ids(
    catalogue: &Catalogue,
    mode: StepMode,
    selection: &SelectionRow,
    config: &str,
) -> Result<Vec<String>, Vec<String>> {
    match selected(catalogue, mode, selection, &values(catalogue, config)) {
        Ok(selected) => Ok(selected.steps.iter().map(|(_, step)| step.id.to_string()).collect()),
        Err(problems) => {
            Err(problems.iter().map(|problem| format!("{} {}", problem.code, problem.message)).collect())
        }
    }
}

fn fine(catalogue: &Catalogue) -> BTreeMap<&str, StepFile> {
    catalogue.steps.values().map(|step| (step.path(), StepFile::Fine)).collect()
}

fn plan_with(
    catalogue: &Catalogue,
    mode: StepMode,
    selection: &SelectionRow,
    config: &str,
    target: &str,
    files: &BTreeMap<&str, StepFile>,
) -> StepsPlan {
    let values = values(catalogue, config);
    let selected = selected(catalogue, mode, selection, &values).unwrap();
    let operations = super::super::Catalogue::new([&SCRIPT, &SYNC]);
    compile(&selected, &Surroundings { values: &values, files, target, operations: &operations }).unwrap()
}

fn plan(
    catalogue: &Catalogue,
    mode: StepMode,
    selection: &SelectionRow,
    config: &str,
    target: &str,
) -> StepsPlan {
    plan_with(catalogue, mode, selection, config, target, &fine(catalogue))
}

const BASE: &str = "BASE_DOMAIN=homelab.test\n";
const ALL: [&str; 6] =
    ["access", "config-inputs", "install-flux", "runtime-inputs", "reconcile-stack", "platform-state"];

/// Case 1: the six apply basenames in order; with a false gate two fewer, and why.
#[test]
fn the_plan_text_is_exact() {
    let cluster = catalogue(CLUSTER);
    let plan_of = |config: &str| {
        let plan = plan(&cluster, StepMode::Apply, &row(&[]), config, "homelab");
        assert!(!plan.problems.has_errors(), "{}", plan.problems);
        let hash: String = plan.compiled.hash.to_string().chars().take(12).collect();
        plan.text().replace(&hash, "HASH")
    };
    assert_eq!(
        plan_of(BASE),
        "Plan: cluster apply, 6 steps, target homelab, hash HASH\n  \
           1) reach the cluster\n  \
           - 15_verify_cluster_access.sh\n  \
           2) check the configuration\n  \
           - 94_verify_config_inputs.sh\n  \
           3) bootstrap and reconcile\n  \
           - install-flux.sh\n  \
           - sync-runtime-inputs.sh\n  \
           - 32_reconcile_flux_stack.sh\n  \
           4) verify\n  \
           - 91_verify_platform_state.sh\n"
    );
    assert_eq!(
        plan_of("BASE_DOMAIN=homelab.test\nFEAT_VERIFY=false\n"),
        "Plan: cluster apply, 4 steps, target homelab, hash HASH\n  \
           1) reach the cluster\n  \
           - 15_verify_cluster_access.sh\n  \
           3) bootstrap and reconcile\n  \
           - install-flux.sh\n  \
           - sync-runtime-inputs.sh\n  \
           - 32_reconcile_flux_stack.sh\n\
         Left out: 94_verify_config_inputs.sh (gate FEAT_VERIFY: false from config.env:2)\n\
         Left out: 91_verify_platform_state.sh (gate FEAT_VERIFY: false from config.env:2)\n"
    );
}

/// Case 2: seven lines, all but 15 with ` (delete)`.
#[test]
fn a_delete_has_its_own_order_and_says_what_it_destroys() {
    let cluster = catalogue(CLUSTER);
    let plan = plan(&cluster, StepMode::Delete, &row(&[]), BASE, "homelab");
    let text = plan.text();
    let lines: Vec<&str> = text.lines().filter(|line| line.starts_with("  - ")).collect();
    assert_eq!(lines.join("\n") + "\n", GOLDEN_DELETE);
    assert!(text.ends_with(
        "Destructive: 32_reconcile_flux_stack.sh, 30_manage_cert_manager_cleanup.sh, 99_execute_teardown.sh, \
         26_manage_cilium_lifecycle.sh, install-flux.sh\n"
    ));
    assert!(plan.needs_confirmation());
    assert_eq!(plan.steps[0].args, [""; 0]);
    assert_eq!(plan.steps[1].args, ["--delete"]);
}

#[test]
fn golden_lines_are_those_of_the_plan_at_defaults() {
    let cluster = catalogue(CLUSTER);
    let defaults = values(&cluster, BASE);
    assert_eq!(golden_lines(&cluster, StepMode::Apply, &defaults).join("\n") + "\n", GOLDEN_APPLY);
    assert_eq!(golden_lines(&cluster, StepMode::Delete, &defaults).join("\n") + "\n", GOLDEN_DELETE);
}

#[test]
fn tasks_hold_names_and_follow_the_list() {
    let cluster = catalogue(CLUSTER);
    let plan =
        plan(&cluster, StepMode::Apply, &row(&["94", "sync-runtime-inputs.sh", "32"]), BASE, "homelab");
    let task = |at: usize| &plan.compiled.plan.tasks[at];
    let op = |at: usize| serde_json::to_value(&task(at).action.parts()[0].op).unwrap();
    assert_eq!(
        op(0),
        json!({"operation": "script.run", "params": {
            "mode": "apply", "path": "scripts/94_verify_config_inputs.sh", "secrets": ["OIDC_CLIENT_SECRET"]}})
    );
    assert_eq!(op(1), json!({"operation": "inputs.sync", "params": {"inputs": "runtime", "mode": "apply"}}));
    assert_eq!(task(0).depends_on.len(), 0);
    assert_eq!(task(2).depends_on[0].as_str(), "runtime-inputs");
    let settings = &task(2).settings;
    assert_eq!((settings.on_error, settings.trigger_rule), (OnError::StopAll, TriggerRule::AllOk));
    assert_eq!((settings.retry.times, settings.timeout), (1, Some(std::time::Duration::from_secs(1200))));
    assert!(settings.retry.covers(ErrorClass::Check) && settings.retry.covers(ErrorClass::Exit));
    assert!(settings.idempotent);
    let limits = plan.compiled.plan.limits;
    assert_eq!((limits.parallel, limits.per_target), (8, Some(8)));
    assert_eq!(
        serde_json::to_value(&plan.compiled.plan.origin).unwrap(),
        json!({"steps": {"catalogue": "cluster", "mode": "apply", "target": "homelab"}})
    );
}

#[test]
fn the_hash_is_of_steps_and_target_and_not_of_values_or_scripts() {
    let cluster = catalogue(CLUSTER);
    let hash = |config: &str, target: &str, files: &BTreeMap<&str, StepFile>| {
        plan_with(&cluster, StepMode::Apply, &row(&[]), config, target, files).compiled.hash
    };
    let first = hash(BASE, "homelab", &fine(&cluster));
    assert_eq!(hash(BASE, "homelab", &fine(&cluster)), first);
    assert_eq!(
        hash("BASE_DOMAIN=other.test\nOIDC_CLIENT_SECRET=mended-secret\n", "homelab", &fine(&cluster)),
        first
    );
    assert_eq!(hash(BASE, "homelab", &BTreeMap::new()), first);
    assert_ne!(hash(BASE, "other", &fine(&cluster)), first);
    assert_ne!(hash("BASE_DOMAIN=homelab.test\nFEAT_VERIFY=false\n", "homelab", &fine(&cluster)), first);
    let deleted = plan(&cluster, StepMode::Delete, &row(&["15"]), BASE, "homelab").compiled.hash;
    assert_ne!(plan(&cluster, StepMode::Apply, &row(&["15"]), BASE, "homelab").compiled.hash, deleted);
}

/// Case 12: script missing, not executable, without `#!`: all named together, and the plan can still be read.
#[test]
fn scripts_that_cannot_run_are_told_together() {
    let cluster = catalogue(CLUSTER);
    let mut files = fine(&cluster);
    files.remove("scripts/15_verify_cluster_access.sh");
    files.insert("scripts/94_verify_config_inputs.sh", StepFile::NotExecutable);
    files.insert("scripts/bootstrap/install-flux.sh", StepFile::NotRunnable);
    files.insert("scripts/32_reconcile_flux_stack.sh", StepFile::NotRegular);
    files.insert("scripts/91_verify_platform_state.sh", StepFile::Outside);
    let words = |file: StepFile| file.problem("s.sh").map(|(_, message, help)| format!("{message}: {help}"));
    assert_eq!(
        words(StepFile::Unreadable("permission denied".to_owned())).unwrap(),
        "the script `s.sh` cannot be read (permission denied), and an interpreter has to read it: chmod +r s.sh"
    );
    // What goes by a path needs no file there, and what is not selected is not asked for.
    files.remove("scripts/bootstrap/sync-runtime-inputs.sh");
    files.remove("scripts/99_execute_teardown.sh");
    let plan = plan_with(&cluster, StepMode::Apply, &row(&[]), BASE, "homelab", &files);
    let found: Vec<String> =
        plan.problems.iter().map(|problem| format!("{} {}", problem.code, problem.message)).collect();
    assert_eq!(
        found,
        [
            "steps/missing the script `scripts/15_verify_cluster_access.sh` does not exist",
            "steps/not-executable the script `scripts/94_verify_config_inputs.sh` is not executable",
            "steps/not-runnable the script `scripts/bootstrap/install-flux.sh` starts neither with `#!` nor as an ELF \
             program",
            "steps/not-runnable the script `scripts/32_reconcile_flux_stack.sh` is not a regular file",
            "steps/not-runnable the script `scripts/91_verify_platform_state.sh` leads out of the root of the catalogue",
        ]
    );
    assert!(plan.text().contains("  - 15_verify_cluster_access.sh\n"));
}

const ARGUMENTS: &str = "\
api_version: v1
layers: [ { file: config.env } ]
vars: { DOMAIN: { default: a.test }, TOKEN: { secret: true, default: hidden-token } }
steps:
  s: { run: s.sh, args: { apply: [\"--host=${DOMAIN}\", \"--token=${TOKEN}\"] }, cwd: \"${DOMAIN}/../..\" }
  t: { run: t.sh, args: { apply: [\"${NOWHERE}\"] }, env: { B: 1, A: \"${TOKEN}\" }, secrets: [\"*\"], cwd: sub }
apply: [ { steps: [s, t] } ]
";

#[test]
fn a_secret_never_becomes_an_argument() {
    let catalogue = catalogue(ARGUMENTS);
    let plan = plan(&catalogue, StepMode::Apply, &row(&[]), "", "x");
    assert_eq!(plan.steps[0].args, ["--host=a.test", "***"]);
    assert_eq!(plan.steps[1].cwd.as_deref(), Some("sub"));
    let found: Vec<&str> = plan.problems.iter().map(|problem| problem.code).collect();
    assert_eq!(found, ["steps/catalogue", "steps/catalogue", "value/undefined"], "{}", plan.problems);
    let bytes = String::from_utf8(plan.compiled.plan.to_json()).unwrap();
    assert!(!bytes.contains("hidden-token") && !format!("{plan:?}").contains("hidden-token"));
    assert!(bytes.contains(r#""cwd":"${DOMAIN}/../..""#), "{bytes}");
    assert!(bytes.contains(r#""env":["A","B"]"#) && bytes.contains(r#""secrets":["*"]"#), "{bytes}");
}

/// Case 5: tokens are numbers, ids, tails of paths and stems; the result is in listed order, each step once.
#[test]
fn tokens_name_steps_in_any_order_and_as_often_as_they_like() {
    let cluster = catalogue(CLUSTER);
    let only = |lists: &[&str]| {
        let lists: Vec<String> = lists.iter().map(|list| (*list).to_owned()).collect();
        let selection = SelectionRow { only: tokens(&lists), ..SelectionRow::default() };
        ids(&cluster, StepMode::Apply, &selection, BASE).unwrap()
    };
    assert_eq!(only(&[]), ALL);
    assert_eq!(only(&["32,15"]), ["access", "reconcile-stack"]);
    assert_eq!(only(&[" 15 , 94 "]), ["access", "config-inputs"]);
    assert_eq!(only(&["15,15", "015"]), ["access"]);
    for token in ["bootstrap/install-flux.sh", "install-flux", "install-flux.sh"] {
        assert_eq!(only(&[token]), ["install-flux"]);
    }
    assert_eq!(tokens(&[String::new(), ",".to_owned(), " , ".to_owned()]), [""; 0]);
}

/// Case 6: an unknown token is told with the nearest and with every token that would do.
#[test]
fn an_unknown_token_is_told_with_what_could_be_meant() {
    let cluster = catalogue(CLUSTER);
    let problems = |only: &[&str]| {
        selected(&cluster, StepMode::Apply, &row(only), &values(&cluster, BASE)).unwrap_err().0
    };
    let found = problems(&["nosuch", "instal-flux"]);
    assert_eq!(found.len(), 2);
    assert_eq!(
        (found[0].code, found[0].message.as_str()),
        ("steps/unknown-token", "no step goes by `nosuch`")
    );
    assert!(
        found[0].help.starts_with("apply has: 15, access, 15_verify_cluster_access.sh, 94, "),
        "{}",
        found[0].help
    );
    assert!(found[1].help.starts_with("did you mean `install-flux`? "), "{}", found[1].help);
    assert_eq!(found[0].candidates.len(), 4 * 3 + 2 * 2);
    assert_eq!(found[0].place, Place::Named("--only".to_owned()));
}

#[test]
fn steps_of_the_other_list_and_gated_ones_are_refused() {
    let cluster = catalogue(CLUSTER);
    assert_eq!(
        ids(&cluster, StepMode::Apply, &row(&["99", "cilium"]), BASE).unwrap_err(),
        [
            "steps/wrong-mode `99` is the step `teardown`, which is not in the apply list",
            "steps/wrong-mode `cilium` is the step `cilium`, which is not in the apply list",
        ]
    );
    let off = "BASE_DOMAIN=homelab.test\nFEAT_VERIFY=false\n";
    let gated = |selection: SelectionRow| ids(&cluster, StepMode::Apply, &selection, off);
    let expected = [
        "steps/gated-off `94_verify_config_inputs.sh` is left out (gate FEAT_VERIFY: false from config.env:2)",
    ];
    assert_eq!(gated(row(&["15", "94"])).unwrap_err(), expected);
    assert_eq!(gated(SelectionRow { from: Some("94".to_owned()), ..row(&[]) }).unwrap_err(), expected);
    assert_eq!(gated(SelectionRow { until: Some("94".to_owned()), ..row(&[]) }).unwrap_err(), expected);
    let skipped = SelectionRow { skip: vec!["94".to_owned()], ..row(&[]) };
    assert_eq!(gated(skipped).unwrap(), ["access", "install-flux", "runtime-inputs", "reconcile-stack"]);
}

#[test]
fn ranges_include_both_ends_and_lists_are_cut_in_order() {
    let cluster = catalogue(CLUSTER);
    let range = |from: Option<&str>, until: Option<&str>, only: &[&str], skip: &[&str]| {
        let selection = SelectionRow {
            from: from.map(str::to_owned),
            until: until.map(str::to_owned),
            skip: skip.iter().map(|token| (*token).to_owned()).collect(),
            ..row(only)
        };
        ids(&cluster, StepMode::Apply, &selection, BASE)
    };
    assert_eq!(range(Some("94"), Some("32"), &[], &[]).unwrap(), &ALL[1..5]);
    assert_eq!(range(Some("32"), None, &[], &["91"]).unwrap(), ["reconcile-stack"]);
    assert_eq!(range(None, Some(" 15 "), &[], &[]).unwrap(), ["access"]);
    assert_eq!(
        range(Some("32"), Some("15"), &[], &[]).unwrap_err(),
        ["steps/empty `32_reconcile_flux_stack.sh` comes after `15_verify_cluster_access.sh`"]
    );
    let nothing = ["steps/empty no step is left to run"];
    assert_eq!(range(None, None, &["15"], &["15"]).unwrap_err(), nothing);
    assert_eq!(range(Some("94"), None, &["15"], &[]).unwrap_err(), nothing);
    let selection =
        SelectionRow { from: Some("94".to_owned()), skip: vec!["32".to_owned()], ..row(&["94", "32"]) };
    let left = selected(&cluster, StepMode::Apply, &selection, &values(&cluster, BASE)).unwrap().left_out;
    let causes: Vec<(&str, LeftOutCause)> = left.iter().map(|left| (left.id.as_str(), left.cause)).collect();
    assert_eq!(
        causes,
        [
            ("access", LeftOutCause::Range),
            ("install-flux", LeftOutCause::Only),
            ("runtime-inputs", LeftOutCause::Only),
            ("reconcile-stack", LeftOutCause::Skip),
            ("platform-state", LeftOutCause::Only),
        ]
    );
}

const DIAMOND: &str = "\
api_version: v1
layers: [ { file: config.env } ]
order: { apply: needs }
limits: { parallel: 3 }
controls: { WITH_LEFT: { type: bool, default: true }, ALL: { type: bool, default: true } }
steps:
  top: { run: x/1_top.sh, gate: ALL }
  left: { run: x/2_side.sh, needs: { apply: [top] }, gate: WITH_LEFT && ALL }
  right: { run: y/2_side.sh, needs: { apply: [top] }, gate: ALL }
  last: { run: x/3_last.sh, needs: { apply: [left, right] }, gate: ALL }
apply: [ { steps: [last, left, right, top] } ]
";

/// Case 14: `--only` of a diamond's last is refused; with its needs it is four, without them one.
#[test]
fn needs_are_asked_for_added_or_left_out() {
    let diamond = catalogue(DIAMOND);
    let chosen = |needs: Option<NeedsChoice>, only: &[&str], skip: &[&str], config: &str| {
        let skip = skip.iter().map(|token| (*token).to_owned()).collect();
        ids(&diamond, StepMode::Apply, &SelectionRow { needs, skip, ..row(only) }, config)
    };
    assert_eq!(
        chosen(None, &["last"], &[], "").unwrap_err(),
        [
            "steps/needs `last` needs `left`, which is not selected",
            "steps/needs `last` needs `right`, which is not selected",
        ]
    );
    assert_eq!(
        chosen(Some(NeedsChoice::With), &["last"], &[], "").unwrap(),
        ["last", "left", "right", "top"]
    );
    assert_eq!(chosen(Some(NeedsChoice::Skip), &["last"], &[], "").unwrap(), ["last"]);
    assert_eq!(
        chosen(Some(NeedsChoice::With), &["last"], &["top"], "").unwrap_err(),
        [
            "steps/needs `left` needs `top`, which --skip names",
            "steps/needs `right` needs `top`, which --skip names",
        ]
    );
    let gated = chosen(Some(NeedsChoice::With), &["last"], &[], "WITH_LEFT=false\n");
    assert_eq!(gated.unwrap(), ["last", "right", "top"]);
    assert_eq!(chosen(None, &[], &[], "ALL=false\n").unwrap_err().len(), 1);
    assert_eq!(chosen(None, &["2"], &[], "").unwrap_err().len(), 2);
    assert_eq!(chosen(None, &["2", "top"], &[], "").unwrap(), ["left", "right", "top"]);
}

#[test]
fn a_token_for_several_steps_must_be_a_number_and_not_an_end() {
    let diamond = catalogue(DIAMOND);
    let refused = |selection: SelectionRow| ids(&diamond, StepMode::Apply, &selection, "").unwrap_err();
    assert_eq!(refused(row(&["2_side.sh"])), ["steps/ambiguous several steps go by `2_side.sh`"]);
    let from = SelectionRow { from: Some("02".to_owned()), ..row(&[]) };
    assert_eq!(refused(from), ["steps/ambiguous several steps go by `02`"]);
    let skip = SelectionRow { skip: vec!["2_side".to_owned()], ..row(&[]) };
    assert_eq!(refused(skip), ["steps/ambiguous several steps go by `2_side`"]);
}

#[test]
fn only_needs_order_steps_and_reach_through_those_left_out() {
    let diamond = catalogue(DIAMOND);
    let depends = |selection: &SelectionRow, config: &str| {
        let plan = plan(&diamond, StepMode::Apply, selection, config, "x");
        assert_eq!(plan.compiled.plan.limits.parallel, 3);
        let tasks = plan.compiled.plan.tasks.iter();
        tasks
            .map(|task| {
                let names: Vec<&str> = task.depends_on.iter().map(|name| name.as_str()).collect();
                format!("{}: {}", task.name, names.join(" "))
            })
            .collect::<Vec<_>>()
    };
    assert_eq!(depends(&row(&[]), ""), ["last: left right", "left: top", "right: top", "top: "]);
    assert_eq!(depends(&row(&[]), "WITH_LEFT=false\n"), ["last: right top", "right: top", "top: "]);
    let without = SelectionRow { needs: Some(NeedsChoice::Skip), ..row(&["last", "top"]) };
    assert_eq!(depends(&without, ""), ["last: top", "top: "]);
}

#[test]
fn a_list_that_is_empty_or_gated_off_is_told() {
    let empty = catalogue("api_version: v1\nlayers: []\nsteps: {}\napply: []\n");
    assert_eq!(
        ids(&empty, StepMode::Apply, &row(&[]), "").unwrap_err(),
        ["steps/empty the apply list is empty"]
    );
    let diamond = catalogue(DIAMOND);
    let gated = ids(&diamond, StepMode::Apply, &row(&[]), "ALL=false\n").unwrap_err();
    assert!(
        gated[0].starts_with("steps/empty every step is left out (gate ALL: false from config.env:1; "),
        "{gated:?}"
    );
}
