//! Draws a state. Nothing here changes it.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Clear, Paragraph};

use super::scroll::{Scroll, fit, wrap_words};
use super::state::{Overlay, Screen, Stage, State, View};
use super::theme::Theme;
use crate::output::Style;

mod agent;
mod form;
mod help;
mod home;
mod run;

/// What can be pressed, for the last line: a key and what it does.
type Hint = (&'static str, &'static str);

/// Draws the state.
pub(crate) fn view(state: &State, theme: Theme, frame: &mut Frame<'_>) {
    let [header, body, footer] =
        Layout::vertical([Constraint::Length(1), Constraint::Min(0), Constraint::Length(1)])
            .areas(frame.area());
    draw_header(state, theme, frame, header);
    let hints = match state.screen {
        Screen::Home => home::draw(state, theme, frame, body),
        Screen::Recorded => match &state.recorded {
            Some(run) => run::draw(state, run, theme, frame, body),
            None => Vec::new(),
        },
        Screen::Panel(View::Controller) => match (state.controller.stage, &state.controller.run) {
            (Stage::Running { .. } | Stage::After, Some(run)) => run::draw(state, run, theme, frame, body),
            (Stage::Before, _) | (Stage::Running { .. } | Stage::After, None) => {
                form::draw(state, theme, frame, body)
            }
        },
        Screen::Panel(View::Agent) => agent::draw(state, theme, frame, body),
    };
    draw_footer(state, theme, frame, footer, &hints);
    match &state.overlay {
        Some(Overlay::Help(scroll)) => help::draw(scroll, theme, frame, body),
        Some(Overlay::AskQuit) => draw_question(theme, frame, body),
        None => {}
    }
}

fn draw_header(state: &State, theme: Theme, frame: &mut Frame<'_>, area: Rect) {
    let mut spans = vec![Span::styled(" stead ", theme.of(Style::Strong)), Span::raw("│ ")];
    match state.screen {
        Screen::Home => spans.push(Span::styled("Runs", theme.of(Style::Strong))),
        Screen::Recorded => spans.push(Span::styled("Recorded run", theme.of(Style::Strong))),
        Screen::Panel(view) => {
            spans.push(Span::styled("Orchestration", theme.of(Style::Strong)));
            spans.push(Span::raw("  "));
            for (name, named) in [("Controller", View::Controller), ("Agent", View::Agent)] {
                let style = if view == named { theme.cursor() } else { theme.of(Style::Dim) };
                spans.push(Span::styled(format!(" {name} "), style));
                spans.push(Span::raw(" "));
            }
        }
    }
    if state.is_running() && state.screen != Screen::Panel(View::Controller) {
        spans.push(Span::styled("  a run goes on", theme.of(Style::Warn)));
    }
    frame.render_widget(Paragraph::new(Line::from(spans)), area);
}

fn draw_footer(state: &State, theme: Theme, frame: &mut Frame<'_>, area: Rect, hints: &[Hint]) {
    let width = usize::from(area.width);
    let line = if let Some(notice) = &state.notice {
        Line::styled(fit(&format!(" {notice}"), width), theme.of(Style::Warn))
    } else if state.leaving.is_some() {
        Line::styled(" leaving when the run has ended…", theme.of(Style::Warn))
    } else {
        let mut spans = Vec::new();
        for (key, what) in hints {
            spans.push(Span::styled(format!(" {key}"), theme.key()));
            spans.push(Span::raw(format!(" {what} ")));
        }
        Line::from(spans)
    };
    frame.render_widget(Paragraph::new(line), area);
}

fn draw_question(theme: Theme, frame: &mut Frame<'_>, area: Rect) {
    let text = ["A run goes on.", "Stop it in order and leave when it has ended?", "", "y yes   n no"];
    let inner = draw_box(" Leave? ", theme, frame, area, (50, 6));
    frame.render_widget(Paragraph::new(text.map(Line::from).to_vec()).centered(), inner);
}

/// Draws an empty box of this size in the middle of `area` and returns what is inside.
fn draw_box(title: &str, theme: Theme, frame: &mut Frame<'_>, area: Rect, size: (u16, u16)) -> Rect {
    let (width, height) = (size.0.min(area.width), size.1.min(area.height));
    let place =
        Rect { x: area.x + (area.width - width) / 2, y: area.y + (area.height - height) / 2, width, height };
    let block = Block::bordered().title(Span::styled(title, theme.of(Style::Strong)));
    let inner = block.inner(place);
    frame.render_widget(Clear, place);
    frame.render_widget(block, place);
    inner
}

/// Draws a frame with a title and returns what is inside.
fn draw_frame(
    title: Line<'_>,
    below: Option<String>,
    theme: Theme,
    frame: &mut Frame<'_>,
    area: Rect,
) -> Rect {
    let mut block = Block::bordered().title(title.style(theme.of(Style::Strong)));
    if let Some(below) = below {
        block = block.title_bottom(Line::styled(below, theme.of(Style::Dim)).right_aligned());
    }
    let inner = block.inner(area);
    frame.render_widget(block, area);
    inner
}

/// Where a long text is looked at.
enum Look<'a> {
    /// Where a person scrolled to.
    At(&'a Scroll),
    /// Around this row.
    Around(&'a Scroll, usize),
}

/// Draws lines that may be more than fit, in a frame that says how many are above and below.
fn draw_lines(
    title: Line<'_>,
    lines: Vec<Line<'_>>,
    look: &Look<'_>,
    theme: Theme,
    frame: &mut Frame<'_>,
    area: Rect,
) {
    let height = usize::from(area.height.saturating_sub(2));
    let top = match look {
        Look::At(scroll) => scroll.top(lines.len(), height),
        Look::Around(scroll, row) => scroll.follow(*row, lines.len(), height),
    };
    let below = lines.len().saturating_sub(top + height);
    let more = match (top, below) {
        (0, 0) => None,
        (0, below) => Some(format!(" ↓ {below} more ")),
        (above, 0) => Some(format!(" ↑ {above} more ")),
        (above, below) => Some(format!(" ↑ {above} ↓ {below} more ")),
    };
    let inner = draw_frame(title, more, theme, frame, area);
    let shown: Vec<Line<'_>> = lines.into_iter().skip(top).take(height).collect();
    frame.render_widget(Paragraph::new(shown), inner);
}

/// Returns `label` and a text that goes on below itself where it is too long.
fn labelled(
    label: &str,
    text: &str,
    width: usize,
    indent: usize,
    style: ratatui::style::Style,
) -> Vec<Line<'static>> {
    let pieces = wrap_words(text, width.saturating_sub(indent));
    let lines = pieces.into_iter().enumerate().map(|(i, piece)| {
        let head = if i == 0 { fit(label, indent) } else { String::new() };
        Line::from(vec![Span::raw(format!("{head:<indent$}")), Span::styled(piece.to_owned(), style)])
    });
    lines.collect()
}
