//! The keys, on one page.

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};
use ratatui::widgets::Clear;

use super::{Look, draw_lines};
use crate::output::Style;
use crate::tui::scroll::Scroll;
use crate::tui::theme::Theme;

/// Sections of the help page: a title, and keys with what they do.
const PAGE: [(&str, &[(&str, &str)]); 7] = [
    (
        "Everywhere",
        &[
            ("?", "this page"),
            ("Esc", "back"),
            ("q", "quit; asks first while a run goes on"),
            ("Ctrl-C", "as SIGINT: stops a run in order, then quits"),
            ("Ctrl-L", "draw the screen again"),
        ],
    ),
    (
        "Runs",
        &[
            ("↑↓ j k", "move; PgUp, PgDn, Home and End too"),
            ("Enter", "open the run: phases, roles and output from its record"),
            ("o", "the Orchestration panel"),
            ("r", "look for runs again"),
        ],
    ),
    ("Orchestration", &[("Tab", "switch between Controller and Agent")]),
    (
        "Controller, before a run",
        &[
            ("↑↓ j k", "move between the fields"),
            ("Enter", "choose a manifest, edit a text, turn on or off"),
            ("e", "edit the text in place; Enter keeps it, Esc takes it back"),
            ("Space ←→", "turn on or off"),
            ("v", "validate the manifest: every problem with its line"),
            ("d", "dry run: what would be done; nothing is started"),
            ("r", "run; with dry run turned on, as d"),
            ("PgUp PgDn", "scroll roles, problems and plan"),
        ],
    ),
    (
        "A run",
        &[
            ("x", "stop it as a first SIGINT does; again, as a second one"),
            ("←→", "choose the role whose output is shown, or the run's log"),
            ("PgUp PgDn", "scroll the output; End follows it again"),
            ("↑↓ j k", "scroll phases and result; f follows the run again"),
            ("l", "the full log of the run and of each role"),
            ("Enter", "after a run: a new one"),
        ],
    ),
    (
        "Full log",
        &[
            ("↑↓ j k", "by line; PgUp, PgDn and Space by page"),
            ("g G", "to its beginning, to its end"),
            ("←→", "another log"),
            ("Esc", "close it"),
        ],
    ),
    (
        "Agent",
        &[
            ("↑↓ j k", "move in the registry"),
            ("c", "check the agent at the cursor"),
            ("C", "check all, at once"),
            ("PgUp PgDn", "scroll the registry and what checks said"),
            ("←→", "scroll what is told of this machine"),
        ],
    ),
];

/// Draws the help page over the rest.
pub(super) fn draw(scroll: &Scroll, theme: Theme, frame: &mut Frame<'_>, area: Rect) {
    let mut lines = Vec::new();
    for (title, keys) in PAGE {
        if !lines.is_empty() {
            lines.push(Line::default());
        }
        lines.push(Line::styled(title, theme.of(Style::Strong)));
        lines.extend(keys.iter().map(|(key, what)| {
            Line::from(vec![Span::styled(format!("  {key:<10} "), theme.key()), Span::raw(*what)])
        }));
    }
    let width = area.width.min(76);
    let place = Rect { x: area.x + (area.width - width) / 2, width, ..area };
    frame.render_widget(Clear, place);
    draw_lines(Line::from(" Keys "), lines, &Look::At(scroll), theme, frame, place);
}
