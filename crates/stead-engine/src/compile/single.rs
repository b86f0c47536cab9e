//! One operation on some hosts, as a plan of one task: what `stead exec` runs.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Map, Value, json};
use stead_model::diagnostic::Place;
use stead_model::operation::ParamKind;
use stead_model::plan::{Action, Digest, HostFailure, Op, Param, Part, Plan, Section, Settings, Task};
use stead_model::{Descriptor, Diagnostic, Diagnostics, Effect, OperationName, PlanName, TaskName};

use super::{Catalogue, CompiledPlan, Explicit, VarValue, check};

/// The name of the plan and of its task.
pub const NAME: &str = "exec";

/// Returns the plan of `operation` with `params` on the hosts of `targets`, or every problem.
///
/// Every host gets its turn, whatever happens on others. Parameters are values: nothing in them is a template. A
/// command is let in beside a run that holds its hosts, so that one can look at what a run does; what writes is not.
pub fn single(
    operation: &OperationName,
    params: Map<String, Value>,
    targets: &[String],
    catalogue: &Catalogue,
) -> Result<CompiledPlan, Diagnostics> {
    let invalid = |error: stead_model::id::InvalidId| {
        Diagnostics(vec![Diagnostic::error(
            "plan/bad-value",
            Place::Named(NAME.to_owned()),
            error.to_string(),
        )])
    };
    let params: BTreeMap<String, Param> =
        params.into_iter().map(|(name, value)| (name, Param::Value(value))).collect();
    let op = Op { operation: operation.clone(), params };
    let part = Part { name: None, op, when_host: Vec::new(), changed_when: None, failed_when: None };
    let settings =
        Settings { target: targets.to_vec(), host_failure: HostFailure::All, ..Settings::default() };
    let mut plan = Plan::new(PlanName::parse(NAME).map_err(invalid)?);
    plan.lock =
        catalogue.get(operation.as_str()).is_some_and(|descriptor| descriptor.effect == Effect::Write);
    plan.tasks.push(Task {
        name: TaskName::parse(NAME).map_err(invalid)?,
        section: Section::Main,
        depends_on: [].into(),
        action: Action::Op(Arc::new(part)),
        settings: Arc::new(settings),
        item: None,
        hash: Digest::default(),
    });
    let locate = |_, path: &str| {
        let place = match path.split_once('.') {
            Some(("target", index)) => {
                index.parse().ok().and_then(|index: usize| targets.get(index)).map(|_| "TARGET".to_owned())
            }
            Some(("params", name)) => Some(format!("parameter {name}")),
            Some(_) | None => None,
        };
        Place::Named(place.unwrap_or_else(|| format!("--op {operation}")))
    };
    check(plan, &Explicit::default(), catalogue, &locate, Diagnostics::default())
}

/// Returns the value that `NAME=VALUE` gives to a parameter: of the kind it takes, if the text can be read so.
///
/// A text stays a text where texts are taken; a list takes a single text as its only element.
pub fn typed(descriptor: &Descriptor, name: &str, value: VarValue) -> Value {
    let text = match value {
        VarValue::Json(value) => return value,
        VarValue::Text(text) => text,
    };
    let kind = descriptor.param(name).map_or(ParamKind::Any, |param| param.kind);
    let takes = |value: &Value| kind.refuse(value).is_none();
    let plain = Value::String(text);
    if takes(&plain) {
        return plain;
    }
    let parsed = plain.as_str().and_then(|text| serde_json::from_str::<Value>(text).ok());
    let alone = json!([plain]);
    match parsed.filter(&takes) {
        Some(value) => value,
        None if takes(&alone) => alone,
        // What is wrong with it is said by the check.
        None => plain,
    }
}

#[cfg(test)]
mod tests {
    use stead_model::operation::{ParamSpec, RootSupport};

    use super::*;

    static PACKAGE: Descriptor = Descriptor {
        name: "package.present",
        summary: "",
        effect: Effect::Write,
        idempotent: true,
        check: true,
        undo: false,
        platforms: &[],
        root: RootSupport::Full,
        needs_root: false,
        params: &[
            ParamSpec::new("names", ParamKind::TextList, "").required(),
            ParamSpec::new("mode", ParamKind::Mode, ""),
            ParamSpec::new("refresh", ParamKind::Bool, ""),
        ],
        exclusive: &[],
        one_of: &[],
        result: &[],
    };

    fn value(name: &str, text: &str) -> Value {
        typed(&PACKAGE, name, VarValue::Text(text.to_owned()))
    }

    #[test]
    fn texts_become_what_the_parameter_takes() {
        assert_eq!(value("names", "nginx"), json!(["nginx"]));
        assert_eq!(value("names", r#"["a", "b"]"#), json!(["a", "b"]));
        assert_eq!(value("mode", "0644"), json!("0644"));
        assert_eq!(value("refresh", "true"), json!(true));
        assert_eq!(value("refresh", "maybe"), json!("maybe"));
        assert_eq!(value("unknown", "1"), json!("1"));
        assert_eq!(typed(&PACKAGE, "mode", VarValue::Json(json!(7))), json!(7));
    }

    #[test]
    fn a_plan_of_one_task_is_checked_like_any_other() {
        let catalogue = Catalogue::new([&PACKAGE]);
        let operation = OperationName::parse("package.present").unwrap();
        let params = |value: Value| value.as_object().unwrap().clone();
        let good =
            single(&operation, params(json!({"names": ["{{ x }}"]})), &["_all".to_owned()], &catalogue);
        assert!(good.unwrap().plan.lock);
        let bad = single(&operation, params(json!({"name": 1})), &["a,,b".to_owned()], &catalogue);
        let found: Vec<String> =
            bad.unwrap_err().iter().map(|problem| format!("{} {}", problem.code, problem.place)).collect();
        assert_eq!(found.len(), 3, "{found:?}");
        assert!(found.contains(&"reach/bad-target TARGET".to_owned()), "{found:?}");
        assert!(found.contains(&"plan/bad-param parameter name".to_owned()), "{found:?}");
    }
}
