//! The list of runs.

use std::time::Duration;

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};
use stead_bundle::Listed;
use stead_model::duration::Short;

use super::{Hint, Look, draw_lines, filter_title, nothing_fits, typing_hints};
use crate::output::Style;
use crate::render::one_line;
use crate::tui::scroll::{Scroll, fit, wrap};
use crate::tui::state::State;
use crate::tui::theme::Theme;

/// From how many columns on there is room for when a run began and how long it took.
const WIDE: usize = 70;

/// Draws the list of runs.
pub(super) fn draw(state: &State, theme: Theme, frame: &mut Frame<'_>, area: Rect) -> Vec<Hint> {
    let width = usize::from(area.width.saturating_sub(2));
    let shown = state.home.shown();
    let (lines, at) = match &state.home.bundles {
        None => (vec![Line::styled("looking for runs…", theme.of(Style::Dim))], 0),
        Some(Err(problem)) => {
            let pieces = wrap(problem, width).into_iter();
            (pieces.map(|piece| Line::styled(piece.to_owned(), theme.of(Style::Bad))).collect(), 0)
        }
        Some(Ok(bundles)) if bundles.is_empty() => {
            (vec![Line::styled("no runs yet: press o to start one", theme.of(Style::Dim))], 0)
        }
        Some(Ok(_)) if shown.is_empty() => (vec![nothing_fits(&state.home.filter, theme)], 0),
        Some(Ok(_)) => {
            let at = state.home.at();
            let rows = shown.iter().enumerate();
            (rows.map(|(i, bundle)| row(bundle, i == at, width, theme)).collect(), at)
        }
    };
    let name = shown.get(at).and_then(|run| run.plan.as_deref()).map(|name| format!("{} ", one_line(name)));
    let place = match shown.len() {
        0 => String::new(),
        count => format!("({}/{count}) {}", at + 1, name.unwrap_or_default()),
    };
    let title = format!(" Runs {place}{}", filter_title(&state.home.filter));
    draw_lines(Line::from(title), lines, &Look::Around(&Scroll::default(), at), theme, frame, area);
    if state.home.filter.is_typing() {
        return typing_hints();
    }
    vec![
        ("↑↓", "move"),
        ("Enter", "open"),
        ("/", "filter"),
        ("o", "Orchestration"),
        ("Tab", "Nodes"),
        ("r", "look again"),
        ("?", "help"),
        ("q", "quit"),
    ]
}

fn row(bundle: &Listed, chosen: bool, width: usize, theme: Theme) -> Line<'static> {
    let seconds = bundle.duration_seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    let took = seconds.map_or_else(|| "-".to_owned(), |duration| Short(duration).to_string());
    let when = bundle.started_at.map_or_else(
        || "-".to_owned(),
        |at| at.to_string().split('.').next().unwrap_or_default().replace('T', " "),
    );
    let kind = bundle.kind.as_deref().map_or_else(|| "-".to_owned(), one_line);
    let seal = if bundle.sealed { "" } else { "unsealed" };
    // kind, status, when, took, seal and what is between them; the name gets the rest.
    let (is_wide, beside) = (width >= WIDE, 6 + 11 + 2 + if width >= WIDE { 20 + 8 + 8 } else { 0 });
    let name_width = width.saturating_sub(beside).max(8);
    let status = one_line(&bundle.status);
    let head = format!(" {:<name_width$} {:<6}", fit(&one_line(&bundle.run_id), name_width), fit(&kind, 5));
    let tail = if is_wide { format!("{:<37}", format!("{when:<20}{took:>7} {seal}")) } else { String::new() };
    let status_style = theme.run_word(&status);
    let line = Line::from(vec![
        Span::raw(head),
        Span::styled(format!("{:<11}", fit(&status, 10)), status_style),
        Span::raw(tail),
    ]);
    if chosen { line.style(theme.cursor()) } else { line }
}
