//! The list of a run's tasks: what is at the cursor is told in full, and its output is read.

use super::{read_output, run};
use crate::tui::key::Key;
use crate::tui::scroll::moved;
use crate::tui::state::{Intent, State};

/// Takes a key while the list is open.
pub(super) fn press(state: &mut State, key: Key) -> Vec<Intent> {
    let page = (state.page_rows() / 2).max(1);
    let Some(run) = state.watched_mut() else { return Vec::new() };
    let Some(tasks) = &run.tasks else { return Vec::new() };
    let rows = tasks.branches(run);
    let at = tasks.at(rows.len());
    match key {
        Key::Enter | Key::Char('l') => match rows.get(at).and_then(|row| row.output(run)) {
            Some(place) => {
                let reads = read_output(run.key, run.choose_role(place));
                reads.into_iter().chain(run::open_pager(state)).collect()
            }
            None => {
                state.notice = Some("it wrote nothing that is in this record".to_owned());
                Vec::new()
            }
        },
        Key::Left | Key::Right => {
            if let Some(tasks) = &mut run.tasks {
                tasks.scroll.by(if key == Key::Left { -1 } else { 1 });
            }
            Vec::new()
        }
        _ => {
            let to = moved(at, rows.len(), key, page);
            if to != at
                && let Some(tasks) = &mut run.tasks
            {
                tasks.go(to);
            }
            look(state)
        }
    }
}

/// Reads what the row at the cursor wrote, if the list is open.
pub(super) fn look(state: &mut State) -> Vec<Intent> {
    let Some(run) = state.watched_mut() else { return Vec::new() };
    let Some(tasks) = &run.tasks else { return Vec::new() };
    let rows = tasks.branches(run);
    let output = rows.get(tasks.at(rows.len())).and_then(|row| row.output(run));
    match output {
        Some(place) => read_output(run.key, run.choose_role(place)),
        None => Vec::new(),
    }
}
