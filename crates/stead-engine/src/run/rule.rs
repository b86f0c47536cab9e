//! Trigger rules and `only_if_changed`: whether a task runs, by the ends of its dependencies.

use stead_model::plan::{OnlyIfChanged, TriggerRule};
use stead_model::status::{Cause, Class};

use crate::task_state::Decision;

/// What a rule says about a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ruling {
    /// It may run.
    Run,
    /// It is skipped.
    Skip(Cause, String),
    /// Dry run: cannot be known.
    Unknown,
}

/// Returns what `rule` says, given each direct dependency's name and end, in plan order.
pub fn judge_rule<'a>(
    rule: TriggerRule,
    dependencies: impl Iterator<Item = (&'a str, Decision)> + Clone,
) -> Ruling {
    let of_class = |class: Class| {
        let names: Vec<&str> =
            dependencies.clone().filter(|(_, end)| end.class() == class).map(|(name, _)| name).collect();
        names
    };
    let any = |class: Class| dependencies.clone().any(|(_, end)| end.class() == class);
    let all = |class: Class| dependencies.clone().all(|(_, end)| end.class() == class);
    let broken = || {
        Ruling::Skip(Cause::Dependency, format!("dependency failed: {}", of_class(Class::Broken).join(", ")))
    };
    let by_rule = |reason: String| Ruling::Skip(Cause::Rule, reason);
    match rule {
        TriggerRule::AllDone => Ruling::Run,
        TriggerRule::AllOk => {
            if any(Class::Broken) {
                broken()
            } else {
                Ruling::Run
            }
        }
        TriggerRule::AllRan => {
            if any(Class::Broken) {
                broken()
            } else if any(Class::Passed) {
                by_rule(format!("dependency skipped: {}", of_class(Class::Passed).join(", ")))
            } else if any(Class::Unknown) {
                Ruling::Unknown
            } else {
                Ruling::Run
            }
        }
        TriggerRule::AnyOk => {
            if any(Class::Ran) {
                Ruling::Run
            } else if any(Class::Unknown) {
                Ruling::Unknown
            } else if any(Class::Broken) {
                broken()
            } else {
                by_rule("no dependency ran".to_owned())
            }
        }
        TriggerRule::AnyFailed => {
            if any(Class::Broken) {
                Ruling::Run
            } else {
                by_rule("no dependency failed".to_owned())
            }
        }
        TriggerRule::AllFailed => {
            if all(Class::Broken) {
                Ruling::Run
            } else {
                by_rule("not all dependencies failed".to_owned())
            }
        }
    }
}

/// Returns what `only_if_changed` says, given each direct dependency's end; nothing if it is satisfied.
pub fn judge_only_if_changed(
    wanted: OnlyIfChanged,
    dependencies: impl Iterator<Item = Decision> + Clone,
) -> Option<Ruling> {
    let unknown = dependencies.clone().any(|end| end.class() == Class::Unknown);
    let (satisfied, reason) = match wanted {
        OnlyIfChanged::No => return None,
        OnlyIfChanged::Any => (dependencies.clone().any(|end| end.changed), "no dependencies changed"),
        OnlyIfChanged::All => (dependencies.clone().all(|end| end.changed), "not all dependencies changed"),
    };
    // An unknown dependency matters only where it could tip the balance.
    let known_to_fail = wanted == OnlyIfChanged::All
        && dependencies.clone().any(|end| end.class() != Class::Unknown && !end.changed);
    match (satisfied, unknown && !known_to_fail) {
        (true, _) => None,
        (false, true) => Some(Ruling::Unknown),
        (false, false) => Some(Ruling::Skip(Cause::Unchanged, reason.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stead_model::Status;

    fn end(status: Status, cause: Option<Cause>) -> Decision {
        Decision { status, changed: status == Status::Changed, cause }
    }

    /// The table of section 5, row by row.
    #[test]
    fn trigger_rules_follow_the_table() {
        let ran = ("r", end(Status::Changed, None));
        let passed = ("p", end(Status::Skipped, Some(Cause::Guard)));
        let broken = ("b", end(Status::Failed, None));
        let skip = |cause, reason: &str| Ruling::Skip(cause, reason.to_owned());
        let down = || skip(Cause::Dependency, "dependency failed: b");
        for (rule, dependencies, ruling) in [
            (TriggerRule::AllOk, vec![ran, passed], Ruling::Run),
            (TriggerRule::AllOk, vec![ran, broken], down()),
            (TriggerRule::AllRan, vec![ran], Ruling::Run),
            (TriggerRule::AllRan, vec![ran, passed], skip(Cause::Rule, "dependency skipped: p")),
            (TriggerRule::AllRan, vec![passed, broken], down()),
            (TriggerRule::AnyOk, vec![ran, broken], Ruling::Run),
            (TriggerRule::AnyOk, vec![passed, broken], down()),
            (TriggerRule::AnyOk, vec![passed], skip(Cause::Rule, "no dependency ran")),
            (TriggerRule::AllDone, vec![broken], Ruling::Run),
            (TriggerRule::AnyFailed, vec![ran, broken], Ruling::Run),
            (TriggerRule::AnyFailed, vec![ran], skip(Cause::Rule, "no dependency failed")),
            (TriggerRule::AllFailed, vec![broken], Ruling::Run),
            (TriggerRule::AllFailed, vec![ran, broken], skip(Cause::Rule, "not all dependencies failed")),
        ] {
            assert_eq!(judge_rule(rule, dependencies.iter().copied()), ruling, "{rule}");
        }
    }

    #[test]
    fn only_if_changed_counts_failed_but_changed_dependencies() {
        let failed_but_changed = Decision { status: Status::Failed, changed: true, cause: None };
        assert_eq!(judge_only_if_changed(OnlyIfChanged::Any, [failed_but_changed].into_iter()), None);
        let unchanged = end(Status::Unchanged, None);
        assert_eq!(
            judge_only_if_changed(OnlyIfChanged::All, [failed_but_changed, unchanged].into_iter()),
            Some(Ruling::Skip(Cause::Unchanged, "not all dependencies changed".to_owned()))
        );
        assert_eq!(
            judge_only_if_changed(OnlyIfChanged::Any, [unchanged, end(Status::Unknown, None)].into_iter()),
            Some(Ruling::Unknown)
        );
    }
}
