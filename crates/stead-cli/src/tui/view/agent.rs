//! The Agent view: this machine, and the registry.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::text::{Line, Span};
use stead_drivers::agent::{AgentCheck, AgentStatus, Health};
use stead_drivers::doctor::CheckStatus;

use super::{Hint, Look, draw_lines, labelled};
use crate::output::Style;
use crate::render::one_line;
use crate::tui::agents::{CheckState, Registered, Registry};
use crate::tui::scroll::{columns, fit, wrap};
use crate::tui::state::State;
use crate::tui::theme::Theme;

/// How wide the names of what is told are.
const LABELS: usize = 12;

/// Draws the view.
pub(super) fn draw(state: &State, theme: Theme, frame: &mut Frame<'_>, area: Rect) -> Vec<Hint> {
    let width = usize::from(area.width.saturating_sub(2));
    let local = match &state.agents.local {
        Some(status) => local_lines(status, width, theme),
        None => vec![Line::styled("looking at this machine…", theme.of(Style::Dim))],
    };
    let wanted =
        u16::try_from(local.len() + 2).unwrap_or(u16::MAX).min(area.height.saturating_mul(3) / 5).max(5);
    let [above, below] = Layout::vertical([Constraint::Length(wanted), Constraint::Min(3)]).areas(area);
    draw_lines(Line::from(" Agent "), local, &Look::At(&state.agents.scroll), theme, frame, above);
    let (registry, at) = registry_lines(state, width, theme);
    let scroll = &state.agents.registry_scroll;
    let look = if state.agents.follows { Look::Around(scroll, at) } else { Look::At(scroll) };
    draw_lines(Line::from(" Registry "), registry, &look, theme, frame, below);
    vec![
        ("↑↓", "move"),
        ("c", "check"),
        ("C", "all"),
        ("PgUp PgDn", "scroll"),
        ("Tab", "Controller"),
        ("Esc", "back"),
        ("?", "help"),
    ]
}

fn local_lines(status: &AgentStatus, width: usize, theme: Theme) -> Vec<Line<'static>> {
    let plain = ratatui::style::Style::new();
    let mut lines = Vec::new();
    let mut tell = |label: &str, text: &str, style| {
        lines.extend(labelled(&format!(" {label}"), &one_line(text), width, LABELS, style));
    };
    let commit = status.git_commit.as_deref().map_or_else(String::new, |commit| format!(" ({commit})"));
    tell("version", &format!("{}{commit}", status.version), plain);
    tell("system", &format!("{}/{}", status.os, status.arch), plain);
    tell("hostname", status.hostname.as_deref().unwrap_or("unknown"), plain);
    let workdir = &status.workdir;
    let (words, style) = match (&workdir.error, workdir.writable, workdir.exists) {
        (Some(error), _, _) => (error.clone(), theme.of(Style::Bad)),
        (None, true, true) => ("writable".to_owned(), plain),
        (None, true, false) => ("can be made".to_owned(), plain),
        (None, false, _) => ("not writable".to_owned(), theme.of(Style::Bad)),
    };
    tell("workdir", &format!("{} ({words})", workdir.path), style);
    let capture = match (status.pcap_capable, status.pcap_method) {
        (true, Some(method)) => format!("yes ({method})"),
        (true, None) => "yes".to_owned(),
        (false, _) => "no".to_owned(),
    };
    tell("capture", &capture, plain);
    let roles =
        if status.supported_roles.is_empty() { "none".to_owned() } else { status.supported_roles.join(", ") };
    tell("roles", &roles, plain);
    if !status.kits.is_empty() {
        tell("kits", &status.kits.join(", "), plain);
    }
    if status.interfaces.is_empty() {
        tell("interfaces", "none", plain);
    }
    for (i, interface) in status.interfaces.iter().enumerate() {
        let bind = if interface.can_bind { "" } else { " (cannot listen)" };
        let text = format!("{}: {}{bind}", interface.name, interface.addresses.join(", "));
        tell(if i == 0 { "interfaces" } else { "" }, &text, plain);
    }
    lines
}

/// Returns the lines of the registry and which is to be on the screen.
fn registry_lines(state: &State, width: usize, theme: Theme) -> (Vec<Line<'static>>, usize) {
    let dim = theme.of(Style::Dim);
    match &state.agents.registry {
        Registry::Reading => return (vec![Line::styled("reading…", dim)], 0),
        Registry::Problem(problem) => {
            let pieces = problem.lines().flat_map(|line| wrap(line, width));
            return (pieces.map(|piece| Line::styled(piece.to_owned(), theme.of(Style::Bad))).collect(), 0);
        }
        Registry::Agents(agents) if agents.is_empty() => {
            return (vec![Line::styled("no agents: agents.yaml lists them", dim)], 0);
        }
        Registry::Agents(_) => {}
    }
    let agents = state.agents.listed();
    let longest = |text: fn(&Registered) -> &str| agents.iter().map(|agent| columns(text(agent))).max();
    let names = longest(|agent| &agent.name).unwrap_or(0).min(width / 3);
    let transports = longest(|agent| &agent.transport).unwrap_or(0).min(width / 2);
    let (mut lines, mut at) = (Vec::new(), 0);
    for (place, agent) in agents.iter().enumerate() {
        let (word, style) = check_word(&agent.state, theme);
        let description = agent.description.as_deref().map_or_else(String::new, one_line);
        let chosen = place == state.agents.at();
        let head = format!(
            " {:<names$}  {:<transports$}  ",
            fit(&agent.name, names),
            fit(&agent.transport, transports)
        );
        let line = Line::from(vec![
            Span::raw(head),
            Span::styled(format!("{word:<11}  "), style),
            Span::raw(description),
        ]);
        lines.push(if chosen { line.style(theme.cursor()) } else { line });
        if chosen {
            let told = check_lines(&agent.state, width, theme);
            // What a check said is read from its first line on; the agent's own line stays in sight.
            at = lines.len() - 1 + told.len().min(5);
            lines.extend(told);
        }
    }
    (lines, at)
}

fn check_word(state: &CheckState, theme: Theme) -> (&'static str, ratatui::style::Style) {
    match state {
        CheckState::Unchecked => ("", ratatui::style::Style::new()),
        CheckState::Checking => ("checking…", theme.of(Style::Dim)),
        CheckState::Failed(_) => ("error", theme.of(Style::Bad)),
        CheckState::Checked(check) => match check.health() {
            Health::Ok => ("ok", theme.of(Style::Good)),
            Health::Unreachable => ("unreachable", theme.of(Style::Bad)),
            Health::Error => ("error", theme.of(Style::Bad)),
        },
    }
}

fn check_lines(state: &CheckState, width: usize, theme: Theme) -> Vec<Line<'static>> {
    match state {
        CheckState::Unchecked | CheckState::Checking => Vec::new(),
        CheckState::Failed(problem) => labelled("   ", problem, width, 3, theme.of(Style::Bad)),
        CheckState::Checked(check) => told(check, width, theme),
    }
}

fn told(check: &AgentCheck, width: usize, theme: Theme) -> Vec<Line<'static>> {
    let steps = check.checks.iter().flat_map(|step| {
        let style = match step.status {
            CheckStatus::Pass => theme.of(Style::Good),
            CheckStatus::Fail => theme.of(Style::Bad),
            CheckStatus::Skip => theme.of(Style::Dim),
        };
        let detail =
            step.detail.as_deref().map_or_else(String::new, |detail| format!(": {}", one_line(detail)));
        let label = format!("   [{}] ", step.status.as_str().to_ascii_uppercase());
        labelled(&label, &format!("{}{detail}", step.name), width, columns(&label), style)
    });
    steps.collect()
}
