//! Parameters that say no more than the operation's own defaults are left out, so that spelling a default out gives the
//! same plan and the same hash.
//!
//! This comes after all checks: what a parameter excludes or is needed for is judged by what was written.

use std::collections::HashMap;
use std::sync::Arc;

use stead_model::Plan;
use stead_model::plan::{Action, Op, Settings, Undo};

use super::Catalogue;

/// Leaves out every parameter of `plan` that is its operation's default.
pub(super) fn leave_out(plan: &mut Plan, catalogue: &Catalogue) {
    let mut settings = Cleaned::default();
    for task in &mut plan.tasks {
        match &mut task.action {
            Action::Op(part) => {
                if holds_default(&part.op, catalogue) {
                    clean(&mut Arc::make_mut(part).op, catalogue);
                }
            }
            Action::Sequence(parts) => {
                if parts.iter().any(|part| holds_default(&part.op, catalogue)) {
                    let mut cleaned = parts.to_vec();
                    cleaned.iter_mut().for_each(|part| clean(&mut part.op, catalogue));
                    *parts = cleaned.into();
                }
            }
            Action::Function(_) => {}
        }
        if let Some(Undo::Op(op)) = &task.settings.undo
            && holds_default(op, catalogue)
        {
            task.settings = settings.clean(&task.settings, catalogue);
        }
    }
}

/// Settings already cleaned, by the address of what they were: tasks share theirs, and go on doing so.
#[derive(Default)]
struct Cleaned(HashMap<usize, (Arc<Settings>, Arc<Settings>)>);

impl Cleaned {
    fn clean(&mut self, settings: &Arc<Settings>, catalogue: &Catalogue) -> Arc<Settings> {
        let (_, cleaned) = self.0.entry(Arc::as_ptr(settings) as usize).or_insert_with(|| {
            let mut cleaned = Settings::clone(settings);
            if let Some(Undo::Op(op)) = &mut cleaned.undo {
                clean(op, catalogue);
            }
            // The old ones are kept, so that their address stays theirs.
            (Arc::clone(settings), Arc::new(cleaned))
        });
        Arc::clone(cleaned)
    }
}

fn holds_default(op: &Op, catalogue: &Catalogue) -> bool {
    let Some(descriptor) = catalogue.get(op.operation.as_str()) else { return false };
    op.params.iter().any(|(name, param)| {
        let spec = descriptor.param(name);
        spec.zip(param.as_value()).is_some_and(|(spec, value)| spec.is_default(value))
    })
}

fn clean(op: &mut Op, catalogue: &Catalogue) {
    let Some(descriptor) = catalogue.get(op.operation.as_str()) else { return };
    op.params.retain(|name, param| {
        let spec = descriptor.param(name);
        !spec.zip(param.as_value()).is_some_and(|(spec, value)| spec.is_default(value))
    });
}
