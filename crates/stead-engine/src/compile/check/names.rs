//! Whether expressions and templates use names that exist, are declared, and may be read where they stand.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use stead_model::diagnostic::suggest;
use stead_model::plan::{Expression, Guard, Part, Section, TaskIndex};
use stead_model::{HostName, Task};

use super::operations::join;
use super::{Checker, Found, Kind, REMEMBERED};
use crate::expr::{ExprError, References, expression_references, template_references};

/// Guards nested deeper than this are refused.
const MAX_DEPTH: usize = 100;

/// Where a text stands; decides what it may read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spot {
    /// A parameter of an operation.
    Parameter {
        /// Whether it may hold secrets.
        secret: bool,
        /// Whether a shell reads it.
        shell: bool,
    },
    /// `when`: judged once for the task.
    Guard,
    /// `when_host`: judged on each host.
    HostGuard,
    /// `changed_when` and `failed_when`.
    Outcome,
}

impl<'a> Checker<'a> {
    pub(super) fn guards(&mut self, index: TaskIndex, task: &'a Task) {
        for (path, guards, spot) in [
            ("when", &task.settings.when, Spot::Guard),
            ("when_host", &task.settings.when_host, Spot::HostGuard),
        ] {
            for (i, guard) in guards.iter().enumerate() {
                self.guard(index, task, &format!("{path}.{i}"), guard, spot, 0);
            }
        }
    }

    /// Checks what decides over the outcome of a part, and whether it runs on a host.
    pub(super) fn outcome(&mut self, index: TaskIndex, task: &'a Task, part: &'a Part, base: &str) {
        for (i, guard) in part.when_host.iter().enumerate() {
            self.guard(index, task, &join(base, &format!("when_host.{i}")), guard, Spot::HostGuard, 0);
        }
        for (path, expression) in [("changed_when", &part.changed_when), ("failed_when", &part.failed_when)] {
            if let Some(expression) = expression {
                self.expression(index, task, &join(base, path), expression, Spot::Outcome);
            }
        }
    }

    fn guard(
        &mut self,
        index: TaskIndex,
        task: &'a Task,
        path: &str,
        guard: &'a Guard,
        spot: Spot,
        depth: usize,
    ) {
        if depth > MAX_DEPTH {
            let message = format!("`{path}` is nested more than {MAX_DEPTH} deep");
            self.error(index, path, "plan/bad-expression", message, "");
            return;
        }
        match guard {
            Guard::Expr { expr, .. } => self.expression(index, task, path, expr, spot),
            Guard::Function { .. } => {}
            Guard::All(members) => self.members(index, task, &format!("{path}.all"), members, spot, depth),
            Guard::Any(members) => self.members(index, task, &format!("{path}.any"), members, spot, depth),
            Guard::Not(inner) => self.guard(index, task, &format!("{path}.not"), inner, spot, depth + 1),
        }
    }

    fn members(
        &mut self,
        index: TaskIndex,
        task: &'a Task,
        path: &str,
        members: &'a [Guard],
        spot: Spot,
        depth: usize,
    ) {
        for (i, member) in members.iter().enumerate() {
            self.guard(index, task, &format!("{path}.{i}"), member, spot, depth + 1);
        }
    }

    fn expression(
        &mut self,
        index: TaskIndex,
        task: &'a Task,
        path: &str,
        expression: &Expression,
        spot: Spot,
    ) {
        let text = &*expression.0;
        match &*self.references(Kind::Expression, text) {
            Ok(found) => self.references_of(index, task, path, text, found, spot),
            Err(error) => {
                let help = if text.contains("{{") { "an expression stands without braces" } else { "" };
                self.bad_expression(index, path, text, error, help);
            }
        }
    }

    pub(super) fn template(&mut self, index: TaskIndex, task: &'a Task, path: &str, text: &str, spot: Spot) {
        match &*self.references(Kind::Template, text) {
            Ok(found) => {
                self.references_of(index, task, path, text, found, spot);
                if matches!(spot, Spot::Parameter { shell: true, .. }) && !found.unquoted.is_empty() {
                    let message = "a value in the script is not quoted: a shell may read it as several words or as a command";
                    let help = "write `{{ … | quote }}`";
                    self.warning(index, path, "plan/unquoted-shell", message.to_owned(), help);
                }
            }
            Err(error) => self.bad_expression(index, path, text, error, ""),
        }
    }

    fn bad_expression(&mut self, index: TaskIndex, path: &str, text: &str, error: &ExprError, help: &str) {
        let at =
            error.offset().and_then(|offset| text.get(..offset)).map(|before| before.chars().count() + 1);
        let at = at.map_or_else(String::new, |at| format!(" (at character {at})"));
        let message = format!("`{}`: {error}{at}", shorten(text));
        self.error(index, path, "plan/bad-expression", message, help);
    }

    fn references(&mut self, kind: Kind, text: &str) -> Rc<Found> {
        if self.references.len() >= REMEMBERED {
            self.references.clear();
        }
        // The key is made twice only for texts not seen before.
        if let Some(found) = self.references.get(&(kind, Box::from(text))) {
            return Rc::clone(found);
        }
        let found = Rc::new(match kind {
            Kind::Expression => expression_references(text),
            Kind::Template => template_references(text),
        });
        self.references.insert((kind, text.into()), Rc::clone(&found));
        found
    }

    fn references_of(
        &mut self,
        index: TaskIndex,
        task: &'a Task,
        path: &str,
        text: &str,
        found: &References,
        spot: Spot,
    ) {
        for unknown in &found.unknown {
            let message = format!("`{}`: {}", shorten(text), unknown.message);
            self.error(index, path, "plan/bad-expression", message, unknown.help.as_str());
        }
        self.hosts_of_facts(index, path, found);
        let plan = self.plan;
        self.declared(index, path, "vars", &found.vars, &plan.vars);
        self.declared(index, path, "env", &found.env, &plan.env);
        self.declared(index, path, "secrets", &found.secrets, &plan.secrets);
        if found.uses("secrets") {
            self.secrets(index, path, spot);
        }
        self.places(index, task, path, found, spot);
        for name in &found.results {
            self.upstream(index, task, path, name, false);
        }
        for name in &found.tasks_in_functions {
            self.upstream(index, task, path, name, true);
        }
    }

    /// Refuses facts of hosts there are not. One named by its address is known only when it is reached.
    fn hosts_of_facts(&mut self, index: TaskIndex, path: &str, found: &References) {
        let Some(hosts) = self.catalogue.hosts() else { return };
        for name in found.facts.iter().filter(|name| !name.contains('@')) {
            let host = HostName::parse(name).ok();
            if !host.is_some_and(|host| host == HostName::local() || hosts.labels(&host).is_some()) {
                let help = suggest(name, hosts.names().map(HostName::as_str));
                let message = format!("`facts['{name}']`: there is no host `{name}`");
                self.error(index, path, "reach/unknown-host", message, help);
            }
        }
    }

    fn declared<V>(
        &mut self,
        index: TaskIndex,
        path: &str,
        map: &str,
        used: &BTreeSet<String>,
        declared: &BTreeMap<String, V>,
    ) {
        for name in used.iter().filter(|name| !declared.contains_key(*name)) {
            let help = match (map, declared.is_empty()) {
                ("env", true) => format!("declare it: `env: [{name}]`"),
                (_, true) => format!("declare it under `{map}`"),
                (_, false) => {
                    format!(
                        "declare it under `{map}`; {}",
                        suggest(name, declared.keys().map(String::as_str))
                    )
                }
            };
            self.error(index, path, "plan/undeclared", format!("`{map}.{name}` is not declared"), help);
        }
    }

    fn secrets(&mut self, index: TaskIndex, path: &str, spot: Spot) {
        let message = match spot {
            Spot::Parameter { secret: true, .. } => return,
            Spot::Parameter { secret: false, .. } => {
                format!("a secret in `{path}` would be visible to others on the host")
            }
            Spot::Guard | Spot::HostGuard | Spot::Outcome => {
                format!("a secret in `{path}` would be visible in reasons")
            }
        };
        let help = "give it to the operation in a parameter that may hold secrets, such as `env` or `stdin`";
        self.error(index, path, "plan/secret-in-argv", message, help);
    }

    /// Refuses names that have no meaning where the text stands.
    fn places(&mut self, index: TaskIndex, task: &Task, path: &str, found: &References, spot: Spot) {
        let mut refuse = |name: &str, why: &str, help: &str| {
            self.error(
                index,
                path,
                "plan/bad-expression",
                format!("`{name}` means nothing in `{path}`: {why}"),
                help,
            );
        };
        if found.uses("item") && task.item.is_none() {
            refuse("item", "the task has no `for_each`", "add `for_each`");
        }
        if found.uses("result") && spot != Spot::Outcome {
            refuse("result", "there is no result yet", "it is known in `changed_when` and `failed_when`");
        }
        for name in ["host", "fact"] {
            if found.uses(name) && spot == Spot::Guard {
                refuse(name, "the task is judged once for all hosts", "use `when_host`");
            }
        }
        for member in &found.run {
            match member.as_str() {
                "id" | "plan" | "started_at" | "segment" | "dry_run" => {}
                "status" if task.section == Section::Finally => {}
                "status" => refuse("run.status", "the run is not over", "it is known in `finally`"),
                other => {
                    let known = ["id", "plan", "started_at", "segment", "dry_run", "status"];
                    refuse(&format!("run.{other}"), "`run` has no such member", &suggest(other, known));
                }
            }
        }
    }

    fn upstream(&mut self, index: TaskIndex, task: &'a Task, path: &str, name: &str, instances: bool) {
        let Some(graph) = self.graph else {
            // Without a graph only the name can be checked.
            if !self.names_without_graph.contains(name) {
                let help = self.suggest_task(index, name);
                self.error(index, path, "plan/not-upstream", format!("there is no task `{name}`"), help);
            }
            return;
        };
        let tasks = if instances { graph.matching(name) } else { graph.index_of(name).into_iter().collect() };
        if tasks.is_empty() {
            let help = match graph.instances(name).first() {
                Some(first) => format!("it is a `for_each`: write `results['{}']`", graph.name(*first)),
                None => self.suggest_task(index, name),
            };
            self.error(index, path, "plan/not-upstream", format!("there is no task `{name}`"), help);
            return;
        }
        let may_read = |other: TaskIndex| {
            let after_main =
                task.section == Section::Finally && self.plan.task(other).section == Section::Main;
            after_main || graph.is_upstream(index, other)
        };
        if !tasks.iter().all(|other| may_read(*other)) {
            let own = task.name.base();
            let message = format!("task `{name}` is not upstream of `{own}`, so its result may not be there");
            self.error(
                index,
                path,
                "plan/not-upstream",
                message,
                format!("add `{name}` to `depends_on` of `{own}`"),
            );
        }
    }
}

fn shorten(text: &str) -> String {
    match text.char_indices().nth(120) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
