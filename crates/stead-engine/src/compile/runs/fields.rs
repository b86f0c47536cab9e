//! The fields of a kit's role: their values in one role of a manifest.

use std::collections::BTreeSet;

use serde_json::{Map, Value};
use stead_model::Diagnostics;
use stead_model::run_manifest::{Field, Kit, KitRole, RoleForm};
use stead_model::yaml;

use super::texts::{Here, Spot};
use super::{BAD_VALUE, MISSING};

/// Returns the values of all fields of `kit_role` in the role of `form`, and the names of those whose value is missing or
/// wrong, which has been reported.
pub(super) fn values(
    kit: &Kit,
    kit_role: &KitRole,
    form: &RoleForm<'_>,
    here: &Here<'_>,
    problems: &mut Diagnostics,
) -> (Map<String, Value>, BTreeSet<String>) {
    let (mut values, mut broken) = (Map::new(), BTreeSet::new());
    for field in &kit_role.fields {
        let before = problems.0.len();
        let value = value((kit, kit_role), field, form, here, problems);
        if problems.0.len() > before {
            broken.insert(field.name.clone());
        }
        values.insert(field.name.clone(), value.unwrap_or_else(|| field.default.clone()));
    }
    (values, broken)
}

fn value(
    (kit, kit_role): (&Kit, &KitRole),
    field: &Field,
    form: &RoleForm<'_>,
    here: &Here<'_>,
    problems: &mut Diagnostics,
) -> Option<Value> {
    let node = form.node.get(&field.name).filter(|node| !matches!(node.value(), yaml::Value::Null));
    let Some(node) = node else {
        if field.required {
            let message = format!("a `{}` of kit `{}` needs `{}`", kit_role.name, kit.name, field.name);
            let path = format!("{}.{}", form.key.path(), field.name);
            problems
                .push(form.key.error(MISSING, message).path(path).help(format!("write `{}: …`", field.name)));
        }
        return None;
    };
    let before = problems.0.len();
    let value = here.value(node, Spot::Now, problems);
    if problems.0.len() > before {
        return None;
    }
    match field.refuse(&value) {
        None => Some(value),
        Some(message) => {
            problems.push(node.error(BAD_VALUE, message));
            None
        }
    }
}
