//! Parameters, values and the one plan of an intent.

use stead_model::Descriptor;
use stead_model::catalogue::{At, IntentParam};
use stead_model::operation::{Effect, ParamKind, ParamSpec, RootSupport};
use stead_model::yaml::edit::KeyPath;

use super::*;

fn at<T>(value: T) -> At<T> {
    At { value, place: Place::Named("steps.yaml".to_owned()) }
}

fn param(allowed: &[&str], default: Option<&str>) -> IntentParam {
    IntentParam {
        allowed: allowed.iter().map(|value| (*value).to_owned()).collect(),
        default: default.map(str::to_owned),
        doc: None,
        place: Place::Named("steps.yaml".to_owned()),
    }
}

fn edit(value: EditValue, kind: ScalarKind) -> Edit {
    Edit {
        file: at("f.yaml".to_owned()),
        select: Vec::new(),
        path: at(KeyPath::parse("spec.path").unwrap()),
        value,
        kind,
        must_exist: false,
        place: Place::Named("steps.yaml".to_owned()),
    }
}

fn by(param: &str, values: &[(&str, &str)]) -> EditValue {
    let values = values.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
    EditValue::By { param: at(param.to_owned()), values: values.collect() }
}

/// `./APP/LE`.
fn template() -> EditValue {
    let reference =
        |name: &str| Piece::Reference { name: name.to_owned(), default: None, span: Default::default() };
    let literal = |text: &str| Piece::Literal(text.to_owned());
    EditValue::Template(at(Text(vec![literal("./"), reference("APP"), literal("/"), reference("LE")])))
}

fn intent(edits: Vec<Edit>) -> Intent {
    Intent {
        params: BTreeMap::from([
            ("APP".to_owned(), param(&["staging", "prod"], None)),
            ("LE".to_owned(), param(&["staging", "prod"], Some("staging"))),
        ]),
        edits,
        then: None,
        doc: None,
        place: Place::Named("steps.yaml".to_owned()),
    }
}

fn choice(pairs: &[(&str, &str)]) -> Choice {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

fn chosen(given: &[&str]) -> Result<Choice, Vec<String>> {
    let given: Vec<String> = given.iter().map(|typed| (*typed).to_owned()).collect();
    choose("app", &intent(Vec::new()), &given)
        .map_err(|problems| problems.iter().map(|problem| problem.message.clone()).collect())
}

/// Case 23: unknown, missing, repeated and unlisted, all at once.
#[test]
fn parameters_are_enumerated_and_all_problems_come_at_once() {
    assert_eq!(chosen(&["APP=prod"]), Ok(choice(&[("APP", "prod"), ("LE", "staging")])));
    assert_eq!(chosen(&["LE=prod", "APP=prod"]), Ok(choice(&[("APP", "prod"), ("LE", "prod")])));
    assert_eq!(chosen(&[]), Err(vec!["`APP` is missing".to_owned()]));
    assert_eq!(
        chosen(&["APPS=prod", "LE=dev", "LE=prod", "x"]),
        Err(vec![
            "`app` has no parameter `APPS`".to_owned(),
            "`dev` is not a value of `LE`".to_owned(),
            "`LE` is given twice".to_owned(),
            "`x` is not KEY=VALUE".to_owned(),
            "`APP` is missing".to_owned(),
        ])
    );
}

#[test]
fn values_come_from_templates_and_tables_and_have_their_type() {
    let intent = intent(vec![
        edit(template(), ScalarKind::String),
        edit(by("APP", &[("staging", "1"), ("prod", "-3")]), ScalarKind::Int),
        edit(by("APP", &[("staging", "false"), ("prod", "true")]), ScalarKind::Bool),
    ]);
    let prod = choice(&[("APP", "prod"), ("LE", "staging")]);
    let values: Vec<Wanted> = edits(&intent, &prod).unwrap().into_iter().map(|edit| edit.value).collect();
    assert_eq!(values, [Wanted::Text("./prod/staging".to_owned()), Wanted::Int(-3), Wanted::Bool(true)]);
    let wrong = Intent {
        edits: vec![
            edit(by("APP", &[("prod", "007")]), ScalarKind::Int),
            edit(by("APP", &[("prod", "yes")]), ScalarKind::Bool),
        ],
        ..intent
    };
    let problems = edits(&wrong, &prod).unwrap_err();
    let said: Vec<&str> = problems.iter().map(|problem| problem.message.as_str()).collect();
    assert_eq!(said, ["`007` is not a whole number", "`yes` is not `true` or `false`"]);
}

#[test]
fn files_show_a_choice_or_are_mixed_or_unknown() {
    let intent = intent(vec![
        edit(template(), ScalarKind::String),
        edit(by("APP", &[("staging", "s"), ("prod", "p")]), ScalarKind::String),
    ]);
    let shown = |first: &str, second: &str| current(&intent, &[Some(first.into()), Some(second.into())]);
    assert_eq!(shown("./prod/staging", "p"), Current::Choice(choice(&[("APP", "prod"), ("LE", "staging")])));
    assert_eq!(shown("./prod/staging", "s"), Current::Mixed);
    assert_eq!(shown("./dev/staging", "s"), Current::Unknown);
    assert_eq!(shown("./prod/staging", "x"), Current::Unknown);
    assert_eq!(current(&intent, &[Some("./prod/staging".into()), None]), Current::Unknown);
    assert!(is_allowed(&intent, &intent.edits[0], &"./prod/prod".into()));
    assert!(!is_allowed(&intent, &intent.edits[0], &"./prod".into()));
    // What no file shows is left open.
    let same = Intent {
        edits: vec![edit(by("APP", &[("staging", "x"), ("prod", "x")]), ScalarKind::String)],
        ..intent
    };
    assert_eq!(current(&same, &[Some("x".into())]), Current::Choice(Choice::new()));
}

const fn operation(name: &'static str, params: &'static [ParamSpec]) -> Descriptor {
    Descriptor {
        name,
        summary: "",
        effect: Effect::Write,
        idempotent: true,
        check: true,
        undo: false,
        platforms: &[],
        root: RootSupport::None,
        needs_root: false,
        params,
        exclusive: &[],
        one_of: &[],
        result: &[],
    }
}

static EDIT_OPERATION: Descriptor = operation(
    "intent.edit",
    &[
        ParamSpec::new("intent", ParamKind::Text, ""),
        ParamSpec::new("edits", ParamKind::Any, ""),
        ParamSpec::new("commit", ParamKind::Bool, ""),
    ],
);
static COMMIT_OPERATION: Descriptor =
    operation("intent.commit", &[ParamSpec::new("message", ParamKind::Text, "")]);

#[test]
fn edit_commit_and_steps_are_one_plan() {
    let operations = Catalogue::new([&EDIT_OPERATION, &COMMIT_OPERATION]);
    let choice = choice(&[("APP", "prod"), ("LE", "staging")]);
    let edits = edits(&intent(vec![edit(template(), ScalarKind::String)]), &choice).unwrap();
    let asked = Asked { name: "app", choice: &choice, edits: &edits, commit: true, then: None };
    let alone = compile(asked, &operations).unwrap();
    let names = |compiled: &CompiledPlan| -> Vec<String> {
        let tasks = compiled.plan.tasks.iter();
        tasks.map(|task| format!("{} <- {:?}", task.name, task.depends_on)).collect()
    };
    assert_eq!(names(&alone), ["intent.edit <- []", "intent.commit <- [\"intent.edit\"]"]);
    let Action::Op(part) = &alone.plan.tasks[0].action else { panic!("an operation") };
    assert_eq!(
        part.op.params["edits"],
        Param::Value(json!([{"file": "f.yaml", "path": "spec.path", "value": "./prod/staging"}]))
    );
    let Action::Op(part) = &alone.plan.tasks[1].action else { panic!("an operation") };
    assert_eq!(part.op.params["message"], Param::Value(json!("intent app APP=prod LE=staging")));

    // The tasks of `then` keep their own order and settings, and wait for the commit.
    let mut steps = Plan::new(PlanName::parse("cluster").unwrap());
    steps.tasks.push(task("intent.edit", vec![("intent", json!("x"))], None).unwrap());
    steps.tasks[0].name = TaskName::parse("one").unwrap();
    Arc::make_mut(&mut steps.tasks[0].settings).idempotent = false;
    steps.tasks.push(task("intent.commit", vec![("message", json!("x"))], Some("one")).unwrap());
    steps.tasks[1].name = TaskName::parse("two").unwrap();
    let explicit = Explicit { idempotent: [(TaskIndex(0), false)].into(), ..Explicit::default() };
    let locate = |_, _: &str| Place::Named(String::new());
    let steps = check(steps, &explicit, &operations, &locate, Diagnostics::default()).unwrap();
    let both = compile(Asked { then: Some(&steps), ..asked }, &operations).unwrap();
    assert_eq!(names(&both)[2..], ["one <- [\"intent.commit\"]", "two <- [\"one\"]"]);
    assert!(!both.plan.tasks[2].settings.idempotent && both.plan.tasks[3].settings.idempotent);
    assert_eq!((alone.plan.name.as_str(), both.plan.name.as_str()), ("app", "cluster"));
    assert_ne!(both.hash, alone.hash);
}
