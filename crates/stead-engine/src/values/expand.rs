//! Expansion, once and after merging: references become the values that won.
//!
//! A name's reference to itself means its value from below; every other reference means the other name's final value.
//! Names are expanded depth first, on a stack of our own: nothing recurses over what users wrote, except over the
//! bounded depth of one text.

use std::collections::{BTreeMap, BTreeSet};

use stead_model::catalogue;
use stead_model::diagnostic::{Diagnostic, Diagnostics, Place, Source, Span};
use stead_model::layer::{Piece, Text};

use super::merge::{At, Candidate, Said};
use super::{Effective, Expanded, Values};

const UNDEFINED: &str = "value/undefined";

/// The longest value: no process can be given a longer one.
const MAX_BYTES: usize = 128 * 1024;

/// What a reference finds.
enum Found<'v> {
    Value {
        text: &'v str,
        secret: bool,
    },
    /// Nothing: it is declared and unset.
    Nothing,
    /// It has no value, which has been reported.
    Broken,
    /// It must be expanded first.
    Pending,
    /// Nobody knows it.
    Undefined,
}

/// How far the expansion of a name is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mark {
    Open,
    Done,
}

/// A name that is being expanded.
struct Frame {
    name: String,
    /// The candidate to expand next; those below it that count are in `below`.
    candidate: usize,
    below: Option<Expanded>,
    /// Names that must be expanded first, from the last to the first.
    pending: Vec<String>,
}

/// Gives every name of `values` that has a candidate its value.
pub(super) fn expand_all(values: &mut Values, diagnostics: &mut Diagnostics) {
    let names: Vec<String> = values
        .entries
        .iter()
        .filter(|(_, entry)| !entry.candidates.is_empty())
        .map(|(name, _)| name.clone())
        .collect();
    let mut marks: BTreeMap<String, Mark> = BTreeMap::new();
    let mut circular: BTreeSet<String> = BTreeSet::new();
    for name in names {
        if marks.contains_key(&name) {
            continue;
        }
        let mut stack = vec![open(values, name, &mut marks)];
        while let Some(frame) = stack.last_mut() {
            if let Some(next) = frame.pending.pop() {
                match marks.get(&next) {
                    None => stack.push(open(values, next, &mut marks)),
                    Some(Mark::Open) => report_cycle(values, &stack, &next, &mut circular, diagnostics),
                    Some(Mark::Done) => {}
                }
                continue;
            }
            if circular.contains(&frame.name) {
                give_up(values, &frame.name);
            }
            if advance(values, frame, diagnostics) {
                marks.insert(frame.name.clone(), Mark::Done);
                stack.pop();
            }
        }
    }
}

fn open(values: &Values, name: String, marks: &mut BTreeMap<String, Mark>) -> Frame {
    marks.insert(name.clone(), Mark::Open);
    Frame {
        candidate: first_that_counts(values.candidates(&name), &name),
        name,
        below: None,
        pending: Vec::new(),
    }
}

/// Returns the lowest candidate that goes into the value: the highest that does not refer to the one below it.
fn first_that_counts(candidates: &[Candidate], name: &str) -> usize {
    let refers = |candidate: &Candidate| refers_to(candidate, name);
    candidates.iter().rposition(|candidate| !refers(candidate)).unwrap_or(0)
}

/// Whether the candidate's value refers to `name`.
pub(super) fn refers_to(candidate: &Candidate, name: &str) -> bool {
    match &candidate.value {
        Said::Text(text) => text.references().iter().any(|(reference, _)| *reference == name),
        Said::Literal | Said::Broken => false,
    }
}

/// Expands the frame's next candidate; whether the name is done. If not, it waits for others or has candidates left.
fn advance(values: &mut Values, frame: &mut Frame, diagnostics: &mut Diagnostics) -> bool {
    let Some(entry) = values.entries.get(&frame.name) else { return true };
    let Some(candidate) = entry.candidates.get(frame.candidate).filter(|_| !entry.is_broken) else {
        return true;
    };
    let is_last = frame.candidate + 1 == entry.candidates.len();
    let source = candidate.source.clone();
    let outcome = expand_candidate(values, &frame.name, candidate, frame.below.as_ref());
    let expanded = match outcome {
        Outcome::Done(expanded) => Some(expanded),
        Outcome::Waiting(names) => {
            frame.pending = names;
            return false;
        }
        Outcome::Broken(problems) => {
            problems.into_iter().for_each(|problem| diagnostics.push(problem));
            None
        }
    };
    let Some(entry) = values.entries.get_mut(&frame.name) else { return true };
    match expanded {
        None => entry.is_broken = true,
        Some(Expanded { text, secret }) if is_last => {
            entry.effective = Some(Effective { value: text, secret, source });
        }
        Some(expanded) => {
            frame.below = Some(expanded);
            frame.candidate += 1;
            return false;
        }
    }
    true
}

/// What comes of expanding one candidate.
pub(super) enum Outcome {
    Done(Expanded),
    /// These names must be expanded first, from the last to the first.
    Waiting(Vec<String>),
    /// Nothing; what has not been reported before.
    Broken(Vec<Diagnostic>),
}

/// Expands one candidate of `name`, whose value from below is `below`.
pub(super) fn expand_candidate(
    values: &Values,
    name: &str,
    candidate: &Candidate,
    below: Option<&Expanded>,
) -> Outcome {
    let text = match &candidate.value {
        Said::Broken => return Outcome::Broken(Vec::new()),
        Said::Literal if candidate.raw.len() > MAX_BYTES => {
            return Outcome::Broken(vec![too_long(name, candidate.place(values, true))]);
        }
        Said::Literal => {
            return Outcome::Done(Expanded { text: candidate.raw.clone(), secret: candidate.is_secret });
        }
        Said::Text(text) => text,
    };
    let mut expansion = Expansion::new(values, Some((name, below)), candidate.is_secret);
    expansion.text(text);
    if !expansion.pending.is_empty() {
        return Outcome::Waiting(expansion.pending.into_iter().rev().collect());
    }
    let mut problems: Vec<Diagnostic> = Vec::new();
    let mut told = BTreeSet::new();
    for (undefined, span) in &expansion.undefined {
        if told.insert(*undefined) {
            problems.push(undefined_name(undefined, candidate.place_of(values, *span, expansion.out.secret)));
        }
    }
    if expansion.is_too_long {
        problems.push(too_long(name, candidate.place(values, true)));
    }
    if expansion.is_broken || !problems.is_empty() {
        return Outcome::Broken(problems);
    }
    Outcome::Done(expansion.out)
}

/// Returns a text of the catalogue with its references replaced.
pub(super) fn expand_text(values: &Values, text: &catalogue::At<Text>) -> Result<Expanded, Box<Diagnostic>> {
    let mut expansion = Expansion::new(values, None, false);
    expansion.text(&text.value);
    let place = || text.place.clone();
    if expansion.is_too_long {
        let message = format!("it has more than {MAX_BYTES} bytes after expansion");
        return Err(Box::new(Diagnostic::error("value/rule", place(), message)));
    }
    let undefined: BTreeSet<&str> = expansion.undefined.iter().map(|(name, _)| *name).collect();
    let Some(first) = undefined.first() else { return Ok(expansion.out) };
    if undefined.len() == 1 {
        return Err(Box::new(undefined_name(first, place())));
    }
    let names: Vec<String> = undefined.iter().map(|name| format!("`{name}`")).collect();
    let message = format!("{} are set in no layer and not in the environment", names.join(", "));
    let help = format!("set them, or write `${{{first}:-}}` where nothing will do");
    Err(Box::new(Diagnostic::error(UNDEFINED, place(), message).help(help)))
}

/// Whether a text that expands to an absolute path means one: what comes first in it, and is not empty, begins with `/`.
pub(super) fn is_absolute(values: &Values, text: &Text) -> bool {
    match text.0.first() {
        None => false,
        Some(Piece::Literal(literal)) => literal.starts_with('/'),
        Some(Piece::Reference { name, default, .. }) => {
            match Expansion::new(values, None, false).find(name) {
                Found::Value { text, .. } if !text.is_empty() => text.starts_with('/'),
                Found::Value { .. } | Found::Nothing | Found::Broken | Found::Pending | Found::Undefined => {
                    default.as_ref().is_some_and(|default| is_absolute(values, default))
                }
            }
        }
    }
}

/// One expansion.
struct Expansion<'v> {
    values: &'v Values,
    /// The name whose value it is, with its value from below.
    own: Option<(&'v str, Option<&'v Expanded>)>,
    out: Expanded,
    pending: BTreeSet<String>,
    undefined: Vec<(&'v str, Span)>,
    is_broken: bool,
    is_too_long: bool,
}

impl<'v> Expansion<'v> {
    fn new(values: &'v Values, own: Option<(&'v str, Option<&'v Expanded>)>, secret: bool) -> Self {
        Self {
            values,
            own,
            out: Expanded { text: String::new(), secret },
            pending: BTreeSet::new(),
            undefined: Vec::new(),
            is_broken: false,
            is_too_long: false,
        }
    }

    fn text(&mut self, text: &'v Text) {
        for piece in &text.0 {
            match piece {
                Piece::Literal(literal) => self.push(literal, false),
                Piece::Reference { name, default, span } => self.reference(name, default.as_ref(), *span),
            }
        }
    }

    fn push(&mut self, text: &str, secret: bool) {
        self.out.secret |= secret;
        self.is_too_long |= self.out.text.len() + text.len() > MAX_BYTES;
        if !self.is_too_long {
            self.out.text.push_str(text);
        }
    }

    fn reference(&mut self, name: &'v str, default: Option<&'v Text>, span: Span) {
        match (self.find(name), default) {
            (Found::Value { text, secret }, _) if !text.is_empty() => self.push(text, secret),
            (Found::Value { .. } | Found::Nothing | Found::Undefined, Some(default)) => self.text(default),
            (Found::Value { .. } | Found::Nothing, None) => {}
            (Found::Undefined, None) => self.undefined.push((name, span)),
            (Found::Broken, _) => self.is_broken = true,
            (Found::Pending, _) => {
                self.pending.insert(name.to_owned());
            }
        }
    }

    fn find(&self, name: &str) -> Found<'v> {
        let values = self.values;
        let entry = values.entries.get(name);
        if let Some((own, below)) = self.own
            && own == name
        {
            return match (below, values.environment.get(name)) {
                (Some(below), _) => Found::Value { text: &below.text, secret: below.secret },
                (None, Some(text)) if !text.is_empty() => {
                    Found::Value { text, secret: entry.is_some_and(|entry| entry.is_secret) }
                }
                (None, _) if entry.is_some_and(|entry| entry.is_declared) => Found::Nothing,
                (None, _) => Found::Undefined,
            };
        }
        match entry {
            Some(entry) if entry.is_broken => Found::Broken,
            Some(entry) => match &entry.effective {
                Some(effective) => Found::Value { text: &effective.value, secret: effective.secret },
                None if !entry.candidates.is_empty() => Found::Pending,
                None if entry.is_declared => Found::Nothing,
                None => self.of_environment(name, entry.is_secret),
            },
            None => self.of_environment(name, false),
        }
    }

    fn of_environment(&self, name: &str, secret: bool) -> Found<'v> {
        match self.values.environment.get(name).filter(|value| !value.is_empty()) {
            Some(text) => Found::Value { text, secret },
            None => Found::Undefined,
        }
    }
}

impl Candidate {
    /// Returns where the candidate is, in a text that may be shown if it is secret or not.
    pub(super) fn place(&self, values: &Values, secret: bool) -> Place {
        let span = match &self.at {
            At::Layer(span) => *span,
            At::Catalogue(Place::Text { span, .. }) => *span,
            At::Catalogue(Place::Call { .. } | Place::Named(_)) | At::Named(_) => Span::default(),
        };
        self.place_of(values, span, secret)
    }

    /// Returns the place of a part of the candidate.
    fn place_of(&self, values: &Values, span: Span, secret: bool) -> Place {
        match (&self.at, self.layer.and_then(|layer| values.layer_source(layer, secret))) {
            (At::Layer(_), Some(source)) => Place::Text { source: source.clone(), span },
            (At::Layer(_), None) => Place::Named(self.source.to_string()),
            (At::Catalogue(Place::Text { source, span }), _) if secret => {
                // The default itself may be what must not be shown.
                let stars: String =
                    source.text.bytes().map(|byte| if byte == b'\n' { '\n' } else { '*' }).collect();
                Place::Text { source: Source { name: source.name.clone(), text: stars.into() }, span: *span }
            }
            (At::Catalogue(place), _) => place.clone(),
            (At::Named(name), _) => Place::Named(name.clone()),
        }
    }
}

fn undefined_name(name: &str, place: Place) -> Diagnostic {
    Diagnostic::error(UNDEFINED, place, format!("`{name}` is set in no layer and not in the environment"))
        .help(format!("set it, or write `${{{name}:-}}` if nothing will do"))
}

fn too_long(name: &str, place: Place) -> Diagnostic {
    let message =
        format!("`{name}` has more than {MAX_BYTES} bytes after expansion; no program can be given more");
    Diagnostic::error("value/rule", place, message).help("keep it in a file and set the path")
}

/// Reports that the names from `name` to the top of the stack wait for each other, unless that is known of all of them.
fn report_cycle(
    values: &Values,
    stack: &[Frame],
    name: &str,
    circular: &mut BTreeSet<String>,
    diagnostics: &mut Diagnostics,
) {
    let chain: Vec<&str> =
        stack.iter().map(|frame| frame.name.as_str()).skip_while(|open| *open != name).collect();
    if chain.iter().all(|name| circular.contains(*name)) {
        return;
    }
    let winner = |name: &str| values.candidates(name).last();
    let link = |name: &&str| match winner(name) {
        Some(winner) => format!("{name} ({})", winner.source),
        None => (*name).to_owned(),
    };
    let links: Vec<String> = chain.iter().map(link).collect();
    let place =
        winner(name).map_or_else(|| Place::Named(name.to_owned()), |winner| winner.place(values, true));
    let message = format!("values refer to each other: {} -> {name}", links.join(" -> "));
    diagnostics
        .push(Diagnostic::error("value/cycle", place, message).help("write the value of one of them out"));
    circular.extend(chain.into_iter().map(str::to_owned));
}

fn give_up(values: &mut Values, name: &str) {
    if let Some(entry) = values.entries.get_mut(name) {
        entry.is_broken = true;
    }
}
