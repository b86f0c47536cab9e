//! Problems in what a user wrote, as rustc shows them: place, text, what is wrong, what to do.

use annotate_snippets::{AnnotationKind, Group, Level, Origin, Renderer, Snippet};
use stead_model::diagnostic::{Place, Source, Span};
use stead_model::{Diagnostic, Diagnostics, Severity};

use crate::output::Paint;

/// How many lines of a span are shown.
const MOST_LINES: usize = 4;

/// Returns all problems for a person to read, without a final newline.
pub fn to_text(diagnostics: &Diagnostics, paint: Paint) -> String {
    let renderer = match paint {
        Paint::None => Renderer::plain(),
        Paint::Ansi => Renderer::styled(),
    };
    let mut parts: Vec<String> =
        diagnostics.iter().map(|diagnostic| renderer.render(&[group(diagnostic)])).collect();
    let errors = diagnostics.iter().filter(|diagnostic| diagnostic.severity == Severity::Error).count();
    if errors > 1 {
        parts
            .push(renderer.render(&[Group::with_title(
                Level::ERROR.primary_title(format!("{errors} problems found")),
            )]));
    }
    parts.join("\n\n")
}

fn group(diagnostic: &Diagnostic) -> Group<'_> {
    let level = match diagnostic.severity {
        Severity::Error => Level::ERROR,
        Severity::Warning => Level::WARNING,
    };
    let mut group = Group::with_title(level.primary_title(diagnostic.message.as_str()).id(diagnostic.code));
    group = with_place(group, &diagnostic.place, &diagnostic.path, AnnotationKind::Primary);
    for (place, label) in &diagnostic.related {
        group = group.element(Level::NOTE.message(label.as_str()));
        group = with_place(group, place, "", AnnotationKind::Context);
    }
    if !diagnostic.help.is_empty() {
        group = group.element(Level::HELP.message(diagnostic.help.as_str()));
    }
    group
}

fn with_place<'a>(group: Group<'a>, place: &'a Place, path: &'a str, kind: AnnotationKind) -> Group<'a> {
    match place {
        Place::Text { source, span } => {
            let (text, range) = window(source, *span);
            let mut annotation = kind.span(range);
            if !path.is_empty() {
                annotation = annotation.label(path);
            }
            let snippet = Snippet::source(text).line_start(span.line.max(1) as usize).path(&*source.name);
            group.element(snippet.annotation(annotation))
        }
        Place::Call { file, line, column } => {
            group.element(Origin::path(*file).line(*line as usize).char_column(*column as usize))
        }
        Place::Named(name) => group.element(Origin::path(name.as_str())),
    }
}

/// Returns the lines that hold a span, and the span within them. A file may be large and its problems
/// many, so the whole text is never handed to the renderer.
fn window(source: &Source, span: Span) -> (&str, std::ops::Range<usize>) {
    let text: &str = &source.text;
    let start = text.floor_char_boundary(span.start.min(text.len()));
    let end = text.ceil_char_boundary(span.end.clamp(start, text.len()));
    let from = text[..start].rfind('\n').map_or(0, |at| at + 1);
    let after = text[start..].split_inclusive('\n').take(MOST_LINES).map(str::len).sum::<usize>();
    let last = text[start..start + after].rfind(|c| c != '\n').map_or(start, |at| start + at);
    let last = text.ceil_char_boundary(last + 1).min(text.len());
    let end = end.min(last.max(start));
    let to = text[end..].find('\n').map_or(text.len(), |at| end + at);
    (&text[from..to], start - from..end - from)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(text: &str) -> Source {
        Source { name: "plan.yaml".into(), text: text.into() }
    }

    fn span(text: &str, word: &str) -> Span {
        let start = text.find(word).unwrap();
        let line = text[..start].matches('\n').count() as u32 + 1;
        Span { start, end: start + word.len(), line, column: 1 }
    }

    #[test]
    fn problems_are_shown_in_place_with_advice() {
        let text = "api_version: v1\nname: web\ntasks:\n  - {name: a, depnds_on: b}\n";
        let place = Place::Text { source: source(text), span: span(text, "depnds_on") };
        let first = Place::Text { source: source(text), span: span(text, "name: a") };
        let diagnostics = Diagnostics(vec![
            Diagnostic::error("plan/unknown-key", place, "unknown key `depnds_on`")
                .path("tasks[0]")
                .help("did you mean `depends_on`?")
                .related(first, "in this task"),
            Diagnostic::error(
                "plan/missing-var",
                Place::Named("--var".into()),
                "variable `ticket` has no value",
            ),
        ]);
        insta::assert_snapshot!(to_text(&diagnostics, Paint::None));
    }

    #[test]
    fn any_span_of_any_text_can_be_shown() {
        for text in ["", "\n", "a\n\n\nb", "ä\u{1b}[31m\r\nö", "long\nlonger\nlongest\nmore\nand more\n"] {
            for start in 0..=text.len() + 1 {
                for end in start..=text.len() + 2 {
                    let place =
                        Place::Text { source: source(text), span: Span { start, end, line: 1, column: 1 } };
                    let shown =
                        to_text(&Diagnostics(vec![Diagnostic::error("x/y", place, "m")]), Paint::None);
                    assert!(shown.contains("m") && !shown.contains('\u{1b}'), "{text:?} {start}..{end}");
                }
            }
        }
    }
}
