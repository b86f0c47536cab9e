//! The fleet: how far it is, what is not as it should be, and what there is; one item in full.

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};
use serde_json::Value;
use stead_model::explain;

use super::{Hint, Look, draw_lines, filter_title, labelled, nothing_fits, trouble_lines, typing_hints};
use crate::commands::explain::to_text;
use crate::commands::fleet::shown;
use crate::output::{Paint, Style};
use crate::render::text::counted;
use crate::render::{one_line, visible};
use crate::tui::fleet::{Item, Opened, Section};
use crate::tui::scroll::{Scroll, columns, fit};
use crate::tui::state::State;
use crate::tui::theme::Theme;

/// How wide the names of what is told are.
const LABELS: usize = 18;

/// Draws the view.
pub(super) fn draw(state: &State, theme: Theme, frame: &mut Frame<'_>, area: Rect) -> Vec<Hint> {
    let width = usize::from(area.width.saturating_sub(2));
    if let Some(open) = &state.fleet.open {
        let lines = match state.fleet.opened() {
            Some(item) => detail(item, open, state, width, theme),
            None => vec![Line::styled("it is not there any more", theme.of(Style::Warn))],
        };
        let title = format!(" {} {} ", one_of(open.place.section), open.place.name);
        draw_lines(Line::from(title), lines, &Look::At(&open.scroll), theme, frame, area);
        return vec![("↑↓", "scroll"), ("r", "ask again"), ("Esc", "back"), ("?", "help")];
    }
    let (lines, at) = list(state, width, theme);
    let name = state.fleet.status.as_ref().map(|status| shown::text(status, "fleet")).unwrap_or_default();
    let name = if name.is_empty() { String::new() } else { format!("{} ", one_line(name)) };
    let waits = state.fleet.pace.waiting_seconds(state.now);
    let waits = waits.map_or_else(String::new, |seconds| format!("asking for {seconds} s… "));
    let title = format!(" Fleet {name}{}{waits}", filter_title(&state.fleet.filter));
    draw_lines(Line::from(title), lines, &Look::Around(&Scroll::default(), at), theme, frame, area);
    if state.fleet.filter.is_typing() {
        return typing_hints();
    }
    vec![
        ("↑↓", "move"),
        ("Enter", "open"),
        ("/", "filter"),
        ("r", "ask again"),
        ("Esc", "Runs"),
        ("Tab", "Orchestration"),
        ("?", "help"),
    ]
}

/// Returns what one item of a part is called.
const fn one_of(section: Section) -> &'static str {
    match section {
        Section::Wrong | Section::Instances => "Instance",
        Section::Groups => "Group",
        Section::Rollouts => "Rollout of",
        Section::Workers => "Worker",
    }
}

/// Returns the lines of the list, and which is at the cursor.
fn list(state: &State, width: usize, theme: Theme) -> (Vec<Line<'static>>, usize) {
    let fleet = &state.fleet;
    let dim = theme.of(Style::Dim);
    let mut lines: Vec<Line<'static>> =
        fleet.trouble.iter().flat_map(|trouble| trouble_lines(trouble, width, theme)).collect();
    let Some(status) = &fleet.status else {
        if lines.is_empty() {
            lines.push(Line::styled("asking the fleet's master…", dim));
        }
        return (lines, 0);
    };
    if !lines.is_empty() {
        lines.push(Line::styled(" what was told before that:", dim));
    }
    let looks = [theme.word(shown::text(status, "state")), theme.of(Style::Warn)];
    for (i, said) in shown::head(status, Paint::None).lines().enumerate() {
        lines.extend(labelled(" ", &visible(said), width, 1, looks[i.min(1)]));
    }
    let items = fleet.shown();
    if items.is_empty() && !fleet.filter.is_empty() {
        lines.push(nothing_fits(&fleet.filter, theme));
    }
    let all_well = "every instance is as it should be";
    if !items.iter().any(|item| item.section == Section::Wrong) && fleet.filter.is_empty() {
        lines.push(Line::styled(format!(" {all_well}"), dim));
    }
    let (mut at, mut before) = (0, None);
    let names = items.iter().map(|item| columns(item.name())).max().unwrap_or(0).min(width / 3).max(8);
    for (i, item) in items.iter().enumerate() {
        if before != Some(item.section) {
            let count = items.iter().filter(|other| other.section == item.section).count();
            lines.push(Line::styled(format!(" {} ({count})", item.section.title()), theme.of(Style::Strong)));
            before = Some(item.section);
        }
        let is_chosen = i == fleet.at();
        // What stands above the first item is to be seen with it.
        if is_chosen && i > 0 {
            at = lines.len();
        }
        lines.push(row(*item, names, width, is_chosen, theme));
        let why = item.why();
        if item.section == Section::Wrong || (!why.is_empty() && item.section == Section::Rollouts) {
            lines.extend(labelled("", &why, width, 5, dim));
        }
    }
    (lines, at)
}

fn row(item: Item<'_>, names: usize, width: usize, is_chosen: bool, theme: Theme) -> Line<'static> {
    let word = item.word();
    let name = fit(&one_line(item.name()), names);
    let pad = " ".repeat(names.saturating_sub(columns(&name)));
    let left = width.saturating_sub(names + 3 + 15);
    let line = Line::from(vec![
        Span::raw(format!("   {name}{pad} ")),
        Span::styled(format!("{word:<14}"), theme.word(&word)),
        Span::raw(fit(&beside(item), left)),
    ]);
    if is_chosen { line.style(theme.cursor()) } else { line }
}

/// Returns what is told of an item behind its state.
fn beside(item: Item<'_>) -> String {
    let told = item.told;
    let text = |key: &str| one_line(shown::text(told, key));
    match item.section {
        Section::Wrong | Section::Instances => {
            let worker = text("worker");
            if worker.is_empty() { "on no worker".to_owned() } else { format!("on {worker}") }
        }
        Section::Workers => {
            let instances = counted(shown::number(told, "instances"), "instance");
            [instances, item.why()].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("  ")
        }
        Section::Rollouts => {
            format!("{} of {}", shown::number(told, "updated"), shown::number(told, "total"))
        }
        Section::Groups => {
            let active = told.get("active").unwrap_or(&Value::Null);
            let commit: String = shown::text(active, "commit").chars().take(12).collect();
            let generation = match shown::number(active, "generation") {
                0 => String::new(),
                generation => format!("generation {generation} at {commit}"),
            };
            // That what is active is what runs goes without saying.
            let why = if item.word() == "active" { String::new() } else { item.why() };
            [generation, why].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("  ")
        }
    }
}

/// Returns everything that is known of an item.
fn detail(item: Item<'_>, open: &Opened, state: &State, width: usize, theme: Theme) -> Vec<Line<'static>> {
    let plain = ratatui::style::Style::new();
    let mut lines = Vec::new();
    let word = item.word();
    lines.extend(labelled(" state", &word, width, LABELS, theme.word(&word)));
    let why = item.why();
    if !why.is_empty() {
        lines.extend(labelled(" why", &why, width, LABELS, theme.of(Style::Warn)));
    }
    for (name, text) in known(item.told) {
        lines.extend(labelled(&format!(" {name}"), &text, width, LABELS, plain));
    }
    if item.section == Section::Workers {
        let here = |told: &&Value| shown::text(told, "worker") == item.name();
        let instances = state.fleet.status.iter().flat_map(|status| shown::list(status, "instances"));
        for (i, told) in instances.filter(here).enumerate() {
            let one = Item { section: Section::Instances, told };
            let label = if i == 0 { " has" } else { "" };
            let text = format!("{} {}", one.name(), one.word());
            lines.extend(labelled(label, &one_line(&text), width, LABELS, plain));
        }
    }
    if matches!(item.section, Section::Wrong | Section::Instances) {
        lines.push(Line::default());
        match &open.explained {
            None => lines.push(Line::styled(" asking why it is there…", theme.of(Style::Dim))),
            Some(Ok(said)) => {
                lines.extend(said.iter().flat_map(|line| labelled(" ", line, width, 1, plain)));
            }
            Some(Err(trouble)) => lines.extend(trouble_lines(trouble, width, theme)),
        }
    }
    if let Some(known) = item.code().and_then(|code| explain::find(code).into_iter().next()) {
        lines.push(Line::default());
        lines.extend(to_text(&known).lines().flat_map(|line| labelled(" ", line.trim(), width, 1, plain)));
    }
    lines
}

/// Returns what a status tells of an item, by name, without what stands elsewhere.
fn known(told: &Value) -> Vec<(String, String)> {
    const ELSEWHERE: [&str; 6] = ["state", "code", "message", "why", "key", "id"];
    let mut known = Vec::new();
    for (name, value) in told.as_object().into_iter().flatten() {
        if ELSEWHERE.contains(&name.as_str()) || value.is_null() {
            continue;
        }
        let text = match value.as_object() {
            Some(parts) => {
                let parts = parts.iter().filter(|(_, value)| !value.is_null());
                parts.map(|(key, value)| format!("{key} {}", words(value))).collect::<Vec<_>>().join(", ")
            }
            None => words(value),
        };
        known.push((name.replace('_', " "), text));
    }
    known.retain(|(_, text)| !text.is_empty());
    known
}

/// Returns a value as people read it.
fn words(value: &Value) -> String {
    match value {
        Value::String(text) => one_line(text),
        Value::Bool(true) => "yes".to_owned(),
        Value::Bool(false) => "no".to_owned(),
        Value::Array(items) => items.iter().map(scalar).collect::<Vec<_>>().join(", "),
        Value::Null | Value::Number(_) | Value::Object(_) => scalar(value),
    }
}

fn scalar(value: &Value) -> String {
    value.as_str().map_or_else(|| one_line(&value.to_string()), one_line)
}
