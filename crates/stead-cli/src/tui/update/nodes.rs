//! The Nodes view.

use crate::tui::key::Key;
use crate::tui::state::{Intent, State};

/// Looks at nodes.
pub(super) fn look(state: &mut State) -> Vec<Intent> {
    state.nodes.pace.ask(state.now);
    vec![Intent::LookAtNodes]
}

/// Takes a key of the view.
pub(super) fn press(state: &mut State, key: Key) -> Vec<Intent> {
    let page = state.page_rows();
    if let Some(open) = &mut state.nodes.open {
        match key {
            Key::Up | Key::Char('k') => open.scroll.by(-1),
            Key::Down | Key::Char('j') => open.scroll.by(1),
            Key::Char('r') => {
                let place = open.place.clone();
                return look(state).into_iter().chain([Intent::AskNode(place)]).collect();
            }
            other => drop(open.scroll.page(other)),
        }
        return Vec::new();
    }
    match key {
        Key::Char('r') => look(state),
        Key::Enter => state.nodes.open().map(Intent::AskNode).into_iter().collect(),
        _ => {
            state.nodes.step(key, page);
            Vec::new()
        }
    }
}
