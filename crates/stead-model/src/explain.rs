//! What every code means and what to do about it: the one table behind `stead explain` and docs/codes.md.
//!
//! Codes are written where they are said; this table says more of each. A test of the command line walks the source and
//! fails if a code is not explained here, or an explanation has no code.

mod command;
mod fleet;
mod nodes;
mod plans;
mod runs;
mod steps;

use serde::Serialize;

use crate::diagnostic;
use crate::fleet::code::Code;

/// What a code means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Explanation {
    /// The code, as messages show it.
    pub code: &'static str,
    /// What it is, in a few words.
    pub title: &'static str,
    /// What has happened.
    pub meaning: &'static str,
    /// What to do.
    pub advice: &'static str,
}

const fn said(
    code: &'static str,
    title: &'static str,
    meaning: &'static str,
    advice: &'static str,
) -> Explanation {
    Explanation { code, title, meaning, advice }
}

/// Codes that belong together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Family {
    /// What they are about.
    pub heading: &'static str,
    /// The codes, in the order they are listed.
    pub codes: Vec<Explanation>,
}

/// Returns every code there is.
pub fn families() -> Vec<Family> {
    let family = |heading, codes: &[Explanation]| Family { heading, codes: codes.to_vec() };
    vec![
        family("Exit codes", command::EXITS),
        family("Commands", command::COMMANDS),
        family("Plans", plans::PLANS),
        family("Hosts and how they are reached", plans::REACH),
        family("Why a task failed (class)", plans::CLASSES),
        family("Why a task was skipped (cause)", plans::CAUSES),
        family("Steps", steps::STEPS),
        family("Layers and values", steps::VALUES),
        family("Intents", steps::INTENTS),
        family("Runs of roles", runs::RUNS),
        family("Bundles (bundle verify)", runs::BUNDLES),
        family("Nodes", nodes::NODES),
        family("Servers and jobs", nodes::JOBS),
        family("Answers of the server", nodes::SERVER),
        family("Files of a fleet", fleet::FILES),
        family("What a fleet's master refuses", fleet::REFUSALS),
        Family {
            heading: "Why something in a fleet is not converged (fleet status)",
            codes: Code::ALL.iter().copied().map(of_status).collect(),
        },
        family("Where a fleet's repository stands", fleet::WATCHER),
        family("Why a worker does not take an instance (fleet explain)", fleet::FILTERS),
    ]
}

/// Returns the explanation of a reason of `stead fleet status`, whose sentence is beside its definition.
fn of_status(code: Code) -> Explanation {
    let (meaning, advice) = code.advice().split_once("; ").unwrap_or((code.advice(), ""));
    said(code.word(), code.title(), meaning, advice)
}

/// Returns what `text` may stand for: the code itself, the number of an exit code, or the words after the slash, which
/// several codes may share. Empty if there is none.
pub fn find(text: &str) -> Vec<Explanation> {
    let all: Vec<Explanation> = families().into_iter().flat_map(|family| family.codes).collect();
    let is = |code: &str| code.eq_ignore_ascii_case(text);
    if let Some(exact) = all.iter().find(|known| is(known.code)) {
        return vec![*exact];
    }
    all.into_iter().filter(|known| known.code.split_once('/').is_some_and(|(_, word)| is(word))).collect()
}

/// Returns the codes most like `text`, the likeliest first.
pub fn nearest(text: &str) -> Vec<&'static str> {
    let mut left: Vec<&'static str> =
        families().into_iter().flat_map(|family| family.codes).map(|known| known.code).collect();
    let mut found = Vec::new();
    while found.len() < 3
        && let Some(near) = diagnostic::nearest(text, left.iter().copied())
        && let Some(at) = left.iter().position(|code| *code == near)
    {
        found.push(left.remove(at));
    }
    found
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::node::wire::WireCode;
    use crate::token::join::JoinCode;
    use crate::{Cause, ErrorClass, ExitCode};

    fn codes() -> Vec<Explanation> {
        families().into_iter().flat_map(|family| family.codes).collect()
    }

    #[test]
    fn each_code_is_explained_once_and_in_sentences() {
        let mut seen = BTreeSet::new();
        for known in codes() {
            assert!(seen.insert(known.code), "{} is there twice", known.code);
            assert!(!known.title.is_empty() && !known.title.ends_with('.'), "{}", known.code);
            assert!(!known.meaning.is_empty() && !known.advice.is_empty(), "{}", known.code);
        }
    }

    /// Codes that are types cannot be without an explanation, nor an explanation without its type.
    #[test]
    fn every_value_of_the_types_is_explained() {
        let of = |family: &[Explanation]| {
            family.iter().map(|known| known.code.to_owned()).collect::<BTreeSet<_>>()
        };
        let wire = WireCode::ALL.iter().map(|code| code.as_str().to_owned()).collect();
        assert_eq!(of(nodes::SERVER), wire);
        let exits = ExitCode::ALL.iter().map(|code| format!("exit/{}", code.code())).collect();
        assert_eq!(of(command::EXITS), exits);
        let classes = ErrorClass::ALL.iter().map(|class| format!("failed/{class}")).collect();
        assert_eq!(of(plans::CLASSES), classes);
        let causes = Cause::ALL.iter().map(|cause| format!("skipped/{cause}")).collect();
        assert_eq!(of(plans::CAUSES), causes);
        for code in JoinCode::ALL {
            assert_eq!(find(&format!("fleet/{code}")).len(), 1, "{code}");
        }
    }

    #[test]
    fn a_code_is_found_by_its_number_and_by_its_word() {
        let found = |text: &str| find(text).iter().map(|known| known.code).collect::<Vec<_>>();
        assert_eq!(found("5"), ["exit/5"]);
        assert_eq!(found("plan/syntax"), ["plan/syntax"]);
        assert_eq!(found("e200"), ["E200"]);
        assert_eq!(found("crash-loop"), ["crash-loop"]);
        assert_eq!(found("unknown-hold"), ["fleet/unknown-hold"]);
        assert_eq!(found("syntax"), ["plan/syntax", "reach/syntax", "layer/syntax", "run/syntax"]);
        assert_eq!(found("nothing-like-it"), [""; 0]);
        assert_eq!(nearest("plan/sintax").first(), Some(&"plan/syntax"));
    }
}
