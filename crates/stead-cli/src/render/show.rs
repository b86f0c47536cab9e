//! A plan, level by level, as text or as one JSON document. Levels are for display only.

use std::fmt::Write as _;

use serde::Serialize;
use stead_model::plan::{Action, Digest, Guard, OnlyIfChanged, Section, Task, TriggerRule};
use stead_model::{Plan, TaskName};

use super::text::counted;
use super::{json, text};

/// Returns what a person reads. `levels` has the level of each task, in plan order.
pub fn to_text(plan: &Plan, levels: &[u32]) -> String {
    let main = grouped(plan, levels, Section::Main);
    let finally = grouped(plan, levels, Section::Finally);
    let mut out = format!(
        "Plan: {}, {}\n",
        counted(plan.tasks.len() as u64, "task"),
        counted(main.len() as u64, "level")
    );
    for (i, tasks) in main.iter().enumerate() {
        write_group(&mut out, &format!("Level {i}"), tasks);
    }
    for (i, tasks) in finally.iter().enumerate() {
        write_group(&mut out, &format!("Finally {i}"), tasks);
    }
    out
}

fn write_group(out: &mut String, title: &str, tasks: &[&Task]) {
    let parallel = if tasks.len() > 1 { " (parallel)" } else { "" };
    let written = writeln!(out, "{title}{parallel}:");
    debug_assert!(written.is_ok(), "writing to memory does not fail");
    for task in tasks {
        out.push_str("  ");
        out.push_str(&line(task));
        out.push('\n');
    }
}

/// Returns the tasks of a section by level, each level in plan order.
fn grouped<'a>(plan: &'a Plan, levels: &[u32], section: Section) -> Vec<Vec<&'a Task>> {
    let mut tasks: Vec<(u32, &Task)> =
        levels.iter().copied().zip(&plan.tasks).filter(|(_, task)| task.section == section).collect();
    tasks.sort_by_key(|(level, _)| *level);
    let by_level = tasks.chunk_by(|(a, _), (b, _)| a == b);
    by_level.map(|group| group.iter().map(|(_, task)| *task).collect()).collect()
}

/// Returns `name [op target] <- deps (guards)`.
fn line(task: &Task) -> String {
    let mut line = format!("{} [{}", task.name, operation(task));
    if !task.settings.target.is_empty() {
        line.push(' ');
        line.push_str(&text::one_line(&task.settings.target.join(", ")));
    }
    line.push(']');
    if !task.depends_on.is_empty() {
        let names: Vec<&str> = task.depends_on.iter().map(TaskName::as_str).collect();
        line.push_str(" <- ");
        line.push_str(&names.join(", "));
    }
    let guards = guards(task);
    if !guards.is_empty() {
        line.push_str(&format!(" ({})", text::one_line(&guards.join("; "))));
    }
    line
}

fn operation(task: &Task) -> String {
    match &task.action {
        Action::Op(part) => part.op.operation.to_string(),
        Action::Sequence(parts) => {
            let names: Vec<&str> = parts.iter().map(|part| part.op.operation.as_str()).collect();
            names.join(" + ")
        }
        Action::Function(_) => "function".to_owned(),
    }
}

/// Returns everything that decides whether the task runs.
fn guards(task: &Task) -> Vec<String> {
    let settings = &task.settings;
    let mut guards = Vec::new();
    if settings.trigger_rule != TriggerRule::default() {
        guards.push(settings.trigger_rule.to_string());
    }
    match settings.only_if_changed {
        OnlyIfChanged::No => {}
        OnlyIfChanged::Any => guards.push("only_if_changed".to_owned()),
        OnlyIfChanged::All => guards.push("only_if_changed: all".to_owned()),
    }
    guards.extend(settings.when.iter().map(|guard| format!("when: {}", guard_text(guard))));
    guards.extend(settings.when_host.iter().map(|guard| format!("when_host: {}", guard_text(guard))));
    if settings.confirm.is_some() {
        guards.push("confirm".to_owned());
    }
    guards
}

/// Returns a guard as one would write it in one line. Its depth is bounded by the file reader's.
fn guard_text(guard: &Guard) -> String {
    let joined = |guards: &[Guard], word: &str| {
        let parts: Vec<String> = guards.iter().map(guard_text).collect();
        format!("({})", parts.join(word))
    };
    match guard {
        Guard::Expr { expr, .. } => expr.to_string(),
        Guard::Function { label, .. } => label.clone(),
        Guard::All(guards) => joined(guards, " and "),
        Guard::Any(guards) => joined(guards, " or "),
        Guard::Not(guard) => format!("not ({})", guard_text(guard)),
    }
}

/// Returns the JSON document, newline included.
pub fn to_json(plan: &Plan, plan_hash: Digest, levels: &[u32]) -> String {
    #[derive(Serialize)]
    struct Document<'a> {
        schema: u32,
        plan: &'a str,
        plan_hash: Digest,
        levels: Vec<Vec<&'a str>>,
        finally: Vec<Vec<&'a str>>,
        tasks: Vec<Row<'a>>,
        compiled: &'a Plan,
    }
    #[derive(Serialize)]
    struct Row<'a> {
        name: &'a TaskName,
        section: Section,
        level: u32,
        operation: String,
        target: &'a [String],
        depends_on: &'a [TaskName],
        guards: Vec<String>,
        hash: Digest,
    }
    let names = |section| {
        let groups = grouped(plan, levels, section);
        groups.into_iter().map(|tasks| tasks.into_iter().map(|task| task.name.as_str()).collect()).collect()
    };
    json::document(&Document {
        schema: 1,
        plan: plan.name.as_str(),
        plan_hash,
        levels: names(Section::Main),
        finally: names(Section::Finally),
        tasks: plan
            .tasks
            .iter()
            .zip(levels)
            .map(|(task, level)| Row {
                name: &task.name,
                section: task.section,
                level: *level,
                operation: operation(task),
                target: &task.settings.target,
                depends_on: &task.depends_on,
                guards: guards(task),
                hash: task.hash,
            })
            .collect(),
        compiled: plan,
    })
}
