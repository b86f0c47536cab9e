//! The nodes of the site, as a tree by host and manifest; one of them in full.

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};
use stead_model::explain;
use stead_model::node::wire::NodeStatus;

use super::{Hint, Look, draw_lines, filter_title, labelled, nothing_fits, trouble_lines, typing_hints};
use crate::commands::explain::to_text;
use crate::output::Style;
use crate::render::one_line;
use crate::tui::nodes::{Node, Opened};
use crate::tui::scroll::{Scroll, columns, fit};
use crate::tui::state::State;
use crate::tui::theme::Theme;

/// How wide the names of what is told are.
const LABELS: usize = 14;
/// Deeper nodes stand where these do.
const DEEPEST: usize = 8;
/// How many reports of a node are told, the newest first.
const MOST_REPORTS: usize = 5;

/// Draws the view.
pub(super) fn draw(state: &State, theme: Theme, frame: &mut Frame<'_>, area: Rect) -> Vec<Hint> {
    let width = usize::from(area.width.saturating_sub(2));
    if let Some(open) = &state.nodes.open {
        let lines = match state.nodes.opened() {
            Some(node) => detail(node, open, width, theme),
            None => vec![Line::styled("this node is not known any more", theme.of(Style::Warn))],
        };
        let title = format!(" Node {} ", open.place.node);
        draw_lines(Line::from(title), lines, &Look::At(&open.scroll), theme, frame, area);
        return vec![("↑↓", "scroll"), ("r", "look again"), ("Esc", "back"), ("?", "help")];
    }
    let (lines, at) = list(state, width, theme);
    let shown = state.nodes.shown();
    let count = match shown.len() {
        0 => String::new(),
        count => format!("({}/{count}) ", state.nodes.at() + 1),
    };
    let waits = state.nodes.pace.waiting_seconds(state.now);
    let waits = waits.map_or_else(String::new, |seconds| format!("looking for {seconds} s… "));
    let title = format!(" Nodes {count}{}{waits}", filter_title(&state.nodes.filter));
    draw_lines(Line::from(title), lines, &Look::Around(&Scroll::default(), at), theme, frame, area);
    if state.nodes.filter.is_typing() {
        return typing_hints();
    }
    vec![
        ("↑↓", "move"),
        ("Enter", "open"),
        ("/", "filter"),
        ("r", "look again"),
        ("Tab", "Fleet"),
        ("Esc", "Runs"),
        ("?", "help"),
    ]
}

/// Returns the lines of the list, and which is at the cursor.
fn list(state: &State, width: usize, theme: Theme) -> (Vec<Line<'static>>, usize) {
    let nodes = &state.nodes;
    let dim = theme.of(Style::Dim);
    let mut lines: Vec<Line<'static>> =
        nodes.trouble.iter().flat_map(|trouble| trouble_lines(trouble, width, theme)).collect();
    let Some(seen) = &nodes.seen else {
        if lines.is_empty() {
            lines.push(Line::styled("looking at the nodes of the site…", dim));
        }
        return (lines, 0);
    };
    if !lines.is_empty() {
        lines.push(Line::styled(" what was seen before that:", dim));
    }
    for problem in &seen.problems {
        lines.extend(labelled(" ", problem, width, 1, theme.of(Style::Bad)));
    }
    if seen.nodes.is_empty() {
        let manifests = match seen.manifests.as_slice() {
            [] => "this site has no manifests".to_owned(),
            names => format!("manifests of this site: {}", names.join(", ")),
        };
        lines.extend(labelled(
            "",
            "no nodes are known: `stead create -M MANIFEST -H HOST` makes some",
            width,
            0,
            dim,
        ));
        lines.extend(labelled("", &manifests, width, 0, dim));
        return (lines, 0);
    }
    let shown = nodes.shown();
    if shown.is_empty() {
        lines.push(nothing_fits(&nodes.filter, theme));
    }
    let (mut at, mut before) = (0, None);
    for (i, (depth, node)) in shown.iter().enumerate() {
        let (host, manifest) = (node.place.host.as_str(), node.place.manifest.as_str());
        if before.is_none_or(|(last, _)| last != host) {
            lines.push(Line::styled(format!(" host {host}"), theme.of(Style::Strong)));
        }
        if before != Some((host, manifest)) {
            lines.push(Line::styled(format!("   manifest {manifest}"), theme.of(Style::Strong)));
        }
        before = Some((host, manifest));
        let is_chosen = i == nodes.at();
        if is_chosen {
            at = lines.len();
        }
        let indent = 5 + 2 * (*depth).min(DEEPEST);
        lines.push(row(node, indent, width, is_chosen, theme));
        if let Some(why) = &node.why {
            let code = node.code.as_ref().map_or_else(String::new, |code| format!("{code}: "));
            lines.extend(labelled("", &format!("{code}{why}"), width, indent + 2, dim));
        }
    }
    (lines, at)
}

fn row(node: &Node, indent: usize, width: usize, is_chosen: bool, theme: Theme) -> Line<'static> {
    let mode = format!(" {:<7}", fit(&node.mode, 6));
    let status = format!("{:<10}", fit(&node.status, 9));
    let machine = format!("{:<8}", fit(&node.machine, 7));
    let word = format!("{:<14}", node.word());
    let address = node.address.clone().unwrap_or_default();
    let is_wide = width >= 60;
    let beside = columns(&mode) + columns(&word) + if is_wide { 10 + 8 } else { 0 };
    let names = width.saturating_sub(beside + indent + if is_wide { 18 } else { 0 }).max(6);
    let name = fit(&node.place.node, names);
    let pad = " ".repeat(names.saturating_sub(columns(&name)));
    let mut spans = vec![Span::raw(format!("{}{name}{pad}", " ".repeat(indent))), Span::raw(mode)];
    if is_wide {
        spans.push(Span::styled(status, theme.word(&node.status)));
        spans.push(Span::styled(machine, theme.word(&node.machine)));
    }
    spans.push(Span::styled(word, theme.word(node.word())));
    spans.push(Span::raw(address));
    let line = Line::from(spans);
    if is_chosen { line.style(theme.cursor()) } else { line }
}

/// Returns everything that is known of a node.
fn detail(node: &Node, open: &Opened, width: usize, theme: Theme) -> Vec<Line<'static>> {
    let plain = ratatui::style::Style::new();
    let mut lines = Vec::new();
    let mut tell = |label: &str, text: &str, style| {
        lines.extend(labelled(&format!(" {label}"), text, width, LABELS, style));
    };
    tell("state", &format!("{}, {}", node.word(), node.status), theme.word(node.word()));
    if let Some(why) = &node.why {
        tell("why", why, theme.of(Style::Warn));
    }
    tell("mode", &node.mode, plain);
    tell("machine", &node.machine, theme.word(&node.machine));
    tell("address", node.address.as_deref().unwrap_or("not known"), plain);
    tell("host", &node.place.host, plain);
    tell("manifest", &node.place.manifest, plain);
    tell("agent", &node.agent, theme.word(&node.agent));
    match &open.told {
        None => tell("reports", "asking the server of its level…", theme.of(Style::Dim)),
        Some(Ok(None)) => tell("reports", "none: its level has no server", theme.of(Style::Dim)),
        Some(Ok(Some(status))) => {
            for (i, text) in reports(status).iter().enumerate() {
                tell(if i == 0 { "reports" } else { "" }, text, plain);
            }
        }
        Some(Err(trouble)) => {
            let text = trouble.lines.iter().chain(&trouble.hints).cloned().collect::<Vec<_>>().join("; ");
            tell("reports", &text, theme.of(Style::Bad));
        }
    }
    for (name, text) in &node.known {
        tell(name, text, plain);
    }
    if let Some(known) = node.code.as_deref().and_then(|code| explain::find(code).into_iter().next()) {
        lines.push(Line::default());
        lines.extend(to_text(&known).lines().flat_map(|line| labelled(" ", line.trim(), width, 1, plain)));
    }
    lines
}

/// Returns the newest reports of a node, a line each.
fn reports(status: &NodeStatus) -> Vec<String> {
    let newest = status.reports.iter().rev().take(MOST_REPORTS);
    let mut lines: Vec<String> = newest
        .map(|stored| {
            let told = serde_json::to_value(&stored.report).unwrap_or_default();
            let word =
                |key: &str| told.get(key).and_then(serde_json::Value::as_str).unwrap_or("-").to_owned();
            let error = stored.report.error.as_deref().map(|error| format!(": {}", one_line(error)));
            let changed = format!(", {} changed", stored.report.changed);
            format!("{} {} {}{changed}{}", stored.at, word("kind"), word("status"), error.unwrap_or_default())
        })
        .collect();
    if lines.is_empty() {
        lines.push("none: the server of this site has heard nothing of it".to_owned());
    }
    lines
}
