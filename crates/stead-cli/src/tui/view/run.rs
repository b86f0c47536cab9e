//! A run: phases and roles above, output below. The same for one that goes on, one that ended and a recorded one.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;
use stead_model::Status;
use stead_model::duration::Short;
use stead_model::time::Timestamp;

use super::{Hint, Look, draw_frame, draw_lines, labelled, tasks};
use crate::output::Style;
use crate::tui::pager::Pager;
use crate::tui::scroll::{Scroll, fit, wrap};
use crate::tui::state::{Screen, Stage, State};
use crate::tui::theme::Theme;
use crate::tui::watched::{Chosen, Liveness, Watched};

/// How wide the names of results are.
const LABELS: usize = 10;

/// Draws a run.
pub(super) fn draw(
    state: &State,
    run: &Watched,
    theme: Theme,
    frame: &mut Frame<'_>,
    area: Rect,
) -> Vec<Hint> {
    if let Some(hints) = draw_inside(run, state.now, theme, frame, area) {
        return hints;
    }
    let head = vec![summary(state, run, usize::from(area.width), theme)];
    draw_parts(run, head, state.now, theme, frame, area);
    let mut hints: Vec<Hint> = Vec::new();
    match (state.screen, state.controller.stage) {
        (Screen::Recorded, _) => {
            hints.extend([("Enter", "tasks"), ("p", "replay"), ("←→", "role"), ("PgUp PgDn", "output")]);
            hints.extend([("l", "log"), ("Esc", "back"), ("↑↓", "result"), ("?", "help")]);
            return hints;
        }
        (_, Stage::Running { stops: 0 }) => hints.push(("x", "stop")),
        (_, Stage::Running { stops: 1 }) => hints.push(("x", "kill")),
        (_, Stage::Running { .. } | Stage::Before) => {}
        (_, Stage::After) => hints.push(("Enter", "new run")),
    }
    let above = if run.ended.is_some() { "result" } else { "phases" };
    hints.extend([
        ("←→", "role"),
        ("PgUp PgDn", "output"),
        ("↑↓", above),
        ("l", "log"),
        ("Esc", "back"),
        ("t", "tasks"),
        ("?", "help"),
    ]);
    hints
}

/// Draws what is open inside of a run: a full log, or the list of its tasks.
pub(super) fn draw_inside(
    run: &Watched,
    now: Timestamp,
    theme: Theme,
    frame: &mut Frame<'_>,
    area: Rect,
) -> Option<Vec<Hint>> {
    if let Some(pager) = &run.pager {
        draw_pager(pager, theme, frame, area);
        return Some(vec![("↑↓", "scroll"), ("g G", "ends"), ("←→", "another log"), ("Esc", "close")]);
    }
    let tasks = run.tasks.as_ref()?;
    Some(tasks::draw(run, tasks, now, theme, frame, area))
}

/// Draws lines about a run, and its parts: phases and roles, output below.
pub(super) fn draw_parts(
    run: &Watched,
    head: Vec<Line<'_>>,
    now: Timestamp,
    theme: Theme,
    frame: &mut Frame<'_>,
    area: Rect,
) {
    let lines = u16::try_from(head.len()).unwrap_or(1);
    let upper = (area.height / 2).clamp(5, 16);
    let [above, middle, below] =
        Layout::vertical([Constraint::Length(lines), Constraint::Length(upper), Constraint::Min(3)])
            .areas(area);
    frame.render_widget(Paragraph::new(head), above);
    let [left, right] = Layout::horizontal([Constraint::Percentage(55), Constraint::Min(10)]).areas(middle);
    draw_phases(run, now, theme, frame, left);
    draw_roles(run, theme, frame, right);
    draw_output(run, theme, frame, below);
}

fn summary(state: &State, run: &Watched, width: usize, theme: Theme) -> Line<'static> {
    let took = Short::from_millis(run.millis(state.now)).to_string();
    let (word, style) = match (&run.ended, state.screen, state.controller.stage) {
        (Some(ended), _, _) => (ended.status.as_str(), theme.run_word(ended.status.as_str())),
        (None, Screen::Recorded, _) if run.liveness == Liveness::Live => ("running", theme.of(Style::Strong)),
        (None, Screen::Recorded, _) => ("lost: `stead resume` takes it up", theme.of(Style::Warn)),
        (None, _, Stage::Running { stops: 0 }) if run.run_id.is_none() => {
            ("starting", theme.of(Style::Strong))
        }
        (None, _, Stage::Running { stops: 0 }) => ("running", theme.of(Style::Strong)),
        (None, _, Stage::Running { stops: 1 }) => ("stopping", theme.of(Style::Warn)),
        (None, _, Stage::Running { .. }) => ("killing", theme.of(Style::Bad)),
        (None, _, Stage::Before | Stage::After) => ("failed", theme.of(Style::Bad)),
    };
    let (begin, end) = (" Run ", format!("  {took}"));
    // How it fares is what somebody looks for; of a name its beginning will do.
    let others = begin.len() + 2 + word.len() + end.len();
    let name = run.run_id.as_deref().unwrap_or("new run");
    Line::from(vec![
        Span::raw(begin),
        Span::styled(fit(name, width.saturating_sub(others)), theme.of(Style::Strong)),
        Span::raw("  "),
        Span::styled(word, style),
        Span::raw(end),
    ])
}

fn draw_phases(run: &Watched, now: Timestamp, theme: Theme, frame: &mut Frame<'_>, area: Rect) {
    let width = usize::from(area.width.saturating_sub(2));
    let (mut lines, title) = match &run.ended {
        Some(_) => (result(run, width, theme), " Result "),
        None if run.error.is_some() => (result(run, width, theme), " Result "),
        None if run.has_phases() => (Vec::new(), " Phases "),
        None => (Vec::new(), " Tasks "),
    };
    let first = lines.len();
    let names = run.phases.iter().map(|phase| phase.name.chars().count()).max().unwrap_or(0).min(width / 2);
    for phase in &run.phases {
        let name = fit(&phase.name, names);
        let style = theme.phase(phase.state);
        let head = format!(" {name:<names$} ");
        let words = format!("{:<9} {:>6}", phase.word(run.has_phases()), phase.time(now));
        lines.push(Line::from(vec![Span::raw(head), Span::styled(words, style)]));
        // Why nothing was begun any more is the same for all, and said above.
        if let Some(note) = phase.note.as_ref().filter(|_| phase.status() != Some(Status::NotRun)) {
            lines.extend(labelled("   ", note, width, 3, theme.of(Style::Dim)));
        }
    }
    if lines.is_empty() {
        lines.push(Line::styled("nothing has begun", theme.of(Style::Dim)));
    }
    let look = if run.follows {
        Look::Around(&run.scroll, first + run.current_phase())
    } else {
        Look::At(&run.scroll)
    };
    draw_lines(Line::from(title), lines, &look, theme, frame, area);
}

/// Returns how a run ended and what it left.
fn result(run: &Watched, width: usize, theme: Theme) -> Vec<Line<'static>> {
    let plain = ratatui::style::Style::new();
    let mut lines = Vec::new();
    if let Some(ended) = &run.ended {
        let word = ended.status.as_str();
        lines.extend(labelled(" status", word, width, LABELS, theme.run_word(word)));
    }
    if let Some(error) = &run.error {
        for (i, line) in error.lines().enumerate() {
            let label = if i == 0 { " error" } else { "" };
            lines.extend(labelled(label, line, width, LABELS, theme.of(Style::Bad)));
        }
    }
    if let Some(bundle) = &run.bundle {
        lines.extend(labelled(" bundle", &bundle.display().to_string(), width, LABELS, plain));
    }
    for warning in &run.warnings {
        lines.extend(labelled(" warning", warning, width, LABELS, theme.of(Style::Warn)));
    }
    for node in &run.nodes {
        let text = format!("{} {}", node.name, node.words);
        lines.extend(labelled(" node", &text, width, LABELS, plain));
    }
    for file in &run.artifacts {
        let text = format!("{}/{} ({})", file.role, file.path, bytes(file.bytes));
        lines.extend(labelled(" artifact", &text, width, LABELS, plain));
    }
    lines.push(Line::default());
    lines
}

fn draw_roles(run: &Watched, theme: Theme, frame: &mut Frame<'_>, area: Rect) {
    let width = usize::from(area.width.saturating_sub(2));
    let title = if run.has_phases() { " Roles " } else { " Output of " };
    let names = run.roles.iter().map(|role| role.name.chars().count()).max().unwrap_or(3);
    let names = if run.has_phases() { names.min(width / 2) } else { width.saturating_sub(12) };
    let mut lines: Vec<Line<'_>> = run
        .roles
        .iter()
        .enumerate()
        .map(|(place, role)| {
            let name = Span::raw(format!(" {:<names$} ", fit(&role.name, names)));
            let state = if run.has_phases() {
                let agent = role.agent.as_deref().unwrap_or("-");
                vec![Span::styled(role.words(), theme.role(&role.state)), Span::raw(format!(" on {agent}"))]
            } else {
                vec![Span::raw(bytes(role.written()))]
            };
            let line = Line::from(std::iter::once(name).chain(state).collect::<Vec<_>>());
            if run.chosen() == Chosen::Role(place) { line.style(theme.cursor()) } else { line }
        })
        .collect();
    let log = Line::from(" the run's log");
    lines.push(if run.chosen() == Chosen::Log { log.style(theme.cursor()) } else { log });
    let at = match run.chosen() {
        Chosen::Role(place) => place,
        Chosen::Log => lines.len() - 1,
    };
    draw_lines(Line::from(title), lines, &Look::Around(&Scroll::default(), at), theme, frame, area);
}

pub(super) fn draw_output(run: &Watched, theme: Theme, frame: &mut Frame<'_>, area: Rect) {
    let name = match run.chosen() {
        Chosen::Role(place) => run.roles.get(place).map_or("", |role| role.name.as_str()),
        Chosen::Log => "the run's log",
    };
    let below = match run.shown().below() {
        0 => None,
        lines => Some(format!(" ↓ {lines} more ")),
    };
    let inner = draw_frame(Line::from(format!(" Output: {name} ")), below, theme, frame, area);
    let rows = run.shown().rows(usize::from(inner.width), usize::from(inner.height));
    let lines: Vec<Line<'_>> =
        rows.into_iter().map(|(kind, text)| Line::styled(text, theme.line(kind))).collect();
    frame.render_widget(Paragraph::new(lines), inner);
}

fn draw_pager(pager: &Pager, theme: Theme, frame: &mut Frame<'_>, area: Rect) {
    let (names, chosen) = pager.names();
    let name = names.get(chosen).copied().unwrap_or_default();
    let title = format!(" Full log: {name} ({}/{}) ", chosen + 1, names.len());
    let inner = draw_frame(Line::from(title), Some(format!(" {}% ", pager.percent())), theme, frame, area);
    let lines: Vec<Line<'_>> = match pager.problem() {
        Some(problem) => wrap(problem, usize::from(inner.width))
            .into_iter()
            .map(|piece| Line::styled(piece.to_owned(), theme.of(Style::Bad)))
            .collect(),
        None => pager.rows().iter().map(|row| Line::from(row.text.as_str())).collect(),
    };
    frame.render_widget(Paragraph::new(lines), inner);
}

/// Returns a number of bytes as people read it.
fn bytes(count: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    if count < 1024 {
        return format!("{count} B");
    }
    let (mut rest, mut unit) = (count as f64 / 1024.0, 0);
    while rest >= 1024.0 && unit + 1 < UNITS.len() {
        rest /= 1024.0;
        unit += 1;
    }
    format!("{rest:.1} {}", UNITS[unit])
}
