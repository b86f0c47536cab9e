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
const PAGE: [(&str, &[(&str, &str)]); 12] = [
    (
        "Everywhere",
        &[
            ("1 2 3 4", "Runs, Nodes, Fleet, Orchestration"),
            ("Tab", "the next of them; Shift-Tab the one before"),
            ("?", "this page"),
            ("Esc", "back by one level"),
            ("q", "quit; asks first while a run goes on"),
            ("Ctrl-C", "as SIGINT: stops a run in order, then quits"),
            ("Ctrl-L", "draw the screen again"),
        ],
    ),
    (
        "Runs",
        &[
            ("↑↓ j k", "move; PgUp, PgDn, Home and End too"),
            ("/", "filter by id, kind, status, name; Enter keeps, Esc clears"),
            ("Enter", "open the run: phases, roles and output from its record"),
            ("o", "the Orchestration panel"),
            ("r", "look for runs again, at once"),
        ],
    ),
    (
        "A recorded run",
        &[
            ("Enter t", "its tasks or phases, with hosts and runs below"),
            ("p", "replay it, event by event"),
            ("←→", "choose whose output is shown, or the run's log"),
        ],
    ),
    (
        "Tasks",
        &[
            ("↑↓ j k", "move; PgUp, PgDn, Home and End too"),
            ("/", "filter by task, host, state and error"),
            ("Enter", "the full output of the task at the cursor"),
            ("←→", "scroll what is told of it"),
        ],
    ),
    (
        "Replay",
        &[
            ("Space", "play at the pace it had, or pause; at the end, once more"),
            ("←→", "one event back or on"),
            ("+ -", "faster, slower"),
            ("Home End", "to the beginning, to the end"),
            ("< >", "choose the role whose output is shown"),
        ],
    ),
    (
        "Nodes",
        &[
            ("↑↓ j k", "move; / filters, r looks again at once"),
            ("Enter", "what is known of the node: digests, reports, the reason"),
        ],
    ),
    (
        "Fleet",
        &[
            ("↑↓ j k", "move; / filters, r asks again at once"),
            ("Enter", "an instance as `stead fleet explain`; a worker or a group"),
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
            ("t", "its phases, one by one"),
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
