//! Problems as a person reads them: rustc's form, with the offending line.
//!
//! What a user wrote is data: control characters, escape sequences and direction marks in it never
//! reach the terminal, passwords in transports neither, and of a long line only the part around the problem is shown.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::ops::Range;

use annotate_snippets::{Annotation, AnnotationKind, Group, Level, Origin, Renderer, Snippet};

use super::masking::mask;
use super::{Diagnostic, Diagnostics, Place, Severity, Source, Span};

/// More problems than this are counted, not shown.
const SHOWN: usize = 1000;

/// How many bytes of a line are looked at before a problem. The renderer itself leaves out what does not
/// fit on a terminal; this bounds its work.
const LOOKED_AT: usize = 16 * 1024;

/// How many bytes are shown before a problem in a line that is longer still, and after one in any.
const BEFORE: usize = 60;
const AFTER: usize = 120;

impl Diagnostics {
    /// Returns all problems with the lines they are in and, last, how many there are. Empty if there are none.
    pub fn render(&self, color: bool) -> String {
        let renderer = if color { Renderer::styled() } else { Renderer::plain() };
        let mut text = String::new();
        let shown = mask(Diagnostics(self.0.iter().take(SHOWN).cloned().collect()));
        for diagnostic in shown.iter() {
            text.push_str(renderer.render(&[group(diagnostic)]).trim_end());
            text.push_str("\n\n");
        }
        if self.0.len() > SHOWN {
            text.push_str(&format!("… and {} more\n\n", self.0.len() - SHOWN));
        }
        if !self.0.is_empty() {
            text.push_str(&self.summary());
            text.push('\n');
        }
        text
    }

    /// Returns the line that ends the rendering: `3 problems, 1 warning in plan.yaml`.
    pub fn summary(&self) -> String {
        let errors = self.0.iter().filter(|diagnostic| diagnostic.severity == Severity::Error).count();
        let counts: Vec<String> = [(errors, "problem"), (self.0.len() - errors, "warning")]
            .into_iter()
            .filter(|(count, _)| *count > 0)
            .map(|(count, word)| format!("{count} {word}{}", if count == 1 { "" } else { "s" }))
            .collect();
        let files: BTreeSet<&str> = self
            .0
            .iter()
            .filter_map(|diagnostic| match &diagnostic.place {
                Place::Text { source, .. } => Some(&*source.name),
                Place::Call { file, .. } => Some(*file),
                Place::Named(_) => None,
            })
            .collect();
        let counts = counts.join(", ");
        match files.first() {
            Some(file) if files.len() == 1 => format!("{counts} in {}", clean(file)),
            Some(_) => format!("{counts} in {} files", files.len()),
            None => counts,
        }
    }
}

fn group(diagnostic: &Diagnostic) -> Group<'_> {
    let level = match diagnostic.severity {
        Severity::Error => Level::ERROR,
        Severity::Warning => Level::WARNING,
    };
    let mut group = Group::with_title(level.primary_title(clean(&diagnostic.message)).id(diagnostic.code));
    group = add_place(group, &diagnostic.place, AnnotationKind::Primary, None);
    for (place, label) in &diagnostic.related {
        group = add_place(group, place, AnnotationKind::Context, Some(label));
    }
    if !diagnostic.help.is_empty() {
        group = group.element(Level::HELP.message(clean(&diagnostic.help)));
    }
    group
}

fn add_place<'a>(
    group: Group<'a>,
    place: &'a Place,
    kind: AnnotationKind,
    label: Option<&'a str>,
) -> Group<'a> {
    let (name, at) = place.location();
    let mut origin = Origin::path(clean(name));
    if let Some((line, column)) = at {
        origin = origin.line(line as usize).char_column(column as usize);
    }
    match place {
        Place::Text { source, span } => {
            let excerpt = Excerpt::cut(source, *span);
            let mut annotation: Annotation<'a> = kind.span(excerpt.range);
            if let Some(label) = label {
                annotation = annotation.label(clean(label));
            }
            let snippet =
                Snippet::source(excerpt.text).line_start(span.line.max(1) as usize).annotation(annotation);
            // The renderer counts the column in the excerpt, so it must be told if the line's start is missing.
            if excerpt.is_head_cut {
                group.element(origin).element(snippet)
            } else {
                group.element(snippet.path(clean(name)))
            }
        }
        Place::Call { .. } | Place::Named(_) => match label {
            Some(label) => group.element(origin).element(Level::NOTE.message(clean(label))),
            None => group.element(origin),
        },
    }
}

/// The line a span begins in, or as much of it as is worth showing.
struct Excerpt {
    text: String,
    range: Range<usize>,
    is_head_cut: bool,
}

impl Excerpt {
    fn cut(source: &Source, span: Span) -> Self {
        let text = &*source.text;
        let start = text.floor_char_boundary(span.start.min(text.len()));
        // Only this window is looked at: a line may be as long as the file.
        let from = text.floor_char_boundary(start.saturating_sub(LOOKED_AT));
        let to = text.ceil_char_boundary((start + AFTER).min(text.len()));
        let before = text.get(from..start).unwrap_or_default();
        let after = text.get(start..to).unwrap_or_default();
        let (head, is_head_cut) = match before.rfind('\n') {
            Some(at) => (&before[at + 1..], false),
            None if from == 0 => (before, false),
            None => (&before[before.ceil_char_boundary(before.len().saturating_sub(BEFORE))..], true),
        };
        let (tail, is_tail_cut) = match after.find('\n') {
            Some(at) => (after[..at].strip_suffix('\r').unwrap_or(&after[..at]), false),
            None => (after, to < text.len()),
        };
        let mut shown = String::new();
        if is_head_cut {
            shown.push('…');
        }
        shown.push_str(&clean_line(head));
        let range_start = shown.len();
        let marked = tail.len().min(span.end.saturating_sub(start));
        let marked = tail.floor_char_boundary(marked);
        // Blanks behind the last visible character are no part of what is wrong.
        let marked = tail[..marked].trim_end().len();
        shown.push_str(&clean_line(&tail[..marked]));
        let range_end = shown.len();
        shown.push_str(&clean_line(&tail[marked..]));
        if is_tail_cut {
            shown.push('…');
        }
        // A span of no width points at the character that follows it, if there is one.
        let next = shown[range_start..].chars().next().map_or(0, char::len_utf8);
        Self { range: range_start..range_end.max(range_start + next), text: shown, is_head_cut }
    }
}

/// Returns `text` without anything a terminal would obey, on one line.
fn clean(text: &str) -> Cow<'_, str> {
    if text.chars().any(|c| is_unsafe(c) || c == '\t') {
        text.chars().map(|c| if matches!(c, '\n' | '\t') { ' ' } else { visible(c) }).collect()
    } else {
        text.into()
    }
}

/// As [`clean`], but for a line of the source: tabs stay, the renderer widens them.
fn clean_line(line: &str) -> String {
    line.chars().map(visible).collect()
}

fn visible(c: char) -> char {
    match c {
        '\u{0}'..='\u{1f}' if c != '\t' => {
            char::from_u32(0x2400 + u32::from(c)).unwrap_or(char::REPLACEMENT_CHARACTER)
        }
        '\u{7f}' => '\u{2421}',
        c if is_unsafe(c) => char::REPLACEMENT_CHARACTER,
        c => c,
    }
}

/// Whether a terminal would obey `c` (controls) or show other text than is there (direction marks).
fn is_unsafe(c: char) -> bool {
    (c.is_control() && c != '\t')
        || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}')
}

#[cfg(test)]
mod tests;
