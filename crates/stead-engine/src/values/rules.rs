//! The rules for values: what a catalogue demands of every value that is not empty, whatever its source.

use std::fmt;

use stead_model::catalogue::{Catalogue, ControlKind, Pattern, Rules, VarKind};
use stead_model::diagnostic::{Diagnostic, Diagnostics, Place};

use super::{Effective, Values};

const RULE: &str = "value/rule";

/// The shortest secret: anything shorter would star out parts of ordinary words.
const MIN_SECRET: usize = 4;

/// The longest value that is repeated in a message.
const SHOWN: usize = 80;

/// Checks every value.
pub(super) fn check(values: &Values, catalogue: &Catalogue, diagnostics: &mut Diagnostics) {
    for (name, effective) in values.iter().filter(|(_, effective)| !effective.value.is_empty()) {
        for broken in broken_rules(catalogue, name, &effective.value) {
            let message = format!("{} must {broken}", Subject { name, effective });
            let problem = Diagnostic::error(RULE, place(values, name, effective), message);
            diagnostics.push(problem.path(format!("vars.{name}")));
        }
        if effective.secret && effective.value.len() < MIN_SECRET {
            let message =
                format!("{} is a secret of less than {MIN_SECRET} bytes", Subject { name, effective });
            diagnostics.push(
                Diagnostic::error("value/short-secret", place(values, name, effective), message)
                    .help("it could not be masked in output; use a longer one, or do not declare it secret")
                    .path(format!("vars.{name}")),
            );
        }
    }
}

fn place(values: &Values, name: &str, effective: &Effective) -> Place {
    match values.candidates(name).last() {
        Some(winner) => winner.place(values, effective.secret),
        None => Place::Named(name.to_owned()),
    }
}

/// A value in a sentence: its name, what may be told of it, and its source.
struct Subject<'v> {
    name: &'v str,
    effective: &'v Effective,
}

impl fmt::Display for Subject<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Effective { value, secret, source } = self.effective;
        if *secret || value.len() > SHOWN {
            write!(f, "`{}` ({} bytes, from {source})", self.name, value.len())
        } else {
            write!(f, "`{}` is `{value}` (from {source}) and", self.name)
        }
    }
}

/// A rule, as what a value must do.
pub(super) enum Rule<'c> {
    Bool,
    Int,
    OneOf(&'c [String]),
    Length(&'c [usize]),
    MinLength(usize),
    MaxLength(usize),
    Fit(&'c Pattern),
    Min(i64),
    Max(i64),
}

impl fmt::Display for Rule<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bool => f.write_str("be `true` or `false`"),
            Self::Int => f.write_str("be a whole number"),
            Self::OneOf(allowed) => write!(f, "be one of: {}", allowed.join(", ")),
            Self::Length(lengths) => {
                let lengths: Vec<String> = lengths.iter().map(usize::to_string).collect();
                write!(f, "have {} bytes", lengths.join(" or "))
            }
            Self::MinLength(length) => write!(f, "have at least {length} bytes"),
            Self::MaxLength(length) => write!(f, "have at most {length} bytes"),
            Self::Fit(pattern) => write!(f, "fit the pattern `{}` as a whole", pattern.as_str()),
            Self::Min(min) => write!(f, "be at least {min}"),
            Self::Max(max) => write!(f, "be at most {max}"),
        }
    }
}

/// Returns the rules that `value` breaks as the value of `name`.
fn broken_rules<'c>(catalogue: &'c Catalogue, name: &str, value: &str) -> Vec<Rule<'c>> {
    if let Some(control) = catalogue.controls.get(name) {
        return match &control.kind {
            ControlKind::Bool | ControlKind::DryRun => not_bool(value).into_iter().collect(),
            ControlKind::Enum(allowed) => not_one_of(allowed, value).into_iter().collect(),
            ControlKind::Only => Vec::new(),
        };
    }
    let Some(var) = catalogue.vars.get(name) else { return Vec::new() };
    let mut broken = Vec::new();
    match var.kind {
        VarKind::String => {}
        VarKind::Bool => broken.extend(not_bool(value)),
        VarKind::Int => match whole_number(value) {
            None => broken.push(Rule::Int),
            Some(number) => {
                broken.extend(var.rules.min.filter(|min| number < *min).map(Rule::Min));
                broken.extend(var.rules.max.filter(|max| number > *max).map(Rule::Max));
            }
        },
    }
    let Rules { allowed, length, min_length, max_length, pattern, .. } = &var.rules;
    broken.extend(not_one_of(allowed, value));
    broken.extend(wrong_length(length, value));
    broken.extend(min_length.filter(|min| value.len() < *min).map(Rule::MinLength));
    broken.extend(max_length.filter(|max| value.len() > *max).map(Rule::MaxLength));
    broken.extend(no_fit(pattern.as_ref(), value));
    broken
}

fn not_bool(value: &str) -> Option<Rule<'static>> {
    (!matches!(value, "true" | "false")).then_some(Rule::Bool)
}

fn not_one_of<'c>(allowed: &'c [String], value: &str) -> Option<Rule<'c>> {
    (!allowed.is_empty() && allowed.iter().all(|word| word != value)).then_some(Rule::OneOf(allowed))
}

/// Returns the rule, if `value` has none of `lengths`.
pub(super) fn wrong_length<'c>(lengths: &'c [usize], value: &str) -> Option<Rule<'c>> {
    (!lengths.is_empty() && !lengths.contains(&value.len())).then_some(Rule::Length(lengths))
}

/// Returns the rule, if `value` does not fit `pattern`.
pub(super) fn no_fit<'c>(pattern: Option<&'c Pattern>, value: &str) -> Option<Rule<'c>> {
    pattern.filter(|pattern| !pattern.fits(value)).map(Rule::Fit)
}

/// Returns the number that `value` is: digits, with a `-` before them or not.
fn whole_number(value: &str) -> Option<i64> {
    if value.starts_with('+') { None } else { value.parse().ok() }
}
