//! Draws a state. Nothing here changes it.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Clear, Paragraph};

use super::filter::Filter;
use super::scroll::{Scroll, columns, fit, wrap_words};
use super::state::{Overlay, Screen, Stage, State, Tab, View};
use super::theme::Theme;
use super::trouble::Trouble;
use crate::output::Style;

mod agent;
mod fleet;
mod form;
mod help;
mod home;
mod nodes;
mod replay;
mod run;
mod tasks;

/// A screen narrower than this has room for the name of the tab that is shown, not for all.
const WIDE_ENOUGH_FOR_TABS: u16 = 60;

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
        Screen::Recorded => match (&state.replay, &state.recorded) {
            (Some(replay), _) => replay::draw(replay, theme, frame, body),
            (None, Some(run)) => run::draw(state, run, theme, frame, body),
            (None, None) => Vec::new(),
        },
        Screen::Nodes => nodes::draw(state, theme, frame, body),
        Screen::Fleet => fleet::draw(state, theme, frame, body),
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
    let is_wide = area.width >= WIDE_ENOUGH_FOR_TABS;
    let mut spans = Vec::new();
    if is_wide {
        spans.extend([Span::styled(" stead ", theme.of(Style::Strong)), Span::raw("│ ")]);
    }
    for (i, tab) in Tab::ALL.into_iter().enumerate() {
        let number = i + 1;
        spans.push(if tab == state.screen.tab() {
            Span::styled(format!("[{number} {}]", tab.title()), theme.cursor())
        } else if is_wide {
            Span::styled(format!(" {number} {} ", tab.title()), theme.of(Style::Dim))
        } else {
            Span::styled(format!(" {number} "), theme.of(Style::Dim))
        });
    }
    match state.screen {
        Screen::Home | Screen::Nodes | Screen::Fleet => {}
        Screen::Recorded if state.replay.is_some() => spans.push(Span::raw(" │ Replay")),
        Screen::Recorded => spans.push(Span::raw(" │ Recorded run")),
        Screen::Panel(view) => {
            spans.push(Span::raw(" │"));
            for (name, named) in [("Controller", View::Controller), ("Agent", View::Agent)] {
                spans.push(if view == named {
                    Span::styled(format!("[{name}]"), theme.cursor())
                } else {
                    Span::styled(format!(" {name} "), theme.of(Style::Dim))
                });
            }
        }
    }
    let line = Line::from(spans);
    let used = u16::try_from(line.width()).unwrap_or(u16::MAX);
    frame.render_widget(Paragraph::new(line), area);
    if state.is_running() && state.screen != Screen::Panel(View::Controller) {
        let text = [" a run goes on ", " running "]
            .into_iter()
            .find(|text| usize::from(area.width.saturating_sub(used)) >= columns(text));
        let note = Line::styled(text.unwrap_or_default(), theme.of(Style::Warn)).right_aligned();
        let rest = Rect { x: area.x + used.min(area.width), width: area.width.saturating_sub(used), ..area };
        frame.render_widget(Paragraph::new(note), rest);
    }
}

fn draw_footer(state: &State, theme: Theme, frame: &mut Frame<'_>, area: Rect, hints: &[Hint]) {
    let width = usize::from(area.width);
    let line = if let Some(notice) = &state.notice {
        Line::styled(fit(&format!(" {notice}"), width), theme.of(Style::Warn))
    } else if state.leaving.is_some() {
        Line::styled(" leaving when the run has ended…", theme.of(Style::Warn))
    } else {
        let mut spans = Vec::new();
        for (key, what) in fitting(hints, width) {
            spans.push(Span::styled(format!(" {key}"), theme.key()));
            spans.push(Span::raw(format!(" {what} ")));
        }
        Line::from(spans)
    };
    frame.render_widget(Paragraph::new(line), area);
}

/// Returns the first hints that fit into `width`, and the last: it leads to all of them.
fn fitting(hints: &[Hint], width: usize) -> Vec<Hint> {
    let wide = |hint: &Hint| columns(hint.0) + columns(hint.1) + 3;
    let Some((last, first)) = hints.split_last() else { return Vec::new() };
    let mut left = width.saturating_sub(wide(last));
    let mut kept = Vec::new();
    for hint in first {
        let Some(rest) = left.checked_sub(wide(hint)) else { continue };
        left = rest;
        kept.push(*hint);
    }
    kept.push(*last);
    kept
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

/// Returns what a filter adds to a title.
fn filter_title(filter: &Filter) -> String {
    let (before, after) = filter.halves();
    match (filter.is_typing(), filter.is_empty()) {
        (true, _) => format!("filter: {before}▏{after} "),
        (false, true) => String::new(),
        (false, false) => format!("filter: {before}{after} "),
    }
}

/// Returns the hints while a filter is typed.
fn typing_hints() -> Vec<Hint> {
    vec![("Enter", "keep the filter"), ("Esc", "show all"), ("↑↓", "move")]
}

/// Returns that nothing fits a filter.
fn nothing_fits(filter: &Filter, theme: Theme) -> Line<'static> {
    Line::styled(format!("nothing fits `{}`: Esc shows all", filter.text()), theme.of(Style::Dim))
}

/// Returns why something cannot be shown, and what to do.
fn trouble_lines(trouble: &Trouble, width: usize, theme: Theme) -> Vec<Line<'static>> {
    let said = trouble.lines.iter().map(|line| (" ", line, theme.of(Style::Bad)));
    let hints = trouble.hints.iter().map(|hint| (" → ", hint, ratatui::style::Style::new()));
    said.chain(hints)
        .flat_map(|(label, text, style)| labelled(label, text, width, columns(label), style))
        .collect()
}
