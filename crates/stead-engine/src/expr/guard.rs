//! Whether a task's guards let it run.
//!
//! Every guard is evaluated, none is cut short, so that all reasons are known. An error outweighs a false guard, a false
//! guard outweighs one that a dry run cannot know. If `only_if_changed` is false the cause is `unchanged`, even if other
//! guards are false too; their reasons are still said, after it.

use stead_model::plan::{Guard, OnlyIfChanged};
use stead_model::{Cause, Status};

use super::{ExprError, Scope, evaluate_bool};

/// Guards nested deeper than this are an error.
const MAX_DEPTH: usize = 100;

/// What the guards of a task say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// All are true.
    Pass,
    /// One is false.
    Fail {
        /// `unchanged` if `only_if_changed` was false, else `guard`.
        cause: Cause,
        /// The reasons of all false ones, joined by `; `.
        reason: String,
    },
    /// One could not be judged: names the expression and the cause.
    Error(String),
    /// Dry run: it hangs on what only a real run would know.
    Unknown,
}

/// Judges `only_if_changed` and all `guards`; `functions` calls the plan's guard closures by number.
pub fn judge(
    guards: &[Guard],
    only_if_changed: OnlyIfChanged,
    scope: &Scope,
    functions: &dyn Fn(u32) -> Result<bool, String>,
) -> Verdict {
    let mut judge = Judge { scope, functions, errors: Vec::new() };
    let mut reasons = Vec::new();
    let mut unknown = false;
    let mut cause = Cause::Guard;
    match changed_before(only_if_changed, scope) {
        Answer::True => {}
        Answer::False(reason) => {
            cause = Cause::Unchanged;
            reasons.extend(reason);
        }
        Answer::Unknown => unknown = true,
    }
    for guard in guards {
        match judge.answer(guard, 0) {
            Answer::True => {}
            Answer::False(more) => reasons.extend(more),
            Answer::Unknown => unknown = true,
        }
    }
    if !judge.errors.is_empty() {
        Verdict::Error(judge.errors.join("; "))
    } else if !reasons.is_empty() {
        Verdict::Fail { cause, reason: reasons.join("; ") }
    } else if unknown {
        Verdict::Unknown
    } else {
        Verdict::Pass
    }
}

enum Answer {
    True,
    /// With the reasons.
    False(Vec<String>),
    Unknown,
}

struct Judge<'a> {
    scope: &'a Scope,
    functions: &'a dyn Fn(u32) -> Result<bool, String>,
    errors: Vec<String>,
}

impl Judge<'_> {
    fn answer(&mut self, guard: &Guard, depth: usize) -> Answer {
        if depth > MAX_DEPTH {
            return self.error(format!("guards are nested more than {MAX_DEPTH} deep"));
        }
        match guard {
            Guard::Expr { expr, reason } => match evaluate_bool(expr, self.scope) {
                Ok(true) => Answer::True,
                Ok(false) => Answer::False(vec![reason.clone().unwrap_or_else(|| is_false(&expr.0))]),
                Err(ExprError::NotKnown { .. }) => Answer::Unknown,
                Err(error) => self.error(format!("guard `{expr}`: {error}")),
            },
            Guard::Function { label, number } => match (self.functions)(*number) {
                Ok(true) => Answer::True,
                Ok(false) => Answer::False(vec![label.clone()]),
                Err(error) => self.error(format!("guard `{label}`: {error}")),
            },
            Guard::All(members) => {
                let (mut reasons, mut unknown) = (Vec::new(), false);
                let mut is_false = false;
                for member in members {
                    match self.answer(member, depth + 1) {
                        Answer::True => {}
                        Answer::False(more) => {
                            is_false = true;
                            reasons.extend(more);
                        }
                        Answer::Unknown => unknown = true,
                    }
                }
                match (is_false, unknown) {
                    (true, _) => Answer::False(reasons),
                    (false, true) => Answer::Unknown,
                    (false, false) => Answer::True,
                }
            }
            Guard::Any(members) => {
                let (mut reasons, mut unknown, mut is_true) = (Vec::new(), false, false);
                for member in members {
                    match self.answer(member, depth + 1) {
                        Answer::True => is_true = true,
                        Answer::False(more) => reasons.extend(more),
                        Answer::Unknown => unknown = true,
                    }
                }
                match (is_true, unknown) {
                    (true, _) => Answer::True,
                    (false, true) => Answer::Unknown,
                    (false, false) if reasons.is_empty() => Answer::False(vec![is_false("any of nothing")]),
                    (false, false) => Answer::False(reasons),
                }
            }
            Guard::Not(inner) => match self.answer(inner, depth + 1) {
                Answer::True => Answer::False(vec![is_false(&format!("not {}", describe(inner)))]),
                Answer::False(_) => Answer::True,
                Answer::Unknown => Answer::Unknown,
            },
        }
    }

    /// Notes an error. What is answered then does not matter: an error outweighs every answer.
    fn error(&mut self, message: String) -> Answer {
        self.errors.push(message);
        Answer::True
    }
}

fn is_false(expression: &str) -> String {
    format!("guard is false: {expression}")
}

/// Returns a guard as a text to show. Called only on guards that were judged, so its depth is bounded.
fn describe(guard: &Guard) -> String {
    let list = |members: &[Guard]| members.iter().map(describe).collect::<Vec<_>>().join(", ");
    match guard {
        Guard::Expr { expr, .. } => format!("({expr})"),
        Guard::Function { label, .. } => format!("({label})"),
        Guard::All(members) => format!("all({})", list(members)),
        Guard::Any(members) => format!("any({})", list(members)),
        Guard::Not(inner) => format!("not {}", describe(inner)),
    }
}

fn changed_before(wanted: OnlyIfChanged, scope: &Scope) -> Answer {
    let Some(view) = scope.view(std::sync::Arc::default()) else { return Answer::True };
    let (mut some, mut all, mut unknown) = (false, true, false);
    for task in view.direct() {
        match view.results.peek(*task) {
            Some(finished) if finished.row.status == Status::Unknown => unknown = true,
            Some(finished) if finished.row.changed => some = true,
            Some(_) | None => all = false,
        }
    }
    match wanted {
        OnlyIfChanged::No => Answer::True,
        OnlyIfChanged::Any if some => Answer::True,
        OnlyIfChanged::Any if unknown => Answer::Unknown,
        OnlyIfChanged::Any => Answer::False(vec!["no dependencies changed".to_owned()]),
        OnlyIfChanged::All if !all => Answer::False(vec!["not all dependencies changed".to_owned()]),
        OnlyIfChanged::All if unknown => Answer::Unknown,
        OnlyIfChanged::All => Answer::True,
    }
}
