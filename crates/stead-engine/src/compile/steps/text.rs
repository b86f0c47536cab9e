//! The plan as people read it.

use std::fmt::Write as _;

use stead_model::StepMode;
use stead_model::steps::LeftOutCause;

use super::StepsPlan;

/// How many digits of the plan's hash are shown.
const HASH_DIGITS: usize = 12;

/// What marks a script's arguments as those of a delete.
const DELETE_ARGUMENT: &str = "--delete";

impl StepsPlan {
    /// Returns the plan's text: a line with what it is, the steps under their headings, what destroys, and what a gate
    /// left out.
    pub fn text(&self) -> String {
        let plan = &self.compiled.plan;
        let hash: String = self.compiled.hash.to_string().chars().take(HASH_DIGITS).collect();
        let count = self.steps.len();
        let noun = if count == 1 { "step" } else { "steps" };
        let target = one_line(&self.target);
        let mut text =
            format!("Plan: {} {}, {count} {noun}, target {target}, hash {hash}\n", plan.name, self.mode);
        let mut phase = None;
        for step in &self.steps {
            if step.phase != phase {
                phase.clone_from(&step.phase);
                if let Some(phase) = &phase {
                    put_line(&mut text, &format!("  {phase}"));
                }
            }
            put_line(&mut text, &line(&step.basename, &step.args, self.mode));
        }
        let destructive: Vec<&str> =
            self.steps.iter().filter(|step| step.destructive).map(|step| step.basename.as_str()).collect();
        if !destructive.is_empty() {
            put_line(&mut text, &format!("Destructive: {}", destructive.join(", ")));
        }
        for left in self.left_out.iter().filter(|left| left.cause == LeftOutCause::Gate) {
            put_line(&mut text, &format!("Left out: {} ({})", left.basename, one_line(&left.detail)));
        }
        text
    }
}

/// Returns the line of a step.
pub(super) fn line(basename: &str, args: &[String], mode: StepMode) -> String {
    let deletes = mode == StepMode::Delete && args.iter().any(|arg| arg == DELETE_ARGUMENT);
    format!("  - {basename}{}", if deletes { " (delete)" } else { "" })
}

fn put_line(text: &mut String, line: &str) {
    text.push_str(line);
    text.push('\n');
}

/// Returns `text` with control characters escaped, so that it stays the line it is put in.
fn one_line(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() {
            // Writing to a `String` cannot fail.
            write!(shown, "{}", c.escape_default()).unwrap_or_default();
        } else {
            shown.push(c);
        }
    }
    shown
}
