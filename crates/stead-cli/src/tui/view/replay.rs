//! A recorded run that is shown again: where it is, what has just happened, and the run as it was.

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};
use stead_model::duration::Short;

use super::{Hint, run};
use crate::output::Style;
use crate::tui::replay::Replay;
use crate::tui::scroll::fit;
use crate::tui::theme::Theme;

/// Draws the run as it was.
pub(super) fn draw(replay: &Replay, theme: Theme, frame: &mut Frame<'_>, area: Rect) -> Vec<Hint> {
    if let Some(hints) = run::draw_inside(&replay.run, replay.moment(), theme, frame, area) {
        return hints;
    }
    let head = vec![place(replay, theme), said(replay, usize::from(area.width))];
    run::draw_parts(&replay.run, head, replay.moment(), theme, frame, area);
    vec![
        ("Space", if replay.is_playing() { "pause" } else { "play" }),
        ("←→", "event"),
        ("+ -", "speed"),
        ("Home End", "ends"),
        ("< >", "role"),
        ("Esc", "back"),
        ("l", "log"),
        ("t", "tasks"),
        ("?", "help"),
    ]
}

/// Returns how far it is.
fn place(replay: &Replay, theme: Theme) -> Line<'static> {
    let (at, events) = replay.place();
    let (passed, whole) = replay.times();
    let word = match (replay.is_playing(), at == events) {
        (true, _) => "playing",
        (false, true) => "at its end",
        (false, false) => "paused",
    };
    let times = format!("{} of {}", Short::from_millis(passed), Short::from_millis(whole));
    Line::from(vec![
        Span::raw(" Event "),
        Span::styled(format!("{at}/{events}"), theme.of(Style::Strong)),
        Span::raw(format!("  {times}  ")),
        Span::styled(word, theme.of(Style::Strong)),
        Span::raw(format!("  {}", replay.speed())),
    ])
}

/// Returns what has just happened.
fn said(replay: &Replay, width: usize) -> Line<'static> {
    Line::from(fit(&format!(" {}", replay.said()), width))
}
