//! Reads the two lists, and checks what steps need against them.

use std::collections::BTreeMap;

use super::Reader;
use crate::catalogue::keys::GROUP_KEYS;
use crate::catalogue::{At, Catalogue, Group, Order, Step, StepMode};
use crate::diagnostic::{Diagnostic, Place, suggest};
use crate::id::StepId;
use crate::yaml::{Codes, Fields};

impl Reader<'_, '_> {
    /// Returns the list of `mode`, its steps each there once and fit for it.
    pub(super) fn groups(
        &mut self,
        fields: Fields<'_>,
        mode: StepMode,
        steps: &BTreeMap<StepId, Step>,
    ) -> Option<Vec<Group>> {
        let node = fields.get(mode.as_str())?;
        let items = self.walk.list(node, "groups `{ phase, steps }`")?;
        let mut seen: BTreeMap<StepId, Place> = BTreeMap::new();
        let mut groups = Vec::with_capacity(items.len());
        for node in items {
            if let Some(id) = node.as_text() {
                let problem = node.bad(format!("expected a group (a map), found the text `{id}`"));
                self.walk.report(problem.help(format!("write `{{ steps: [{id}] }}`")));
                continue;
            }
            let Some(group) = self.walk.map(node, &GROUP_KEYS) else { continue };
            let phase = self.phase(group);
            let listed = group.get("steps").and_then(|node| self.walk.list(node, "step ids"));
            let mut ids = Vec::new();
            for node in listed.into_iter().flatten() {
                let Some(id) = self.step_id(node) else { continue };
                if let Some(first) = seen.get(&id.value) {
                    let problem = node.bad(format!("`{}` is listed twice in `{mode}`", id.value));
                    let problem = problem.help("a step runs once: remove one of them");
                    self.walk.report(problem.related(first.clone(), "first here"));
                    continue;
                }
                if let Some(step) = steps.get(&id.value).filter(|step| !step.modes.contains(&mode)) {
                    let problem = node.bad(format!("`{}` has no mode `{mode}`", id.value));
                    let problem =
                        problem.help(format!("remove it from `{mode}`, or add `{mode}` to its `modes`"));
                    self.walk.report(problem.related(step.place.clone(), "the step"));
                }
                seen.insert(id.value.clone(), id.place.clone());
                ids.push(id);
            }
            groups.push(Group { phase, steps: ids });
        }
        Some(groups)
    }

    /// Returns the heading of a group: one line, so that it cannot be taken for a step's.
    fn phase(&mut self, group: Fields<'_>) -> Option<String> {
        let node = group.get("phase")?;
        let text = self.walk.full_text(node)?;
        if text.chars().any(char::is_control) {
            self.walk.report(node.bad("a phase is one line of text"));
            return None;
        }
        if text.trim_start().starts_with("- ") {
            let problem = node.bad("a phase cannot begin with `- `, as the lines of steps do");
            self.walk.report(problem.help("write it without the dash"));
            return None;
        }
        Some(text.trim().to_owned())
    }

    /// Reports every need that is not in the list, comes too late, or closes a circle.
    pub(super) fn needs(&mut self, catalogue: &Catalogue) {
        for (_, mode) in StepMode::WORDS {
            let position: BTreeMap<&StepId, usize> =
                catalogue.listed(mode).enumerate().map(|(at, (_, step))| (&step.id, at)).collect();
            for step in catalogue.steps.values() {
                for need in step.needs.get(mode) {
                    self.need(catalogue, mode, &position, step, need);
                }
            }
            if *catalogue.order.get(mode) == Order::Needs {
                self.circles(catalogue, mode);
            }
        }
    }

    fn need(
        &mut self,
        catalogue: &Catalogue,
        mode: StepMode,
        position: &BTreeMap<&StepId, usize>,
        step: &Step,
        need: &At<StepId>,
    ) {
        let (id, needed) = (&step.id, &need.value);
        let (message, help) = match (position.get(needed), position.get(id)) {
            _ if id == needed => (format!("`{id}` needs itself"), "remove it".to_owned()),
            (None, _) => {
                let known = position.keys().map(|id| id.as_str()).filter(|other| *other != id.as_str());
                let help = suggest(needed.as_str(), known);
                (format!("`{id}` needs `{needed}`, which is not in the `{mode}` list"), help)
            }
            (Some(at), Some(own)) if at > own && *catalogue.order.get(mode) == Order::Listed => (
                format!("`{id}` needs `{needed}`, which comes after it in the `{mode}` list"),
                format!("list `{needed}` first, or set `order: {{ {mode}: needs }}`"),
            ),
            (Some(_), _) => return,
        };
        self.walk.report(
            Diagnostic::error(Codes::STEPS.bad_value, need.place.clone(), message)
                .help(help)
                .path(format!("steps.{id}.needs.{mode}")),
        );
    }

    /// Reports one circle of needs, if there is one.
    fn circles(&mut self, catalogue: &Catalogue, mode: StepMode) {
        let open = open_steps(catalogue, mode);
        // Everything open waits for something open: following one need of each leads around.
        let next = |id: &StepId| {
            let step = open.get(id)?;
            step.needs.get(mode).iter().find(|need| need.value != *id && open.contains_key(&need.value))
        };
        let Some(mut at) = open.keys().next().copied() else { return };
        for _ in 0..open.len() {
            at = next(at).map_or(at, |need| &need.value);
        }
        let mut chain = vec![at.as_str()];
        let Some(first) = next(at) else { return };
        let mut need = first;
        while need.value != *at {
            chain.push(need.value.as_str());
            let Some(following) = next(&need.value) else { return };
            need = following;
        }
        chain.push(at.as_str());
        let message = format!("the steps of `{mode}` wait for each other: {}", chain.join(" → "));
        let problem = Diagnostic::error(Codes::STEPS.bad_value, first.place.clone(), message);
        self.walk.report(problem.help("remove one of these needs").path(format!("steps.{at}.needs.{mode}")));
    }
}

/// Returns what is left of a list when steps without open needs are taken away again and again.
fn open_steps(catalogue: &Catalogue, mode: StepMode) -> BTreeMap<&StepId, &Step> {
    let mut open: BTreeMap<&StepId, &Step> =
        catalogue.listed(mode).map(|(_, step)| (&step.id, step)).collect();
    let mut waiting: BTreeMap<&StepId, usize> = BTreeMap::new();
    let mut dependents: BTreeMap<&StepId, Vec<&StepId>> = BTreeMap::new();
    for (id, step) in &open {
        // A need on itself has been reported.
        let needs =
            step.needs.get(mode).iter().filter(|need| need.value != **id && open.contains_key(&need.value));
        for need in needs {
            *waiting.entry(id).or_default() += 1;
            dependents.entry(&need.value).or_default().push(id);
        }
    }
    let mut free: Vec<&StepId> = open.keys().copied().filter(|id| !waiting.contains_key(id)).collect();
    while let Some(id) = free.pop() {
        open.remove(id);
        for dependent in dependents.remove(id).unwrap_or_default() {
            if let Some(count) = waiting.get_mut(dependent) {
                *count -= 1;
                if *count == 0 {
                    free.push(dependent);
                }
            }
        }
    }
    open
}
