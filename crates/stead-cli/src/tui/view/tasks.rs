//! The tasks of a run with their hosts, and what is known of the one at the cursor.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::text::{Line, Span};
use stead_model::time::Timestamp;

use super::{Hint, Look, draw_lines, filter_title, labelled, nothing_fits, run, typing_hints};
use crate::output::Style;
use crate::tui::scroll::{Scroll, columns, fit};
use crate::tui::tasks::{Branch, Tasks};
use crate::tui::theme::Theme;
use crate::tui::watched::Watched;

/// How wide the names of what is told are.
const LABELS: usize = 10;
/// How wide state and time are.
const WORDS: usize = 20;

/// Draws the list, and below it the row at the cursor in full.
pub(super) fn draw(
    run: &Watched,
    tasks: &Tasks,
    now: Timestamp,
    theme: Theme,
    frame: &mut Frame<'_>,
    area: Rect,
) -> Vec<Hint> {
    let width = usize::from(area.width.saturating_sub(2));
    let rows = tasks.branches(run);
    let at = tasks.at(rows.len());
    let chosen = rows.get(at).copied();
    let told = chosen.map(|row| told(row, run, now, width, theme)).unwrap_or_default();
    let details = u16::try_from(told.len() + 2).unwrap_or(u16::MAX).min(area.height / 3).max(3);
    let [above, middle, below] =
        Layout::vertical([Constraint::Fill(3), Constraint::Length(details), Constraint::Fill(2)]).areas(area);
    let lines = match rows.is_empty() {
        true if tasks.filter.is_empty() => vec![Line::styled("nothing is planned", theme.of(Style::Dim))],
        true => vec![nothing_fits(&tasks.filter, theme)],
        false => {
            rows.iter().enumerate().map(|(i, row)| line(*row, run, now, width, i == at, theme)).collect()
        }
    };
    let what = if run.has_phases() { "Phases" } else { "Tasks" };
    let count = if rows.is_empty() { String::new() } else { format!("({}/{}) ", at + 1, rows.len()) };
    let title = format!(" {what} {count}{}", filter_title(&tasks.filter));
    draw_lines(Line::from(title), lines, &Look::Around(&Scroll::default(), at), theme, frame, above);
    let name = chosen.map_or_else(String::new, |row| format!(" {} ", row.name()));
    draw_lines(Line::from(name), told, &Look::At(&tasks.scroll), theme, frame, middle);
    match chosen.and_then(|row| row.output(run)) {
        Some(_) => run::draw_output(run, theme, frame, below),
        None => {
            let nothing = vec![Line::styled("it wrote nothing that is in this record", theme.of(Style::Dim))];
            draw_lines(Line::from(" Output "), nothing, &Look::At(&Scroll::default()), theme, frame, below);
        }
    }
    if tasks.filter.is_typing() {
        return typing_hints();
    }
    vec![
        ("↑↓", "move"),
        ("Enter", "full output"),
        ("/", "filter"),
        ("←→", "scroll what is told"),
        ("Esc", "back"),
        ("?", "help"),
    ]
}

fn line(
    row: Branch<'_>,
    run: &Watched,
    now: Timestamp,
    width: usize,
    is_chosen: bool,
    theme: Theme,
) -> Line<'static> {
    let indent = " ".repeat(1 + 2 * row.depth());
    let names = width.saturating_sub(WORDS + columns(&indent)).max(4);
    let name = fit(row.name(), names);
    let pad = " ".repeat(names.saturating_sub(columns(&name)));
    let words = format!(" {:<11}{:>7}", row.word(run.has_phases()), time(row, now));
    let style = match row {
        Branch::Task(phase) | Branch::Below(phase) => theme.phase(phase.state),
        Branch::Host(_, host) | Branch::BelowHost(_, host) => theme.phase(host.state),
    };
    let line = Line::from(vec![Span::raw(format!("{indent}{name}{pad}")), Span::styled(words, style)]);
    if is_chosen { line.style(theme.cursor()) } else { line }
}

fn time(row: Branch<'_>, now: Timestamp) -> String {
    match row {
        Branch::Task(phase) | Branch::Below(phase) => phase.time(now),
        Branch::Host(_, host) | Branch::BelowHost(_, host) => host.time(now),
    }
}

/// Returns everything that is known of a row.
fn told(row: Branch<'_>, run: &Watched, now: Timestamp, width: usize, theme: Theme) -> Vec<Line<'static>> {
    let plain = ratatui::style::Style::new();
    let mut lines = Vec::new();
    let mut tell = |label: &str, text: &str, style| {
        lines.extend(labelled(&format!(" {label}"), text, width, LABELS, style));
    };
    let state = format!("{} {}", row.word(run.has_phases()), time(row, now));
    tell("state", state.trim_end(), plain);
    match row {
        Branch::Task(phase) | Branch::Below(phase) => {
            if !phase.hosts.is_empty() {
                let names: Vec<&str> = phase.hosts.iter().map(|host| host.name.as_str()).collect();
                tell("hosts", &names.join(", "), plain);
            }
            if !phase.below.is_empty() {
                tell("below", &format!("{} tasks of runs below", phase.below.len()), plain);
            }
        }
        Branch::Host(phase, host) | Branch::BelowHost(phase, host) => {
            tell("task", &phase.name, plain);
            if host.attempt > 1 {
                tell("attempt", &host.attempt.to_string(), plain);
            }
        }
    }
    if let Some(note) = row.note() {
        tell("why", note, theme.of(Style::Warn));
    }
    lines
}
