//! The Fleet view.

use crate::tui::key::Key;
use crate::tui::state::{Intent, State};

/// Asks the fleet's master.
pub(super) fn ask(state: &mut State) -> Vec<Intent> {
    state.fleet.pace.ask(state.now);
    vec![Intent::AskFleet]
}

/// Takes a key of the view.
pub(super) fn press(state: &mut State, key: Key) -> Vec<Intent> {
    let page = state.page_rows();
    if let Some(open) = &mut state.fleet.open {
        match key {
            Key::Up | Key::Char('k') => open.scroll.by(-1),
            Key::Down | Key::Char('j') => open.scroll.by(1),
            Key::Char('r') => {
                let explained = open.explained.as_ref().map(|_| open.place.name.clone());
                return ask(state).into_iter().chain(explained.map(Intent::ExplainInstance)).collect();
            }
            other => drop(open.scroll.page(other)),
        }
        return Vec::new();
    }
    match key {
        Key::Char('r') => ask(state),
        Key::Enter => state.fleet.open().map(Intent::ExplainInstance).into_iter().collect(),
        _ => {
            state.fleet.step(key, page);
            Vec::new()
        }
    }
}
