//! Which steps of a list run: gates, range, `--only`, `--skip`, needs, in this order.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};

use stead_model::catalogue::{Catalogue, Gate, Group, Step, StepAction};
use stead_model::diagnostic::{Place, nearest};
use stead_model::steps::{LeftOutCause, NeedsChoice, SelectionRow};
use stead_model::{Diagnostic, Diagnostics, StepId, StepMode};

use crate::values::Verdict;

/// How many tokens a message lists; the rest are in its candidates.
const LISTED_TOKENS: usize = 100;

/// What is to be selected.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Which list.
    pub mode: StepMode,
    /// What was typed. No tokens of `only` mean every step.
    pub selection: &'a SelectionRow,
    /// What gave the tokens of `only`, for messages: `--only`, `ONLY`.
    pub only_from: &'a str,
}

/// The steps of a list that run.
#[derive(Clone, Debug)]
pub struct Selected<'c> {
    /// Where they are from.
    pub catalogue: &'c Catalogue,
    /// Which list.
    pub mode: StepMode,
    /// The steps with their groups, in listed order, each once.
    pub steps: Vec<(&'c Group, &'c Step)>,
    /// The other steps of the list, in listed order.
    pub left_out: Vec<LeftOut>,
}

/// A step of the list that does not run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftOut {
    /// Which.
    pub id: StepId,
    /// The last part of its path.
    pub basename: String,
    /// What left it out.
    pub cause: LeftOutCause,
    /// The same in words.
    pub detail: String,
}

/// Returns the tokens of comma lists, trimmed, without empty ones.
pub fn tokens(lists: &[String]) -> Vec<String> {
    let tokens = lists.iter().flat_map(|list| list.split(',')).map(str::trim);
    tokens.filter(|token| !token.is_empty()).map(str::to_owned).collect()
}

/// Returns the steps of a list that run, or every problem with what was asked for.
pub fn select<'c>(
    catalogue: &'c Catalogue,
    request: &Request<'_>,
    judge: &dyn Fn(&Gate) -> Verdict,
) -> Result<Selected<'c>, Diagnostics> {
    let listed: Vec<(&Group, &Step)> = catalogue.listed(request.mode).collect();
    let gated: Vec<Option<String>> = listed.iter().map(|(_, step)| closed_gate(step, judge)).collect();
    let mut selector = Selector {
        catalogue,
        request,
        listed,
        names: OnceCell::new(),
        gated,
        problems: Diagnostics::default(),
    };
    let left = selector.left_out();
    if selector.problems.has_errors() {
        return Err(selector.problems);
    }
    let Selector { listed, .. } = selector;
    let mut selected = Selected { catalogue, mode: request.mode, steps: Vec::new(), left_out: Vec::new() };
    for ((group, step), left) in listed.into_iter().zip(left) {
        match left {
            None => selected.steps.push((group, step)),
            Some((cause, detail)) => selected.left_out.push(LeftOut {
                id: step.id.clone(),
                basename: step.basename().to_owned(),
                cause,
                detail,
            }),
        }
    }
    Ok(selected)
}

/// Where the steps of a list are, by what names them.
#[derive(Default)]
struct Names<'c> {
    by_number: BTreeMap<u64, BTreeSet<usize>>,
    by_text: BTreeMap<&'c str, BTreeSet<usize>>,
}

impl<'c> Names<'c> {
    fn of(listed: &[(&'c Group, &'c Step)]) -> Self {
        let mut names = Self::default();
        for (at, (_, step)) in listed.iter().enumerate() {
            if let Some(number) = step.number {
                names.by_number.entry(number).or_default().insert(at);
            }
            for text in step.texts() {
                names.by_text.entry(text).or_default().insert(at);
            }
        }
        names
    }

    /// Returns the positions of the steps that `token` names, in order.
    fn matching(&self, token: &str) -> Vec<usize> {
        let numbered = Step::number_in(token).and_then(|number| self.by_number.get(&number));
        let found: BTreeSet<&usize> = numbered.into_iter().chain(self.by_text.get(token)).flatten().collect();
        found.into_iter().copied().collect()
    }
}

/// Returns why the gate of `step` leaves it out, if it does.
fn closed_gate(step: &Step, judge: &dyn Fn(&Gate) -> Verdict) -> Option<String> {
    let gate = step.gate.as_ref()?;
    let verdict = judge(gate);
    (!verdict.holds).then(|| format!("gate {}", verdict.reason(gate)))
}

impl<'c> Selected<'c> {
    /// Returns the paths of the scripts that run.
    pub fn scripts(&self) -> impl Iterator<Item = &'c str> {
        self.steps.iter().filter_map(|(_, step)| match &step.action {
            StepAction::Run(path) => Some(path.value.as_str()),
            StepAction::Inputs { .. } => None,
        })
    }

    /// Returns for each selected step those that it waits for under `order: needs`, in order. Through needs that are
    /// not selected it waits for theirs.
    pub(super) fn needed(&self) -> Vec<BTreeSet<usize>> {
        let position: BTreeMap<&StepId, usize> =
            self.steps.iter().enumerate().map(|(at, (_, step))| (&step.id, at)).collect();
        self.steps.iter().map(|(_, step)| self.needed_by(step, &position)).collect()
    }

    fn needed_by(&self, step: &Step, position: &BTreeMap<&StepId, usize>) -> BTreeSet<usize> {
        let mut found = BTreeSet::new();
        let mut seen: BTreeSet<&StepId> = BTreeSet::new();
        let mut open: Vec<&Step> = vec![step];
        while let Some(step) = open.pop() {
            for need in step.needs.get(self.mode) {
                match position.get(&need.value) {
                    Some(needed) => {
                        found.insert(*needed);
                    }
                    None if seen.insert(&need.value) => open.extend(self.catalogue.steps.get(&need.value)),
                    None => {}
                }
            }
        }
        found
    }
}

/// Why a step is left out.
type Cause = Option<(LeftOutCause, String)>;

struct Selector<'c, 'r> {
    catalogue: &'c Catalogue,
    request: &'r Request<'r>,
    listed: Vec<(&'c Group, &'c Step)>,
    /// Made when a token is looked up.
    names: OnceCell<Names<'c>>,
    /// For each listed step, why its gate leaves it out.
    gated: Vec<Option<String>>,
    problems: Diagnostics,
}

impl Selector<'_, '_> {
    /// Returns for each listed step what leaves it out.
    fn left_out(&mut self) -> Vec<Cause> {
        let selection = self.request.selection;
        let from = selection.from.as_deref().and_then(|token| self.one("--from", token));
        let until = selection.until.as_deref().and_then(|token| self.one("--until", token));
        let only: BTreeSet<usize> = selection.only.iter().flat_map(|token| self.only(token)).collect();
        let skip: BTreeSet<usize> =
            selection.skip.iter().flat_map(|token| self.matches("--skip", token)).collect();
        if self.problems.has_errors() {
            return Vec::new();
        }
        if let (Some(first), Some(last)) = (from, until)
            && first > last
        {
            let message = format!("`{}` comes after `{}`", self.basename(first), self.basename(last));
            self.report("steps/empty", "--from", message, "swap --from and --until".to_owned());
            return Vec::new();
        }
        let mut left: Vec<Cause> = (0..self.listed.len())
            .map(|at| {
                if let Some(detail) = &self.gated[at] {
                    Some((LeftOutCause::Gate, detail.clone()))
                } else if from.is_some_and(|first| at < first) {
                    Some((LeftOutCause::Range, "before --from".to_owned()))
                } else if until.is_some_and(|last| at > last) {
                    Some((LeftOutCause::Range, "after --until".to_owned()))
                } else if !selection.only.is_empty() && !only.contains(&at) {
                    Some((LeftOutCause::Only, format!("not in {}", self.request.only_from)))
                } else if skip.contains(&at) {
                    Some((LeftOutCause::Skip, "named by --skip".to_owned()))
                } else {
                    None
                }
            })
            .collect();
        if left.iter().all(Option::is_some) {
            self.nothing_left();
        } else {
            self.needs(&mut left, &skip);
        }
        left
    }

    /// Returns the one step that `token` of `flag` names.
    fn one(&mut self, flag: &str, token: &str) -> Option<usize> {
        let found = self.matches(flag, token.trim());
        match found[..] {
            [at] => {
                self.refuse_gated(flag, at);
                Some(at)
            }
            [] => None,
            // A number may name several, but not where a list begins or ends; other tokens have been reported.
            [..] => {
                if Step::is_number(token.trim()) {
                    self.ambiguous(flag, token.trim(), &found);
                }
                None
            }
        }
    }

    /// Returns the steps that `token` of `--only` names.
    fn only(&mut self, token: &str) -> Vec<usize> {
        let found = self.matches(self.request.only_from, token);
        for at in &found {
            self.refuse_gated(self.request.only_from, *at);
        }
        found
    }

    /// Returns the listed steps that `token` names; several only by number.
    fn matches(&mut self, flag: &str, token: &str) -> Vec<usize> {
        let found = self.names.get_or_init(|| Names::of(&self.listed)).matching(token);
        if found.is_empty() {
            let steps = self.catalogue.steps.values();
            let elsewhere: Vec<&Step> = steps.filter(|step| step.answers_to(token)).collect();
            if elsewhere.is_empty() {
                self.unknown(flag, token);
            } else {
                self.wrong_mode(flag, token, &elsewhere);
            }
        } else if found.len() > 1 && !Step::is_number(token) {
            self.ambiguous(flag, token, &found);
        }
        found
    }

    fn unknown(&mut self, flag: &str, token: &str) {
        let mode = self.request.mode;
        let mut seen = BTreeSet::new();
        let names = self.listed.iter().flat_map(|(_, step)| {
            let number = step.number.map(|number| number.to_string());
            number.into_iter().chain([step.id.to_string(), step.basename().to_owned()])
        });
        let valid: Vec<String> = names.filter(|name| seen.insert(name.clone())).collect();
        let near = nearest(token, valid.iter().map(String::as_str));
        let near = near.map(|near| format!("did you mean `{near}`? ")).unwrap_or_default();
        let more = valid.len().saturating_sub(LISTED_TOKENS);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let shown = valid.iter().take(LISTED_TOKENS).map(String::as_str).collect::<Vec<_>>().join(", ");
        let message = format!("no step goes by `{token}`");
        let problem = Diagnostic::error("steps/unknown-token", Place::Named(flag.to_owned()), message);
        self.problems.push(problem.help(format!("{near}{mode} has: {shown}{more}")).candidates(valid));
    }

    fn wrong_mode(&mut self, flag: &str, token: &str, elsewhere: &[&Step]) {
        let mode = self.request.mode;
        let other = match mode {
            StepMode::Apply => StepMode::Delete,
            StepMode::Delete => StepMode::Apply,
        };
        for step in elsewhere {
            let is_there = self.catalogue.listed(other).any(|(_, listed)| listed.id == step.id);
            let message = format!("`{token}` is the step `{}`, which is not in the {mode} list", step.id);
            let help =
                if is_there { format!("the {other} list has it") } else { "no list has it".to_owned() };
            self.report("steps/wrong-mode", flag, message, help);
        }
    }

    fn ambiguous(&mut self, flag: &str, token: &str, found: &[usize]) {
        let paths: Vec<String> = found.iter().map(|at| self.listed[*at].1.path().to_owned()).collect();
        let message = format!("several steps go by `{token}`");
        let problem = Diagnostic::error("steps/ambiguous", Place::Named(flag.to_owned()), message);
        let ids: Vec<String> = found.iter().map(|at| self.listed[*at].1.id.to_string()).collect();
        let named: Vec<String> = ids.iter().zip(&paths).map(|(id, path)| format!("{id} ({path})")).collect();
        self.problems.push(problem.help(format!("name one of them: {}", named.join(", "))).candidates(ids));
    }

    fn refuse_gated(&mut self, flag: &str, at: usize) {
        if let Some(detail) = &self.gated[at] {
            let message = format!("`{}` is left out ({detail})", self.basename(at));
            let help = "change that value, or do not name the step".to_owned();
            self.report("steps/gated-off", flag, message, help);
        }
    }

    fn nothing_left(&mut self) {
        let mode = self.request.mode;
        let (message, help) = if self.listed.is_empty() {
            (format!("the {mode} list is empty"), "list steps in the catalogue")
        } else if self.gated.iter().all(Option::is_some) {
            let gates: Vec<&str> = self.gated.iter().flatten().map(String::as_str).collect();
            (format!("every step is left out ({})", gates.join("; ")), "change one of these values")
        } else {
            ("no step is left to run".to_owned(), "--from, --until, --only and --skip together leave none")
        };
        self.report("steps/empty", "selection", message, help.to_owned());
    }

    /// Adds what selected steps need, or reports that it is missing.
    fn needs(&mut self, left: &mut [Cause], skip: &BTreeSet<usize>) {
        let choice = self.request.selection.needs;
        if choice == Some(NeedsChoice::Skip) {
            return;
        }
        let position: BTreeMap<&StepId, usize> =
            self.listed.iter().enumerate().map(|(at, (_, step))| (&step.id, at)).collect();
        let mut open: BTreeSet<usize> = (0..left.len()).filter(|at| left[*at].is_none()).collect();
        let mut problems = Vec::new();
        while let Some(at) = open.pop_first() {
            let step = self.listed[at].1;
            for need in step.needs.get(self.request.mode) {
                let Some(needed) = position.get(&need.value).copied() else { continue };
                let cause = left[needed].as_ref().map(|(cause, _)| *cause);
                match (cause, choice) {
                    // What a gate leaves out is not wanted, and counts as satisfied.
                    (None | Some(LeftOutCause::Gate), _) => {}
                    (Some(_), Some(NeedsChoice::With)) if skip.contains(&needed) => problems.push((
                        "--with-needs",
                        format!("`{}` needs `{}`, which --skip names", step.id, need.value),
                        "do not skip it, or use --skip-needs",
                    )),
                    (Some(_), Some(NeedsChoice::With)) => {
                        left[needed] = None;
                        open.insert(needed);
                    }
                    (Some(_), Some(NeedsChoice::Skip) | None) => problems.push((
                        "selection",
                        format!("`{}` needs `{}`, which is not selected", step.id, need.value),
                        "--with-needs adds what is needed, --skip-needs goes without",
                    )),
                }
            }
        }
        for (flag, message, help) in problems {
            self.report("steps/needs", flag, message, help.to_owned());
        }
    }

    fn basename(&self, at: usize) -> &str {
        self.listed[at].1.basename()
    }

    fn report(&mut self, code: &'static str, flag: &str, message: String, help: String) {
        self.problems.push(Diagnostic::error(code, Place::Named(flag.to_owned()), message).help(help));
    }
}
