//! The list of runs.

use std::time::Duration;

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};
use stead_bundle::Listed;
use stead_model::duration::Short;

use super::{Hint, Look, draw_lines};
use crate::output::Style;
use crate::render::one_line;
use crate::tui::scroll::{Scroll, fit, wrap};
use crate::tui::state::State;
use crate::tui::theme::Theme;

/// Draws the list of runs.
pub(super) fn draw(state: &State, theme: Theme, frame: &mut Frame<'_>, area: Rect) -> Vec<Hint> {
    let width = usize::from(area.width.saturating_sub(2));
    let (lines, at) = match &state.home.bundles {
        None => (vec![Line::styled("looking for runs…", theme.of(Style::Dim))], 0),
        Some(Err(problem)) => {
            let pieces = wrap(problem, width).into_iter();
            (pieces.map(|piece| Line::styled(piece.to_owned(), theme.of(Style::Bad))).collect(), 0)
        }
        Some(Ok(bundles)) if bundles.is_empty() => {
            (vec![Line::styled("no runs yet: press o to start one", theme.of(Style::Dim))], 0)
        }
        Some(Ok(bundles)) => {
            let rows = bundles.iter().enumerate();
            (rows.map(|(i, bundle)| row(bundle, i == state.home.at, width, theme)).collect(), state.home.at)
        }
    };
    let count = state.home.listed().len();
    let title = if count == 0 { " Runs ".to_owned() } else { format!(" Runs ({}/{count}) ", at + 1) };
    draw_lines(Line::from(title), lines, &Look::Around(&Scroll::default(), at), theme, frame, area);
    vec![
        ("↑↓", "move"),
        ("Enter", "open"),
        ("o", "Orchestration"),
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
    let name_width = width.saturating_sub(6 + 11 + 20 + 8 + 8 + 2).max(8);
    let status = one_line(&bundle.status);
    let head = format!(" {:<name_width$} {:<6}", fit(&one_line(&bundle.run_id), name_width), fit(&kind, 5));
    let tail = format!("{when:<20}{took:>7} {seal}");
    let status_style = theme.run_word(&status);
    let line = Line::from(vec![
        Span::raw(head),
        Span::styled(format!("{:<11}", fit(&status, 10)), status_style),
        Span::raw(format!("{tail:<37}")),
    ]);
    if chosen { line.style(theme.cursor()) } else { line }
}
