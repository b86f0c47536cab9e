//! The Controller before a run.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Position, Rect};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Clear, Paragraph};

use super::{Hint, Look, draw_frame, draw_lines, labelled};
use crate::output::Style;
use crate::tui::form::{Answer, Editing, Field, Form, Manifest, Problem};
use crate::tui::picker::Picker;
use crate::tui::scroll::{Scroll, columns, fit, wrap};
use crate::tui::state::State;
use crate::tui::text_field::TextField;
use crate::tui::theme::Theme;

/// How wide the names of fields are.
const LABELS: usize = 19;

/// Draws the form and what is known of the manifest.
pub(super) fn draw(state: &State, theme: Theme, frame: &mut Frame<'_>, area: Rect) -> Vec<Hint> {
    let form = &state.controller.form;
    let fields = u16::try_from(Field::ALL.len()).unwrap_or(5) + 2;
    let [above, below] = Layout::vertical([Constraint::Length(fields), Constraint::Min(3)]).areas(area);
    draw_fields(form, theme, frame, above);
    if let Some(Editing::Picker(picker)) = &form.editing {
        draw_picker(picker, theme, frame, below);
        return vec![("Enter", "take"), ("Tab", "complete"), ("↑↓", "move"), ("Esc", "close")];
    }
    let (title, lines) = answer(&form.answer, usize::from(below.width.saturating_sub(2)), theme);
    draw_lines(Line::from(title), lines, &Look::At(&form.scroll), theme, frame, below);
    if form.editing.is_some() {
        return vec![("Enter", "keep"), ("Esc", "take back"), ("Ctrl-U", "clear")];
    }
    vec![
        ("↑↓", "move"),
        ("Enter", "edit"),
        ("v", "validate"),
        ("d", "dry run"),
        ("r", "run"),
        ("Tab", "Agent"),
        ("Esc", "back"),
        ("?", "help"),
    ]
}

fn draw_fields(form: &Form, theme: Theme, frame: &mut Frame<'_>, area: Rect) {
    let inner = draw_frame(Line::from(" Controller "), None, theme, frame, area);
    let width = usize::from(inner.width).saturating_sub(LABELS);
    for (row, field) in (inner.y..inner.bottom()).zip(Field::ALL) {
        let chosen = field == form.field();
        let mark = if chosen { "›" } else { " " };
        let label = Span::styled(
            format!("{mark}{:<rest$}", field.label(), rest = LABELS - 1),
            if chosen { theme.of(Style::Strong) } else { ratatui::style::Style::new() },
        );
        let editing = chosen && matches!(form.editing, Some(Editing::InPlace(_)));
        let value = match (form.text(field), form.is_on(field)) {
            (Some(text), _) if editing => {
                let (shown, cursor) = window(text, width);
                let x = inner.x + u16::try_from(LABELS + cursor).unwrap_or(0);
                frame.set_cursor_position(Position { x: x.min(inner.right().saturating_sub(1)), y: row });
                Span::raw(shown)
            }
            (Some(text), _) if text.is_empty() && field == Field::Manifest => {
                Span::styled("none: Enter chooses one", theme.of(Style::Dim))
            }
            (Some(text), _) => Span::styled(fit(&text.text(), width), at_cursor(chosen, theme)),
            (None, on) => {
                let word = if on == Some(true) { "[x] yes" } else { "[ ] no" };
                Span::styled(word, at_cursor(chosen, theme))
            }
        };
        let place = Rect { y: row, height: 1, ..inner };
        frame.render_widget(Paragraph::new(Line::from(vec![label, value])), place);
    }
}

fn at_cursor(chosen: bool, theme: Theme) -> ratatui::style::Style {
    if chosen { theme.cursor() } else { ratatui::style::Style::new() }
}

/// Returns the part of a text around its cursor that fits, and where the cursor is in it.
fn window(text: &TextField, width: usize) -> (String, usize) {
    let (before, after) = text.halves();
    let room = width.saturating_sub(1);
    let mut shown = before;
    while columns(&shown) > room {
        shown.remove(0);
    }
    let cursor = columns(&shown);
    (fit(&format!("{shown}{after}"), width), cursor)
}

fn draw_picker(picker: &Picker, theme: Theme, frame: &mut Frame<'_>, area: Rect) {
    frame.render_widget(Clear, area);
    let [above, below] = Layout::vertical([Constraint::Length(3), Constraint::Min(3)]).areas(area);
    let inner = draw_frame(Line::from(" Path of the manifest "), None, theme, frame, above);
    let (shown, cursor) = window(&picker.text, usize::from(inner.width));
    frame.render_widget(Paragraph::new(shown), inner);
    let x = inner.x + u16::try_from(cursor).unwrap_or(0);
    frame.set_cursor_position(Position { x: x.min(inner.right().saturating_sub(1)), y: inner.y });
    let (found, at) = picker.matches();
    let width = usize::from(below.width.saturating_sub(2));
    let lines: Vec<Line<'_>> = match (found.is_empty(), picker.is_listed()) {
        (true, false) => vec![Line::styled("looking…", theme.of(Style::Dim))],
        (true, true) => vec![Line::styled("no *.yaml here that begins so", theme.of(Style::Dim))],
        (false, _) => found
            .iter()
            .enumerate()
            .map(|(i, entry)| {
                let name = fit(&format!(" {} ", entry.name()), width);
                Line::styled(name, at_cursor(i == at, theme))
            })
            .collect(),
    };
    draw_lines(Line::from(" Files "), lines, &Look::Around(&Scroll::default(), at), theme, frame, below);
}

fn answer(answer: &Answer, width: usize, theme: Theme) -> (String, Vec<Line<'static>>) {
    match answer {
        Answer::Nothing => {
            (" Roles ".to_owned(), vec![Line::styled("no manifest is chosen", theme.of(Style::Dim))])
        }
        Answer::Waiting => (" Roles ".to_owned(), vec![Line::styled("reading…", theme.of(Style::Dim))]),
        Answer::Roles(manifest) => {
            (format!(" Roles ({}) ", manifest.roles.len()), roles(manifest, width, theme))
        }
        Answer::Valid(manifest) => {
            let words = format!("valid: {} roles, {} phases", manifest.roles.len(), manifest.phases.len());
            let mut lines = vec![Line::styled(words, theme.of(Style::Good)), Line::default()];
            lines.extend(roles(manifest, width, theme));
            (" Validation ".to_owned(), lines)
        }
        Answer::DryRun(text) => {
            let pieces = text.iter().flat_map(|line| wrap(line, width));
            (" Dry run ".to_owned(), pieces.map(|piece| Line::from(piece.to_owned())).collect())
        }
        Answer::Problems(found) => {
            let title = match found.len() {
                1 => " 1 problem ".to_owned(),
                count => format!(" {count} problems "),
            };
            (title, found.iter().flat_map(|problem| problem_lines(problem, width, theme)).collect())
        }
    }
}

fn roles(manifest: &Manifest, width: usize, theme: Theme) -> Vec<Line<'static>> {
    let longest = |text: fn(&crate::tui::form::RoleLine) -> &str| {
        manifest.roles.iter().map(|role| columns(text(role))).max().unwrap_or(0)
    };
    let (names, kinds) = (longest(|role| &role.name), longest(|role| &role.kind));
    let mut lines = Vec::new();
    for role in &manifest.roles {
        let head = format!(" {:<names$}  {:<kinds$}  on ", role.name, role.kind);
        let place = if role.agent == role.transport {
            role.agent.clone()
        } else {
            format!("{} ({})", role.agent, role.transport)
        };
        lines.extend(labelled(&head, &place, width, columns(&head), ratatui::style::Style::new()));
    }
    for warning in &manifest.warnings {
        lines.extend(labelled(" warning: ", warning, width, 10, theme.of(Style::Warn)));
    }
    lines
}

fn problem_lines(problem: &Problem, width: usize, theme: Theme) -> Vec<Line<'static>> {
    let mut lines: Vec<Line<'static>> = Vec::new();
    if !problem.place.is_empty() {
        let pieces = wrap(&problem.place, width).into_iter();
        lines.extend(pieces.map(|piece| Line::styled(piece.to_owned(), theme.of(Style::Strong))));
    }
    lines.extend(labelled("  ", &problem.message, width, 2, theme.of(Style::Bad)));
    if !problem.help.is_empty() {
        lines.extend(labelled("  help: ", &problem.help, width, 8, ratatui::style::Style::new()));
    }
    lines
}
